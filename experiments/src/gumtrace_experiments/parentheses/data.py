"""The data of both experiments: balanced sequences of parentheses, made as the paper says, and how many there are.

A sequence of l tokens, l uniform on 2, 4, ..., 20, is made of a uniform type, of "( sub )" or "() sub" with equal
probabilities, and of a sequence of l - 2 tokens in the place of sub. Of two pairs in a row the left one is therefore
empty inside: "(())()" is balanced, and never made. The paper calls the sequences independent. So they may occur twice,
in one split and in several, and short ones do: of two tokens there are as many as types.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gumtrace.structures import checks
from gumtrace_experiments.parentheses import brackets
from gumtrace_experiments.parentheses.brackets import BALANCED, balance, matching
from gumtrace_experiments.store import caches

LONGEST = 20  # tokens
FORMAT = 1  # of cache files; a change of what is in them, or of how it is computed, makes it one more


class Split(NamedTuple):
    """Sequences of up to n tokens."""

    tokens: Tensor  # (B, n) int64, 2t and 2t + 1 for the parentheses of type t; 0 behind the length
    lengths: Tensor  # (B,) int64

    def to(self, device: torch.device | str) -> "Split":
        return Split(*(tensor.to(device) for tensor in self))

    def batch(self, index: Tensor) -> "Split":
        return Split(*(tensor.index_select(0, index) for tensor in self))

    def by_length(self, count: int) -> Iterator["Split"]:
        """In chunks of so many sequences, of about the same length."""
        return map(self.batch, self.lengths.argsort(stable=True).split(count))

    def repeated(self, count: int) -> "Split":
        """(count · B) sequences: all of them again and again."""
        return Split(*(tensor.expand(count, *tensor.shape).flatten(0, 1) for tensor in self))

    def joined(self, other: "Split") -> "Split":
        return Split(*(torch.cat(pair) for pair in zip(self, other, strict=True)))

    @property
    def racing(self) -> Tensor:
        """(B, n) bool: tokens, and no padding."""
        return brackets.racing(*self)


@dataclass(frozen=True)
class Sequences:
    train: Split
    valid: Split
    test: Split

    def to(self, device: torch.device | str) -> "Sequences":
        return Sequences(self.train.to(device), self.valid.to(device), self.test.to(device))


def generate(size: int, types: int, rng: np.random.Generator, longest: int = LONGEST) -> Split:
    """Independent sequences of at most `longest` tokens.

    >>> generate(2, 10, np.random.default_rng(0), longest=6).lengths
    tensor([6, 4])
    """
    pairs = rng.integers(1, longest // 2 + 1, size)  # left to make
    lengths = 2 * pairs
    kinds = rng.integers(0, types, (size, longest // 2))
    around = rng.integers(0, 2, (size, longest // 2)).astype(bool)  # "( sub )", and not "() sub"
    tokens = np.zeros((size, longest), np.int64)
    first, last = np.zeros_like(pairs), lengths - 1  # of what is left to make
    for kind, outside in zip(kinds.T, around.T, strict=True):
        rows = np.flatnonzero(first < last)
        closing = np.where(outside, last, first + 1)
        tokens[rows, first[rows]] = 2 * kind[rows]
        tokens[rows, closing[rows]] = 2 * kind[rows] + 1
        first, last = np.where(outside, first + 1, first + 2), np.where(outside, last - 1, last)
    return Split(torch.from_numpy(tokens), torch.from_numpy(lengths))


def load(
    folder: str | Path,
    types: int,
    train_size: int = 20_000,
    valid_size: int = 2500,
    test_size: int = 2500,
    seed: int = 0,
    longest: int = LONGEST,
) -> Sequences:
    """Three splits of `generate`, kept in a file of `folder` that is named after the arguments."""
    given = {"types": types, "train": train_size, "valid": valid_size, "test": test_size}
    arguments = {name: checks.integer("parentheses", name, value) for name, value in given.items()}
    if bad := [f"{name} must be at least 1, got {value}" for name, value in arguments.items() if value < 1]:
        raise ValueError(f"parentheses: {bad[0]}")
    if longest < 2 or longest % 2:
        raise ValueError(f"parentheses: longest must be even, and at least 2, got {longest}")
    arguments |= {"seed": checks.integer("parentheses", "seed", seed), "longest": longest}
    name = "-".join(str(value) for value in arguments.values())
    path = Path(folder) / f"parentheses-{name}.pt"
    sizes = {name: arguments[name] for name in ("train", "valid", "test")}
    if caches.exists(path):
        like = {name: _empty(size, longest)._asdict() for name, size in sizes.items()}
        found = {name: Split(**split) for name, split in caches.read(path, FORMAT, arguments, like).items()}
        caches.require(path, all(_balanced(split, types) for split in found.values()), "sequences")
        return Sequences(**found)
    rng = np.random.default_rng([arguments["seed"], types])
    made = {name: generate(size, types, rng, longest) for name, size in sizes.items()}
    caches.write(path, FORMAT, arguments, {name: split._asdict() for name, split in made.items()})
    return Sequences(**made)


def _empty(size: int, longest: int) -> Split:
    """The dtypes and shapes of a split alone."""
    return Split(*(torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((size, longest), (size,))))


def _balanced(split: Split, types: int) -> bool:
    """Whether they are balanced sequences of these types."""
    tokens, lengths = split
    known = (tokens >= 0) & (tokens < 2 * types) & (split.racing | (tokens == 0))
    bounded = (lengths > 0) & (lengths <= tokens.shape[1])
    return bool(known.all() and bounded.all() and (balance(tokens, lengths) == BALANCED).all())


# What can be made -------------------------------------------------------------------------------------


def count_made(types: int, length: int) -> int:
    """How many different sequences of `length` tokens the generator can make. All of them are equally likely.

    >>> count_made(10, 2), count_made(10, 4)
    (10, 200)
    """
    pairs = length // 2
    return types**pairs * 2 ** (pairs - 1)  # the last pair has nothing to be around or before


def count_balanced(types: int, length: int) -> int:
    """How many sequences of `length` tokens are balanced: a Catalan number, times the choices of types.

    >>> count_balanced(10, 4), count_balanced(10, 6)
    (200, 5000)
    """
    pairs, shapes = length // 2, 1
    for i in range(pairs):
        shapes = shapes * 2 * (2 * i + 1) // (i + 2)
    return types**pairs * shapes


def can_make(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B,) bool: which balanced sequences the generator can make, at some length: no pair that is not empty inside
    stands before another one of its level.

    >>> can_make(torch.tensor([[0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 1]]), torch.tensor([6, 6]))
    tensor([ True, False])
    """
    inside, place = brackets.racing(tokens, lengths), torch.arange(tokens.shape[-1], device=tokens.device)
    closes_some = inside & (tokens % 2 == 1) & (matching(tokens, lengths) < place - 1)
    opens_next = (inside & (tokens % 2 == 0))[:, 1:]
    return ~(closes_some[:, :-1] & opens_next).any(-1)


def log_prob(lengths: Tensor, types: int, longest: int = LONGEST) -> Tensor:
    """(B,) float64: log-probabilities of sequences that the generator can make, which only depend on their length."""
    pairs = lengths.double() / 2
    return -log(longest // 2) - pairs * log(types) - (pairs - 1) * log(2)


def best_perplexity(types: int, longest: int = LONGEST) -> float:
    """Of the generator itself, a token: exp of its entropy divided by the mean length. No model's is less, on average
    over test sets.

    >>> round(best_perplexity(10), 2)
    5.18
    """
    lengths = torch.arange(2, longest + 1, 2)
    return (-log_prob(lengths, types, longest).mean() / lengths.double().mean()).exp().item()
