"""Sizes drawn at random: from 0, often small, around powers of two, rarely large."""

from dataclasses import dataclass

import numpy as np
import torch

Rng = np.random.Generator
EARLY, LATE = 150, 300  # turns before which cases are mostly small, so that a fault is found soon, and at last large
INTEGERS = [torch.int64, torch.int64, torch.int32, torch.int16, torch.uint8]
AROUND = [7, 8, 9, 15, 16, 17, 31, 32, 33]  # kernels change their ways at powers of two


@dataclass(frozen=True)
class Sizes:
    """How much work a case may be."""

    small: float = 0.6  # how often it is small
    elements: int = 200_000  # items x decisions x keys
    most: int = 2000  # items
    recursion: int = 12_000  # items x keys of algorithms that run in Python, item by item

    def affordable(self, elements: int) -> float:
        """How many items of so many elements."""
        return self.elements / max(elements, 1)

    @classmethod
    def at(cls, index: int, device: str) -> "Sizes":
        if device != "cpu":
            return cls(0.3, 2_000_000, 4096, 60_000)
        if index < EARLY:
            return cls(0.9, 60_000, 600, 4_000)
        return cls() if index < LATE else cls(0.6, 800_000, 8000, 24_000)


def vector(rng: Rng, sizes: Sizes) -> int:
    way = rng.random()
    if way < sizes.small:
        return int(rng.integers(0, 9))
    if way < 0.97:
        return int(rng.choice(AROUND)) if rng.random() < 0.7 else int(rng.choice([63, 64, 65, 100, 128, 130]))
    return int(rng.choice([200, 256, 257, 300, 513, 1025]))


def side(rng: Rng, sizes: Sizes, largest: int = 60) -> int:
    way = rng.random()
    if way < sizes.small:
        return int(rng.integers(0, 7))
    if way < 0.97:
        return int(rng.choice([7, 8, 9, 15, 16, 17]))
    return min(int(rng.choice([31, 32, 33, 48, 60])), largest)
