"""What every source of reviews returns: tokens, ratings, the spans that people marked, and vectors of the words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

Spans = tuple[tuple[int, int], ...]  # [start, end) of tokens


class Review(NamedTuple):
    tokens: tuple[str, ...]
    rating: float  # between 0 and 1
    spans: Spans | None = None
    """What people marked as the reason of the rating; None: nobody was asked."""


@dataclass(frozen=True)
class Corpus:
    """The splits, and the reviews on which chosen tokens are compared with marked ones."""

    train: list[Review]
    valid: list[Review]
    test: list[Review]
    annotated: list[Review]
    """The test set itself, or others."""
    vectors: dict[str, np.ndarray]
    """(size,) float32 of each word that has one."""

    def words(self) -> set[str]:
        return words((self.train, self.valid, self.test, self.annotated))


def words(splits: Iterable[Sequence[Review]]) -> set[str]:
    return {token for split in splits for review in split for token in review.tokens}


def check_spans(spans: Iterable[Sequence[int]], length: int, where: str) -> Spans:
    """The spans, if all of them are inside of a review of that many tokens.

    >>> check_spans([[0, 2]], 5, "line 1")
    ((0, 2),)
    """
    found = []
    for span in spans:
        start, end = span
        if not 0 <= start <= end <= length:
            raise ValueError(
                f"{where}: the span [{start}, {end}) is not inside of the review, which has {length} tokens"
            )
        found.append((start, end))
    return tuple(found)


def find(folder: Path, pattern: str) -> Path | None:
    """A file in the folder, or in a folder inside it; None if there is none."""
    found = sorted(folder.glob(pattern)) or sorted(folder.glob(f"*/{pattern}"))
    if len(found) > 1:
        raise ValueError(f"l2x: found several files {pattern}: {', '.join(map(str, found))}; keep one of them")
    return found[0] if found else None
