"""Train every row of both experiments with parentheses: all numbers of types, orders and seeds; and clock them.

    python experiments/benchmarks/parentheses_table.py --data FOLDER --device cuda --jobs 5

starts `gumtrace train` for each setting, with its seeds side by side, several at a time. What was interrupted is
resumed by the same command, and what is finished is skipped. `--list` prints the commands. Then one setting of each
experiment is clocked alone: an update, and how long it takes to write the sequences that shares are counted of. The
times are in runs/parentheses-times.json. In the end, for both experiments,

    gumtrace table parentheses-tree runs/parentheses-tree --save experiments/results/parentheses-tree/all-types.jsonl
    gumtrace plot parentheses-tree runs/parentheses-tree
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import updates  # beside this file
from l2x_table import run

from gumtrace.benchmark import machine
from gumtrace_experiments import find, names
from gumtrace_experiments.loop.precision import precision
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.parentheses.evaluation import write_unique
from gumtrace_experiments.parentheses.orders import FIXED, ORDERS

EXPERIMENTS = tuple(name for name in ("parentheses-tree", "parentheses-insertion") if name in names())
TYPES = (10, 20, 30, 40, 50)
ESTIMATORS = ("RELAX", "TraceREINFORCE")  # the paper's, and ours beside it
PAPER = (*FIXED, "semi-supervised")  # orders
TIMES = Path("runs") / "parentheses-times.json"
LEARNED = 500  # updates before sequences are written: an untrained model does not come to an end


def settings() -> Iterator[list[str]]:
    """The experiment and options of `gumtrace train` for each row of each table: first the paper's orders, for all
    types in both experiments, and last those without supervision, which it does not have."""
    for orders in (PAPER, [order for order in ORDERS if order not in PAPER]):
        for types in TYPES:
            for name in EXPERIMENTS:
                for order in orders:
                    for estimator in ESTIMATORS[:1] if order in FIXED else ESTIMATORS:
                        yield [name, "--types", str(types), "--order", order, "--estimator", estimator]


def commands(args: argparse.Namespace, more: list[str]) -> list[list[str]]:
    shared = ["--data", args.data, "--device", args.device, "--seeds", args.seeds, *more]
    shared += ["--graph"] * (args.device != "cpu")
    program = [sys.executable, "-m", "gumtrace_experiments", "train"]
    return [[*program, *row, *shared] for row in settings()]


def clock(device: torch.device, data: Path, smoke: bool) -> list[dict[str, Any]]:
    """A record for each experiment, order and estimator: milliseconds of an update, seconds of writing."""
    found = []
    for name in EXPERIMENTS:
        for order, estimator in [("smart", "RELAX"), *(("semi-supervised", estimator) for estimator in ESTIMATORS)]:
            alone, *_ = updates.measure(updates.Case(name, estimator, None, {"order": order}), device, data, smoke)
            kind = find(name)
            config = kind.config_type(order=order, estimator=estimator)
            config = kind.smoke(config) if smoke else config
            written = seconds_of_writing(kind, config, device, data, LEARNED)
            found.append({"experiment": name, "order": order, "estimator": estimator, "ms": alone["ms"], **written})
    return found


def seconds_of_writing(kind: Any, config: Any, device: torch.device, data: Path, learned: int) -> dict[str, Any]:
    """Of all sequences, by a model that has learned a little; what becomes of them is not part of it."""
    with precision(config):
        model = kind.build(config, kind.load_data(config, data, device), device)
        made = Run(model, None, Workers(device), graph=device.type == "cuda")
        for _ in range(learned):
            made.update()
        updates.clocked([made], 1)  # waits
        model.eval()
        start = time.perf_counter()
        with torch.no_grad():
            some, draws = write_unique(lambda n, noise: model.write(n, noise)[:2], config.written, 0, device)
        return {"seconds": time.perf_counter() - start, "different": len(some.lengths), "draws": draws}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="folder for the data, which are made if missing (default: data)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", default="0-4", help="side by side in one process (default: 0-4)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the commands, and start none")
    parser.add_argument("--no-clock", action="store_true", help="measure no times in the end")
    args, more = parser.parse_known_args(argv)  # other options are those of `gumtrace train`
    found = commands(args, more)
    if args.list:
        print("\n".join(map(shlex.join, found)))
        return 0
    with ThreadPoolExecutor(args.jobs) as pool:
        failed = any(list(pool.map(run, found)))
    if not args.no_clock:
        device = torch.device(args.device)
        records = clock(device, Path(args.data), "--smoke" in more)
        TIMES.parent.mkdir(parents=True, exist_ok=True)
        TIMES.write_text(json.dumps({"machine": machine(device), "records": records}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
