"""Shared settings of the test suite."""

import os

import pytest


@pytest.fixture(scope="session")
def draws():
    """How many draws a test of rare failures makes; GUMTRACE_DRAWS=1000000 for the full count."""
    return int(os.environ.get("GUMTRACE_DRAWS", "20000"))
