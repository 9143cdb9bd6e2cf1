"""Runs that are done, or under way: their best models, back from disk."""

from pathlib import Path
from typing import Any

import torch

from gumtrace.experiments.config import Config
from gumtrace.experiments.errors import OtherWeights
from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.folder import BEST, CONFIG, RESULT, RunFolderError, load, other_version, read_json
from gumtrace.experiments.parallel import Workers
from gumtrace.experiments.registry import find
from gumtrace.experiments.run import Run
from gumtrace.experiments.shared_data import SharedData
from gumtrace.experiments.training import precision


class NeverEvaluated(RunFolderError):
    """There is no best model yet."""


def restore(
    path: Path,
    device: torch.device | str = "cpu",
    data: Path = Path("data"),
    shared: SharedData | None = None,
    file: Path | None = None,
) -> Experiment:
    """The best model of the run in a folder, with its data; `shared` for several runs.

    Args:
        file: takes the place of the test set, where the experiment reads files.
    """
    device = torch.device(device)
    about = read_json(path / CONFIG)
    if about is None:
        raise RunFolderError(f"{path} holds no run: there is no {CONFIG}")
    best = load(path / BEST, device)
    if best is None and "diverged" in (result := read_json(path / RESULT) or {}):
        raise NeverEvaluated(f"{path} diverged {result['diverged']}")
    if best is None:
        raise NeverEvaluated(
            f"{path} has no {BEST}: not evaluated yet (`gumtrace train` goes on with it), or taken away"
        )
    experiment, config = _described(path / CONFIG, about)
    if file is not None and not experiment.reads_files:
        raise ValueError(f"{experiment.name} reads no files: --file is for listops")
    loaded = (shared or SharedData()).load(experiment, config, data, device)
    model = experiment.build(config, loaded, device)
    try:
        model.load_state_dict(best["model"])
    except OtherWeights as error:
        raise other_version(path / BEST, error.reason) from None
    if file is not None:
        model.read_test(file)
    return model


def _described(path: Path, about: dict[str, Any]) -> tuple[type[Experiment], Config]:
    """The experiment and the config that a file tells of, if this version has them."""
    if missing := [name for name in ("experiment", "config") if name not in about]:
        raise other_version(path, f"there is no {', no '.join(missing)} in it")
    try:
        experiment = find(about["experiment"])
        return experiment, experiment.config_type(**about["config"])
    except (TypeError, ValueError) as error:  # no such experiment, a field that is unknown, a value that is refused
        raise other_version(path, str(error)) from error


def evaluate(
    path: Path,
    split: str = "test",
    device: torch.device | str = "cpu",
    data: Path = Path("data"),
    shared: SharedData | None = None,
    file: Path | None = None,
) -> dict[str, float]:
    """Metrics of the best model of a run: for "test", those that the run wrote down when it was done, unless a file
    takes its place."""
    model = restore(path, device, data, shared, file)
    with precision(model.config):
        return Run(model, None, Workers(torch.device(device))).evaluate(split)
