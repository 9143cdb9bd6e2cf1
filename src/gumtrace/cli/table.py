"""`gumtrace table NAME`: what runs found, beside what the paper found. Reads only what runs left on disk."""

import argparse
import re
import sys
from pathlib import Path

from gumtrace.cli import runs
from gumtrace.experiments import find
from gumtrace.experiments.groups import given_up
from gumtrace.experiments.records import Record, RecordError, save
from gumtrace.experiments.rendering import markdown, show
from gumtrace.experiments.reporting import report
from gumtrace.experiments.tables import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_arguments(parser)
    parser.add_argument("--format", choices=["text", "markdown"], default="text")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="record the runs in a .jsonl file, to be kept in results/NAME"
    )
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="put the tables between <!-- NAME --> and <!-- /NAME --> of this page"
    )


def run(args: argparse.Namespace) -> int:
    try:
        records = runs.read(args)
        if args.save is not None:
            save(args.save, records)
            print(f"{len(records)} runs in {args.save}", file=sys.stderr)
        _show(records, args)
    except RecordError as error:
        print(f"gumtrace table: {error}", file=sys.stderr)
        return 2
    return 0


def _show(records: list[Record], args: argparse.Namespace) -> None:
    tables, notes = build(records, report(args.name), find(args.name).better)
    notes = [*notes, *given_up(records)]
    if args.into is not None:
        args.into.write_text(with_tables(_page(args.into), args.name, markdown(tables, notes)))
    elif args.format == "markdown":
        print(markdown(tables, notes), end="")
    else:
        show(tables, notes)


def _page(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise RecordError(f"{file}: {error.strerror}; it should be a page to put tables into") from None


def with_tables(page: str, name: str, tables: str) -> str:
    """The page with other tables of that experiment.

    >>> with_tables("<!-- a -->\\nold\\n<!-- /a -->", "a", "new\\n")
    '<!-- a -->\\nnew\\n<!-- /a -->'
    """
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marks.search(page):
        raise RecordError(f"the page has no <!-- {name} --> and <!-- /{name} -->")
    return marks.sub(lambda found: found[1] + tables + found[2], page)
