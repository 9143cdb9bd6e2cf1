"""`gumtrace evaluate FOLDER ...`: the best checkpoints of runs, on a split of their data."""

import argparse
import json
import sys
from pathlib import Path

from gumtrace.experiments import evaluate
from gumtrace.experiments.folder import RunFolderError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a run, or of several")
    parser.add_argument("--split", default="test", choices=["train", "valid", "test"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets (default: data)")


def run(args: argparse.Namespace) -> int:
    """One JSON line a run."""
    found = [path.parent for folder in args.folders for path in sorted(folder.rglob("config.json"))]
    if not found:
        print(f"gumtrace evaluate: no run in {', '.join(map(str, args.folders))}", file=sys.stderr)
        return 2
    for path in found:
        try:
            metrics = evaluate(path, args.split, args.device, args.data)
        except RunFolderError as error:
            print(f"gumtrace evaluate: {error}", file=sys.stderr)
            return 2
        print(json.dumps({"run": str(path), "split": args.split, **metrics}))
    return 0
