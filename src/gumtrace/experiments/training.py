"""Train: one run a seed, side by side on one device, each in its own folder."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from gumtrace.benchmark.records import machine
from gumtrace.experiments.config import Config
from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.folder import METRICS, RESULT, STATE, RunFolder, RunFolderError, load, read_json, read_metrics
from gumtrace.experiments.parallel import Workers
from gumtrace.experiments.run import Run
from gumtrace.experiments.side_by_side import advance
from gumtrace.extras import require

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
    require("tensorboard", "experiments")
    workers = Workers(torch.device(device))
    configs = [config.replace(seed=seed) for seed in (seeds if seeds is not None else [config.seed])]
    paths = [out / f"seed-{c.seed}" for c in configs]
    loaded = experiment.load(config, data, workers.device)
    about = machine(workers.device)

    results: list[dict[str, Any] | None] = []
    runs: list[Run] = []
    with ExitStack() as stack:
        stack.enter_context(precision(config))
        for c, path in zip(configs, paths, strict=True):
            folder = None
            if workers.first:
                folder = RunFolder(path, experiment.name, c.to_dict(), about)
                stack.callback(folder.close)
            workers.wait()
            results.append(read_json(path / RESULT))
            if results[-1] is None:
                model = experiment.build(c, loaded, workers.device)
                if compile:
                    model.compile_parts()
                runs.append(Run(model, folder, workers, graph=graph))
                _go_on(runs[-1], path)
        _advance(runs, progress and workers.first, watch)
        fresh = iter([finish(run) for run in runs])
    return [next(fresh) if known is None else known for known in results] if workers.first else []


@contextmanager
def precision(config: Config) -> Iterator[None]:
    """Of matrix products and of cuDNN, whose LSTMs have a switch of their own; both are the whole process's."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(_PRECISION[config.precision])
    torch.backends.cudnn.allow_tf32 = config.precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _go_on(run: Run, path: Path) -> None:
    """From where it was cut off, if it was. All processes read the state: they share the folder."""
    state = load(path / STATE, run.device)
    if state is not None:
        run.load_state_dict(state)
    if run.folder is not None:
        run.folder.go_on_from(state)


def _advance(runs: list[Run], progress: bool, watch: Callable[[Run], None] | None) -> None:
    tqdm = require("tqdm", "cli").tqdm
    total, done = sum(run.updates for run in runs), sum(run.iteration for run in runs)
    with (
        tqdm(total=total, initial=done, unit="it", file=sys.stderr, disable=None if progress else True) as bar,
        closing(advance(runs)) as rounds,
    ):
        for updates, evaluated in rounds:
            for run in evaluated:
                if progress and bar.disable:  # no terminal: a line in a log instead
                    print(f"seed {run.config.seed}, {run.iteration} of {run.config.iterations}: {_score(run)}")
                if watch is not None:
                    watch(run)
            bar.update(updates)
            bar.set_postfix_str(" ".join(_score(run) for run in runs), refresh=False)


def _score(run: Run) -> str:
    better = run.experiment.better
    return f"{better} {run.best['valid'][better]:.5g}" if run.best else "–"


def finish(run: Run) -> dict[str, Any]:
    """The best checkpoint on the test set, and what else is reported, kept in the folder."""
    if run.folder is None:
        return {}
    best = run.folder.best(run.device)
    if best is None:
        raise RunFolderError(f"{run.folder.path}: {run.experiment.better} was never a finite number; the run diverged")
    run.load_model(best["model"])
    rows = read_metrics(run.folder.path / METRICS)
    result = {
        "iteration": best["iteration"],
        "valid": best["valid"],
        **{split: run.evaluate(split) for split in run.experiment.reported},
        "seconds": run.seconds,  # of the whole process, if there are other runs beside this one
        "gradient_std": {row["moment"]: row["std"] for row in rows if row["split"] == "gradient"},
    }
    for row in rows:
        if row["split"] == "starts":
            result["starts"] = [row[f"start {number}"] for number in range(run.config.starts)]
    run.folder.write(RESULT, result)
    return result
