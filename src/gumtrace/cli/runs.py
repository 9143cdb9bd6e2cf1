"""Where commands that report runs find them."""

import argparse
from pathlib import Path

from gumtrace.experiments import NAMES
from gumtrace.experiments.records import Record, RecordError, collect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=NAMES, help="experiment")
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="folders of runs, recorded files or folders of them (default: results/NAME if there is one, or runs/NAME)",
    )


def read(args: argparse.Namespace) -> list[Record]:
    """The runs of the experiment; that there are none is an error."""
    recorded, trained = Path("results") / args.name, Path("runs") / args.name
    paths = args.paths or [recorded if recorded.exists() else trained]
    there = args.paths or [path for path in paths if path.exists()]
    records = [record for record in collect(there) if record.experiment == args.name]
    if not records:
        raise RecordError(
            f"no run of {args.name} in {', '.join(map(str, paths))}; to train some: "
            f"gumtrace train {args.name} --seeds 0-9 (see gumtrace train {args.name} --help)"
        )
    return records
