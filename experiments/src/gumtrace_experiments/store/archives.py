"""Files of torch.save. They are data: nothing in them is run, and what is damaged or made up is an error, no crash."""

import io
from pickle import UnpicklingError
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor


class Unreadable(Exception):
    """It was damaged; the message says how."""


class Foreign(Unreadable):
    """It is whole, but holds more than tensors and plain values, or was not written by torch.save."""


def unpacked(content: bytes) -> Any:
    """What torch.save was given, with all tensors on the CPU. Files have checksums, which torch does not verify."""
    try:
        with ZipFile(io.BytesIO(content)) as parts:
            harmed, names = parts.testzip(), parts.namelist()
    except Exception:  # of many kinds: zipfile believes most of what it reads
        raise Unreadable("cut off, or not a checkpoint") from None
    if harmed is not None:
        raise Unreadable("a wrong checksum")
    if not any(name.endswith("data.pkl") for name in names):
        raise Foreign("it was not written by torch.save")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except UnpicklingError:  # it advises to read the file all the same, which may run anything
        raise Foreign("it holds more than tensors and plain values") from None
    except Exception:  # sizes that are not those of the parts, parts that are missing, ...
        raise Unreadable("its parts do not fit together") from None


def is_like(found: Any, own: Tensor) -> bool:
    """Whether something from a file is a tensor of this dtype and shape that can be copied from."""
    return is_plain(found, own) and found.shape == own.shape


def is_plain(found: Any, own: Tensor) -> bool:
    """The same of any size, in memory of its own: a shape that is stretched over a few numbers would fill the memory of
    whoever makes room for it."""
    return (
        type(found) is Tensor  # neither a parameter nor of another subclass
        and not vars(found)  # attributes that a file gave it could hide its methods
        and found.layout is torch.strided
        and not found.is_nested
        and not found.is_meta
        and found.device.type in ("cpu", own.device.type)
        and found.dtype is own.dtype
        and found.nbytes <= found.untyped_storage().nbytes()
    )
