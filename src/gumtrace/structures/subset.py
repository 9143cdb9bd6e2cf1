"""Subsets of fixed size: the k first of d racing keys.

stop:  k keys were chosen        split:  one race of all keys left
map:   the winner leaves         combine:  the set of winners
"""

import torch
from torch import Tensor

from gumtrace import constraints
from gumtrace.kernels.kinds import SUBSET, Geometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.exact import subset_log_prob
from gumtrace.structures.replay import Choose
from gumtrace.traces.trace import Layout, indicator


class Subset(Structure):
    """A k-subset of d keys, drawn without replacement with chances proportional to e^logit.

    Args:
        logits: (*B, d).
        k: how many, an int or integers (*B,).

    The value is 0/1, (*B, d). A sample costs O(d log k), its log-probability O(d).

    >>> d = Subset(torch.tensor([0.0, 5.0, 5.0, -torch.inf]), k=2)
    >>> d.mode
    tensor([0., 1., 1., 0.])
    >>> trace = d.sample_trace((1000,))
    >>> bool((trace.value.sum(-1) == 2).all()), bool((trace.value[:, 3] == 0).all())
    (True, True)
    """

    _per_item = ("_sizes", "_lengths", "k")

    def __init__(self, logits: Tensor, k: int | Tensor, *, mask=None, lengths=None, validate_args: bool | None = None):
        k = torch.as_tensor(k, device=logits.device if torch.is_tensor(k) and torch.is_tensor(logits) else None)
        if k.is_floating_point() or k.dtype == torch.bool:
            raise TypeError(f"Subset: k must be an int or an integer tensor, got {k.dtype}")
        self.k = k
        super().__init__(logits, 1, mask, lengths, validate_args)

    @property
    def support(self):  # type: ignore[override]
        return constraints.subset(self.racing, self.k)

    def _lay_out(self, key_shape):
        (d,) = key_shape
        if self.k.dim() > 0:
            try:
                self.k = self.k.expand(self.batch_shape)
            except RuntimeError:
                raise ValueError(
                    f"Subset: k of shape {tuple(self.k.shape)} does not fit batch shape {tuple(self.batch_shape)}"
                ) from None
        bad = ((self.k < 0) | (self.k > d)).flatten().nonzero()
        if len(bad) > 0:
            where = checks.item_name(int(bad[0]), self.k.shape)
            k = int(self.k.flatten()[bad[0]])
            raise ValueError(f"Subset: {where} has k = {k}, which is not between 0 and the number of keys {d}")
        high = int(self.k.max()) if self.k.numel() else 0
        geometry = Geometry(SUBSET, d, high, high, 0, high)
        return Layout(geometry, key_shape, self.logits.dtype, indicator), self.k if self.k.dim() > 0 else None

    def log_prob(self, value: Tensor) -> Tensor:
        """log P(S), by quadrature over the time at which the last chosen key came in: exact to the precision of the
        dtype."""
        self._check_value(value)
        x, chosen = torch.broadcast_tensors(self._x, value > 0.5)
        possible = ~(chosen & x.isneginf()).any(-1) & (chosen.sum(-1) == self.k)
        log_prob = subset_log_prob(x, chosen & ~x.isneginf())
        return torch.where(possible, log_prob, -torch.inf)

    def _decision_counts(self) -> Tensor:
        return self.k

    def _decide(self, choose: Choose):
        racing = self.racing.nonzero().flatten().tolist()
        winners: list[int] = []
        while len(winners) < int(self.k):
            winners.append(choose(racing))
            racing = [key for key in racing if key != winners[-1]]
        return winners, []

    def _stuck(self) -> str:
        return "has fewer than k keys that race"
