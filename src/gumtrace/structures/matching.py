"""Matchings of rows and columns: the largest entry wins, its row and column are crossed out, and so on.

stop:  no key is left                    split:  one race of all keys left
map:   the winner's row and column leave combine:  the set of winners
"""

import torch
from torch import Tensor

from gumtrace.kernels import geometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.edges import matrix_edges
from gumtrace.structures.exact import matching_log_prob
from gumtrace.structures.replay import Choose, every_set
from gumtrace.structures.support import Support, binary
from gumtrace.structures.words import Words
from gumtrace.traces.trace import Layout, indicator


class Matching(Structure):
    """A matching of n rows with m >= n columns, chosen greedily.

    Args:
        logits: (*B, n, m).
        lengths: rows of ragged items (and columns, where the matrix is square).
        mask, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is 0/1, (*B, n, m). Every row is matched, unless the mask leaves no key for it: then the matching is
    partial. A sample costs O(n m), its log-probability as much; `log_prob` sums over the orders of choice by a
    dynamic programme, for up to 20 rows.

    >>> d = Matching(torch.tensor([[0.0, 9.0, 0.0], [5.0, 8.0, 0.0]]))
    >>> d.mode
    tensor([[0., 1., 0.],
            [1., 0., 0.]])
    """

    has_log_prob = True
    relaxations = ("sinkhorn",)
    drawing = "gumtrace.plotting.rows:matching"
    panel = "gumtrace.plotting.panels:matrix"
    story = "gumtrace.explore.rows:MatchingStory"

    def __init__(
        self,
        logits: Tensor,
        *,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        super().__init__(logits, 2, mask, lengths, validate_args)

    @property
    def support(self):  # type: ignore[override]
        return MatchingSupport(self.racing)

    @classmethod
    def words(cls, trace, names=None):
        return MatchingWords(trace, names)

    @classmethod
    def edges_of(cls, trace):
        return matrix_edges(trace)

    def _unpadded_mask(self, key_shape):
        n, m = key_shape
        if self._lengths is None or n == m:
            return super()._unpadded_mask(key_shape)
        return torch.arange(n, device=self.logits.device)[:, None] < self._lengths[..., None, None]

    def _trace_layout(self, key_shape):
        n, m = key_shape
        if n > m:
            raise ValueError(
                f"Matching: needs at least as many columns as rows, got {n} rows and {m} columns; transpose the logits"
            )
        return Layout(type(self), geometry.matching(n, m), key_shape, self.logits.dtype, indicator), None

    def _value_log_prob(self, value: Tensor) -> Tensor:
        """log P(X), summed over all orders in which its entries can be chosen: 2^n states."""
        return matching_log_prob(*torch.broadcast_tensors(self._x, value))

    def _run_with(self, choose: Choose):
        _, m = self.key_shape
        racing = self.racing.flatten().nonzero().flatten().tolist()
        winners: list[int] = []
        while racing:
            winners.append(choose(racing))
            row, col = divmod(winners[-1], m)
            racing = [key for key in racing if key // m != row and key % m != col]
        return winners, []

    def _run_a_value(self):
        return every_set(self._run_with)

    def _relax(self, scores, kind):
        from gumtrace.relaxations.sinkhorn import sinkhorn

        return sinkhorn(scores)


class MatchingWords(Words):
    """`names` is a pair, of rows and of columns."""

    short_races = True

    def labels(self):
        rows, columns = self.trace.layout.event_shape
        return (range(rows), range(columns)) if self.names is None else self.names

    def key(self, key):
        row, column = self._place(key)
        return f"row {row}, column {column}" if self.names is None else self.short_key(key)

    def short_key(self, key):
        row, column = self._place(key)
        rows, columns = self.labels()
        return f"{rows[row]}, {columns[column]}"

    def graph_nodes(self):
        rows, columns = self.trace.layout.event_shape
        names = (range(rows), range(rows, rows + columns)) if self.names is None else self.names
        sources, targets = (dict(enumerate(part)) for part in names)
        return sources, targets

    def race(self, decision, keys):
        rows, columns = zip(*map(self._place, keys), strict=True)
        return f"{_count(set(rows), 'row')}, {_count(set(columns), 'column')}"

    def _place(self, key: int) -> tuple[int, int]:
        return divmod(key, self.trace.layout.event_shape[-1])


class MatchingSupport(Support):
    """0/1 matrices with at most one 1 in a row or column, to which no racing key could be added."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        rows, cols = value.sum(-1), value.sum(-2)
        apart = (rows <= 1).all(-1) & (cols <= 1).all(-1)
        open_keys = (rows == 0)[..., :, None] & (cols == 0)[..., None, :] & self.racing
        return binary(value, self.racing).flatten(-2).all(-1) & apart & ~open_keys.flatten(-2).any(-1)


def _count(things: set[int], name: str) -> str:
    return f"{len(things)} {name}" + "s" * (len(things) != 1)
