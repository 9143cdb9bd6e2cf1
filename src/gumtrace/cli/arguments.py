"""Kinds of arguments that several commands take."""

import argparse
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import torch


def positive(text: str) -> int:
    """A whole number from 1 on."""
    with suppress(ValueError):  # whose text would name this function
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")


def folder_problem(folder: Path, option: str) -> str | None:
    """Why nothing can be written into a folder, None if it can: it is made if it is missing. To be asked before the
    work, and not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return None
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        return f"cannot write into {folder}: {reason}; choose another {option}"


def file_problem(file: Path, option: str) -> str | None:
    """The same of a file."""
    try:
        if not file.exists():
            return folder_problem(file.parent, option)
        reason = "it is a folder" if file.is_dir() else None if os.access(file, os.W_OK) else "not permitted"
    except OSError as error:  # in a folder that may not be looked into
        reason = error.strerror
    return f"cannot write {file}: {reason}; choose another {option}" if reason else None


def device_problem(device: str, dtype: torch.dtype = torch.float32) -> str | None:
    """Why it cannot be used, None if it can. `meta` and the like fail on the way back."""
    try:
        torch.ones(1, device=device, dtype=dtype).add(1).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()
        return f"device {device!r} cannot be used with {dtype}: {reason[0] if reason else type(error).__name__}"
    return None
