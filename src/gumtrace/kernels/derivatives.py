"""The derivatives of the operators in `ops`, registered when this is imported.

    log P(T) = Σ_b log λ[T_b] - log Λ_b,            Λ = A λ
    G | T    = -log( Aᵀ m + [k no winner] fresh ),  m_b ~ Exp(Λ_b), fresh_k ~ Exp(λ_k)

A first backward runs one fused kernel. When a graph of the backward itself is asked for, the same formula is written
with the four maps log_totals, log_spread, to_keys and to_decisions, whose derivatives are maps of the same kind.
"""

import torch
from torch import Tensor

from gumtrace.kernels.backends import backend
from gumtrace.kernels.geometry import BinaryTreeGeometry, Geometry
from gumtrace.kernels.operators import run
from gumtrace.kernels.ops import (
    computes_ahead,
    conditional,
    conditional_grad,
    decisions,
    decisions_grad,
    log_prob,
    log_prob_grad,
    log_spread,
    log_totals,
    perturb,
    repeat,
    to_decisions,
    to_keys,
)


def _save_perturb(ctx, inputs, output):
    ctx.batch = inputs[1].shape[0]
    ctx.save_for_backward(output)


def _perturb_backward(ctx, grad):
    (g,) = ctx.saved_tensors
    return None, _sum_samples(grad.masked_fill(g.isneginf(), 0.0), ctx.batch), None, None


def _save_log_prob(ctx, inputs, output):
    ctx.geometry, logits, winners, links = inputs
    kept, scores, items = output[1], None, winners.shape[0]
    if getattr(ctx, "is_eager", False) and computes_ahead(ctx.geometry, logits, items):
        item_scores, ones = backend(logits.device.type).item_scores, logits.new_ones(items)
        scores = run(item_scores, ctx.geometry, logits, winners, links, kept, ones)
        kept = None  # has served
    ctx.save_for_backward(logits, winners, links, kept, scores)
    ctx.set_materialize_grads(False)  # no zeros for results without a gradient


def _log_prob_backward(ctx, grad, _):
    if grad is None:
        return (None,) * 4
    logits, winners, links, kept, scores = ctx.saved_tensors
    if torch.is_grad_enabled():
        to_logits = score(ctx.geometry, logits, winners, links, grad)
    elif scores is None:
        to_logits = log_prob_grad(ctx.geometry, logits, winners, links, kept, grad)
    else:
        to_logits = scores * grad.unsqueeze(-1)
        if scores.shape != logits.shape:
            to_logits = _sum_samples(to_logits, logits.shape[0])
    return None, to_logits, None, None


def score(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor, weight: Tensor) -> Tensor:
    """Σ weight ∇ log P(T) over the samples, (batch, keys), for a weight of each item: `log_prob_grad`, written so that
    it can be differentiated."""
    x = repeat(logits, winners.shape[0])
    totals = log_totals(geometry, x, winners, links)
    lost = to_keys(geometry, winners, links, -totals, x, weight[:, None].expand_as(totals))
    won = _won(geometry, winners, links).to(x.dtype)
    return _sum_samples(won * weight[:, None] - lost, logits.shape[0])


def _save_decisions(ctx, inputs, output):
    ctx.geometry, *tensors = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _decisions_backward(ctx, grad, _):
    if grad is None:
        return (None,) * 5
    logits, gains, winners, links, stats, kept = ctx.saved_tensors
    if not torch.is_grad_enabled() and hasattr(backend(logits.device.type), "decisions_grad"):
        to_logits = decisions_grad(ctx.geometry, logits, gains, winners, links, stats, kept, grad)
        return None, to_logits, None, None, None
    x, gain = (repeat(rows, winners.shape[0]) for rows in (logits, gains))
    totals = log_totals(ctx.geometry, x, winners, links)
    means = to_decisions(ctx.geometry, winners, links, -totals, x, gain)
    to_chances, to_means = grad.unbind(1)
    lost = to_keys(ctx.geometry, winners, links, -totals, x, to_chances + to_means * means)
    gained = gain * to_keys(ctx.geometry, winners, links, -totals, x, to_means)
    won = _at_winners(ctx.geometry, winners, links, to_chances)
    return None, _sum_samples(won + gained - lost, logits.shape[0]), None, None, None


def _save_conditional(ctx, inputs, output):
    ctx.geometry, logits, _, winners, links, _ = inputs
    g, totals, z, _ = output
    ctx.save_for_backward(logits, winners, links, g, totals, z)
    ctx.set_materialize_grads(False)


def _conditional_backward(ctx, grad, *_):
    if grad is None:
        return (None,) * 6
    logits, winners, links, g, totals, z = ctx.saved_tensors
    if not torch.is_grad_enabled():
        to_logits = conditional_grad(ctx.geometry, logits, winners, links, totals, z, g, grad)
        return None, to_logits, None, None, None, None
    x = repeat(logits, winners.shape[0])
    noise = (totals + z).to(x.dtype)  # log m_b = noise - log Λ_b
    totals = log_totals(ctx.geometry, x, winners, links)
    z = noise - totals
    shared = log_spread(ctx.geometry, winners, links, z)  # log Σ m, (items, keys)
    won = _won(ctx.geometry, winners, links)
    share = torch.where(won, 1.0, (shared + g).clamp(max=0.0).exp())  # of the minima in E
    grad = grad.masked_fill(g.isneginf(), 0.0)
    to_totals = to_decisions(ctx.geometry, winners, links, z, -shared, share * grad)
    lost = to_keys(ctx.geometry, winners, links, -totals, x, to_totals)
    return None, _sum_samples((1 - share) * grad + lost, logits.shape[0]), None, None, None, None


def _save_log_totals(ctx, inputs, output):
    ctx.geometry, x, winners, links = inputs
    ctx.save_for_backward(x, winners, links, output)


def _log_totals_backward(ctx, grad):
    x, winners, links, totals = ctx.saved_tensors
    return None, to_keys(ctx.geometry, winners, links, -totals, x, grad), None, None


def _save_log_spread(ctx, inputs, output):
    ctx.geometry, winners, links, z = inputs
    ctx.save_for_backward(winners, links, z, output)


def _log_spread_backward(ctx, grad):
    winners, links, z, shared = ctx.saved_tensors
    grad = grad.masked_fill(shared.isneginf(), 0.0)
    return None, None, None, to_decisions(ctx.geometry, winners, links, z, -shared, grad)


def _save_map(ctx, inputs, output):
    ctx.geometry, *tensors = inputs
    ctx.save_for_backward(*tensors, output)


def _to_keys_backward(ctx, grad):
    winners, links, alpha, beta, h, out = ctx.saved_tensors
    to_h = to_decisions(ctx.geometry, winners, links, alpha, beta, grad)
    return None, None, None, h * to_h, grad * out, to_h


def _to_decisions_backward(ctx, grad):
    winners, links, alpha, beta, h, out = ctx.saved_tensors
    to_h = to_keys(ctx.geometry, winners, links, alpha, beta, grad)
    return None, None, None, grad * out, h * to_h, to_h


perturb.register_autograd(_perturb_backward, setup_context=_save_perturb)
log_prob.register_autograd(_log_prob_backward, setup_context=_save_log_prob)
decisions.register_autograd(_decisions_backward, setup_context=_save_decisions)
conditional.register_autograd(_conditional_backward, setup_context=_save_conditional)
log_totals.register_autograd(_log_totals_backward, setup_context=_save_log_totals)
log_spread.register_autograd(_log_spread_backward, setup_context=_save_log_spread)
to_keys.register_autograd(_to_keys_backward, setup_context=_save_map)
to_decisions.register_autograd(_to_decisions_backward, setup_context=_save_map)


def _won(g: Geometry, winners: Tensor, links: Tensor) -> Tensor:
    """(items, keys) bool: where a key won a decision."""
    if isinstance(g, BinaryTreeGeometry):
        return links > -2
    # one bin too many, for decisions that never happened
    won = winners.new_zeros(winners.shape[0], g.keys + 1, dtype=torch.bool)
    none = (winners < 0) | (winners > g.keys)  # anyone may write into a trace
    return won.scatter(-1, torch.where(none, g.keys, winners).long(), True)[:, : g.keys]


def _at_winners(g: Geometry, winners: Tensor, links: Tensor, h: Tensor) -> Tensor:
    """Numbers of decisions (items, decisions) at the keys that won them, (items, keys); 0 at the others."""
    if isinstance(g, BinaryTreeGeometry):
        return torch.where(links > -2, h, 0.0)
    none = (winners < 0) | (winners >= g.keys)
    at = torch.where(none, g.keys, winners).long()
    return h.new_zeros(winners.shape[0], g.keys + 1).scatter_add(-1, at, h)[:, : g.keys]


def _sum_samples(x: Tensor, batch: int) -> Tensor:
    """(items, keys) -> (batch, keys)."""
    if batch == 0:
        return x
    return x.reshape(x.shape[0] // batch, batch, x.shape[-1]).sum(0)
