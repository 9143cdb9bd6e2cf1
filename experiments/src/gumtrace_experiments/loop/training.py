"""Train: one run per seed, side by side on one device, each in its own folder."""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import gumtrace_experiments
from gumtrace.benchmark.records import commit, machine
from gumtrace.structures.checks import NotFinite
from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.easy_first import check_difficulty
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.side_by_side import advance_all
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.registry import source
from gumtrace_experiments.store.checkpoints import BEST, STATE, load, state_problem
from gumtrace_experiments.store.errors import damaged, weights_of
from gumtrace_experiments.store.folder import METRICS, RESULT, RunFolder, read_metrics, read_result


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
    """Train, or resume, one run per seed in `out/seed-S`; returns what `result.json` of each holds.

    Args:
        seeds: by default the config's own.
        data: folder for data sets that were made or fetched.
        compile: the model by torch.compile.
        graph: record the update as a CUDA graph; the estimator must not synchronise.
        watch: called after each evaluation of a run; what it raises ends the training.
    """
    configs = [config.replace(seed=seed) for seed in (seeds if seeds is not None else [config.seed])]
    settings = [(c, out / f"seed-{c.seed}") for c in configs]
    options = {"device": device, "data": data, "compile": compile, "graph": graph, "progress": progress}
    return train_all(experiment, settings, watch=watch, **options)


def train_all(
    experiment: type[Experiment],
    settings: Sequence[tuple[Config, Path]],
    *,
    device: torch.device | str = "cpu",
    data: Path = Path("data"),
    compile: bool = False,
    graph: bool = False,
    progress: bool = True,
    watch: Callable[[Run], None] | None = None,
    done: Callable[[Path, dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """As `train`, runs of different settings side by side, each with its folder. Data and precision are those of the
    first: they must be the same for all.

    Args:
        done: called with the folder and the result of each run that was trained, as soon as it has one, in any thread.
    """
    if not settings:
        return []
    first = settings[0][0]
    _check_shared(experiment, [config for config, _ in settings])
    if any(config.curriculum for config, _ in settings):
        check_difficulty(experiment)
    workers = Workers(torch.device(device))
    loaded = experiment.load_data(first, data, workers.device)
    facts = {"experiment": experiment.name, "class": source(experiment), "machine": about_machine(workers.device)}
    defaults = experiment.config_type().to_dict()

    results: list[dict[str, Any] | None] = []
    runs: list[Run] = []
    fresh: dict[Run, dict[str, Any]] = {}

    def finish_one(run: Run) -> None:
        fresh[run] = finish(run)
        if done is not None and run.folder is not None:
            done(run.folder.path, fresh[run])

    with ExitStack() as stack:
        stack.enter_context(first.set_precision())
        for c, path in settings:
            folder = None
            if workers.is_main:
                folder = RunFolder(path, {**facts, "config": c.to_dict()}, defaults)
                stack.callback(folder.close)
            workers.wait()
            results.append(_known(path / RESULT, experiment.selection_metric))
            if results[-1] is None:
                model = experiment.build(c, loaded, workers.device)
                if compile:
                    model.compile_parts()
                runs.append(Run(model, folder, workers, graph=graph))
                if folder is None or not folder.is_new:
                    _resume(runs[-1], path)
        if progress and workers.is_main:
            _report_curricula(runs)
        advance_all(runs, progress and workers.is_main, watch, finish_one)
    workers.wait()  # a rank that ends its process while another one still works may abort in torch's clean-up
    in_turn = iter(runs)
    return [fresh[next(in_turn)] if known is None else known for known in results] if workers.is_main else []


def _check_shared(experiment: type[Experiment], configs: list[Config]) -> None:
    """Data and precision. Data may depend on all settings but the seed, if the experiment does not say on which."""
    names = experiment.data_fields
    if names is None:
        names = tuple(name for name in configs[0].to_dict() if name != "seed")
    for name in ("precision", *names):
        first = getattr(configs[0], name)
        if other := [value for config in configs if (value := getattr(config, name)) != first]:
            raise ValueError(
                f"runs side by side share their data and precision, but {name} differs: {first!r}, {other[0]!r}"
            )


def _report_curricula(runs: list[Run]) -> None:
    """A line for each: where the bound stays low, nothing else would show that most items are left out."""
    found = [run.updater.batches.easy_first for run in runs]
    for text in dict.fromkeys(str(easy_first) for easy_first in found if easy_first is not None):
        print(text, file=sys.stderr)


def about_machine(device: torch.device) -> dict[str, Any]:
    """What the numbers of a run depend on: with the version of this distribution beside the library's."""
    own = {"experiments": gumtrace_experiments.__version__, "experiments_commit": commit(Path(__file__).parents[1])}
    return {**machine(device), **own}


def _known(path: Path, metric: str) -> dict[str, Any] | None:
    """The result of a run that is done."""
    result = read_result(path)
    if result is not None and "diverged" not in result and metric not in result["valid"]:
        raise damaged(path, f"it has no {metric}, although the run did not diverge")
    return result


def _resume(run: Run, path: Path) -> None:
    """From where it was cut off, if it was. All processes read the state: they share the folder."""
    state = load(path / STATE)
    if state is not None:
        problem = state_problem(
            state,
            iterations=run.config.iterations,
            starts=run.config.starts,
            metric=run.experiment.selection_metric,
            optimiser=run.updater.optimiser,
        )
        if problem:
            raise damaged(path / STATE, problem)
        with weights_of(path / STATE):
            run.load_state_dict(state)
    if run.folder is not None:
        if (best := run.folder.best_of(state)) is not None:
            with weights_of(path / BEST):
                run.experiment.check_weights(best["model"])
        run.folder.resume_from(state)


def finish(run: Run) -> dict[str, Any]:
    """The best checkpoint on the test set, and what else is reported, kept in the folder."""
    if run.folder is None:
        return {}
    rows = read_metrics(run.folder.path / METRICS)
    result = {
        **_best(run, run.folder),
        "seconds": run.seconds,  # of the whole process, if there are other runs beside this one
        "gradient_std": {row["moment"]: row["std"] for row in rows if row["split"] == "gradient"},
    }
    for row in rows:
        if row["split"] == "starts":
            names = [f"start {number}" for number in range(run.config.starts)]
            if not row.keys() >= set(names):
                raise damaged(run.folder.path / METRICS, "its row of starts is incomplete")
            result["starts"] = [row[name] for name in names]
    if run.diverged:
        result["diverged"] = run.diverged
    run.folder.write(RESULT, result)
    return result


def _best(run: Run, folder: RunFolder) -> dict[str, Any]:
    """The best checkpoint and its metrics. A run that diverged before its first has none, and so the worst."""
    best, reported = folder.best(), {split: {} for split in run.experiment.final_splits}
    if best is None:
        run.diverged = (
            run.diverged or f"from the beginning: {run.experiment.selection_metric} was never a finite number"
        )
        return {"iteration": None, "valid": {}, **reported}
    with weights_of(folder.path / BEST):
        run.updater.load_model(best["model"])
    try:
        reported = {split: run.evaluate(split) for split in reported}
    except NotFinite as error:
        run.diverged = f"where validation did not see it: {error}"
    return {"iteration": best["iteration"], "valid": best["valid"], **reported}
