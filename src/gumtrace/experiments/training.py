"""Train: one run a seed, side by side on one device, each in its own folder."""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from gumtrace.benchmark.records import machine
from gumtrace.experiments.config import Config
from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.folder import (
    BEST,
    METRICS,
    RESULT,
    STATE,
    RunFolder,
    RunFolderError,
    load,
    read_metrics,
)
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
    paths = [out / f"seed-{c.seed}" for c in configs]
    loaded = experiment.load(config, data, workers.device)
    about = machine(workers.device)

    runs = []
    with ExitStack() as stack:
        for c, path in zip(configs, paths, strict=True):
            folder = None
            if workers.first:
                folder = RunFolder(path, experiment.name, c.to_dict(), about)
                stack.callback(folder.close)
            workers.wait()
            model = experiment.build(c, loaded, workers.device)
            if compile:
                model.compile_parts()
            runs.append(Run(model, folder, workers, graph=graph))
            _go_on(runs[-1], path)
        _advance(runs, progress and workers.first, watch)
        return [finish(run) for run in runs]


def prepare(config: Config) -> None:
    """What is set for the whole process."""
    torch.set_float32_matmul_precision(_PRECISION[config.precision])


def _go_on(run: Run, path: Path) -> None:
    """From where it was cut off, if it was."""
    state = load(path / STATE, run.device)
    if state is not None:
        run.load_state_dict(state)
    if run.folder is not None:
        run.folder.keep(0 if state is None else state["rows"])


def _advance(runs: list[Run], progress: bool, watch: Callable[[Run], None] | None) -> None:
    from tqdm import tqdm

    total, done = sum(run.updates for run in runs), sum(run.iteration for run in runs)
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
        rows = read_metrics(run.folder.path / METRICS)
        result["gradient_std"] = [[row["iteration"], row["std"]] for row in rows if row["split"] == "gradient"]
        run.folder.write(RESULT, result)
    return result
