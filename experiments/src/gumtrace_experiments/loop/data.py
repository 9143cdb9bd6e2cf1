"""Data that several runs share."""

from pathlib import Path
from typing import Any

import torch

from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment


class SharedData:
    """Loads the data of an experiment once for all configs of equal data settings.

    Which settings these are only `Experiment.load` knows: they are what it looks at when it is first called.
    """

    def __init__(self):
        self._loaded: list[tuple[tuple, dict[str, Any], Any]] = []

    def load(self, experiment: type[Experiment], config: Config, folder: Path, device: torch.device) -> Any:
        where = (experiment, folder, device)
        for known, settings, data in self._loaded:
            if known == where and all(getattr(config, name) == value for name, value in settings.items()):
                return data
        watched = _Watched(config)
        data = experiment.load(watched, folder, device)
        self._loaded.append((where, watched.settings, data))
        return data


class _Watched:
    """A config that keeps in `settings` what it was asked for."""

    def __init__(self, config: Config):
        self._config, self.settings = config, {}

    def __getattr__(self, name: str) -> Any:  # of what is not its own
        self.settings[name] = getattr(self._config, name)
        return self.settings[name]
