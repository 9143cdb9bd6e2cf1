"""The data of the experiment: reviews as integers, and the vectors of their words."""

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from gumtrace_experiments.l2x import beer, eraser, synthetic
from gumtrace_experiments.l2x.reviews import Corpus, Review

Source = Literal["eraser", "beer", "synthetic"]
SOURCES: tuple[str, ...] = get_args(Source)
NO_VECTOR = 0  # the number of padding and of words without a vector: theirs is zero


class Split(NamedTuple):
    """Reviews of up to n tokens."""

    words: Tensor  # (B, n) int32, rows of the vectors
    ratings: Tensor  # (B,) float32
    marked: Tensor  # (B, n) bool, tokens that people marked
    lengths: Tensor  # (B,) int64

    def to(self, device: torch.device | str) -> "Split":
        return Split(*(tensor.to(device) for tensor in self))

    def batch(self, index: Tensor) -> "Split":
        """Some of the items; words as integers that rows are soon found by."""
        words, *others = (tensor.index_select(0, index) for tensor in self)
        return Split(words.long(), *others)

    @property
    def racing(self) -> Tensor:
        """(B, n) bool: tokens, and no padding."""
        return torch.arange(self.words.shape[-1], device=self.words.device) < self.lengths[:, None]


@dataclass(frozen=True)
class Reviews:
    """The splits, the reviews that subset precision is counted on, and what their numbers stand for."""

    train: Split
    valid: Split
    test: Split
    annotated: Split
    vectors: Tensor
    """(words, size) float32. They are not trained."""
    texts: dict[str, list[Review]]
    """Of each split, in the same order."""
    are_marked: frozenset[str]
    """Splits with spans that people marked."""

    def to(self, device: torch.device | str) -> "Reviews":
        moved = {field.name: getattr(self, field.name).to(device) for field in fields(self)[:5]}
        return replace(self, **moved)


def load(
    folder: str | Path, source: str, aspect: str, original: bool, longest: int, chosen: int, synthetic_size: int
) -> Reviews:
    """The reviews of a source. Those of fewer tokens than are to be chosen are left out.

    Args:
        source: one of SOURCES.
        aspect: of a beer that is rated.
        original: refuse annotations of beer reviews that are not the original ones.
        longest: tokens of a review; the rest is cut off.
        chosen: tokens to choose.
        synthetic_size: reviews to train with, if they are made up.
    """
    folder = Path(folder)
    if source == "beer":
        corpus = beer.load(folder, aspect, longest, original)
    elif source == "eraser":
        corpus = eraser.load(folder, longest)
    else:
        print(f"l2x: {synthetic_size:,} made-up reviews to train with, and no real language", file=sys.stderr)
        corpus = synthetic.generate(synthetic_size, longest)
    return _tensors(_without_short(corpus, chosen), longest)


def _without_short(corpus: Corpus, chosen: int) -> Corpus:
    names = ("train", "valid", "test", "annotated")
    kept = {name: [r for r in getattr(corpus, name) if len(r.tokens) >= chosen] for name in names}
    left_out = {name: len(getattr(corpus, name)) - len(kept[name]) for name in names}
    if any(left_out.values()):
        counts = ", ".join(f"{count:,} of {name}" for name, count in left_out.items() if count)
        print(f"l2x: reviews of fewer than {chosen} tokens are left out: {counts}", file=sys.stderr)
    if empty := [name for name in names if not kept[name]]:
        raise ValueError(f"l2x: no review of {' or '.join(empty)} has {chosen} tokens or more: lower --chosen")
    return replace(corpus, **kept)


def _tensors(corpus: Corpus, longest: int) -> Reviews:
    known = sorted(corpus.words() & corpus.vectors.keys())
    numbers = {word: number for number, word in enumerate(known, NO_VECTOR + 1)}
    size = len(next(iter(corpus.vectors.values())))
    vectors = np.stack([np.zeros(size, np.float32), *(corpus.vectors[word] for word in known)])
    texts = {name: getattr(corpus, name) for name in ("train", "valid", "test", "annotated")}
    splits = {name: _split(reviews, numbers, longest) for name, reviews in texts.items()}
    marked = frozenset(name for name, reviews in texts.items() if any(r.spans is not None for r in reviews))
    return Reviews(**splits, vectors=torch.from_numpy(vectors), texts=texts, are_marked=marked)


def _split(reviews: list[Review], numbers: dict[str, int], longest: int) -> Split:
    words = np.full((len(reviews), longest), NO_VECTOR, np.int32)
    marked = np.zeros((len(reviews), longest), bool)
    for i, (tokens, _, spans) in enumerate(reviews):
        words[i, : len(tokens)] = [numbers.get(token, NO_VECTOR) for token in tokens]
        for start, end in spans or ():
            marked[i, start:end] = True
    ratings = torch.tensor([review.rating for review in reviews], dtype=torch.float32)
    lengths = torch.tensor([len(review.tokens) for review in reviews])
    return Split(torch.from_numpy(words), ratings, torch.from_numpy(marked), lengths)
