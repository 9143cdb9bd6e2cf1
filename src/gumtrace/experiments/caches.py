"""Data sets that took a while to make, in files: with the arguments they were made from, and whole or not at all."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import torch


def write(path: Path, version: int, arguments: dict[str, Any], content: dict[str, Any]) -> None:
    """`content` holds tensors and what Python has of its own. A process that is killed leaves no file of that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        torch.save({"format": version, "arguments": arguments, **content}, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path, version: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """What was written with this version and these arguments; a file of anything else is refused."""
    with path.open("rb") as file:  # apart: a file that may not be read is not one to delete
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # of many kinds; half a file is an OSError, or a RuntimeError, or ...
            raise _unusable(path, "it is damaged, or no file of torch.save") from error
    if not isinstance(found, dict) or "format" not in found:
        raise _unusable(path, "it holds something else")
    for name, expected in (("format", version), ("arguments", arguments)):
        if found.get(name) != expected:
            raise _unusable(path, f"its {name} {found.get(name)} should be {expected}")
    return found


def _unusable(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be used: {why}; delete it, and it will be made again")
