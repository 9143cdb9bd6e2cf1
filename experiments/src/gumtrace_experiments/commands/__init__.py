"""The commands that this distribution adds to `gumtrace`, by the entry point `gumtrace.commands`."""

from collections.abc import Sequence

from gumtrace import cli
from gumtrace.cli import Command

COMMANDS = {
    "train": Command(
        "train an experiment, or resume it",
        f"{__name__}.train",
        "; the same command resumes from the last evaluation",
    ),
    "evaluate": Command("the best models of runs, on a split of their data", f"{__name__}.evaluate"),
    "sweep": Command(
        "search for the best settings of an experiment, or resume the search",
        f"{__name__}.sweep",
        "; the same command resumes it",
    ),
    "table": Command("what runs found, beside what the paper found", f"{__name__}.table"),
    "plot": Command("curves of runs, and pictures of what one of them found", f"{__name__}.plot"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The `gumtrace` command, with these whether or not the distribution is installed."""
    return cli.main(argv, COMMANDS)
