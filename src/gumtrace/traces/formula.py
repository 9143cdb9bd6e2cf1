"""The one formula: log P(T) and G | T of any trace, differentiable as often as one likes.

    log P(T) = Σ_b log λ[T_b] - log Λ_b,            Λ = A λ
    G | T    = -log( Aᵀ m + [k no winner] fresh ),  m_b ~ Exp(Λ_b), fresh_k ~ Exp(λ_k)

The kernels compute it, and `gumtrace.kernels.derivatives` its gradients.
"""

import torch
from torch import Tensor

from gumtrace.kernels import derivatives, ops
from gumtrace.kernels.geometry import Geometry
from gumtrace.traces.trace import Trace

# Every function works on flat batches: logits (batch, keys), traces and G (items, ...), items = samples x batch.


def trace_log_prob(logits: Tensor, trace: Trace) -> Tensor:
    """log P(T), (items,)."""
    return ops.log_prob(trace.layout.geometry, logits, *trace.rows())[0]


def score(logits: Tensor, trace: Trace, weight: Tensor) -> Tensor:
    """Σ weight ∇ log P(T) over the samples, (batch, keys), for weights (items,). It can be differentiated where a graph
    is being made."""
    geometry, (winners, links) = trace.layout.geometry, trace.rows()
    if torch.is_grad_enabled():
        return derivatives.score(geometry, logits, winners, links, weight)
    _, kept = ops.log_prob(geometry, logits, winners, links)
    return ops.log_prob_grad(geometry, logits, winners, links, kept, weight)


def conditional(
    logits: Tensor, sizes: Tensor | None, trace: Trace, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """G | T, (items, keys), and which items lost their trace to rounding, (items,)."""
    seed = ops.new_seed(logits.device, generator)
    g, _, _, failed = ops.conditional(trace.layout.geometry, logits, sizes, *trace.rows(), seed)
    return g, failed


def decision_log_totals(logits: Tensor, trace: Trace) -> Tensor:
    """log Λ, (items, decisions); 0 where there is no decision."""
    winners, links = trace.rows()
    return ops.log_totals(trace.layout.geometry, ops.repeat(logits, len(winners)), winners, links)


def decisions(logits: Tensor, gains: Tensor, trace: Trace) -> Tensor:
    """log P of every decision, and Σ_k λ_k gain_k / Λ_b over its racing keys, (items, 2, decisions); 0 where there is
    no decision. gains (batch, keys)."""
    return ops.decisions(trace.layout.geometry, logits, gains, *trace.rows())[0]


def sum_racing(trace: Trace, h: Tensor) -> Tensor:
    """A h, (items, decisions): of each decision, the sum of numbers (items, keys) over its racing keys."""
    zeros = h.new_zeros(len(h), trace.layout.geometry.decisions)
    return ops.to_decisions(trace.layout.geometry, *trace.rows(), zeros, torch.zeros_like(h), h)


def perturb(logits: Tensor, geometry: Geometry, items: int, generator: torch.Generator | None) -> Tensor:
    """G = logits + Gumbel noise, (items, keys); -inf, with gradient 0, for keys that do not race."""
    return ops.perturb(geometry, logits, items, ops.new_seed(logits.device, generator))
