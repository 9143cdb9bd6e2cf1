"""A check that code would not synchronise on a GPU, on any machine."""

from contextlib import ExitStack
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_NUMBERS = {_aten._local_scalar_dense, _aten.item, _aten.equal}
_SHAPES = {_aten.nonzero, _aten.masked_select, _aten._unique2, _aten.unique_dim, _aten.unique_consecutive}
_SHAPES |= {_aten.bincount}
_INDEXED = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_MASKS = (torch.bool, torch.uint8)


class NoReading(TorchDispatchMode):
    """An error where a number is read from a tensor, where a shape depends on one, or where numbers of Python, or a
    tensor that was made of them on the host, are copied to a device: on a GPU each of these synchronises.

    A number that becomes a tensor on the host (`torch.tensor(5)`) does not, nor one that is put in (`x[:2] = 0`).
    """

    def __enter__(self):
        with ExitStack() as stack:  # what does not go through the dispatcher, or not with its device
            for name in ("tolist", "new_tensor"):
                stack.enter_context(mock.patch.object(Tensor, name, _refused(name)))
            for name in ("tensor", "as_tensor"):
                stack.enter_context(mock.patch.object(torch, name, _on_host(getattr(torch, name))))
            stack.enter_context(mock.patch.object(Tensor, "to", _moved(Tensor.to)))
            self._patches = stack.pop_all()
        return super().__enter__()

    def __exit__(self, *error):
        self._patches.close()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        masked = packet in _INDEXED and any(i is not None and i.dtype in _MASKS for i in args[1])
        repeated = func is _aten.repeat_interleave.Tensor and (kwargs or {}).get("output_size") is None
        several = packet is _aten.lift_fresh and args[0].dim() > 0  # a list: as an index, too
        if packet in _NUMBERS or packet in _SHAPES or masked or repeated or several:
            raise AssertionError(f"{func} synchronises")
        return func(*args, **(kwargs or {}))


def _refused(name: str):
    def refuse(self, *args, **kwargs):
        raise AssertionError(f"{name} synchronises")

    return refuse


def _on_host(make):
    """`make`, which may not copy to a device, and marks what it makes on the host."""

    def made(data, *args, **kwargs):
        host = not isinstance(data, Tensor) or _is_host(data)
        device = kwargs.get("device")  # a tensor's stands for a GPU here; "cpu" is written against a default device
        if host and device is not None and not (isinstance(device, str) and device == "cpu"):
            raise AssertionError(f"{make.__name__} synchronises: it copies numbers to a device")
        found = make(data, *args, **kwargs)
        if host:
            found.made_on_host = True
        return found

    return made


def _moved(to):
    def moved(self, *args, **kwargs):
        target = [*args, *kwargs.values()]
        if _is_host(self) and any(isinstance(x, torch.device | str | Tensor) for x in target):
            raise AssertionError("to synchronises: it copies a tensor of the host to a device")
        return to(self, *args, **kwargs)

    return moved


def _is_host(x: Tensor) -> bool:
    return getattr(x, "made_on_host", False)
