"""Train: one run a seed, side by side on one device, each in its own folder."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from gumtrace.benchmark.records import machine
from gumtrace.experiments.config import Config
from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.folder import BEST, STATE, RunFolder, RunFolderError, load
from gumtrace.experiments.parallel import Workers
from gumtrace.experiments.run import Run

_PRECISION = {"float32": "highest", "tf32": "high", "bfloat16": "high"}


def train(
    experiment: type[Experiment],
    config: Config,
    out: Path,
    *,
    seeds: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    data: Path = Path("data"),
    compile: bool = False,
    graph: bool = False,
    progress: bool = True,
    watch: Callable[[Run], None] | None = None,
) -> list[dict[str, Any]]:
    """Train, or go on with, one run a seed in `out/seed-S`; returns what `result.json` of each holds.

    Args:
        seeds: by default the config's own.
        data: folder for data sets that were made or fetched.
        compile: the model by torch.compile.
        graph: record the update as a CUDA graph; the estimator must not look at values.
        watch: called after each evaluation of a run; what it raises ends the training.
    """
    workers = Workers(torch.device(device))
    prepare(config)
    configs = [config.replace(seed=seed) for seed in (seeds if seeds is not None else [config.seed])]
    loaded = experiment.load(config, data, workers.device)
    runs: list[Run] = []
    try:
        for c in configs:
            path = out / f"seed-{c.seed}"
            runs.append(start(experiment, c, loaded, path, workers, compile=compile, graph=graph))
        _advance(runs, progress and workers.first, watch)
        return [finish(run) for run in runs]
    finally:
        for run in runs:
            if run.folder is not None:
                run.folder.close()


def prepare(config: Config) -> None:
    """What is set for the whole process."""
    torch.set_float32_matmul_precision(_PRECISION[config.precision])


def start(
    experiment: type[Experiment],
    config: Config,
    data: Any,
    path: Path,
    workers: Workers,
    *,
    compile: bool = False,
    graph: bool = False,
) -> Run:
    """A run from its beginning, or from where it was cut off."""
    folder = RunFolder(path, experiment.name, config.to_dict(), machine(workers.device)) if workers.first else None
    workers.wait()
    try:
        model = build(experiment, config, data, workers.device)
        if compile:
            model.compile_parts()
        run = Run(model, folder, workers, graph=graph)
        state = load(path / STATE, workers.device)
        if state is not None:
            run.load_state_dict(state)
        if folder is not None:
            folder.forget_after(run.iteration)
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    return run


def build(experiment: type[Experiment], config: Config, data: Any, device: torch.device) -> Experiment:
    """The model of a seed: made on the CPU, so that it is the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return experiment(config, data).to(device)


def _advance(runs: list[Run], progress: bool, watch: Callable[[Run], None] | None) -> None:
    from tqdm import tqdm

    total, done = sum(run.config.iterations for run in runs), sum(run.iteration for run in runs)
    with tqdm(total=total, initial=done, unit="it", file=sys.stderr, disable=None if progress else True) as bar:
        while waiting := [run for run in runs if not run.finished]:
            for run in waiting:
                if run.advance() and watch is not None:
                    watch(run)
            bar.update(len(waiting))
            bar.set_postfix_str(" ".join(_score(run) for run in runs), refresh=False)


def _score(run: Run) -> str:
    better = run.experiment.better
    return "–" if run.best is None else f"{run.best['valid'][better]:.5g}"


def finish(run: Run) -> dict[str, Any]:
    """The best checkpoint on the test set, kept in the folder."""
    if run.folder is None:
        return {}
    result = run.folder.result
    if result is None:
        best = run.folder.best(run.device)
        if best is None:
            raise RunFolderError(f"{run.folder.path} has no {BEST}: delete it, and train again")
        run.experiment.load_state_dict(best["model"])
        result = {"iteration": best["iteration"], "valid": best["valid"], "test": run.evaluate("test")}
        result["seconds"] = run.seconds
        run.folder.finish(result)
    return result
