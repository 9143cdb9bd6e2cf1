"""The one formula: log P(T) and G | T of any trace, differentiable as often as one likes.

    log P(T) = Σ_b log λ[T_b] - log Λ_b,            Λ = A λ
    G | T    = -log( Aᵀ m + [k no winner] fresh ),  m_b ~ Exp(Λ_b), fresh_k ~ Exp(λ_k)

A first backward runs one fused kernel. When a graph of the backward itself is asked for, the same formula is written
with the four maps below, whose derivatives are maps of the same kind.
"""

import torch
from torch import Tensor

from gumtrace.kernels.cpu import ops
from gumtrace.traces.trace import Trace

# Every function works on flat batches: logits (batch, keys), traces and G (items, ...), items = samples x batch.


def trace_log_prob(logits: Tensor, trace: Trace) -> Tensor:
    """log P(T), (items,)."""
    return _LogProb.apply(logits, trace)  # type: ignore[return-value]


def conditional(
    logits: Tensor, sizes: Tensor, trace: Trace, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """G | T, (items, keys), and which items lost their trace to rounding, (items,)."""
    return _Conditional.apply(logits, sizes, trace, generator)  # type: ignore[return-value]


def decision_log_totals(logits: Tensor, trace: Trace) -> Tensor:
    """log Λ, (items, decisions); 0 where there is no decision."""
    return _LogTotals.apply(_repeat(logits, trace), trace)  # type: ignore[return-value]


def perturb(logits: Tensor, layout, items: int, generator: torch.Generator | None) -> Tensor:
    """G = logits + Gumbel noise, (items, keys); -inf, with gradient 0, for keys that do not race."""
    return _Perturb.apply(logits, layout, items, generator)  # type: ignore[return-value]


class _Perturb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, layout, items, generator):
        g = ops.perturb(layout.geometry, logits, items, generator)
        ctx.save_for_backward(g.isneginf())
        ctx.batch = len(logits)
        return g

    @staticmethod
    def backward(ctx, *grads):
        (idle,) = ctx.saved_tensors
        return _sum_samples(grads[0].masked_fill(idle, 0.0), ctx.batch), None, None, None


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, trace: Trace):
        log_prob, totals = ops.log_prob(*_parts(trace, logits))
        ctx.trace = trace
        ctx.save_for_backward(logits, totals)
        return log_prob

    @staticmethod
    def backward(ctx, *grads):
        logits, totals = ctx.saved_tensors
        trace, grad = ctx.trace, grads[0]
        if not torch.is_grad_enabled():
            return ops.log_prob_grad(*_parts(trace, logits), totals, grad), None
        x = _repeat(logits, trace)
        totals = _LogTotals.apply(x, trace)
        lost = _ToKeys.apply(-totals, x, grad[:, None].expand_as(totals), trace)
        return _sum_samples(_won(trace) * grad[:, None] - lost, len(logits)), None


class _Conditional(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, sizes, trace: Trace, generator):
        geometry, _, winners, links = _parts(trace, logits)
        g, totals, z, failed = ops.conditional(geometry, logits, sizes, winners, links, generator)
        ctx.trace = trace
        ctx.save_for_backward(logits, g, totals, z)
        ctx.mark_non_differentiable(failed)
        return g, failed

    @staticmethod
    def backward(ctx, *grads):
        logits, g, totals, z = ctx.saved_tensors
        trace, grad = ctx.trace, grads[0]
        if not torch.is_grad_enabled():
            return ops.conditional_grad(*_parts(trace, logits), totals, z, g, grad), None, None, None
        x = _repeat(logits, trace)
        noise = (totals + z).to(x.dtype)  # log m_b = noise - log Λ_b
        totals = _LogTotals.apply(x, trace)
        z = noise - totals
        shared = _LogSpread.apply(z, trace)  # log Σ m, (items, keys)
        idle = g.isneginf()
        share = torch.where(_won(trace).bool(), 1.0, (shared + g).clamp(max=0.0).exp())  # of the minima in E
        grad = grad.masked_fill(idle, 0.0)
        to_totals = _ToDecisions.apply(z, -shared, share * grad, trace)
        return (
            _sum_samples((1 - share) * grad + _ToKeys.apply(-totals, x, to_totals, trace), len(logits)),
            None,
            None,
            None,
        )


class _LogTotals(torch.autograd.Function):
    """log Λ = log A e^x."""

    @staticmethod
    def forward(ctx, x, trace: Trace):
        totals = ops.log_prob(*_parts(trace, x))[1].to(x.dtype)
        ctx.trace = trace
        ctx.save_for_backward(x, totals)
        return totals

    @staticmethod
    def backward(ctx, *grads):
        x, totals = ctx.saved_tensors
        return _ToKeys.apply(-totals, x, grads[0], ctx.trace), None


class _LogSpread(torch.autograd.Function):
    """log Aᵀ e^z."""

    @staticmethod
    def forward(ctx, z, trace: Trace):
        shared = ops.log_spread(trace.layout.geometry, *trace.rows(), z)
        ctx.trace = trace
        ctx.save_for_backward(z, shared)
        return shared

    @staticmethod
    def backward(ctx, *grads):
        z, shared = ctx.saved_tensors
        return _ToDecisions.apply(z, -shared, grads[0].masked_fill(shared.isneginf(), 0.0), ctx.trace), None


class _ToKeys(torch.autograd.Function):
    """Σ_b A[b, k] e^(α_b + β_k) h_b."""

    @staticmethod
    def forward(ctx, alpha, beta, h, trace: Trace):
        out = ops.to_keys(trace.layout.geometry, *trace.rows(), alpha, beta, h)
        ctx.trace = trace
        ctx.save_for_backward(alpha, beta, h, out)
        return out

    @staticmethod
    def backward(ctx, *grads):
        alpha, beta, h, out = ctx.saved_tensors
        to_h = _ToDecisions.apply(alpha, beta, grads[0], ctx.trace)
        return h * to_h, grads[0] * out, to_h, None


class _ToDecisions(torch.autograd.Function):
    """Σ_k A[b, k] e^(α_b + β_k) h_k."""

    @staticmethod
    def forward(ctx, alpha, beta, h, trace: Trace):
        out = ops.to_decisions(trace.layout.geometry, *trace.rows(), alpha, beta, h)
        ctx.trace = trace
        ctx.save_for_backward(alpha, beta, h, out)
        return out

    @staticmethod
    def backward(ctx, *grads):
        alpha, beta, h, out = ctx.saved_tensors
        to_h = _ToKeys.apply(alpha, beta, grads[0], ctx.trace)
        return grads[0] * out, h * to_h, to_h, None


def _parts(trace: Trace, logits: Tensor):
    return trace.layout.geometry, logits, *trace.rows()


def _won(trace: Trace) -> Tensor:
    """(items, keys) 1 where a key won a decision."""
    winners = trace.winners.reshape(trace.shape.numel(), trace.layout.geometry.decisions)
    keys = trace.layout.geometry.keys
    won = torch.zeros(
        len(winners), keys + 1, device=winners.device
    )  # one bin too many, for decisions that never happened
    return won.scatter_(-1, torch.where(winners < 0, keys, winners), 1.0)[:, :keys]


def _repeat(logits: Tensor, trace: Trace) -> Tensor:
    """(batch, keys) -> (items, keys)."""
    samples = trace.shape.numel() // max(len(logits), 1)
    return logits.expand(samples, *logits.shape).reshape(-1, logits.shape[-1])


def _sum_samples(x: Tensor, batch: int) -> Tensor:
    """(items, keys) -> (batch, keys)."""
    if batch == 0:
        return x
    return x.reshape(-1, batch, x.shape[-1]).sum(0)
