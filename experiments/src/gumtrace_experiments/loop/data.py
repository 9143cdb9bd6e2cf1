"""The data of an experiment, loaded once for all runs of equal data settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment


def load_data(experiment: type[Experiment], config: Config, folder: Path, device: torch.device) -> Any:
    """`Experiment.load`, given the settings that the class declares and no others: to read one more is an error at
    once, and not a run that shares the data of another setting."""
    names = experiment.data_fields
    given = config if names is None else SimpleNamespace(**{name: getattr(config, name) for name in names})
    return experiment.load(given, folder, device)


class SharedData:
    """Data that several runs share."""

    def __init__(self):
        self._loaded: list[tuple[tuple, Any]] = []

    def load(self, experiment: type[Experiment], config: Config, folder: Path, device: torch.device) -> Any:
        names = experiment.data_fields
        settings = config if names is None else tuple(getattr(config, name) for name in names)
        key = (experiment, folder, device, settings)
        for known, data in self._loaded:
            if known == key:
                return data
        data = load_data(experiment, config, folder, device)
        self._loaded.append((key, data))
        return data
