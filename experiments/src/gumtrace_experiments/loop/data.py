"""The data of an experiment, loaded once for all runs of equal data settings."""

from pathlib import Path
from typing import Any

import torch

from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment


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
        data = experiment.load_data(config, folder, device)
        self._loaded.append((key, data))
        return data
