"""Kinds of arguments that several commands take."""

import argparse

import torch


def positive(text: str) -> int:
    """A whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def device_problem(device: str, dtype: torch.dtype = torch.float32) -> str | None:
    """Why it cannot be used, None if it can. `meta` and the like fail on the way back."""
    try:
        torch.ones(1, device=device, dtype=dtype).add(1).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()
        return f"device {device!r} cannot be used with {dtype}: {reason[0] if reason else type(error).__name__}"
    return None
