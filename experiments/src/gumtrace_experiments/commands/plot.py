"""`gumtrace plot NAME`: curves of runs, and pictures of what one of them found."""

import argparse
import sys
from pathlib import Path

from gumtrace.cli.arguments import folder_problem, positive
from gumtrace.extras import require
from gumtrace_experiments.commands import runs
from gumtrace_experiments.loop.evaluation import restore
from gumtrace_experiments.report.curves import draw
from gumtrace_experiments.report.records import RecordError
from gumtrace_experiments.store.errors import RunFolderError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    runs.add_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the pictures (default: plots/NAME)")
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        dest="folder",  # `run` is what the command calls
        help="folder of one run: draw what its best model finds instead of curves",
    )
    parser.add_argument("--count", type=positive, default=6, help="with --run: items to draw (default: 6)")
    items = parser.add_mutually_exclusive_group()
    items.add_argument(
        "--split",
        default="test",
        choices=["train", "valid", "test"],
        help="with --run: part of the data to draw (default: test)",
    )
    items.add_argument("--file", type=Path, help="with --run, instead of a split: for listops an original file")
    parser.add_argument("--data", type=Path, default=Path("data"), help="with --run: folder of the data sets")


def run(args: argparse.Namespace) -> int:
    """0: done; 1: done, but some runs are damaged, and left out; 2: nothing can be drawn."""
    require("matplotlib", "plot")
    out = args.out or Path("plots") / args.experiment.name  # other experiments have pictures of the same names
    try:
        files, status = _curves(args, out) if args.folder is None else (_pictures(args, out), 0)
    except (RunFolderError, ValueError, OSError, NotImplementedError) as error:  # the last: it draws no pictures
        print(f"gumtrace plot: {error}", file=sys.stderr)
        return 2
    for file in files:
        print(file)
    return status


def _curves(args: argparse.Namespace, out: Path) -> tuple[list[Path], int]:
    if args.file is not None:
        raise RecordError("--file is for pictures of one run, which --run names")
    records, status = runs.read(args)
    times, metric = runs.read_times(args), args.experiment.selection_metric
    return draw(records, args.experiment.report(), metric, _made(out), times), status


def _pictures(args: argparse.Namespace, out: Path) -> list[Path]:
    if args.paths:
        raise RecordError("PATHs are for curves, and --run is for pictures of one run: one command each")
    model = restore(args.folder, data=args.data, file=args.file, experiment=args.experiment)
    file = "found.png" if args.file is None else f"found-{args.file.name.partition('.')[0]}.png"
    return [model.draw(_made(out) / file, count=args.count, split=args.split)]


def _made(out: Path) -> Path:
    if problem := folder_problem(out, "--out"):
        raise ValueError(problem)
    return out
