"""Data sets that took a while to make, in files: with the arguments they were made from, and whole or not at all."""

import sys
from pathlib import Path
from textwrap import shorten
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from gumtrace.cli.arguments import folder_problem
from gumtrace_experiments.store.archives import Unreadable, is_like, unpacked
from gumtrace_experiments.store.validation import has

Splits = dict[str, dict[str, Tensor]]  # of each split, its tensors by name


def exists(path: Path) -> bool:
    """Whether there is such a file. If not, it can be written: what is to be in it takes a while to make."""
    if path.exists():
        return True
    if problem := folder_problem(path.parent, "--data"):
        raise ValueError(problem)
    return False


def write(path: Path, version: int, arguments: dict[str, Any], content: Splits) -> None:
    """A process that is killed leaves no file of that name. Reported on stderr, as the folder may be the wrong one: a
    typing error would otherwise be a long run on other data."""
    unfinished = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        torch.save({"format": version, "arguments": arguments, **content}, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"generated {path}: there was no such file", file=sys.stderr)


def read(path: Path, version: int, arguments: dict[str, Any], like: Splits) -> Splits:
    """What was written with this version and these arguments; a file of anything else is refused.

    Args:
        like: meta tensors with the dtypes and the shapes that are to be found.
    """
    content = path.read_bytes()  # apart: a file that may not be read is not one to delete
    try:
        found = unpacked(content)
    except Unreadable as error:
        raise _unusable(path, "it is damaged, or was not written by torch.save") from error
    if not has(found, "format"):
        raise _unusable(path, "it holds something else")
    for name, expected in (("format", version), ("arguments", arguments)):
        if repr(found.get(name)) != repr(expected):  # plain values, if it is the right file
            shown = shorten(str(found.get(name)), 200, placeholder=" ...")
            raise _unusable(path, f"its {name} must be {expected}, got {shown}")
    for split, tensors in like.items():
        theirs = found.get(split)
        if not has(theirs) or theirs.keys() != tensors.keys():
            raise _unusable(path, f"its {split} does not consist of {', '.join(tensors)}")
        for name, tensor in tensors.items():
            if not is_like(theirs[name], tensor):
                raise _unusable(
                    path, f"{name} of its {split} is not a {tensor.dtype} tensor of shape {tuple(tensor.shape)}"
                )
    return {split: found[split] for split in like}


def require(path: Path, good: bool, what: str) -> None:
    """Raise if values read from a cache are not good; only their user knows what is."""
    if not good:
        raise _unusable(path, f"invalid {what}")


def _unusable(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be used: {why}; delete it, and it will be made again")
