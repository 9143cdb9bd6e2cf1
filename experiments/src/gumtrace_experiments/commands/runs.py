"""Where commands that report runs find them."""

import argparse
import sys
from pathlib import Path

from gumtrace_experiments.commands.options import add_experiment
from gumtrace_experiments.registry import reference
from gumtrace_experiments.report.records import Record, RecordError, canonical, collect
from gumtrace_experiments.report.times import Times
from gumtrace_experiments.report.times import load as load_times

RECORDED = (Path("results"), Path("experiments") / "results")  # the second: at the root of a checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="folders of runs, recorded files or folders of them (default: results/NAME if there is one, "
        "experiments/results/NAME in a checkout, or runs/NAME)",
    )
    parser.add_argument(
        "--times",
        type=Path,
        metavar="FILE",
        help="clocked updates, to compare estimators at equal time (default: times.json in the folders of runs)",
    )


def read_times(args: argparse.Namespace) -> Times:
    if args.times is not None and not args.times.is_file():
        raise RecordError(f"{args.times} is not a file of times")
    return load_times([args.times] if args.times is not None else _paths(args))


def _recorded(name: str) -> Path | None:
    return next((folder / name for folder in RECORDED if (folder / name).exists()), None)


def _paths(args: argparse.Namespace) -> list[Path]:
    name = args.experiment.name
    return args.paths or [_recorded(name) or Path("runs") / name]


def read(args: argparse.Namespace, whole: bool = False) -> tuple[list[Record], int]:
    """The runs of the experiment, and an exit status: 1 if others are damaged, which are named and left out. An error
    if there are none, and if one is damaged where they are wanted as a whole."""
    name = args.experiment.name
    trained, recorded, paths = Path("runs") / name, _recorded(name), _paths(args)
    there = args.paths or [path for path in paths if path.exists()]
    left_out: list[Exception] = []
    records = collect(there, left_out, experiment=name)
    if left_out and (whole or not records):
        raise left_out[0]
    for error in left_out:
        print(f"gumtrace {args.command}: left out: {error}", file=sys.stderr)
    if not records:
        raise RecordError(
            f"no run of {name} in {', '.join(map(str, paths))}; to train some: "
            f"gumtrace train {(given := reference(args.experiment))} --seeds 0-9 (see gumtrace train {given} --help)"
        )
    if recorded and not args.paths:
        _report_hidden(records, name, recorded, trained)
    return records, int(bool(left_out))


def _report_hidden(shown: list[Record], name: str, recorded: Path, trained: Path) -> None:
    """Own runs that recorded ones hide. One that was itself recorded is shown, and one of the same config is not."""
    try:
        own = collect([trained], experiment=name) if trained.exists() else []
    except (RecordError, OSError) as error:  # they were not asked for
        print(f"from {recorded}; {trained} is not shown, and cannot be read: {error}", file=sys.stderr)
        return
    known = {(record.key, canonical(record.result or {})) for record in shown}
    if hidden := sum((record.key, canonical(record.result or {})) not in known for record in own):
        has = "1 run that is" if hidden == 1 else f"{hidden} runs that are"
        print(f"from {recorded}; {trained} has {has} not shown: give it as PATH", file=sys.stderr)
