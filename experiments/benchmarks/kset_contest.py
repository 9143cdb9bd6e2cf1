"""The k-subset contest, all of it with one command:
python experiments/benchmarks/kset_contest.py --data FOLDER --device cuda --seeds 0-4

Every estimator that takes subsets, but for two, on every task, with equal numbers of objective calls. For each of them
it clocks an update alone, and then trains all seeds in runs/contest, as `gumtrace train` does, on CUDA by graphs, with
--beside estimators side by side. What is finished is not repeated, so the command can be interrupted and given again.
At last it measures bias and standard deviation of the gradients of all estimators, at the model of each task that is
best on validation, and records the runs beside the lab notes. Times and gradients go to
experiments/benchmarks/results/kset.json, from which kset_tables.py makes tables. --tasks, --estimators and --parts run
a part of it, --short other settings. Several such commands may train beside each other; to clock, have the machine
alone.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kset_gradients import gradients_at

import gumtrace as gt
from gumtrace.benchmark import machine
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find, restore
from gumtrace_experiments.commands.options import label, read_seeds
from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.training import train_all
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.report.records import Record, collect, save
from gumtrace_experiments.store.locks import exclusive

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "kset.json"
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "autoencoder": ("kset-autoencoder", {}),
    "autoencoder-bound": ("kset-autoencoder", {"kl": "noise", "kl_weight": 1.0, "logit_scale": 1.0}),
    "autoencoder-10": ("kset-autoencoder", {"rows": 10, "columns": 10, "subset_size": 5, "logit_scale": 1.0}),
    "features": ("kset-features", {}),
    "features-instance": ("kset-features", {"selector": "instance", "selector_lr": 1e-3}),
    "neighbours": ("kset-neighbours", {}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "GumbelRao": {"draws": 2},  # more would take too long, as would a temperature that is learned
    "REBAR": {"learn_temperature": False},
    "IMLE": {"adaptive": True},  # the one whose test loss is known
}
PARTS = ("clock", "train", "measure")
# Found by short runs: temperatures of 0.5, 1 and 2 (SST: 0.2, 0.5 and 2), one sample or four.
TUNED: dict[tuple[str, str], dict[str, Any]] = {
    ("autoencoder", "StraightThrough"): {"temperature": 2.0},
    ("autoencoder", "GumbelRao"): {"temperature": 2.0},
    ("neighbours", "RELAX"): {"samples": 4},
    ("neighbours", "REBAR"): {"samples": 4},
}
# An update takes as long whatever these are.
NOT_IN_TIME = ("iterations", "evaluate_every", "lr", "selector_lr", "schedule", "temperature")
# A time is the median of so many, each that of so many updates, and of as many more as take so many seconds.
REPEATS, UPDATES, SECONDS = 5, 10, 0.3


def rivals() -> list[str]:
    """Losses here have no terms, and a CUDA graph must record the updates."""
    some = gt.Subset(torch.zeros(4), 2)
    usable = {name: cls for name, cls in ESTIMATORS.items() if cls.supports(some)}
    return [name for name, cls in usable.items() if not (cls.for_terms or cls.on_host)]


def config_of(task: str, estimator: str, short: dict[str, Any]) -> Config:
    name, settings = TASKS[task]
    own = {**SETTINGS.get(estimator, {}), **TUNED.get((task, estimator), {})}
    config = find(name).config_type(estimator=estimator, **settings, **own).replace(**short)
    return config.replace(evaluate_every=min(config.evaluate_every, config.iterations))


def clock(kind: type[Experiment], config: Config, data: Any, device: torch.device) -> float:
    """Milliseconds of an update, alone."""
    with config.set_precision():
        run = Run(kind.build(config, data, device), None, Workers(device), graph=device.type == "cuda")
        _clocked(run, UPDATES)  # may compile something
        updates = max(UPDATES, math.ceil(1e3 * SECONDS / _clocked(run, UPDATES)))
        return statistics.median(_clocked(run, updates) for _ in range(REPEATS))


def _clocked(run: Run, updates: int) -> float:
    wait = torch.cuda.synchronize if run.recorded else lambda: None
    # With one thread on a CPU, the time that it had the core to itself: others may be busy there, too.
    now = time.process_time if not run.recorded and torch.get_num_threads() == 1 else time.perf_counter
    wait()
    start = now()
    for _ in range(updates):
        run.update()
    wait()
    return 1e3 * (now() - start) / updates


class Found:
    """What was measured so far, in a file that other commands may add to meanwhile."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def content(self) -> dict[str, list[dict[str, Any]]]:
        return json.loads(self.path.read_text()) if self.path.exists() else {"updates": [], "gradients": []}

    def add(self, part: str, about: dict[str, Any], measure: Callable[[], dict[str, Any]], again: bool = False) -> None:
        """What `measure` returns, unless it is known. With `again`, in place of what is known."""
        if not again and any(about.items() <= record.items() for record in self.content[part]):
            return
        record = {**about, **measure()}
        with exclusive(self.path.with_suffix(".lock")):
            content = self.content
            others = [known for known in content[part] if not about.items() <= known.items()]
            content[part] = [*others, record]
            self.path.write_text(json.dumps(content, indent=1) + "\n")


def setting(config: Config) -> dict[str, Any]:
    """As records have it."""
    return {name: value for name, value in config.to_dict().items() if name != "seed"}


@dataclass(frozen=True)
class Contest:
    """All of one task. `short`: settings of short runs, in place of the task's."""

    task: str
    estimators: Sequence[str]
    seeds: Sequence[int]
    data: Path
    device: torch.device
    out: Path
    short: dict[str, Any] = field(default_factory=dict)
    beside: int = 1
    replicates: int = 500

    def run(self, parts: Sequence[str] = PARTS) -> None:
        for part in parts:
            getattr(self, part)()

    @property
    def kind(self) -> type[Experiment]:
        return find(TASKS[self.task][0])

    def config(self, estimator: str) -> Config:
        return config_of(self.task, estimator, self.short)

    def folder(self, estimator: str) -> Path:
        return self.out / self.kind.name / label(self.config(estimator))

    def clock(self) -> None:
        data = self.kind.load_data(self.config(self.estimators[0]), self.data, self.device)
        for estimator in self.estimators:
            config = self.config(estimator)
            clocked = partial(clock, self.kind, config, data, self.device)
            settings = {name: value for name, value in setting(config).items() if name not in NOT_IN_TIME}
            about = {"experiment": self.kind.name, "setting": settings, "device": machine(self.device)["device"]}
            with self._survive(estimator):
                Found(RESULTS).add(
                    "updates", about, lambda clocked=clocked: {"ms": clocked(), "machine": machine(self.device)}
                )

    def train(self) -> None:
        for start in range(0, len(self.estimators), self.beside):
            chosen = self.estimators[start : start + self.beside]
            runs = [(self.config(e).replace(seed=s), self.folder(e) / f"seed-{s}") for e in chosen for s in self.seeds]
            try:
                self._train(runs)
            except torch.OutOfMemoryError:  # of all at once: perhaps not of each alone
                for estimator in chosen:
                    with self._survive(estimator):
                        self._train([run for run in runs if run[0].estimator == estimator])

    def _train(self, runs: list[tuple[Config, Path]]) -> None:
        train_all(self.kind, runs, device=self.device, data=self.data, graph=self.device.type == "cuda")

    def measure(self) -> None:
        """Gradients at the best model. Records the runs."""
        folders = {e: self.folder(e) for e in self.estimators if self.folder(e).exists()}
        runs = [run for run in collect(folders.values()) if run.result is not None]
        if not runs:
            raise SystemExit(f"{self.task}: none of {', '.join(self.estimators)} has been trained")
        best = max(runs, key=lambda run: _score(run, self.kind.selection_metric))
        path = folders[best.config["estimator"]] / f"seed-{best.seed}"
        model = restore(path, self.device, self.data, experiment=self.kind)
        about = {"experiment": self.kind.name, "setting": best.setting, "seed": best.seed, "estimators": rivals()}
        configs = {name: self.config(name) for name in rivals()}
        measured = partial(gradients_at, model, configs, replicates=self.replicates)
        Found(RESULTS).add("gradients", about, lambda: {"machine": machine(self.device), **measured()})
        suffix = "-short" if self.short else ""
        save(ROOT / "results" / self.kind.name / f"{self.task}{suffix}.jsonl", runs)

    @contextmanager
    def _survive(self, what: str) -> Iterator[None]:
        """Where memory does not suffice for one, the others continue."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            print(f"{self.task}: {what} is left out: {error}", file=sys.stderr, flush=True)


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
    parser.add_argument("--beside", type=int, default=1, help="estimators trained side by side, with all their seeds")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--replicates", type=int, default=500, help="estimates of each gradient")
    parser.add_argument("--out", type=Path, default=Path("runs") / "contest")
    args = parser.parse_args()
    shared = {name: getattr(args, name) for name in ("estimators", "data", "out", "short", "beside", "replicates")}
    for task in args.tasks:
        Contest(task, seeds=read_seeds(args.seeds), device=torch.device(args.device), **shared).run(args.parts)


if __name__ == "__main__":
    main()
