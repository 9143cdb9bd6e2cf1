"""Runs that are done, or under way: their best models, back from disk."""

from pathlib import Path

import torch

from gumtrace.experiments.experiment import Experiment
from gumtrace.experiments.folder import BEST, CONFIG, RunFolderError, load, read_json
from gumtrace.experiments.parallel import Workers
from gumtrace.experiments.registry import find
from gumtrace.experiments.run import Run
from gumtrace.experiments.training import prepare


def restore(path: Path, device: torch.device | str = "cpu", data: Path = Path("data")) -> Experiment:
    """The best model of the run in a folder, with its data."""
    device = torch.device(device)
    about = read_json(path / CONFIG)
    if about is None:
        raise RunFolderError(f"{path} holds no run: there is no {CONFIG}")
    best = load(path / BEST, device)
    if best is None:
        raise RunFolderError(f"{path} has no {BEST}: it was never evaluated; `gumtrace train` goes on with it")
    experiment = find(about["experiment"])
    config = experiment.config_type(**about["config"])
    prepare(config)
    model = experiment.build(config, experiment.load(config, data, device), device)
    model.load_state_dict(best["model"])
    return model


def evaluate(
    path: Path, split: str = "test", device: torch.device | str = "cpu", data: Path = Path("data")
) -> dict[str, float]:
    """Metrics of the best model of a run: for "test", those that the run wrote down when it was done."""
    model = restore(path, device, data)
    return Run(model, None, Workers(torch.device(device))).evaluate(split)
