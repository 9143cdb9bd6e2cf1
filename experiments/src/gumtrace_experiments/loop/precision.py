"""The precision of a run: of matrix products, of cuDNN, and of autocast."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from gumtrace_experiments.config import Config

_MATMUL = {"float32": "highest", "tf32": "high", "bfloat16": "high"}


@contextmanager
def precision(config: Config) -> Iterator[None]:
    """Set that of matrix products and of cuDNN, whose LSTMs have a switch of their own, for the whole process."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(_MATMUL[config.precision])
    torch.backends.cudnn.allow_tf32 = config.precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def autocast(config: Config, device: torch.device) -> AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16")
