"""Files of torch.save. They are data: nothing in them is run, and what is damaged or made up is an error, no crash."""

import io
import pickletools
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

SIZES = {
    1: "Bool Byte Char",
    2: "Half BFloat16 Short",
    4: "Float Int",
    8: "Double Long ComplexFloat",
    16: "ComplexDouble",
}
BYTES = {  # of one number, by the class that torch.save names
    **{f"torch {name}Storage": size for size, names in SIZES.items() for name in names.split()},
    "torch.storage UntypedStorage": 1,  # of all newer dtypes
}


class Unreadable(Exception):
    """It was damaged; the message says how."""


class Foreign(Unreadable):
    """It is whole, but holds more than tensors and plain values, or was not written by torch.save."""


def unpacked(content: bytes) -> Any:
    """What torch.save was given, with all tensors on the CPU. Files have checksums, which torch does not verify."""
    try:
        with ZipFile(io.BytesIO(content)) as parts:
            harmed, sizes = parts.testzip(), {part.filename: part.file_size for part in parts.infolist()}
            pickles = {name: parts.read(name) for name in sizes if name.endswith("data.pkl")}
    except Exception:  # of many kinds: zipfile believes most of what it reads
        raise Unreadable("cut off, or not a checkpoint") from None
    if harmed is not None:
        raise Unreadable("a wrong checksum")
    if not pickles:
        raise Foreign("it was not written by torch.save")
    try:
        if any(sizes[part] != size for each in pickles.items() for part, size in _stated_sizes(*each)):
            raise ValueError
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except UnpicklingError:  # it advises to read the file all the same, which may run anything
        raise Foreign("it holds more than tensors and plain values") from None
    except Exception:  # sizes that are not those of the parts, parts that are missing, ...
        raise Unreadable("its parts do not fit together") from None


def _stated_sizes(name: str, pickled: bytes) -> Iterator[tuple[str, int]]:
    """Of each tensor's memory, the part of the file that it is read from and its size in bytes as the pickle states it.
    torch 2.5 believes what is stated, and reads behind the end of a part that is smaller."""
    memo: dict[Any, Any] = {}
    values: list[Any] = []  # what was pushed since the last mark; None for what is no plain value
    for op, argument, _ in pickletools.genops(pickled):
        if op.name == "MARK":
            values = []
        elif op.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = values[-1] if values else None
        elif op.name in ("BINGET", "LONG_BINGET"):
            values.append(memo[argument])
        elif op.name in ("BINUNICODE", "GLOBAL", "BININT", "BININT1", "BININT2", "LONG1"):
            values.append(argument)
        elif op.name == "TUPLE":
            values = [tuple(values)]
        elif op.name == "BINPERSID":
            ((kind, storage, key, _place, count),) = values  # as torch.save writes it, or an error
            if kind != "storage":
                raise ValueError
            values = [None]
            yield name.removesuffix("data.pkl") + f"data/{key}", count * BYTES[storage]
        else:
            values = [None]


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
