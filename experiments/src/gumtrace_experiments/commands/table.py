"""`gumtrace table NAME`: what runs found, beside what the paper found. Reads only what runs left on disk."""

import argparse
import re
import sys
from pathlib import Path

from gumtrace_experiments.commands import runs
from gumtrace_experiments.commands.retraining import command
from gumtrace_experiments.commands.train import Options
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.report import equal_time
from gumtrace_experiments.report.groups import choices, given_up
from gumtrace_experiments.report.records import Record, RecordError, save
from gumtrace_experiments.report.rendering import folded, markdown, show
from gumtrace_experiments.report.tables import Table, build, ranges
from gumtrace_experiments.report.times import Times

AGAIN = "Our rows again"


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
    """0: all runs are shown; 1: some are damaged, and left out; 2: none can be shown."""
    try:
        records, status = runs.read(args, whole=args.save is not None or args.into is not None)
        if args.save is not None:
            save(args.save, records)
            print(f"{len(records)} runs in {args.save}", file=sys.stderr)
        _show(records, runs.read_times(args), args)
    except (RecordError, OSError) as error:
        print(f"gumtrace table: {error}", file=sys.stderr)
        return 2
    return status


def _show(records: list[Record], times: Times, args: argparse.Namespace) -> None:
    if args.into is not None:
        args.into.write_text(
            with_tables(_page(args.into), args.experiment.name, written(records, args.experiment, times)),
            encoding="utf-8",
        )
    elif args.format == "markdown":
        print(written(records, args.experiment, times), end="")
    else:
        tables, notes = _built(records, args.experiment, times)
        show(tables, [*notes, *given_up(records)])
        for line in (f"{AGAIN}:", *again(records, args.experiment)):
            print(f"  {line}")


def _built(records: list[Record], experiment: type[Experiment], times: Times) -> tuple[list[Table], list[str]]:
    report, metric = experiment.report(), experiment.selection_metric
    tables, notes = build(records, report, metric)
    return [*tables, *equal_time.tables(records, report, metric, times)], notes


def written(records: list[Record], experiment: type[Experiment], times: Times) -> str:
    """The tables and the commands, as a part of a page."""
    tables, notes = _built(records, experiment, times)
    block = "\n".join(["```bash", *again(records, experiment), "```"])
    return f"{markdown(tables, [*notes, *given_up(records)])}\n{folded(AGAIN, block)}\n"


def again(records: list[Record], experiment: type[Experiment]) -> list[str]:
    """The commands that train our rows, in their order."""
    found = []
    for choice in choices(records, experiment.report(), experiment.selection_metric):
        if done := choice.group.finished:
            try:
                config = experiment.config_type(**choice.group.setting)
            except (TypeError, ValueError) as error:
                found.append(f"# {choice.family}: not a config of this version: {error}")
                continue
            on_cuda = done[0].machine.get("device", "cpu") != "cpu"
            options = Options(device="cuda", graph=True) if on_cuda else Options()
            seeds = ranges(record.seed for record in done).replace("–", "-").replace(" ", "")
            found.append(command(experiment, config, options, seeds))
    return found


def _page(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise RecordError(f"{file}: {reason}; it should be a page to put tables into") from None


def with_tables(page: str, name: str, tables: str) -> str:
    """The page with other tables of that experiment.

    >>> with_tables("<!-- a -->\\nold\\n<!-- /a -->", "a", "new\\n")
    '<!-- a -->\\nnew\\n<!-- /a -->'
    """
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marks.search(page):
        raise RecordError(f"the page has no <!-- {name} --> and <!-- /{name} -->")
    return marks.sub(lambda found: found[1] + tables + found[2], page)
