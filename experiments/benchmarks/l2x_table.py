"""Train the whole table of learning to explain on movie reviews: two models, three k, every estimator and relaxation,
the baselines.

    python experiments/benchmarks/l2x_table.py --data FOLDER --device cuda --jobs 8

starts `gumtrace train` for each setting, with its seeds side by side, several at a time. What was interrupted is
resumed by the same command, and what is finished is skipped. `--list` prints the commands. In the end

    gumtrace table l2x runs/l2x --save experiments/results/l2x/movie-reviews.jsonl
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from kset_contest import rivals  # beside this file

from gumtrace_experiments.l2x.experiment import BASELINES, KINDS, MODELS
from gumtrace_experiments.l2x.paper import SIZES


def estimators() -> list[str]:
    return [*rivals(), *BASELINES]


def settings(chosen: Sequence[str]) -> Iterator[list[str]]:
    """Options of `gumtrace train l2x` for each row of each table, of these estimators and baselines."""
    rows = [["--estimator", name] for name in estimators()]
    rows = [row + ["--no-learn-temperature"] * (row[1] == "REBAR") for row in rows]
    rows += [["--estimator", "StochasticSoftmax", "--kind", kind] for kind in KINDS[1:]]  # the first is the default
    rows += [["--estimator", "IMLE", "--adaptive"]]
    rows = [row for row in rows if row[1] in chosen]
    for model in MODELS:
        for size in SIZES:
            for row in rows:
                # What is shown depends neither on the encoder nor, in full, on k: but tables are to be complete.
                yield [*row, "--model", model, "--chosen", str(size)]


def commands(args: argparse.Namespace, more: list[str]) -> list[list[str]]:
    shared = ["--data", args.data, "--device", args.device, "--seeds", args.seeds, *more]
    shared += ["--graph"] * (args.device != "cpu")
    program = [sys.executable, "-m", "gumtrace_experiments", "train", "l2x"]
    return [[*program, *row, "--lr", lr, *shared] for lr in args.lrs.split(",") for row in settings(args.estimators)]


def run(command: list[str]) -> int:
    """One thread for each: the device has the work."""
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    last = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1:]
    print(f"{'failed' if done.returncode else 'done'}: {shlex.join(command[4:])}: {' '.join(last)}", flush=True)
    return done.returncode


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="folder of the reviews and the vectors (default: data)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", default="0-4", help="side by side in one process (default: 0-4)")
    parser.add_argument("--lrs", default="5e-3", help="learning rates to try, with commas between (default: 5e-3)")
    parser.add_argument("--estimators", nargs="+", choices=estimators(), default=estimators(), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the commands, and start none")
    args, more = parser.parse_known_args(argv)  # other options are those of `gumtrace train`
    found = commands(args, more)
    if args.list:
        print("\n".join(map(shlex.join, found)))
        return 0
    with ThreadPoolExecutor(args.jobs) as pool:
        return int(any(list(pool.map(run, found))))


if __name__ == "__main__":
    sys.exit(main())
