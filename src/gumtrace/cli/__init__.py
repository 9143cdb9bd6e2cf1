"""The `gumtrace` command. Each subcommand is a module with `add_arguments(parser)` and `run(args)`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn

import gumtrace
from gumtrace.cli.commands import Command, available
from gumtrace.extras import MissingExtra

_INTERRUPTED = 130  # exit status by which shells report a process that SIGINT ended
_MORE = "The distribution gumtrace-experiments adds train, evaluate, sweep, table and plot."


class _Parser(argparse.ArgumentParser):
    """Of a subcommand, whose module is imported when it is called and not before."""

    command: Command

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        module = import_module(self.command.module)
        module.add_arguments(self)
        self.set_defaults(run=module.run)
        return super().parse_known_args(args, namespace)


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


class _Main(argparse.ArgumentParser):
    """Errors, too, name the distribution that has more commands."""

    def error(self, message: str) -> NoReturn:
        super().error("\n".join(filter(None, [message, self.epilog])))


def _parser(found: Mapping[str, Command]) -> argparse.ArgumentParser:
    epilog = None if "train" in found else _MORE
    parser = _Main(prog="gumtrace", description=gumtrace.__doc__, epilog=epilog)
    parser.add_argument("--version", action="version", version=f"gumtrace {gumtrace.__version__}")
    choices = parser.add_subparsers(dest="command", metavar="command", required=True, parser_class=_Parser)
    for name, command in found.items():
        text = command.help
        choices.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.").command = command
    return parser
