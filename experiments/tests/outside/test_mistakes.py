"""Mistakes in an experiment of somebody's own: each is one line, which names the class and what it should do."""

import json
from dataclasses import dataclass
from pathlib import Path

import one_file
import pytest
import torch
from torch import nn

from gumtrace_experiments import Config, registry, train
from gumtrace_experiments.commands import main

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = Config(calls=32, iterations=2, evaluate_every=2)


@dataclass(frozen=True)
class FlawedConfig(Config):
    features: int = 6


class Flawed(one_file.Mine):
    name = "flawed"
    config_type = FlawedConfig
    data_fields = ("calls",)


class ReadsMore(Flawed):
    @staticmethod
    def load(config, folder, device):
        return torch.zeros(96, config.features)


class HasABug(Flawed):
    @staticmethod
    def load(config, folder, device):
        return config.no_such_field


class LossAlone(Flawed):
    def loss(self, index, generator):
        return super().loss(index, generator)[0]


class LossInTwo(Flawed):
    def loss(self, index, generator):
        loss, metrics = super().loss(index, generator)
        return loss, loss, metrics


class LossOfItems(Flawed):
    def loss(self, index, generator):
        loss, metrics = super().loss(index, generator)
        return loss.expand(len(index)), metrics


class LossDetached(Flawed):
    def loss(self, index, generator):
        loss, metrics = super().loss(index, generator)
        return loss.detach(), metrics


class FloatInLoss(Flawed):
    def loss(self, index, generator):
        loss, _ = super().loss(index, generator)
        return loss, {"worth": 1.0}


class VectorInLoss(Flawed):
    def loss(self, index, generator):
        loss, _ = super().loss(index, generator)
        return loss, {"worth": torch.ones(3)}


class OtherMetric(Flawed):
    def evaluate(self, split, generator):
        return {"value": 1.0, "cost": 2.0}


class NumberAlone(Flawed):
    def evaluate(self, split, generator):
        return 1.0


class VectorMetric(Flawed):
    def evaluate(self, split, generator):
        return {"worth": torch.ones(3)}


class WordMetric(Flawed):
    def evaluate(self, split, generator):
        return {"worth": 1.0, "kind": "good"}


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (ReadsMore, "features is not among the data_fields of ReadsMore: add it"),
        (LossAlone, "LossAlone.loss must return a loss and a dictionary of metrics, got Tensor"),
        (LossInTwo, "LossInTwo.loss must return a loss and a dictionary of metrics, got Tensor, Tensor, dict"),
        (LossOfItems, "LossOfItems.loss must return a scalar to differentiate, got shape (8,): take its mean"),
        (LossDetached, "LossDetached.loss must return a scalar to differentiate, got one without a gradient: compute"),
        (FloatInLoss, "FloatInLoss.loss must return metrics that are scalar tensors, got float for 'worth'"),
        (VectorInLoss, "VectorInLoss.loss must return metrics that are scalar tensors, got Tensor of shape (3,) for"),
        (OtherMetric, "OtherMetric.evaluate must return the selection_metric, 'worth', among its metrics, got value, "),
        (NumberAlone, "NumberAlone.evaluate must return a dictionary of metrics, got float"),
        (VectorMetric, "VectorMetric.evaluate must return metrics that are numbers, got Tensor of shape (3,) for 'w"),
        (WordMetric, "WordMetric.evaluate must return metrics that are numbers, got str for 'kind'"),
    ],
)
def test_what_an_experiment_gets_wrong(kind, problem, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(registry, "_registered", {})
    words = ["--calls", "32", "--iterations", "2", "--evaluate-every", "2", "--out", str(tmp_path)]
    assert main(["train", f"{__name__}:{kind.__name__}", *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # others say that kernels are compiled, if they are
    assert line.startswith(f"gumtrace train: {problem}")


def test_an_attribute_that_is_no_setting_is_a_bug_as_any_other(tmp_path):
    with pytest.raises(AttributeError, match="no_such_field"):
        train(HasABug, FlawedConfig(), tmp_path, progress=False)


class TensorMetrics(Flawed):
    """What `.item()` was left out of."""

    def evaluate(self, split, generator):
        return {"worth": torch.tensor(1.5), "share": torch.tensor([0.25, 0.5]).numpy()[0], "count": 3}


def test_metrics_become_numbers(tmp_path):
    (result,) = train(TensorMetrics, SHORT, tmp_path, progress=False)
    assert result["test"] == {"worth": 1.5, "share": 0.25, "count": 3}
    assert json.loads((tmp_path / "seed-0" / "result.json").read_text())["valid"] == result["test"]


class Drops(Flawed):
    """nn.Dropout draws from torch's own generator."""

    def loss(self, index, generator):
        loss, metrics = super().loss(index, generator)
        return loss + nn.functional.dropout(self.encoder.bias).sum(), metrics


def test_a_loss_that_draws_from_the_generator_of_torch(tmp_path):
    """Said at the first update alone."""
    with pytest.warns(UserWarning, match=r"Drops\.loss drew from torch's own generator, as nn\.Dropout") as found:
        train(Drops, SHORT, tmp_path, progress=False)
    assert len(found) == 1
    assert Path(found[0].filename).name == "update.py"


def test_one_that_draws_from_the_generator_it_is_given(tmp_path):
    """Warnings are errors here."""
    train(Flawed, SHORT, tmp_path, progress=False)
