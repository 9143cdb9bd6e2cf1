"""Which rows of small integers are equal: exactly, in sorts and other operations on whole tables, on any device.

A table is (N, width) int16. Four of its columns are one number of 64 bits, and rows are equal where all of these are.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from gumtrace_experiments.parentheses.brackets import racing
from gumtrace_experiments.parentheses.data import Split

_EACH = 4  # columns of a number
_ODD = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB)  # of 62 bits, so that a product overflows


def table(split: Split) -> Tensor:
    """Sequences as rows, the same for equal ones whatever stands behind their ends: the length (-1: the sequence has
    no end), then the tokens.

    >>> table(Split(torch.tensor([[4, 5, 7]]), torch.tensor([2])))
    tensor([[2, 4, 5, 0]], dtype=torch.int16)
    """
    tokens, lengths = split
    inside = racing(tokens, torch.where(lengths < 0, tokens.shape[1], lengths))
    return torch.cat([lengths[:, None], torch.where(inside, tokens, 0)], 1).short()


def sequences(rows: Tensor) -> Split:
    """What `table` was given, with zeros behind the ends."""
    return Split(rows[:, 1:].long(), rows[:, 0].long())


def first_equal(rows: Tensor) -> Tensor:
    """(N,) int64: for each row of a table the first one that is equal to it.

    >>> first_equal(torch.tensor([[1, 2], [0, 2], [1, 2]], dtype=torch.int16))
    tensor([0, 1, 0])
    """
    words = F.pad(rows, (0, -rows.shape[1] % _EACH)).view(torch.int64)
    place = torch.arange(len(rows), device=rows.device)
    order, same = _side_by_side(words)
    differs = F.pad(~same, (min(len(rows), 1), 0), value=True)
    start = torch.where(differs, place, 0).cummax(0).values if len(rows) else place
    return torch.empty_like(place).index_copy_(0, order, order[start])


def _side_by_side(words: Tensor) -> tuple[Tensor, Tensor]:
    """An order of rows in which equal ones are side by side, the first one first; and which, from the second on, are
    equal to the one before them."""
    mixed = _mixed(words)
    order = mixed.argsort(stable=True)
    alike, same = _as_before(mixed[order, None]), _as_before(words[order])
    if (alike & ~same).any():  # rows with the same number differ, and equal ones may be on both sides of another
        order = torch.arange(len(words), device=words.device)
        for word in words.unbind(1):
            order = order[word[order].argsort(stable=True)]
        same = _as_before(words[order])
    return order, same


def _as_before(ordered: Tensor) -> Tensor:
    return (ordered[1:] == ordered[:-1]).all(-1)


def _mixed(words: Tensor) -> Tensor:
    """(N,) int64, the same for equal rows, and hardly ever for others: one sort takes the place of one for each word.
    The sum of words that were scattered over all 64 bits, each in another way, as integers overflow."""
    x = words + _ODD[0] * torch.arange(1, words.shape[1] + 1, device=words.device)
    for odd in _ODD[1:]:
        x = (x ^ (x >> 29)) * odd
    return (x ^ (x >> 32)).sum(1)


def distinct(rows: Tensor) -> Tensor:
    """The first of equal rows each, in their order."""
    return rows[first_equal(rows) == torch.arange(len(rows), device=rows.device)]


def contained(rows: Tensor, others: Tensor) -> Tensor:
    """(N,) bool: which rows are among the others. The narrower table is filled up with zeros."""
    width = max(rows.shape[1], others.shape[1])
    both = torch.cat([F.pad(x, (0, width - x.shape[1])) for x in (others, rows)])
    return first_equal(both)[len(others) :] < len(others)
