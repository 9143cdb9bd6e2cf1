"""What the tests of both distributions, and doctests, have in common."""

import gc
import os

import pytest
import torch
from torch.distributions import Distribution

# Before any kernel is imported, by a doctest say: Triton asks when it meets one whether it is to be interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """It makes a million objects and keeps them: to look for garbage among them takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


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
