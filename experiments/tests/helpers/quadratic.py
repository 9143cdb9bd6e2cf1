"""A model of one parameter to be swept over, which obeys orders to fail; and sweeps of it."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from gumtrace_experiments import Config, Experiment, build_estimator
from gumtrace_experiments.store.folder import METRICS, read_metrics
from gumtrace_experiments.sweep.study import Sweep

FATAL = 15  # the iteration at which orders are obeyed


@dataclass(frozen=True)
class QuadraticConfig(Config):
    iterations: int = 20
    evaluate_every: int = 5
    goal: float = 2.0
    lr: float = 0.1
    spoilt: float = 1.0
    """Learning rates above give nan."""
    refused: float = 1.0
    """Those above are no config."""
    pause: float = 0.0
    """Seconds that an evaluation takes."""

    def __post_init__(self):
        super().__post_init__()
        if self.lr > self.refused:
            raise ValueError(f"lr {self.lr} is too large")


class Quadratic(Experiment):
    """w is to reach the goal: 20 steps of Adam come near at learning rates around 0.1, and at no small ones."""

    name = "quadratic"
    config_type = QuadraticConfig
    selection_metric = "score"
    config: QuadraticConfig
    items = 32  # type: ignore[assignment]

    def __init__(self, config, data):
        super().__init__(config, data)
        self.w = nn.Parameter(torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.estimator = build_estimator(config)

    @staticmethod
    def smoke(config):
        return config.replace(iterations=10)

    @staticmethod
    def load(config, folder, device):
        return folder

    @staticmethod
    def search(config, trial):
        return config.replace(lr=trial.suggest_float("lr", 1e-4, 1.0, log=True))

    def loss(self, index, generator):
        self.steps += 1
        loss = (self.w - self.config.goal).square()
        return loss, {"score": -loss}

    def evaluate(self, split, generator):
        self._obey()
        time.sleep(self.config.pause)
        score = -((self.w.item() - self.config.goal) ** 2)
        return {"score": score if self.config.lr <= self.config.spoilt else float("nan")}

    def gradient_std(self, index, generator):
        return 0.0

    def _obey(self):
        """The data are a folder of orders, each of them carried out once."""
        for order in self.data.glob("*") if self.steps == FATAL else ():
            try:
                order.unlink()
            except FileNotFoundError:  # another worker carries it out
                continue
            if order.name == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif order.name == "interrupt":
                raise KeyboardInterrupt
            raise RuntimeError("a bug")


@pytest.fixture
def registered(monkeypatch):
    """Commands know the experiment by its name."""
    monkeypatch.setattr("gumtrace_experiments.registry._registered", {Quadratic.name: Quadratic})


def make(folder, trials=6, config=None, **options):
    options = {"seed": 0, "data": folder / "orders", **options}
    return Sweep(Quadratic, config or QuadraticConfig(), folder / "sweep", trials=trials, **options)


def order(folder, name):
    (folder / "orders").mkdir(exist_ok=True)
    (folder / "orders" / name).touch()


def states(study):
    return [trial.state for trial in study.get_trials(deepcopy=False)]


def run_folder(trial):
    return Path(trial.user_attrs["folder"]) / "seed-0"


def iterations(trial):
    return [row["iteration"] for row in read_metrics(run_folder(trial) / METRICS) if row["split"] == "valid"]
