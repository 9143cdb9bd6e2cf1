"""`gumtrace table NAME`: what runs found, beside what the paper found. Reads only what runs left on disk."""

import argparse
import sys
from pathlib import Path

from gumtrace.cli import runs
from gumtrace.experiments import find
from gumtrace.experiments.records import RecordError, save
from gumtrace.experiments.rendering import markdown, show
from gumtrace.experiments.reporting import report
from gumtrace.experiments.tables import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_arguments(parser)
    parser.add_argument("--format", choices=["text", "markdown"], default="text")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="record the runs in a .jsonl file, to be kept in results/NAME"
    )


def run(args: argparse.Namespace) -> int:
    try:
        records = runs.read(args)
        if args.save is not None:
            save(args.save, records)
            print(f"{len(records)} runs in {args.save}", file=sys.stderr)
    except RecordError as error:
        print(f"gumtrace table: {error}", file=sys.stderr)
        return 2
    tables, notes = build(records, report(args.name), find(args.name).better)
    if args.format == "markdown":
        print(markdown(tables, notes), end="")
    else:
        show(tables, notes)
    return 0
