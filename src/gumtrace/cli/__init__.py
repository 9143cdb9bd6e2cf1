"""The `gumtrace` command. Each subcommand is a module with `add_arguments(parser)` and `run(args)`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import gumtrace
from gumtrace.extras import MissingExtra

_COMMANDS = {
    "demo": "draw one of each structure, and tell how it came about",
    "explore": "step through runs of every structure, on a page in the browser",
    "toy": "optimise a small problem with every estimator, and compare them",
    "bench": "time every structure, and say how much memory it takes",
    "train": "run an experiment of the paper, or go on with it",
    "evaluate": "the best models of runs, on a split of their data",
    "sweep": "search for the best settings of an experiment, or go on searching",
    "table": "what runs found, beside what the paper found",
    "plot": "curves of runs, and pictures of what one of them found",
}

_GOES_ON = {  # after Ctrl-C
    "train": "; the same command goes on from the last evaluation",
    "sweep": "; the same command goes on with it",
}
_INTERRUPTED = 130  # what shells say of a process that SIGINT ended


class _Command(argparse.ArgumentParser):
    """The parser of a subcommand, whose module is imported when it is called and not before."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        module = import_module(f"gumtrace.cli.{self.prog.split()[-1]}")
        module.add_arguments(self)
        self.set_defaults(run=module.run)
        return super().parse_known_args(args, namespace)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gumtrace", description=gumtrace.__doc__)
    parser.add_argument("--version", action="version", version=f"gumtrace {gumtrace.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True, parser_class=_Command)
    for name, what in _COMMANDS.items():
        commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    args = argparse.Namespace()
    try:
        parser.parse_args(argv, args)  # imports the command's module, which takes a while
        return args.run(args) or 0
    except KeyboardInterrupt:
        print(f"gumtrace: interrupted{_GOES_ON.get(getattr(args, 'command', ''), '')}", file=sys.stderr)
        return _INTERRUPTED
    except MissingExtra as error:
        print(f"gumtrace: {error}", file=sys.stderr)
        return 2
