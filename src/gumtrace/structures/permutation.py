"""Permutations: all racing keys in order, the Plackett-Luce distribution.

stop:  no key is left            split:  one race of all keys left
map:   the winner leaves         combine:  the winners in order
"""

from math import factorial

import torch
from torch import Tensor

from gumtrace.kernels import geometry, ops
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.observed import observed_trace
from gumtrace.structures.ranks import place_probs
from gumtrace.structures.replay import Choose, every_run
from gumtrace.structures.support import Support, binary
from gumtrace.traces.trace import Layout, Trace


class Permutation(Structure):
    """A permutation of d keys: first a draw with chances proportional to e^logit, then one of the rest, and so on.

    Args:
        logits: (*B, d).
        matrix: give 0/1 matrices (row = position, column = key) in place of vectors of keys.
        mask, lengths, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is long (*B, d), keys in order of choice; keys that do not race stay at their own index (in the matrix,
    their rows are 0). The trace is the value, so `log_prob` is exact. A sample costs O(d), one radix sort; its
    log-probability O(d).

    >>> d = Permutation(torch.tensor([0.0, 9.0, -9.0]))
    >>> d.mode
    tensor([1, 0, 2])
    >>> d.log_prob(torch.tensor([1, 0, 2])).exp() > 0.99
    tensor(True)
    """

    has_log_prob = True
    has_distinct_kernel = True
    one_to_one = True
    is_indicator = False
    relaxations = ("sinkhorn",)
    drawing = "gumtrace.plotting.rows:permutation"
    panel = "gumtrace.plotting.panels:places"
    story = "gumtrace.explore.rows:PermutationStory"

    def __init__(
        self,
        logits: Tensor,
        matrix: bool = False,
        *,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        self.matrix = bool(matrix)
        super().__init__(logits, 1, mask, lengths, validate_args)

    @property
    def support(self):  # type: ignore[override]
        return PermutationMatrixSupport(self.racing) if self.matrix else PermutationSupport(self.racing)

    def _value_shape(self, key_shape):
        return key_shape + key_shape if self.matrix else key_shape

    def _trace_layout(self, key_shape):
        (d,) = key_shape
        dtype, to_value = (self.logits.dtype, _matrix_of) if self.matrix else (torch.long, _vector_of)
        return Layout(type(self), geometry.permutation(d), key_shape, dtype, to_value), None

    def observe(self, winners: Tensor) -> Trace:
        """The trace of an observed order, keys (*S, *B, d) with -1 behind those that race, or a value as `sample` gives
        it; one may stand for the batch.

        The loss of ListMLE is `-d.trace_log_prob(d.observe(order))`. `Subset.observe` takes partial rankings.

        >>> d = Permutation(torch.tensor([0.0, 9.0, -9.0, 0.0]), lengths=3)
        >>> d.observe(torch.tensor([1, 0, 2, -1])).value
        tensor([1, 0, 2, 3])
        """
        advice = (
            "has {seen} winners for {wanted} keys that race; a ranking of some of them is a trace of "
            "Subset(logits, k=(winners >= 0).sum(-1))"
        )
        return observed_trace(self, self._without_idle(winners), self._decision_counts(), advice)

    def _without_idle(self, order: Tensor) -> Tensor:
        """Keys that do not race, which a value has in their own places, become -1 behind the others."""
        if not torch.is_tensor(order) or order.shape[-1:] != self.key_shape or order.dtype == torch.bool:
            return order
        idle = (order == torch.arange(order.shape[-1], device=order.device)) & ~self.racing.to(order.device)
        return torch.where(idle, -1, order).gather(-1, idle.byte().argsort(dim=-1, stable=True))

    def _value_log_prob(self, value: Tensor) -> Tensor:
        """log P(X), the log-probability of the one trace that gives X."""
        d = value.shape[-1]
        order = ((value > 0.5) * torch.arange(d, device=value.device)).sum(-1) if self.matrix else value
        order = order.clamp(0, d - 1)  # (*S, d); kernels trust keys
        racing = self.racing.expand(order.shape)
        count = racing.sum(-1, keepdim=True)
        position = torch.where(racing, racing.cumsum(-1) - 1, racing.shape[-1] - 1 - (~racing).cumsum(-1) + 1)
        winners = torch.empty_like(order).scatter(-1, position, order)  # the racing ones first
        winners = torch.where(torch.arange(order.shape[-1], device=order.device) < count, winners, -1).int()
        return self.trace_log_prob(Trace(self._layout, winners, winners[..., :0], self._owner))

    @property
    def mean(self) -> Tensor:
        """(*B, d, d) of matrices: the probability of each key (column) in each place (row), exact by quadrature over
        the time at which it arrives.

        >>> Permutation(torch.tensor([1.0, 1.0, 2.0]).log(), matrix=True).mean
        tensor([[0.2500, 0.2500, 0.5000],
                [0.3333, 0.3333, 0.3333],
                [0.4167, 0.4167, 0.1667]])
        """
        if not self.matrix:
            return super().mean
        racing = self.racing
        probs = place_probs("Permutation.mean", self._x, self.key_shape[0]).mT  # (*B, places, keys)
        place = (racing.cumsum(-1) - 1).clamp(min=0)  # of each row; those of keys that do not race are none
        return torch.where(racing[..., None], probs.gather(-2, place[..., None].expand(probs.shape)), 0.0)

    @property
    def variance(self) -> Tensor:
        return self.mean * (1 - self.mean) if self.matrix else super().variance

    def _decision_counts(self) -> Tensor:
        return self.racing.sum(-1)

    def _run_with(self, choose: Choose):
        racing = self.racing.nonzero().flatten().tolist()
        winners: list[int] = []
        while racing:
            winners.append(choose(racing))
            racing = [key for key in racing if key != winners[-1]]
        return winners, []

    def _run_a_value(self):
        return every_run(self._run_with)

    def _count_values(self):
        return factorial(int(self.racing.sum()))

    def _check_relaxable(self):
        if not self.matrix:
            raise ValueError("relax: a soft permutation is a matrix; make the distribution with matrix=True")

    def _relax(self, scores, kind):
        from gumtrace.relaxations.sinkhorn import permutation_matrix

        return permutation_matrix(scores)


class PermutationSupport(Support):
    """Orders of keys in which those that do not race stay at their own index."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        keys = torch.arange(value.shape[-1], device=value.device)
        return (value.sort(-1).values == keys).all(-1) & ((value == keys) | self.racing).all(-1)


class PermutationMatrixSupport(Support):
    """0/1 matrices with one 1 in each racing row and column and none elsewhere."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        rows, cols = value.sum(-1) == self.racing, value.sum(-2) == self.racing
        return binary(value).flatten(-2).all(-1) & (rows & cols).all(-1)


def _vector_of(trace: Trace) -> Tensor:
    layout = trace.layout
    return ops.arrangement(layout.geometry, trace.rows()[0]).reshape(*trace.shape, *layout.event_shape)


def _matrix_of(trace: Trace) -> Tensor:
    value = _vector_of(trace)
    won = torch.zeros(*trace.shape, value.shape[-1] + 1, dtype=trace.layout.dtype, device=trace.device)
    won = won.scatter(-1, trace.winners % won.shape[-1], 1)[..., :-1]  # -1 lands in the last bin
    matrix = torch.zeros(*value.shape, value.shape[-1], dtype=trace.layout.dtype, device=trace.device)
    return matrix.scatter(-1, value.clamp(max=max(value.shape[-1] - 1, 0))[..., None], won[..., None])
