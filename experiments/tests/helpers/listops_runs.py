"""ListOps, tiny: its settings, its data and its model."""

import pytest
import tiny_runs
import torch

from gumtrace_experiments import find

data = tiny_runs.data
ListOps = find("listops")
TINY = ListOps.config_type(
    longest=12,
    depth=2,
    rounds=2,
    hidden=8,
    calls=24,
    extra=8,
    train_size=40,
    test_size=20,
    iterations=8,
    evaluate_every=4,
    lr=2e-3,
)


@pytest.fixture
def model(data):
    return ListOps.build(TINY, ListOps.load(TINY, data, torch.device("cpu")), torch.device("cpu"))
