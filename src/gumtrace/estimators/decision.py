"""Credit per decision: of an objective that is a sum over decisions, each gets the terms that it can change."""

from typing import Any, cast

import torch
from torch import Tensor

from gumtrace.estimators.base import advantage
from gumtrace.estimators.objectives import OnTrace
from gumtrace.estimators.score import TraceREINFORCE
from gumtrace.estimators.terms import DecisionTerms
from gumtrace.structures.base import Structure
from gumtrace.structures.joint import Joint
from gumtrace.traces.trace import Trace


class DecisionREINFORCE(TraceREINFORCE):
    """D-REINFORCE: the score of each decision times the loss to go, the terms from that decision on, less their mean
    over the other samples.

    The objective hands over its terms: `DecisionTerms`, or `DecisionGains` where they are known for all keys that could
    have won. There the term of the decision itself is replaced by its mean over these keys, which has no noise. Both
    are objectives of the trace, so `on="trace"`; other estimators that take traces take them too, `StructureREINFORCE`
    only where the structure says as much as the trace. For any other objective the whole loss is a term of the last
    decision, and this is `TraceREINFORCE`.

    Decisions of several structures (`torch.distributions.Independent`) have no order: with terms, take the structure
    itself, which has a loss for each, and add these.

    >>> import gumtrace as gt
    >>> logits, relevance = torch.zeros(32, 100, requires_grad=True), torch.rand(32, 100)
    >>> dcg = gt.estimators.DecisionGains(-relevance, weights=1 / torch.arange(2.0, 12.0).log2())
    >>> loss = DecisionREINFORCE(samples=8)(gt.Subset(logits, 10), dcg, on="trace")
    >>> loss.mean().backward()
    >>> logits.grad.shape
    torch.Size([32, 100])
    """

    label = "D-REINFORCE+"
    for_terms = True

    def surrogate_loss(
        self, dist: Structure, objective: Any, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        on_trace = isinstance(objective, OnTrace)
        given: Any = objective.objective if on_trace else objective
        if not isinstance(given, DecisionTerms):
            return super().surrogate_loss(dist, cast(Any, objective), context, generator)
        if isinstance(dist, Joint):
            raise ValueError(
                "DecisionREINFORCE: the decisions of several structures have no order; take the structure itself in "
                "place of torch.distributions.Independent, and add the losses of an item"
            )
        self._check_weights(dist, given.weights)
        trace = dist.sample_trace((self.samples,), generator=generator)
        parts: list[Any] = []

        def total(drawn: Trace) -> Tensor:
            parts.extend(given.split(drawn))
            return parts[0].sum(-1)

        wrapped: Any = OnTrace(total) if on_trace else total
        loss = self.evaluate(dist, wrapped, trace)
        terms, weights = (None if part is None else part.detach().to(loss.dtype) for part in parts)
        if weights is None:
            return loss, (self._credit(dist, trace, terms) * dist.decision_log_prob(trace)).sum(-1).mean(0)
        log_prob, means = dist._decision_gains(trace, given.gains)
        expected = weights * means
        credit = self._credit(dist, trace, terms, expected.detach())
        return loss, (credit * log_prob + expected).sum(-1).mean(0)

    def _check_weights(self, dist: Structure, weights: Any) -> None:
        if dist.decisions_are_keys and torch.is_tensor(weights) and weights.dim() > 0 and weights.shape[-1] > 1:
            raise ValueError(
                f"{type(self).__name__}: decision b of a {type(dist).__name__} is the one that key b won, so weights "
                f"of shape {tuple(weights.shape)} depend on who wins, and the gradient would be biased; factors of a "
                "key belong in its gain, and weights that depend on the decisions before (the depth) are a function of "
                "the trace"
            )

    def _credit(self, dist: Structure, trace: Trace, terms: Any, expected: Tensor | None = None) -> Tensor:
        """What the score of each decision is multiplied by, samples + batch + decisions: the loss to go less a
        baseline, without the decision's own term where its expected value is known."""
        if dist.decisions_are_keys:
            # Its winner says which slot a decision has, and so whose terms the baseline must not know. What the other
            # samples got at all keys that raced is known before, and so is the expected term.
            credit = dist.loss_to_go(trace, advantage(terms, self.leave_one_out))
            return credit if expected is None else credit - terms + expected * self.leave_one_out
        to_go = dist.loss_to_go(trace, terms)
        return advantage(to_go if expected is None else to_go - terms, self.leave_one_out)
