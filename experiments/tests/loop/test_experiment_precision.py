"""The precision of training, which torch has as switches of the whole process."""

import pytest
import torch

from gumtrace_experiments.config import Config


def switches():
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("before", [("highest", True), ("high", False)])
@pytest.mark.parametrize(
    ("name", "inside"),
    [("float32", ("highest", False)), ("tf32", ("high", True)), ("bfloat16", ("high", True))],
)
def test_both_switches_are_set_and_put_back(before, name, inside):
    was = switches()
    try:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        with Config(precision=name).set_precision():
            assert switches() == inside
        assert switches() == before
    finally:
        torch.set_float32_matmul_precision(was[0])
        torch.backends.cudnn.allow_tf32 = was[1]
