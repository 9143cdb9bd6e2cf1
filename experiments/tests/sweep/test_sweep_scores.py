"""What a sweep looks for is good on the validation set. The test set has no say."""

import json
import os

import optuna
import pytest
from quadratic import Quadratic, QuadraticConfig, run_folder

from gumtrace_experiments.sweep.front_end import run_sweep
from gumtrace_experiments.sweep.jobs import Jobs
from gumtrace_experiments.sweep.study import Sweep, best

pytestmark = pytest.mark.usefixtures("one_thread")


class Opposite(Quadratic):
    """What is better on the validation set is worse on the test set, by far."""

    def evaluate(self, split, generator):
        metrics = super().evaluate(split, generator)
        return metrics if split == "valid" else {"score": -100 - metrics["score"]}


@pytest.fixture(autouse=True)
def quiet_and_quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def test_a_trial_s_value_is_its_validation_score(tmp_path):
    """So that the best trial is the best there, and here the worst on the test set."""
    folders = {"out": tmp_path / "sweep", "data": tmp_path / "orders"}
    study = run_sweep(Sweep(Opposite, QuadraticConfig(), **folders, trials=6, seed=0, prune=False), Jobs())
    results = [json.loads((run_folder(trial) / "result.json").read_text()) for trial in study.trials]
    valid, test = ([result[split]["score"] for result in results] for split in ("valid", "test"))
    assert len({*valid, *test}) == 12
    assert [trial.value for trial in study.trials] == valid
    assert [max(trial.intermediate_values.values()) for trial in study.trials] == valid
    assert best(study)[0].number == test.index(min(test))
