"""The subcommands of `gumtrace`: its own, and those that other installed distributions add by an entry point."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

GROUP = "gumtrace.commands"  # of entry points: each is a dictionary of commands by name


@dataclass(frozen=True)
class Command:
    """A subcommand, before it is imported."""

    help: str
    module: str
    """Has `add_arguments(parser)` and `run(args)`; imported when the command is called."""
    interrupted: str = ""
    """What the user should know after Ctrl-C."""


_OWN = {
    "demo": Command("draw one sample of each structure and print its trace", "gumtrace.cli.demo"),
    "explore": Command("step through runs of every structure, on a page in the browser", "gumtrace.cli.explore"),
    "toy": Command("optimise a small problem with every estimator, and compare them", "gumtrace.cli.toy"),
    "warm-up": Command("compile the kernels ahead of their first use", "gumtrace.cli.warm_up"),
    "bench": Command("measure time and memory of every structure", "gumtrace.cli.bench"),
}


def available(more: Mapping[str, Command] | None = None) -> dict[str, Command]:
    """By name: the library's own, which none can replace, then `more`, then those of entry points. Entry points that
    cannot be loaded are reported and left out: the other commands should work without them."""
    found = {**(more or {}), **_OWN}
    for entry in entry_points(group=GROUP):
        try:
            theirs = entry.load()
            if not (isinstance(theirs, Mapping) and all(isinstance(c, Command) for c in theirs.values())):
                raise TypeError(f"{entry.value} is not a dictionary of commands")
        except Exception as error:
            print(f"gumtrace: the commands of {entry.name!r} cannot be loaded: {error}", file=sys.stderr)
        else:
            found = {**theirs, **found}
    return {**_OWN, **found}
