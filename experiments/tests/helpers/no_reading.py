"""A check that code would not synchronise on a GPU, on any machine."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoReading(TorchDispatchMode):
    """An error where a number is read from a tensor, or a shape depends on one: on a GPU this synchronises."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.item):
            raise AssertionError(f"{func} synchronises")
        return func(*args, **(kwargs or {}))
