"""A tiny experiment to train, in a folder of its own; and how a run is cut off."""

from functools import cache

import pytest

from gumtrace_experiments import find, train
from gumtrace_experiments.loop import training
from gumtrace_experiments.store.folder import read_metrics

GraphLayout = find("graph-layout")
TINY = GraphLayout.config_type(
    frames=4, nodes=4, hidden=8, calls=16, train_size=40, test_size=20, iterations=12, evaluate_every=4, critic_hidden=8
)


about_machine = cache(training.about_machine)


@pytest.fixture
def one_machine(monkeypatch):
    """The first run alone measures the machine: on a GPU that takes a tiny run's time, and gigabytes."""
    monkeypatch.setattr(training, "about_machine", about_machine)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def run(tmp_path, data):
    """Train in a folder of its own; returns the metrics of the seeds."""

    def call(name, config=TINY, **settings):
        train(GraphLayout, config, tmp_path / name, data=data, progress=False, **settings)
        return [metrics(tmp_path / name / f"seed-{seed}") for seed in settings.get("seeds", [config.seed])]

    return call


class Killed(BaseException):
    pass


def stop_early(run, config, **settings):
    """After the first evaluation."""

    def stop(run):
        raise Killed

    with pytest.raises(Killed):
        run("parts", config, watch=stop, **settings)


def cut_off(run, config):
    """The metrics of a run that was stopped, and resumed."""
    stop_early(run, config)
    return run("parts", config)


def metrics(folder):
    return read_metrics(folder / "metrics.jsonl")
