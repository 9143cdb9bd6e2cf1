"""Score-function estimators: (L - b) ∇ log p, for p the distribution of the noise, of the trace, or of the structure.

Each is the conditional mean of the one before, given less of the run, so the variance can only fall:
E- ≥ T- ≥ X-REINFORCE.
"""

import warnings
from typing import Any, cast

import torch
from torch import Tensor

from gumtrace.estimators.base import Estimator, Objective, advantage, checked_leave_one_out, joined
from gumtrace.estimators.inject import TraceScore
from gumtrace.estimators.objectives import OnTrace
from gumtrace.estimators.terms import DecisionTerms
from gumtrace.kernels.operators import is_plain
from gumtrace.kernels.ops import computes_ahead
from gumtrace.structures.base import Structure
from gumtrace.structures.joint import split
from gumtrace.traces.trace import Trace


class ScoreEstimator(Estimator):
    """(L(X) - b) ∇ log p over `samples` runs; b is the mean loss of the other samples, if there are others.

    Args:
        samples: K, runs for each item.
        leave_one_out: subtract b; by default whenever K > 1. Without b a constant in the loss is noise in the gradient:
            `samples=1` warns, unless `leave_one_out=False` says that this is meant.
    """

    def __init__(self, *, samples: int = 4, leave_one_out: bool | None = None):
        super().__init__(samples=samples)
        if samples == 1 and leave_one_out is None:
            warnings.warn(
                f"{type(self).__name__}: one sample has no others to compare its loss with, so any constant in the "
                "loss is noise in the gradient; take samples=2 or more, or leave_one_out=False if this is meant",
                stacklevel=3,
            )
        self.leave_one_out = checked_leave_one_out(type(self).__name__, samples, leave_one_out)

    def draw(self, dist: Structure, generator: torch.Generator | None) -> tuple[Trace, Tensor]:
        """Traces, and their scores (samples, *batch)."""
        raise NotImplementedError

    def estimate(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        if type(self).surrogate_loss is not ScoreEstimator.surrogate_loss:
            return super().estimate(dist, objective, context, generator)
        trace, score = self.draw(dist, generator)
        return self._with_score(self.evaluate(dist, objective, trace), score)

    def _with_score(self, loss: Tensor, score: Tensor) -> Tensor:
        if is_plain([loss, score]):
            return _Scored.apply(loss, score, self.leave_one_out)  # type: ignore[return-value]
        return joined(loss, self._surrogate(loss, score))

    def surrogate_loss(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        trace, score = self.draw(dist, generator)
        loss = self.evaluate(dist, objective, trace)
        return loss, self._surrogate(loss, score)

    def _surrogate(self, loss: Tensor, score: Tensor) -> Tensor:
        return (advantage(loss.detach(), self.leave_one_out) * score).mean(0)


class _Scored(torch.autograd.Function):
    """`joined` of losses and their `_surrogate`, for finite numbers to the last bit: one node of autograd's graph in
    place of six. On a GPU it is the host that takes the time for so few numbers."""

    @staticmethod
    def forward(ctx, loss: Tensor, score: Tensor, leave_one_out: bool):
        samples = loss.shape[0]
        mean = loss.mean(0)
        # Of a power of two, it does not matter which factor is divided by the number of samples: one operation less.
        ctx.divided = leave_one_out and samples & (samples - 1) == 0
        scale = samples / (samples - 1) / (samples if ctx.divided else 1) if leave_one_out else 1.0
        ctx.save_for_backward((loss - mean).mul_(scale) if leave_one_out else loss.detach())
        return mean

    @staticmethod
    def backward(ctx, *grads):
        (weight,) = ctx.saved_tensors
        grad, (of_loss, of_score, _) = grads[0], ctx.needs_input_grad
        mean = grad / weight.shape[0] if of_loss or not ctx.divided else grad
        to_score = (grad if ctx.divided else mean) * weight if of_score else None
        return mean.expand(weight.shape) if of_loss else None, to_score, None


def _is_method(method: Any, function: Any) -> bool:
    """Whether a method is this function's, and nobody has put another in its place."""
    return getattr(method, "__func__", None) is function


class NoiseREINFORCE(ScoreEstimator):
    """E-REINFORCE: the score of the noise. The simplest, and the one with the most variance.

    Args:
        samples: K, runs for each item.
        leave_one_out: compare each loss with the mean of the others; by default whenever K > 1.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> loss = NoiseREINFORCE(samples=8)(gt.Subset(logits, 2), lambda x: x[..., 0])
    >>> loss.mean().backward()
    >>> logits.grad.shape
    torch.Size([3, 4])
    """

    label = "E-REINFORCE+"
    for_shards = True

    def draw(self, dist, generator):
        noise = dist.perturb((self.samples,), generator=generator).detach()
        return dist.trace(noise), dist.noise_log_prob(noise)


class TraceREINFORCE(ScoreEstimator):
    """T-REINFORCE: the score of the trace. For every structure, with no temperature to tune: the one to start with.

    Args:
        samples: K, runs for each item.
        leave_one_out: compare each loss with the mean of the others; by default whenever K > 1.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 5, 5, requires_grad=True)
    >>> loss = TraceREINFORCE(samples=4)(gt.SpanningTree(logits), lambda x: x[..., 0, 1])
    >>> loss.shape
    torch.Size([3])
    """

    label = "T-REINFORCE+"
    for_shards = True

    def estimate(self, dist, objective, context, generator):
        """Of small batches on CUDA, Σ (L - b) ∇ log P(T) is computed here, with the value."""
        base, _ = split(type(self).__name__, dist)
        if not (base.log_rates.requires_grad and self._computes_ahead(base)):
            return super().estimate(dist, objective, context, generator)
        trace = dist.sample_trace((self.samples,), generator=generator)
        base._check_trace(trace)
        loss, rows = self.evaluate(dist, objective, trace), base._rows()
        if (loss.dtype, loss.device) == (rows.dtype, rows.device) and is_plain([loss]):
            return TraceScore.apply(loss, rows, trace, self.leave_one_out)
        return self._with_score(loss, dist.trace_log_prob(trace))

    def _computes_ahead(self, base: Structure) -> bool:
        """Not where somebody draws, weighs or scores in another way: in a subclass, say."""
        return (
            computes_ahead(base._geometry, base.log_rates, self.samples * base.batch_shape.numel())
            and _is_method(self.draw, TraceREINFORCE.draw)
            and _is_method(self.surrogate_loss, ScoreEstimator.surrogate_loss)
            and _is_method(base.trace_log_prob, Structure.trace_log_prob)
        )

    def draw(self, dist, generator):
        trace = dist.sample_trace((self.samples,), generator=generator)
        return trace, dist.trace_log_prob(trace)


class StructureREINFORCE(ScoreEstimator):
    """X-REINFORCE: the score of the structure itself. The least variance of the three, if `dist.log_prob` is tractable.

    The loss must be a function of the structure. With `on="trace"` it could depend on the order of choice as well: such
    a loss needs `TraceREINFORCE`, here its gradient would be biased. No check can tell in general; `DecisionTerms` and
    `DecisionGains`, whose terms belong to places in the order, are refused unless a structure has one trace.

    Args:
        samples: K, runs for each item.
        leave_one_out: compare each loss with the mean of the others; by default whenever K > 1.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> loss = StructureREINFORCE(samples=4)(gt.Subset(logits, 2), lambda x: x[..., 0])
    >>> StructureREINFORCE()(gt.Arborescence(torch.zeros(3, 3)), lambda x: x[..., 0, 1])
    Traceback (most recent call last):
        ...
    NotImplementedError: StructureREINFORCE needs log_prob of the structure; take TraceREINFORCE instead. ...
    """

    label = "X-REINFORCE+"

    @classmethod
    def supports(cls, dist):
        try:
            dist.log_prob(dist.mode)
        except (NotImplementedError, ValueError):
            return False
        return True

    def surrogate_loss(
        self, dist: Structure, objective: Any, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        given = objective.objective if isinstance(objective, OnTrace) else objective
        if isinstance(given, DecisionTerms) and not dist.one_to_one:
            raise ValueError(
                f"StructureREINFORCE: a {type(given).__name__} may depend on the order of decisions, of which the "
                "score of the structure knows nothing: the gradient would be biased; take DecisionREINFORCE or "
                "TraceREINFORCE, or write a sum that does not depend on the order as a function of the value"
            )
        return super().surrogate_loss(dist, cast(Any, objective), context, generator)

    def draw(self, dist, generator):
        trace = dist.sample_trace((self.samples,), generator=generator)
        try:
            return trace, dist.log_prob(trace.value)
        except (NotImplementedError, ValueError) as reason:  # ValueError: it is tractable, but not at this size
            message = f"StructureREINFORCE needs log_prob of the structure; take TraceREINFORCE instead. ({reason})"
            raise type(reason)(message) from None
