"""Subsets of fixed size: the k first of d racing keys.

stop:  k keys were chosen        split:  one race of all keys left
map:   the winner leaves         combine:  the set of winners
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels import geometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.exact import subset_log_prob
from gumtrace.structures.inclusion import inclusion_probs
from gumtrace.structures.observed import observed_trace
from gumtrace.structures.replay import Choose
from gumtrace.structures.support import Support, binary, count
from gumtrace.traces.trace import Layout, Trace, indicator


class Subset(Structure):
    """A k-subset of d keys, drawn without replacement with chances proportional to e^logit.

    Args:
        logits: (*B, d).
        k: how many, an int or integers (*B,).
        most: a bound on k where k is a tensor: traces have that many slots. By default the largest k, or d where k
            cannot be read without synchronising or at all: on a GPU without checks, in torch.compile and vmap.
        mask, lengths, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is 0/1, (*B, d). A sample costs O(d log k), its log-probability O(d).

    >>> d = Subset(torch.tensor([0.0, 5.0, 5.0, -torch.inf]), k=2)
    >>> d.mode
    tensor([0., 1., 1., 0.])
    >>> trace = d.sample_trace((1000,))
    >>> bool((trace.value.sum(-1) == 2).all()), bool((trace.value[:, 3] == 0).all())
    (True, True)
    """

    _per_item = ("_sizes", "_lengths", "k")
    settings = ("k",)
    has_log_prob = True
    maximises_sum = True
    has_distinct_kernel = True
    relaxations = ("expfamily", "euclidean", "categorical", "binary")
    drawing = "gumtrace.plotting.rows:subset"
    panel = "gumtrace.plotting.panels:bars"
    story = "gumtrace.explore.rows:SubsetStory"

    def __init__(
        self,
        logits: Tensor,
        k: int | Tensor | np.ndarray | Sequence[int],
        *,
        most: int | None = None,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        if isinstance(k, np.integer):
            k = int(k)
        one = isinstance(k, int) or not torch.is_tensor(logits)
        self.k = torch.as_tensor(k, device="cpu" if one else logits.device)  # beside the logits where kernels read it
        if self.k.is_floating_point() or self.k.dtype == torch.bool:
            given = f"{k.dtype} (k.long() makes it one)" if torch.is_tensor(k) else repr(k)
            raise TypeError(f"Subset: k must be an int or an integer tensor, got {given}")
        self.k = self.k.to(torch.long, copy=not isinstance(k, int))  # users may write into theirs
        self._number = int(k) if isinstance(k, int) else None  # known without reading a tensor
        self._most = None if most is None else checks.integer("Subset", "most", most)
        super().__init__(logits, 1, mask, lengths, validate_args)

    @property
    def support(self):  # type: ignore[override]
        return SubsetSupport(self.racing, self.k)

    def _trace_layout(self, key_shape):
        (d,) = key_shape
        if not checks.broadcasts(self.k.shape, self.batch_shape):
            raise ValueError(
                f"Subset: k of shape {tuple(self.k.shape)} does not fit batch shape {tuple(self.batch_shape)}"
            )
        if self.k.dim() > 0:
            self.k = self.k.expand(self.batch_shape)
        layout = Layout(type(self), geometry.subset(d, self._highest(d)), key_shape, self.logits.dtype, indicator)
        return layout, None if self._number is not None else self.k

    def _highest(self, d: int) -> int:
        """How many decisions a trace has room for: the largest k, where k may be read."""
        if self._number is not None:
            if not 0 <= self._number <= d:
                raise ValueError(_out_of_range("the item", self._number, d))
            return self._number
        bound = d if self._most is None else max(0, min(self._most, d))
        if not self._may_sync:
            self.k = self.k.clamp(0, bound)  # kernels trust it
            return bound
        bad = ((self.k < 0) | (self.k > bound)).flatten().nonzero()
        if len(bad) > 0:
            raise ValueError(
                _out_of_range(checks.item_name(int(bad[0]), self.k.shape), int(self.k.flatten()[bad[0]]), bound)
            )
        if self._most is not None:
            return bound
        return int(self.k.max()) if self.k.numel() else 0

    def observe(self, winners: Tensor) -> Trace:
        """The trace of observed winners, keys (*S, *B, m) in order of choice and then -1; one ranking may stand for the
        whole batch.

        `trace_log_prob` of it is the likelihood of a partial ranking under Plackett-Luce: of the first k of d.

        >>> clicks = torch.tensor([[2, 0, -1], [1, 3, 0]])  # of the second list, three
        >>> d = Subset(torch.zeros(2, 4), k=(clicks >= 0).sum(-1))
        >>> d.trace_log_prob(d.observe(clicks)).exp()  # 1 / (4 · 3) and 1 / (4 · 3 · 2)
        tensor([0.0833, 0.0417])
        """
        advice = "has {seen} winners and k = {wanted}; for rankings of any length, k=(winners >= 0).sum(-1)"
        return observed_trace(self, winners, self.k, advice)

    def _value_log_prob(self, value: Tensor) -> Tensor:
        """log P(S), by quadrature over the time at which the last chosen key came in: exact to the precision of the
        dtype."""
        x, chosen = torch.broadcast_tensors(self._x, value > 0.5)
        possible = ~(chosen & x.isneginf()).any(-1) & (chosen.sum(-1) == self.k)
        log_prob = subset_log_prob(x, chosen & ~x.isneginf(), self._layout.geometry.k)
        return torch.where(possible, log_prob, -torch.inf)

    @property
    def mean(self) -> Tensor:
        """(*B, d): the probability that a key is chosen, exact by quadrature over the time at which it arrives,
        and differentiable. O(d · k) an item, for any d; its second derivative takes memory for d × d numbers an item.

        >>> Subset(torch.tensor([1.0, 1.0, 2.0, 0.0]).log(), 2).mean
        tensor([0.5833, 0.5833, 0.8333, 0.0000])
        """
        device = self._x.device
        # Filled in on the device where it is a number: a copy from the CPU synchronises.
        k = self.k.to(device) if self._number is None else torch.full((), self._number, device=device)
        return inclusion_probs(self._x, k, self._layout.geometry.k)

    @property
    def variance(self) -> Tensor:
        mean = self.mean
        return mean * (1 - mean)

    def _decision_counts(self) -> Tensor:
        return self.k

    def _run_with(self, choose: Choose):
        racing = self.racing.nonzero().flatten().tolist()
        winners: list[int] = []
        while len(winners) < int(self.k):
            winners.append(choose(racing))
            racing = [key for key in racing if key != winners[-1]]
        return winners, []

    def _run_a_value(self):
        racing = self.racing.nonzero().flatten().tolist()
        return ((winners, []) for winners in combinations(racing, int(self.k)))

    def _count_values(self):
        return comb(int(self.racing.sum()), int(self.k))

    def _infeasible_message(self) -> str:
        return "has fewer than k keys that race; k may be a tensor, a number for each item"

    def _relax(self, scores, kind):
        from gumtrace.relaxations.subset import relax_subset

        k = self.k if self._number is None else self._number  # an int where it was one: reading a tensor synchronises
        return relax_subset(scores, k, kind)


class SubsetSupport(Support):
    """0/1 vectors with k ones, at keys that race."""

    def __init__(self, racing: Tensor, k: Tensor):
        self.racing, self.k = racing, k
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        return binary(value, self.racing).all(-1) & (count(value) == self.k)


def _out_of_range(where: str, k: int, bound: int) -> str:
    return f"Subset: {where} has k = {k}, which is not between 0 and {bound}, the number of keys (or `most`)"
