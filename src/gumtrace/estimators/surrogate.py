"""A cheap function c(X) of the structure as control variate: structures cost little next to an objective, so many more
are drawn than evaluated.

    g = 1/K Σ_i (L_i - c(X_i) - b_i) ∇ log P(T_i)  +  1/(M-1) Σ_j (c(X_j) - c̄) ∇ log P(T_j)

with K runs i that are evaluated and M more, j, that are not. The sums have means ∇E[L - c] and ∇E[c] whatever c is, as
long as it does not depend on this iteration's draws: it is fitted to those of earlier ones.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gumtrace.estimators.base import Estimator, Objective, advantage, checked_count
from gumtrace.estimators.graph_surrogate import GraphSurrogate
from gumtrace.estimators.mlp_surrogate import MLPSurrogate
from gumtrace.estimators.objectives import item_features, with_forward_of
from gumtrace.estimators.surrogates import PairwiseSurrogate
from gumtrace.relaxations.transforms import refuse_transforms
from gumtrace.structures.base import Structure


class SurrogateREINFORCE(Estimator):
    """T-REINFORCE on the loss minus a learned function c of the structure; the gradient of E c comes from many more
    structures.

    Args:
        samples: K, runs that are evaluated.
        extra: M, runs that are not.
        surrogate: c, with `c(x, context)` and `c.fit(x, loss, context, generator)` for x (*S, entries);
            `PairwiseSurrogate` by default. Entries are the value, flattened: n² of them or, since the others follow
            from these, n (n - 1) / 2 for a spanning tree and (n - 1)² for an arborescence. An order or a list of
            parents becomes n (n + 1), one-hot. Those of all structures of an item follow each other.

    The surrogate learns at every call in training mode that is made for its gradient; `eval()` freezes it.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(5, requires_grad=True)
    >>> estimator = SurrogateREINFORCE(samples=4, extra=100)
    >>> for _ in range(3):
    ...     loss = estimator(gt.Subset(logits, 2), lambda x: x[..., 0] * x[..., 1])
    >>> loss.backward()
    """

    label = "Surrogate"

    def __init__(self, *, samples: int = 4, extra: int = 256, surrogate: nn.Module | None = None):
        super().__init__(samples=samples)
        self.extra = checked_count("SurrogateREINFORCE", "extra", extra, least=2)
        self.fitted: Any = surrogate if surrogate is not None else PairwiseSurrogate()

    @property
    def surrogate(self) -> Any:
        """c. It is the submodule `fitted`: the name that it has in checkpoints."""
        return self.fitted

    @classmethod
    def supports(cls, dist):
        return len(dist.event_shape) > 0  # entries to fit c to

    def surrogate_loss(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        if self.training:  # the surrogate must not store tensors of a transform
            refuse_transforms("SurrogateREINFORCE", ", or freeze the surrogate by eval()")
        if with_forward_of(self.surrogate, MLPSurrogate, GraphSurrogate) is not None:  # others take what they like
            context = item_features("SurrogateREINFORCE", dist, context)
        trace = dist.sample_trace((self.samples,), generator=generator)
        entries = structure_entries(dist, trace.value)
        loss = self.evaluate(dist, objective, trace)
        more = dist.sample_trace((self.extra,), generator=generator)
        with torch.no_grad():
            left = loss - self.surrogate(entries, context)
            cheap = self.surrogate(structure_entries(dist, more.value), context)
        evaluated = (advantage(left, self.samples > 1) * dist.trace_log_prob(trace)).mean(0)
        unevaluated = (advantage(cheap, True) * dist.trace_log_prob(more)).mean(0)
        if self.training:
            self.surrogate.fit(entries, loss.detach(), context, generator)
        return loss, evaluated + unevaluated


def structure_entries(dist: Structure, value: Tensor) -> Tensor:
    """(*S, *event) -> (*S, entries) of the dtype of the log-rates: the same entries whatever this batch masks."""
    if not value.is_floating_point():  # keys or parents: categories
        try:
            value = torch.nn.functional.one_hot(value.clamp(min=-1) + 1, value.shape[-1] + 1)
        except RuntimeError:
            raise ValueError(
                f"SurrogateREINFORCE: a value of integers must be indices, -1 to {value.shape[-1] - 1}, as orders are; "
                "let combine return floating point numbers, or take TraceREINFORCE"
            ) from None
        value = value.flatten(-1 - len(dist.event_shape))
    else:
        value = value.flatten(-len(dist.event_shape))
        if (entries := dist.value_entries()) is not None:
            value = value.index_select(-1, entries)
    return value.to(dist.log_rates.dtype)
