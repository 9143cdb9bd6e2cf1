"""Kinds of arguments that several commands take."""

import argparse


def positive(text: str) -> int:
    """A whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
