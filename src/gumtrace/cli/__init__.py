"""The `gumtrace` command: its own subcommands, and those that other installed distributions add by an entry point."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import NoReturn

import gumtrace
from gumtrace.extras import MissingExtra

GROUP = "gumtrace.commands"  # of entry points: each is a dictionary of commands by name
_INTERRUPTED = 130  # exit status by which shells report a process that SIGINT ended
_MORE = "The distribution gumtrace-experiments adds train, evaluate, sweep, table and plot."


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


class _Parser(argparse.ArgumentParser):
    """Of a subcommand, whose module is imported when it is called and not before."""

    command: Command

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        module = import_module(self.command.module)
        module.add_arguments(self)
        self.set_defaults(run=module.run)
        found, strange = super().parse_known_args(args, namespace)
        if strange:  # the main parser would show its own usage
            self.error(f"unrecognized arguments: {' '.join(strange)}")
        return found, strange


def main(argv: Sequence[str] | None = None, more: Mapping[str, Command] | None = None) -> int:
    """Runs a subcommand, one of the installed ones or of `more`; returns the exit status."""
    found = available(more)
    args = argparse.Namespace()
    try:
        _parser(found).parse_args(argv, args)  # imports the command's module, which takes a while
        return args.run(args) or 0
    except KeyboardInterrupt:
        called = found.get(getattr(args, "command", ""))
        print(f"gumtrace: interrupted{called.interrupted if called else ''}", file=sys.stderr)
        return _INTERRUPTED
    except MissingExtra as error:
        print(f"gumtrace: {error}", file=sys.stderr)
        return 2


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


class _Main(argparse.ArgumentParser):
    """Errors, too, name the distribution that has more commands."""

    def error(self, message: str) -> NoReturn:
        super().error("\n".join(filter(None, [message, self.epilog])))


def _parser(found: Mapping[str, Command]) -> argparse.ArgumentParser:
    epilog = None if "train" in found else _MORE
    parser = _Main(prog="gumtrace", description=gumtrace.__doc__, epilog=epilog, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"gumtrace {gumtrace.__version__}")
    choices = parser.add_subparsers(dest="command", metavar="command", required=True, parser_class=_Parser)
    for name, command in found.items():
        text = command.help
        description = f"{text[0].upper()}{text[1:]}."
        choices.add_parser(name, help=text, description=description, allow_abbrev=False).command = command
    return parser
