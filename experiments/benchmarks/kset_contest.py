"""The k-subset contest, all of it with one command:
python experiments/benchmarks/kset_contest.py --data FOLDER --device cuda --seeds 0-4

Every estimator that takes subsets, on every task, with equal numbers of objective calls. For each of them it clocks an
update alone, and then trains all seeds side by side in runs/contest, as `gumtrace train` does, on CUDA by graphs. What
is finished is not repeated, so the command can be interrupted and given again. At last it measures bias and standard
deviation of the gradients of all estimators, at the model of each task that is best on validation, and records the
runs beside the lab notes. Times and gradients go to experiments/benchmarks/results/kset.json, from which
kset_tables.py makes tables. --tasks and --estimators run a part of it, --short other settings.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kset_gradients import gradients_at

import gumtrace as gt
from gumtrace.benchmark import machine
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find, restore, train
from gumtrace_experiments.commands.options import label, read_seeds
from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.precision import precision
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.report.records import Record, collect, save

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "kset.json"
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "autoencoder": ("kset-autoencoder", {}),
    "autoencoder-bound": ("kset-autoencoder", {"kl": "noise", "kl_weight": 1.0, "logit_scale": 1.0}),
    "autoencoder-10": ("kset-autoencoder", {"rows": 10, "columns": 10, "subset_size": 5, "logit_scale": 1.0}),
    "features": ("kset-features", {}),
    "features-instance": ("kset-features", {"selector": "instance"}),
    "neighbours": ("kset-neighbours", {}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "GumbelRao": {"draws": 2},  # more would take too long, as would a temperature that is learned
    "REBAR": {"learn_temperature": False},
    "IMLE": {"adaptive": True},  # the one whose test loss is known
}
UPDATES, REPEATS = 10, 5  # a time is the median of so many, each that of so many updates


def rivals() -> list[str]:
    return [name for name, cls in ESTIMATORS.items() if cls.supports(gt.Subset(torch.zeros(4), 2))]


def config_of(task: str, estimator: str, short: dict[str, Any]) -> Config:
    name, settings = TASKS[task]
    config = find(name).config_type(estimator=estimator, **settings, **SETTINGS.get(estimator, {})).replace(**short)
    return config.replace(evaluate_every=min(config.evaluate_every, config.iterations))


def clock(kind: type[Experiment], config: Config, data: Any, device: torch.device) -> float:
    """Milliseconds of an update, alone."""
    with precision(config):
        run = Run(kind.build(config, data, device), None, Workers(device), graph=device.type == "cuda")
        times = [_clocked(run) for _ in range(1 + REPEATS)]
    return statistics.median(times[1:])  # the first may compile something


def _clocked(run: Run) -> float:
    wait = torch.cuda.synchronize if run.recorded else lambda: None
    # With one thread on a CPU, the time that it had the core to itself: others may be busy there, too.
    now = time.process_time if not run.recorded and torch.get_num_threads() == 1 else time.perf_counter
    wait()
    start = now()
    for _ in range(UPDATES):
        run.update()
    wait()
    return 1e3 * (now() - start) / UPDATES


class Found:
    """What was measured so far, in a file."""

    def __init__(self, path: Path):
        self.path = path
        self.content = json.loads(path.read_text()) if path.exists() else {"updates": [], "gradients": []}

    def add(self, part: str, about: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
        """What `measure` returns, unless it is known."""
        if not any(about.items() <= record.items() for record in self.content[part]):
            self.content[part].append({**about, **measure()})
            self.path.write_text(json.dumps(self.content, indent=1) + "\n")


def setting(config: Config) -> dict[str, Any]:
    """As records have it."""
    return {name: value for name, value in config.to_dict().items() if name != "seed"}


def contest(
    task: str,
    estimators: Sequence[str],
    seeds: list[int],
    data: Path,
    device: torch.device,
    out: Path,
    short: dict[str, Any],
    replicates: int,
) -> None:
    """Clock, train, measure gradients, record. `short`: settings of short runs, in place of the task's."""
    kind, found = find(TASKS[task][0]), Found(RESULTS)
    where, loaded, folders = machine(device), None, {}
    for estimator in estimators:
        config = config_of(task, estimator, short)
        loaded = kind.load_data(config, data, device) if loaded is None else loaded
        about = {"experiment": kind.name, "setting": setting(config)}
        clocked = partial(clock, kind, config, loaded, device)
        folder, options = out / kind.name / label(config), {"device": device, "data": data}
        try:
            found.add("updates", about, lambda clocked=clocked: {"ms": clocked(), "machine": where})
            train(kind, config, folder, seeds=seeds, graph=device.type == "cuda", **options)
        except torch.OutOfMemoryError as error:  # the others continue
            print(f"{task}: {estimator} is left out: {error}", file=sys.stderr, flush=True)
        else:
            folders[estimator] = folder
    if not folders:
        raise SystemExit(f"{task}: none of {', '.join(estimators)} could be trained")
    runs = collect(folders.values())
    best = max(runs, key=lambda run: _score(run, kind.selection_metric))
    model = restore(folders[best.config["estimator"]] / f"seed-{best.seed}", device, data, experiment=kind)
    about = {"experiment": kind.name, "setting": best.setting, "seed": best.seed, "estimators": rivals()}
    measure = partial(gradients_at, model, rivals(), SETTINGS, replicates=replicates)
    found.add("gradients", about, lambda: {"machine": where, **measure()})
    suffix = "-short" if short else ""
    save(ROOT / "results" / kind.name / f"{task}{suffix}.jsonl", runs)


def _score(run: Record, metric: str) -> float:
    return run.result["valid"].get(metric, -math.inf) if run.result else -math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of mnist.npz")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--estimators", nargs="+", choices=rivals(), default=rivals())
    parser.add_argument(
        "--short", type=json.loads, default={}, help='settings of short runs, as JSON: {"iterations": 1000}'
    )
    parser.add_argument("--replicates", type=int, default=500, help="estimates of each gradient")
    parser.add_argument("--out", type=Path, default=Path("runs") / "contest")
    args = parser.parse_args()
    for task in args.tasks:
        device = torch.device(args.device)
        contest(task, args.estimators, read_seeds(args.seeds), args.data, device, args.out, args.short, args.replicates)


if __name__ == "__main__":
    main()
