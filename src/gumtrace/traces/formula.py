"""The one formula: log P(T) and G | T of any trace, differentiable as often as one likes.

    log P(T) = Σ_b log λ[T_b] - log Λ_b,            Λ = A λ
    G | T    = -log( Aᵀ m + [k no winner] fresh ),  m_b ~ Exp(Λ_b), fresh_k ~ Exp(λ_k)

The kernels compute it, and `gumtrace.kernels.ops` has its derivatives.
"""

import torch
from torch import Tensor

from gumtrace.kernels import ops
from gumtrace.kernels.geometry import Geometry, flatten_geometry
from gumtrace.kernels.operators import is_plain
from gumtrace.traces.trace import Trace

FlatGeometry = tuple[list[int], Tensor | None]

# Every function but the first works on flat batches: logits (batch, keys), traces and G (items, ...), with
# items = samples x batch.


def trace_log_prob(x: Tensor, batch: int, trace: Trace) -> Tensor:
    """log P(T), sample + batch, for logits (*batch, *keys) of so many items."""
    geometry, (winners, links), shape = flatten_geometry(trace.layout.geometry), trace.rows(), trace.shape
    if x.requires_grad and torch.is_grad_enabled() and is_plain([x, winners, links]):
        return _LogProb.apply(geometry, batch, x, winners, links, shape)  # type: ignore[return-value]
    log_prob = ops.log_prob(*geometry, _as_rows(x, batch, geometry), winners, links)[0]
    return log_prob if len(shape) == 1 else log_prob.reshape(shape)


class _LogProb(torch.autograd.Function):
    """The same in one node: autograd would keep the reshapes before and after it as nodes of their own."""

    @staticmethod
    def forward(ctx, geometry: FlatGeometry, batch: int, x: Tensor, winners: Tensor, links: Tensor, shape: torch.Size):
        rows = _as_rows(x, batch, geometry)
        log_prob, kept = ops.log_prob.run(x.device.type, *geometry, rows, winners, links)
        ctx.geometry, ctx.batch = geometry, batch
        ctx.save_for_backward(x, winners, links, kept)
        return log_prob if len(shape) == 1 else log_prob.reshape(shape)

    @staticmethod
    def backward(ctx, *grads):
        x, winners, links, kept = ctx.saved_tensors
        grad = grads[0] if grads[0].dim() == 1 else grads[0].reshape(-1)
        rows = _as_rows(x, ctx.batch, ctx.geometry)
        grad = ops.log_prob_to_logits(ctx.geometry, rows, winners, links, kept, grad)
        return None, None, grad if grad.shape == x.shape else grad.reshape(x.shape), None, None, None


def _as_rows(x: Tensor, batch: int, geometry: FlatGeometry) -> Tensor:
    keys = geometry[0][1]
    return x if x.shape == (batch, keys) else x.reshape(batch, keys)


def conditional(
    logits: Tensor, sizes: Tensor | None, trace: Trace, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """G | T, (items, keys), and which items lost their trace to rounding, (items,)."""
    seed = ops.new_seed(logits.device, generator)
    g, _, _, failed = ops.conditional(*flatten_geometry(trace.layout.geometry), logits, sizes, *trace.rows(), seed)
    return g, failed


def decision_log_totals(logits: Tensor, trace: Trace) -> Tensor:
    """log Λ, (items, decisions); 0 where there is no decision."""
    winners, links = trace.rows()
    return ops.log_totals(*flatten_geometry(trace.layout.geometry), ops.repeat(logits, len(winners)), winners, links)


def decisions(logits: Tensor, gains: Tensor, trace: Trace) -> Tensor:
    """log P of every decision, and Σ_k λ_k gain_k / Λ_b over its racing keys, (items, 2, decisions); 0 where there is
    no decision. gains (batch, keys)."""
    return ops.decisions(*flatten_geometry(trace.layout.geometry), logits, gains, *trace.rows())[0]


def sum_racing(trace: Trace, h: Tensor) -> Tensor:
    """A h, (items, decisions): of each decision, the sum of numbers (items, keys) over its racing keys."""
    zeros = h.new_zeros(len(h), trace.layout.geometry.decisions)
    return ops.to_decisions(*flatten_geometry(trace.layout.geometry), *trace.rows(), zeros, torch.zeros_like(h), h)


def perturb(logits: Tensor, geometry: Geometry, items: int, generator: torch.Generator | None) -> Tensor:
    """G = logits + Gumbel noise, (items, keys); -inf, with gradient 0, for keys that do not race."""
    return ops.perturb(*flatten_geometry(geometry), logits, items, ops.new_seed(logits.device, generator))
