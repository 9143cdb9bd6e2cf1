"""Exact variances of the score-function estimators, by enumeration.

Given the trace, λE_k is a sum of independent exponentials: one of mean λ_k / Λ_b for each decision b in which key k
raced, and one of mean 1 if it never won. So the score of the noise, 1 - λE_k, has the mean ∂ log P(T) / ∂ logit_k, and
the variance Σ_b (λ_k / Λ_b)² + [k no winner]: nothing needs to be sampled. The structure's score is the mean of the
traces' that give it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.diagnostics.enumeration import Objective, enumerate_losses
from gumtrace.structures.base import Structure
from gumtrace.structures.finite import group_by_value
from gumtrace.structures.joint import as_structure
from gumtrace.traces.trace import Trace


@dataclass(frozen=True)
class ExactVariance:
    """Of an estimate of the gradient to the log-rates, each (*batch, *keys)."""

    noise: Tensor  # E-REINFORCE
    trace: Tensor  # T-REINFORCE
    structure: Tensor  # X-REINFORCE; it exists by enumeration even where `log_prob` does not


def exact_variance(
    dist: Distribution, objective: Objective, samples: int = 1, leave_one_out: bool | None = None
) -> ExactVariance:
    """The variance of E-, T- and X-REINFORCE for small structures, masked and ragged batches too.

    Args:
        samples: K, runs for each estimate.
        leave_one_out: subtract the mean loss of the other runs; by default whenever K > 1, as the estimators do.

    >>> import gumtrace as gt
    >>> d = gt.Subset(torch.tensor([0.0, 1.0, 2.0]), 2)
    >>> v = exact_variance(d, lambda x: x[..., 0])
    >>> bool((v.structure < v.trace).all() and (v.trace < v.noise).all())
    True
    """
    leave_one_out = samples > 1 if leave_one_out is None else leave_one_out
    if samples < 1 + leave_one_out:
        raise ValueError(f"exact_variance: samples must be at least {1 + leave_one_out}, got {samples}")
    dist = as_structure("exact_variance", dist)
    at_x = dist.with_log_rates(dist.log_rates.detach().double())
    rows = [
        [_variance(*scores, samples, leave_one_out) for scores in _scores(*item)]
        for item in enumerate_losses("exact_variance", at_x, objective)
    ]
    shape = dist.batch_shape + dist.key_shape
    return ExactVariance(*(torch.stack(column).reshape(shape) for column in zip(*rows, strict=True)))


def _scores(item: Structure, trace: Trace, loss: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """For noise, trace and structure: P, L, and the score's mean and mean square given the outcome."""
    p = item.trace_log_prob(trace).exp()  # (traces,)
    score, spread = score_given_trace(item, trace)  # (traces, *keys)
    first, index = group_by_value(trace.value)
    weights = p.view(-1, *[1] * len(item.key_shape))
    p_x = p.new_zeros(len(first)).index_add(0, index, p)
    score_x = p.new_zeros(len(first), *item.key_shape).index_add(0, index, weights * score)
    score_x = score_x / p_x.view_as(weights[: len(p_x)])
    return [
        (p, loss, score, score.square() + spread),
        (p, loss, score, score.square()),
        (p_x, loss[first], score_x, score_x.square()),
    ]


def score_given_trace(item: Structure, trace: Trace) -> tuple[Tensor, Tensor]:
    """Mean and variance of the noise's score given each trace of an unbatched structure, (traces, *keys)."""
    rates = item.log_rates.detach().expand(len(trace), *item.key_shape)
    x = rates.clone().requires_grad_()
    (score,) = torch.autograd.grad(item.with_log_rates(x).trace_log_prob(trace).sum(), x)
    totals = item.with_log_rates(x).decision_log_totals(trace)
    (shares,) = torch.autograd.grad(totals.sum(), x)  # Σ_b λ_k / Λ_b
    won = score + shares
    # log Σ λ² of a decision has the slope λ_k² / Σ λ²: weighted, the sum of squared shares
    twice = (2 * rates).requires_grad_()
    squares = item.with_log_rates(twice).decision_log_totals(trace)
    weight = (squares - 2 * totals).exp().detach()
    (squared_shares,) = torch.autograd.grad((weight * squares).sum(), twice)
    return score, torch.where(item.racing, squared_shares + 1 - won, 0.0)


def _variance(p: Tensor, loss: Tensor, score: Tensor, square: Tensor, samples: int, leave_one_out: bool) -> Tensor:
    """Of the mean of (L - b) s over `samples` runs, by the moments of one.

    With leave-one-out the mean is a U-statistic of pairs, ½ (L_i - L_j)(s_i - s_j), whose variance needs no more.
    """

    def mean(weight: Tensor, of: Tensor) -> Tensor:
        return torch.tensordot(p * weight, of, 1)

    grad = mean(loss, score)
    if not leave_one_out:
        return (mean(loss.square(), square) - grad.square()) / samples
    centred = loss - (p * loss).sum()
    alone = mean(centred.square(), square)
    paired = (p * centred.square()).sum() * mean(torch.ones_like(p), square) - (samples - 2) * grad.square()
    return (alone + paired / (samples - 1)) / samples
