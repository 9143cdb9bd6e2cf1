"""`gumtrace evaluate NAME`: the best checkpoints of runs, on a split of their data or on a file."""

import argparse
import json
import sys
from pathlib import Path

from gumtrace.cli.arguments import device_problem
from gumtrace_experiments.commands.options import experiment
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.data import SharedData
from gumtrace_experiments.loop.evaluation import NeverEvaluated, evaluate
from gumtrace_experiments.registry import is_reference, names
from gumtrace_experiments.store.errors import RunFolderError
from gumtrace_experiments.store.folder import CONFIG, may_be_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = f"experiment ({', '.join(names())}, or any class as module:Class), or a folder of runs"
    parser.add_argument("of", type=_experiment_or_folder, metavar="NAME", help=what)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="folders of runs (default: runs/NAME)")
    items = parser.add_mutually_exclusive_group()
    items.add_argument("--split", default="test", choices=["train", "valid", "test"])
    items.add_argument("--file", type=Path, help="instead of a split: for listops an original file, .tsv or .tsv.xz")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets (default: data)")


def _experiment_or_folder(text: str) -> type[Experiment] | Path:
    return experiment(text) if text in names() or is_reference(text) else Path(text)


def run(args: argparse.Namespace) -> int:
    """One JSON line per run. 0: all that have a model are evaluated; 1: some are; 2: none is."""
    try:
        if problem := device_problem(args.device):
            raise ValueError(problem)
        return _evaluate(find_runs(args.of, args.paths), args)
    except (RunFolderError, ValueError, OSError) as error:
        print(f"gumtrace evaluate: {error}", file=sys.stderr)
        return 2


def _evaluate(found: list[Path], args: argparse.Namespace) -> int:
    shared, done, failed = SharedData(), 0, 0
    items = {"split": args.split} if args.file is None else {"file": str(args.file)}
    for path in found:
        try:
            metrics = evaluate(path, args.split, args.device, args.data, shared, args.file)
        except NeverEvaluated as error:
            print(f"gumtrace evaluate: left out: {error}", file=sys.stderr)
            continue
        except (RunFolderError, ValueError, OSError) as error:  # its data are missing, say: the others may have theirs
            failed += 1
            named = error if str(path) in str(error) else f"{path}: {error}"
            print(f"gumtrace evaluate: left out: {named}", file=sys.stderr)
            continue
        print(json.dumps({"run": str(path), **items, **metrics}))
        done += 1
    return (1 if failed else 0) if done else 2


def find_runs(of: type[Experiment] | Path, paths: list[Path]) -> list[Path]:
    """Folders of the runs of an experiment, or of all runs in folders; an error if there are none."""
    if isinstance(of, Path):
        paths, what = [of, *paths], "run"
    else:
        paths, what = paths or [Path("runs") / of.name], f"run of {of.name}"
    found = [file.parent for path in paths for file in sorted(path.rglob(CONFIG))]
    if not isinstance(of, Path):
        found = [path for path in found if may_be_of(path, of.name)]
    if not found:
        raise RunFolderError(
            f"no {what} in {', '.join(map(str, paths))}: name a folder of runs or an experiment ({', '.join(names())})"
        )
    return found
