"""The one formula: log P(T) and G | T of any trace, differentiable as often as one likes.

    log P(T) = Σ_b log λ[T_b] - log Λ_b,            Λ = A λ
    G | T    = -log( Aᵀ m + [k no winner] fresh ),  m_b ~ Exp(Λ_b), fresh_k ~ Exp(λ_k)

A first backward runs one fused kernel. When a graph of the backward itself is asked for, the same formula is written
with the four maps log_totals, log_spread, to_keys and to_decisions, whose derivatives are maps of the same kind.
"""

import torch
from torch import Tensor

from gumtrace.kernels import ops
from gumtrace.kernels.kinds import BINARY_TREE, Geometry
from gumtrace.traces.trace import Trace

# Every function works on flat batches: logits (batch, keys), traces and G (items, ...), items = samples x batch.


def trace_log_prob(logits: Tensor, trace: Trace) -> Tensor:
    """log P(T), (items,)."""
    return ops.log_prob(*ops.parts(trace.layout.geometry), logits, *trace.rows())[0]


def conditional(
    logits: Tensor, sizes: Tensor | None, trace: Trace, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """G | T, (items, keys), and which items lost their trace to rounding, (items,)."""
    seed = ops.new_seed(logits.device, generator)
    g, _, _, failed = ops.conditional(*ops.parts(trace.layout.geometry), logits, sizes, *trace.rows(), seed)
    return g, failed


def decision_log_totals(logits: Tensor, trace: Trace) -> Tensor:
    """log Λ, (items, decisions); 0 where there is no decision."""
    winners, links = trace.rows()
    return ops.log_totals(*ops.parts(trace.layout.geometry), _repeat(logits, len(winners)), winners, links)


def perturb(logits: Tensor, geometry: Geometry, items: int, generator: torch.Generator | None) -> Tensor:
    """G = logits + Gumbel noise, (items, keys); -inf, with gradient 0, for keys that do not race."""
    return ops.perturb(*ops.parts(geometry), logits, items, ops.new_seed(logits.device, generator))


# Derivatives ---------------------------------------------------------------------------------------


def _save_perturb(ctx, inputs, output):
    ctx.batch = inputs[2].shape[0]
    ctx.save_for_backward(output)


def _perturb_backward(ctx, grad):
    (g,) = ctx.saved_tensors
    return None, None, _sum_samples(grad.masked_fill(g.isneginf(), 0.0), ctx.batch), None, None


def _save_log_prob(ctx, inputs, output):
    geometry, edges, logits, winners, links = inputs
    ctx.head = geometry, edges
    ctx.save_for_backward(logits, winners, links, output[1])
    ctx.set_materialize_grads(False)  # no zeros for results without a gradient


def _log_prob_backward(ctx, grad, _):
    if grad is None:
        return (None,) * 5
    logits, winners, links, kept = ctx.saved_tensors
    if not torch.is_grad_enabled():
        grad = ops.log_prob_grad(*ctx.head, logits, winners, links, kept, grad)
    else:
        x = _repeat(logits, winners.shape[0])
        totals = ops.log_totals(*ctx.head, x, winners, links)
        lost = ops.to_keys(*ctx.head, winners, links, -totals, x, grad[:, None].expand_as(totals))
        won = _won(ctx.head[0], winners, links).to(x.dtype)
        grad = _sum_samples(won * grad[:, None] - lost, logits.shape[0])
    return None, None, grad, None, None


def _save_conditional(ctx, inputs, output):
    geometry, edges, logits, _, winners, links, _ = inputs
    g, totals, z, _ = output
    ctx.head = geometry, edges
    ctx.save_for_backward(logits, winners, links, g, totals, z)
    ctx.set_materialize_grads(False)


def _conditional_backward(ctx, grad, *_):
    if grad is None:
        return (None,) * 7
    logits, winners, links, g, totals, z = ctx.saved_tensors
    if not torch.is_grad_enabled():
        to_logits = ops.conditional_grad(*ctx.head, logits, winners, links, totals, z, g, grad)
        return None, None, to_logits, None, None, None, None
    x = _repeat(logits, winners.shape[0])
    noise = (totals + z).to(x.dtype)  # log m_b = noise - log Λ_b
    totals = ops.log_totals(*ctx.head, x, winners, links)
    z = noise - totals
    shared = ops.log_spread(*ctx.head, winners, links, z)  # log Σ m, (items, keys)
    won = _won(ctx.head[0], winners, links)
    share = torch.where(won, 1.0, (shared + g).clamp(max=0.0).exp())  # of the minima in E
    grad = grad.masked_fill(g.isneginf(), 0.0)
    to_totals = ops.to_decisions(*ctx.head, winners, links, z, -shared, share * grad)
    to_keys = ops.to_keys(*ctx.head, winners, links, -totals, x, to_totals)
    return None, None, _sum_samples((1 - share) * grad + to_keys, logits.shape[0]), None, None, None, None


def _save_log_totals(ctx, inputs, output):
    geometry, edges, x, winners, links = inputs
    ctx.head = geometry, edges
    ctx.save_for_backward(x, winners, links, output)


def _log_totals_backward(ctx, grad):
    x, winners, links, totals = ctx.saved_tensors
    return None, None, ops.to_keys(*ctx.head, winners, links, -totals, x, grad), None, None


def _save_log_spread(ctx, inputs, output):
    geometry, edges, winners, links, z = inputs
    ctx.head = geometry, edges
    ctx.save_for_backward(winners, links, z, output)


def _log_spread_backward(ctx, grad):
    winners, links, z, shared = ctx.saved_tensors
    grad = grad.masked_fill(shared.isneginf(), 0.0)
    return None, None, None, None, ops.to_decisions(*ctx.head, winners, links, z, -shared, grad)


def _save_map(ctx, inputs, output):
    geometry, edges, *tensors = inputs
    ctx.head = geometry, edges
    ctx.save_for_backward(*tensors, output)


def _to_keys_backward(ctx, grad):
    winners, links, alpha, beta, h, out = ctx.saved_tensors
    to_h = ops.to_decisions(*ctx.head, winners, links, alpha, beta, grad)
    return None, None, None, None, h * to_h, grad * out, to_h


def _to_decisions_backward(ctx, grad):
    winners, links, alpha, beta, h, out = ctx.saved_tensors
    to_h = ops.to_keys(*ctx.head, winners, links, alpha, beta, grad)
    return None, None, None, None, grad * out, h * to_h, to_h


ops.perturb.register_autograd(_perturb_backward, setup_context=_save_perturb)
ops.log_prob.register_autograd(_log_prob_backward, setup_context=_save_log_prob)
ops.conditional.register_autograd(_conditional_backward, setup_context=_save_conditional)
ops.log_totals.register_autograd(_log_totals_backward, setup_context=_save_log_totals)
ops.log_spread.register_autograd(_log_spread_backward, setup_context=_save_log_spread)
ops.to_keys.register_autograd(_to_keys_backward, setup_context=_save_map)
ops.to_decisions.register_autograd(_to_decisions_backward, setup_context=_save_map)


def _won(geometry: list[int], winners: Tensor, links: Tensor) -> Tensor:
    """(items, keys) bool: where a key won a decision."""
    g = Geometry(*geometry)
    if g.kind == BINARY_TREE:
        return links > -2
    # one bin too many, for decisions that never happened
    won = winners.new_zeros(winners.shape[0], g.keys + 1, dtype=torch.bool)
    none = (winners < 0) | (winners > g.keys)  # anyone may write into a trace
    return won.scatter(-1, torch.where(none, g.keys, winners).long(), True)[:, : g.keys]


def _repeat(logits: Tensor, items: int) -> Tensor:
    """(batch, keys) -> (items, keys)."""
    samples = items // max(logits.shape[0], 1)
    return logits.expand(samples, *logits.shape).reshape(samples * logits.shape[0], logits.shape[-1])


def _sum_samples(x: Tensor, batch: int) -> Tensor:
    """(items, keys) -> (batch, keys)."""
    if batch == 0:
        return x
    return x.reshape(x.shape[0] // batch, batch, x.shape[-1]).sum(0)
