"""Which rows of small integers are equal: exactly, in sorts and other operations on whole tables, on any device.

A table is (N, width) int16. Four of its columns are one number of 64 bits, and rows are equal where all of these are.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from gumtrace_experiments.parentheses.brackets import racing
from gumtrace_experiments.parentheses.data import Split

_EACH = 4  # columns of a number


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
    order = place
    for word in words.unbind(1):
        order = order[word[order].argsort(stable=True)]  # equal rows end side by side, the first one first
    ordered = words[order]
    differs = F.pad((ordered[1:] != ordered[:-1]).any(-1), (min(len(rows), 1), 0), value=True)
    start = torch.where(differs, place, 0).cummax(0).values if len(rows) else place
    return torch.empty_like(place).index_copy_(0, order, order[start])


def distinct(rows: Tensor) -> Tensor:
    """The first of equal rows each, in their order."""
    return rows[first_equal(rows) == torch.arange(len(rows), device=rows.device)]


def contained(rows: Tensor, others: Tensor) -> Tensor:
    """(N,) bool: which rows are among the others. The narrower table is filled up with zeros."""
    width = max(rows.shape[1], others.shape[1])
    both = torch.cat([F.pad(x, (0, width - x.shape[1])) for x in (others, rows)])
    return first_equal(both)[len(others) :] < len(others)
