"""Objectives that are sums over the decisions of a run: the gain of a rank, the cost of an edge when it is chosen.

They are called with traces like any objective with `on="trace"` and return one loss for each, so that every estimator
that takes traces takes them; `StructureREINFORCE` only where the structure says as much as the trace.
`DecisionREINFORCE` asks for the terms as well.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gumtrace.traces.trace import Trace


class DecisionTerms:
    """The objective Σ_b terms[b], one term for each decision.

    A term may depend on its own decision and on those before it, not on later ones. Before a decision come

    - those with smaller numbers (`Subset`, `Permutation`, `Matching`, spanning trees and forests, `Custom`);
    - those of its ancestors (`BinaryTree`, where decision b is the one that token b won);
    - those of the supernodes inside of it (`Arborescence`).

    A term that looks further ahead makes the gradient of `DecisionREINFORCE` biased; the term belongs to the last
    decision that it depends on.

    Args:
        terms: gets a `Trace` of shape samples + batch, returns samples + batch + decisions, in the order of
            `trace.winners`. What it returns where there was no decision (winner -1) counts as 0.

    >>> import gumtrace as gt
    >>> length = torch.rand(5, 5)
    >>> objective = DecisionTerms(lambda trace: length.flatten()[trace.winners])
    >>> logits = torch.zeros(32, 5, 5, requires_grad=True)
    >>> loss = gt.estimators.DecisionREINFORCE(samples=4)(gt.SpanningTree(logits), objective, on="trace")
    >>> loss.shape
    torch.Size([32])
    """

    gains: Any = None  # of the keys, where a term is a weight times the gain of the winner
    weights: Any = None  # of the decisions, beside gains: a tensor, or a function of the trace

    def __init__(self, terms: Callable[[Trace], Tensor]):
        self._terms = terms

    def split(self, trace: Trace) -> tuple[Tensor, Tensor | None]:
        """Terms, samples + batch + decisions, 0 where there was no decision; and their weights, if there are
        gains."""
        self._checked(trace)
        here = trace.winners >= 0
        terms, want = self._terms(trace), here.shape
        if not torch.is_tensor(terms) or terms.shape != want:
            got = f"shape {tuple(terms.shape)}" if torch.is_tensor(terms) else type(terms).__name__
            raise ValueError(
                f"{type(self).__name__}: the function must return one term for each of the {want[-1]} decisions of "
                f"every trace, shape {tuple(want)}; got {got}"
            )
        return torch.where(here, terms, 0), None

    def _checked(self, trace: Trace) -> None:
        if not isinstance(trace, Trace):
            raise TypeError(
                f"{type(self).__name__}: terms belong to the decisions of a trace, and it got a "
                f'{type(trace).__name__}; call the estimator with on="trace"'
            )

    def __call__(self, trace: Trace) -> Tensor:
        """The sum of the terms, samples + batch."""
        return self.split(trace)[0].sum(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_short(self._terms)})"


class DecisionGains(DecisionTerms):
    """The objective Σ_b weights[b] · gains[winner of b], whose terms are known for every key that could have won.

    `DecisionREINFORCE` takes the mean of a term over the keys that raced in its decision, in place of the winner's
    alone. The discounted gain of a ranking has this form, the number of relevant items among the first k, the exposure
    of a group, the length of a spanning tree.

    Args:
        gains: of the keys, (*batch, *keys) or what broadcasts to it. Those of keys that do not race are not read.
        weights: of the decisions, (*batch, decisions) or what broadcasts to it; by default all are 1. Or a function of
            the trace that returns samples + batch + decisions, for weights that depend on the decisions before: the
            depth in a `BinaryTree`. It must not depend on the decision itself. In a `BinaryTree` the number of a
            decision is its winner, so that one weight for each number would: `DecisionREINFORCE` refuses a tensor with
            a last dimension above 1 there. A factor of a token belongs in its gain.

    >>> import gumtrace as gt
    >>> relevance = torch.tensor([0.0, 3.0, 1.0, 2.0])
    >>> dcg = DecisionGains(-relevance, 1 / torch.arange(2.0, 5.0).log2())  # of the first three: a loss is minimised
    >>> d = gt.Subset(torch.zeros(4, requires_grad=True), k=3)
    >>> dcg(d.observe(torch.tensor([1, 3, 0])))  # -(3 / log2(2) + 2 / log2(3) + 0)
    tensor(-4.2619)
    >>> dcg
    DecisionGains(gains of shape (4,), weights of shape (3,))
    >>> gt.estimators.DecisionREINFORCE(samples=8)(d, dcg, on="trace").backward()
    """

    def __init__(self, gains: Tensor, weights: Tensor | Callable[[Trace], Tensor] | None = None):
        if not torch.is_tensor(gains):
            raise TypeError(f"{type(self).__name__}: gains must be a tensor of the keys, got {type(gains).__name__}")
        if not (weights is None or torch.is_tensor(weights) or callable(weights)):
            wrong = f"got {type(weights).__name__}"
            raise TypeError(f"{type(self).__name__}: weights must be a tensor, or a function of the trace; {wrong}")
        self.gains, self.weights = gains, weights

    def split(self, trace: Trace) -> tuple[Tensor, Tensor]:
        self._checked(trace)
        winners, keys = trace.winners, trace.layout.event_shape
        here = winners >= 0
        weights, of_keys = self._weights_of(trace, here), self._fits("gains", self.gains, trace.shape + keys)
        if here.shape[-1] == 0:  # nothing is decided, and there may be no keys
            return weights, weights
        won = of_keys.flatten(len(trace.shape)).gather(-1, winners.clamp(min=0))
        return torch.where(here, weights * won, 0), weights

    def _weights_of(self, trace: Trace, here: Tensor) -> Tensor:
        """samples + batch + decisions, 0 where there was none."""
        weights = self.weights
        if weights is None:
            return here.to(self.gains.dtype)
        if not torch.is_tensor(weights):
            weights = weights(trace)
        return torch.where(here, self._fits("weights", weights, here.shape), 0)

    def _fits(self, what: str, x: Tensor, want: torch.Size) -> Tensor:
        try:
            return x.expand(want)
        except RuntimeError:
            one = "a weight for each decision" if what == "weights" else "a gain for each key"
            raise ValueError(
                f"{type(self).__name__}: {what} of shape {tuple(x.shape)} do not broadcast to {tuple(want)}, {one}"
            ) from None

    def __repr__(self) -> str:
        weights = "" if self.weights is None else f", weights {_short(self.weights)}"
        return f"{type(self).__name__}(gains {_short(self.gains)}{weights})"


def _short(given: Any) -> str:
    if torch.is_tensor(given):
        return f"of shape {tuple(given.shape)}"
    return getattr(given, "__name__", type(given).__name__)
