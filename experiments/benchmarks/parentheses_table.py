"""Train every row of both experiments with parentheses: all numbers of types, orders and seeds; and clock them.

    python experiments/benchmarks/parentheses_table.py --data FOLDER --device cuda --seeds 0-4 --jobs 10

trains what `gumtrace train` would with the same options, in the same folders, on CUDA by graphs. First come all fixed
orders, then each estimator's: of these groups, the orders and seeds of an experiment and a number of types share their
data, and are trained side by side in one process; --beside takes fewer at a time. --jobs processes run at once. A line
says what a run found as soon as it has ended, and one each minute how far all are. What was interrupted is resumed by
the same command, and what is finished is skipped.
--experiments, --types, --orders and --estimators choose rows, `RELAX:2` is RELAX with K = 2, and other options are
those of `gumtrace train`. --list prints the rows.

    python experiments/benchmarks/parentheses_table.py --data FOLDER --device cuda --parts clock

times an update, and how long it takes to generate the sequences that shares are counted of: to draw them, and to find
those that are different. It takes less than a minute on a GPU, which it should have alone. The times go to
experiments/benchmarks/results/parentheses.json. In the end, for both experiments,

    gumtrace table parentheses-tree runs/parentheses-tree --save experiments/results/parentheses-tree/all-types.jsonl
    gumtrace plot parentheses-tree runs/parentheses-tree
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import updates  # beside this file

from gumtrace.benchmark import machine
from gumtrace_experiments import find
from gumtrace_experiments.commands.options import label, parse, read_seeds
from gumtrace_experiments.commands.train import Options
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.training import train_all
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.parentheses.evaluation import generate_unique
from gumtrace_experiments.parentheses.orders import FIXED, ORDERS, USABLE
from gumtrace_experiments.store.folder import METRICS, RESULT, read_metrics

EXPERIMENTS = ("parentheses-tree", "parentheses-insertion")
TYPES = (10, 20, 30, 40, 50)
ESTIMATORS = ("RELAX", "TraceREINFORCE")  # the paper's, and ours beside it
RESULTS = Path(__file__).parent / "results" / "parentheses.json"
CLOCKED = (("smart", "RELAX"), ("semi-supervised", "RELAX"), ("semi-supervised", "TraceREINFORCE"))
GROUPS = (*sorted(set(USABLE) - {"RELAX"}), "RELAX")  # which of them first: those whose updates are quick
PAUSE = 60.0  # seconds between lines that tell how far it is
LEARNED = 500  # updates before sequences are generated: an untrained model does not come to an end
Setting = tuple[Any, Path]  # a config, and the folder of its run


def settings(args: argparse.Namespace, more: list[str]) -> dict[tuple[str, int], list[Setting]]:
    """All runs, by experiment and number of types."""
    found = {}
    for types in args.types:
        for name in args.experiments:
            rows = [row for order in args.orders for row in _rows(order, args.estimators)]
            configs = [parse(find(name), ["--types", str(types), *row, *more], Options, "train")[0] for row in rows]
            found[name, types] = [
                (config.replace(seed=seed), args.out / name / label(config) / f"seed-{seed}")
                for config in configs
                for seed in read_seeds(args.seeds)
            ]
    return found


def _rows(order: str, estimators: list[str]) -> Iterator[list[str]]:
    """Options of `gumtrace train`. A fixed order needs no estimator."""
    for estimator in ["RELAX"] if order in FIXED else estimators:
        name, _, samples = estimator.partition(":")
        yield ["--order", order, "--estimator", name, *(["--samples", samples] if samples else [])]


def groups(found: dict[tuple[str, int], list[Setting]], beside: int) -> list[tuple[str, list[Setting]]]:
    """Runs that one process trains, with the name of their experiment: those with fixed orders of all experiments and
    types come first, since they are quick, then each estimator's."""

    def group(config: Any) -> int:
        return 0 if config.order in FIXED else 1 + GROUPS.index(config.estimator)

    parts = []
    for number in range(1 + len(GROUPS)):
        for (name, _), some in found.items():
            same = [(config, path) for config, path in some if group(config) == number]
            size = beside or max(len(same), 1)
            parts += [(name, same[i : i + size]) for i in range(0, len(same), size)]
    return parts


def train_some(name: str, some: list[Setting], device: str, data: Path) -> bool:
    """In a process of its own; what goes wrong there must not end the others."""
    torch.set_num_threads(1)  # the device has the work
    configs = {path: config for config, path in some}

    def show(path: Path, result: dict[str, Any]) -> None:
        config, test = configs[path], result["test"]
        shown = "  ".join(f"{key} {test[key]:.4g}" for key in ("new_correct", "old", "perplexity") if key in test)
        print(f"{name} {config.types} {path.parent.name} seed {config.seed}: {shown}", flush=True)

    try:
        train_all(find(name), some, device=device, data=data, graph=device != "cpu", progress=False, done=show)
    except Exception:
        traceback.print_exc()
        return False
    return True


def train(args: argparse.Namespace, more: list[str]) -> bool:
    """Whether all went well."""
    found = settings(args, more)
    for (name, _), some in found.items():
        find(name).load_data(some[0][0], args.data, torch.device("cpu"))  # made once, before all ask for it
    os.environ["OMP_NUM_THREADS"] = "1"
    fresh = multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
    rows = [setting for some in found.values() for setting in some]
    with ProcessPoolExecutor(args.jobs, mp_context=fresh, max_tasks_per_child=1) as pool:
        jobs = [pool.submit(train_some, *part, args.device, args.data) for part in groups(found, args.beside)]
        while wait(jobs, timeout=PAUSE).not_done:
            print(progress(rows), flush=True)
        return all(job.result() for job in jobs)


def progress(rows: list[Setting]) -> str:
    """How far they are, by their files: a run tells of its updates when it is evaluated."""
    ended = sum((path / RESULT).exists() for _, path in rows)
    made = [max((row["iteration"] for row in read_metrics(path / METRICS)), default=0) for _, path in rows]
    share = sum(made) / sum(config.iterations for config, _ in rows)
    return f"{ended} of {len(rows)} runs ended, {100 * share:.0f} % of their updates made"


# Times ------------------------------------------------------------------------------------------------


def clock(args: argparse.Namespace, more: list[str]) -> None:
    """A record for each experiment, order and estimator that is chosen. What the file has of others on this machine
    stays there."""
    chosen = [(name, *row) for name in args.experiments for row in CLOCKED if _is_chosen(args, *row)]
    if not chosen:
        raise SystemExit(f"nothing to clock: of {CLOCKED} none has these orders and estimators")
    device, records = torch.device(args.device), {}
    about = machine(device)
    if (
        args.results.exists()
        and (known := json.loads(args.results.read_text()))["machine"]["device"] == about["device"]
    ):
        records = {(r["experiment"], r["order"], r["estimator"]): r for r in known["records"]}
    for name, order, estimator in chosen:
        config, _ = parse(find(name), [*next(_rows(order, [estimator])), *more], Options, "train")
        measured = clocked(find(name), config, device, args.data, LEARNED)
        row = {"experiment": name, "order": order, "estimator": estimator, **measured}
        records[name, order, estimator] = row
        print(row, flush=True)
    args.results.write_text(json.dumps({"machine": about, "records": list(records.values())}, indent=1) + "\n")


def _is_chosen(args: argparse.Namespace, order: str, estimator: str) -> bool:
    return order in args.orders and estimator in args.estimators


def clocked(kind: Any, config: Any, device: torch.device, data: Path, learned: int) -> dict[str, Any]:
    """Milliseconds of an update, and seconds in which a model that has learned a little generates all sequences; what
    becomes of them is not part of it."""
    with config.set_precision():
        model = kind.build(config, kind.load_data(config, data, device), device)
        run = Run(model, None, Workers(device), graph=device.type == "cuda")
        updates.clocked([run], 3)
        times = [updates.clocked([run], updates.ROUNDS) for _ in range(updates.REPEATS)]
        while run.iteration < learned:
            run.update()
        updates.clocked([run], 1)  # waits
        model.eval()
        with torch.no_grad(), run.updater.on_stream():
            generate_unique(lambda n, noise: model.generate(n, noise)[:2], 1000, 1, device)  # libraries start up
            start = time.perf_counter()
            found, draws = generate_unique(lambda n, noise: model.generate(n, noise)[:2], config.generated, 0, device)
            different = int((found.lengths >= -1).sum())  # waits for all of it
        generation = {"seconds": time.perf_counter() - start, "different": different, "draws": draws}
        return {"ms": statistics.median(times), **generation}


PARTS = {"train": train, "clock": clock}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder for the data, made if missing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--experiments", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS)
    parser.add_argument("--types", nargs="+", type=int, default=TYPES)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS, metavar="NAME[:K]")
    parser.add_argument("--seeds", default="0-4", help="(default: 0-4)")
    parser.add_argument("--beside", type=int, default=0, help="runs in a process (default: all that share their data)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=("train",))
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="file for the times")
    parser.add_argument("--list", action="store_true", help="print the rows, and train none")
    args, more = parser.parse_known_args(argv)  # other options are those of `gumtrace train`
    if args.list:
        print("\n".join(str(path) for some in settings(args, more).values() for _, path in some))
        return 0
    done = [PARTS[part](args, more) for part in args.parts]
    return int(False in done)


if __name__ == "__main__":
    sys.exit(main())
