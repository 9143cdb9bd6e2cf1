"""Easy items first: what a batch may hold, by iteration."""

import math
from typing import NamedTuple, Self


class Curriculum(NamedTuple):
    """Items up to the difficulty `start` at first, and up to one more every `every` iterations."""

    start: float
    every: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        >>> Curriculum.parse("12:500").bound(1000)
        14.0
        """
        start, separator, every = text.partition(":")
        try:
            found = cls(float(start), float(every))
        except ValueError:
            found = cls(math.nan, math.nan)
        if not (separator and math.isfinite(found.start) and 0 < found.every < math.inf):
            raise ValueError(
                f"curriculum must be START:EVERY, a difficulty and iterations, such as 12:500; got {text!r}"
            )
        return found

    def bound(self, iteration: int) -> float:
        """The greatest difficulty of an item in the batch of an iteration."""
        return self.start + iteration / self.every
