"""Runs that are done, or under way: their best models, back from disk."""

from pathlib import Path
from typing import Any

import torch

from gumtrace_experiments.config import Config, derive_seed
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.checks import checked_metrics
from gumtrace_experiments.loop.data import SharedData
from gumtrace_experiments.registry import is_reference, known
from gumtrace_experiments.store.checkpoints import BEST, load
from gumtrace_experiments.store.errors import RunFolderError, other_version, unknown_experiment, weights_of
from gumtrace_experiments.store.folder import CONFIG, RESULT, read_json, read_result
from gumtrace_experiments.store.settings import setting_problem
from gumtrace_experiments.store.validation import has


class NeverEvaluated(RunFolderError):
    """There is no best model yet."""


def restore(
    path: Path,
    device: torch.device | str = "cpu",
    data: Path = Path("data"),
    shared: SharedData | None = None,
    file: Path | None = None,
    experiment: type[Experiment] | None = None,
) -> Experiment:
    """The best model of the run in a folder, in eval mode, with its data; `shared` for several runs.

    Args:
        file: takes the place of the test set, where the experiment reads files.
        experiment: whose run it is; without, the one of that name, which has to be installed or registered.
    """
    device = torch.device(device)
    about = read_json(path / CONFIG)
    if about is None:
        raise RunFolderError(f"{path} is not a run: it has no {CONFIG}")
    best = load(path / BEST)
    if best is None and "diverged" in (result := read_result(path / RESULT) or {}):
        raise NeverEvaluated(f"{path} diverged {result['diverged']}")
    if best is None:
        raise NeverEvaluated(
            f"{path} has no {BEST}: it was not evaluated yet (`gumtrace train` resumes it), or the file was removed"
        )
    experiment, config = _described(path, about, experiment)
    if file is not None and not experiment.reads_files():
        raise ValueError(f"{experiment.name} cannot read a file in place of its test set")
    loaded = (shared or SharedData()).load(experiment, config, data, device)
    model = experiment.build(config, loaded, device)
    with weights_of(path / BEST):
        model.load_state_dict(best["model"])
    if file is not None:
        model.read_test(file)
    return model.eval()


def _described(
    path: Path, about: dict[str, Any], experiment: type[Experiment] | None
) -> tuple[type[Experiment], Config]:
    """The experiment and the config of a run, if this version has them. The class that a file names is not imported,
    only shown: files are data, and do not decide what is run."""
    file = path / CONFIG
    if missing := [name for name in ("experiment", "config") if name not in about]:
        raise other_version(file, f"it lacks {', '.join(missing)}")
    name, where = about["experiment"], about.get("class")
    experiment = experiment or (known(name) if isinstance(name, str) else None)
    if experiment is None:
        raise unknown_experiment(path, str(name), where if isinstance(where, str) and is_reference(where) else None)
    if experiment.name != name:
        raise RunFolderError(f"{path} is a run of {name}, not of {experiment.name}")
    defaults = experiment.config_type().to_dict()
    if has(about["config"]) and (problem := setting_problem(defaults, about["config"])):
        raise other_version(file, problem)
    try:
        return experiment, experiment.config_type(**about["config"])
    except (TypeError, ValueError) as error:  # a field that is unknown, a value that is refused
        raise other_version(file, str(error)) from error


def evaluate(
    path: Path,
    split: str = "test",
    device: torch.device | str = "cpu",
    data: Path = Path("data"),
    shared: SharedData | None = None,
    file: Path | None = None,
    experiment: type[Experiment] | None = None,
) -> dict[str, float]:
    """Metrics of the best model of a run: for "test", those that the run wrote down when it was done, unless a file
    takes its place. Arguments as for `restore`."""
    model = restore(path, device, data, shared, file, experiment)
    with model.config.set_precision():
        return evaluate_split(model, split, torch.device(device))


def evaluate_split(experiment: Experiment, split: str, device: torch.device) -> dict[str, float]:
    """In eval mode, without gradients, with the noise that this split has whenever the model is evaluated."""
    config = experiment.config
    generator = torch.Generator(device).manual_seed(derive_seed(config.seed, "evaluate", split))
    was_training = experiment.training
    experiment.eval()
    try:
        # What was compiled was so for the sizes of training batches: to compile it once more would take longer
        with torch.no_grad(), config.autocast(device), experiment.eager():
            return checked_metrics(experiment, experiment.evaluate(split, generator), split)
    finally:
        experiment.train(was_training)
