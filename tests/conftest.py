"""Shared settings of the test suite."""

import os

import pytest
import torch
from torch.distributions import Distribution


@pytest.fixture(scope="session")
def draws():
    """How many draws a test of rare failures makes; GUMTRACE_DRAWS=1000000 for the full count."""
    return int(os.environ.get("GUMTRACE_DRAWS", "20000"))


@pytest.fixture
def one_thread():
    """Tiny tensors, many calls: threads would only wait for each other, and long where the cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def validation():
    """torch.compile turns the default off for the whole process."""
    Distribution.set_default_validate_args(True)
