"""Runs that are done, or under way: their best models, back from disk."""

from pathlib import Path

import torch

from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.folder import BEST, CONFIG, RunFolderError, load, read_json
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
    if best is None:
        raise NeverEvaluated(
            f"{path} has no {BEST}: not evaluated yet (`gumtrace train` goes on with it), or taken away"
        )
    experiment = find(about["experiment"])
    if file is not None and not experiment.reads_files:
        raise ValueError(f"{experiment.name} reads no files: --file is for listops")
    config = experiment.config_type(**about["config"])
    loaded = (shared or SharedData()).load(experiment, config, data, device)
    model = experiment.build(config, loaded, device)
    model.load_state_dict(best["model"])
    if file is not None:
        model.read_test(file)
    return model


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
