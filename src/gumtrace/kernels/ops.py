"""All operators: what they take and give, their shapes for tracing, and their derivatives.

    geometry          the event of an item
    logits            (batch, keys); item i of N = samples x batch reads row i mod batch
    winners, links    (items, ...) a trace
    sizes             (batch,) or (1,): k or a number of nodes; None where all items have the geometry's
    seed              (2,) int64: the noise is a pure function of it, so the operators are too

The kernels are in the backends, see `gumtrace.kernels.backends`; `cpu.ops` says what each of them computes.

    log P(T) = Σ_b log λ[T_b] - log Λ_b,            Λ = A λ
    G | T    = -log( Aᵀ m + [k no winner] fresh ),  m_b ~ Exp(Λ_b), fresh_k ~ Exp(λ_k)

A first backward runs one fused kernel. When a graph of the backward itself is asked for, the same formula is written
with the four maps log_totals, log_spread, to_keys and to_decisions, whose derivatives are maps of the same kind.
"""

import torch
from torch import Tensor

from gumtrace.kernels.backends import backend
from gumtrace.kernels.geometry import BinaryTreeGeometry, Geometry
from gumtrace.kernels.operators import Operator
from gumtrace.kernels.vmap import Kind

ROWS, ITEMS, SIZES, NUMBER, SEED, DTYPE = Kind
TRACE = {"winners": ITEMS, "links": ITEMS}
MAP = {**TRACE, "alpha": ITEMS, "beta": ITEMS, "h": ITEMS}


def new_seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """From the generator, or the device's own; drawn on the device, so that nothing synchronises.

    A generator of the CPU beside logits on another device does: what it draws is copied there.
    """
    source = generator.device if generator is not None else device
    if source.type not in ("cpu", "cuda"):  # their integers are not all 64 bits wide
        source = torch.device("cpu")
    seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=source, generator=generator)
    return seed.to(device)


# The operators -------------------------------------------------------------------------------------


def _empty_trace(geometry: Geometry, like: Tensor, items) -> tuple[Tensor, Tensor, Tensor]:
    widths = (geometry.winner_slots, geometry.link_slots)
    winners, links = (like.new_empty(items, width, dtype=torch.int32) for width in widths)
    return winners, links, like.new_empty(items, dtype=torch.int8)


def _empty_distinct(geometry: Geometry, like: Tensor, items) -> tuple[Tensor, ...]:
    winners, links, status = _empty_trace(geometry, like, items)
    return winners, links, *(like.new_empty(items) for _ in range(3)), status


def _empty_log_prob(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    items, served = winners.shape[0], getattr(backend(logits.device.type), "served", None)
    if served is not None and served(geometry):
        return logits.new_empty(items), logits.new_empty(items, geometry.decisions)
    return logits.new_empty(items), logits.new_empty(items, 2, geometry.decisions, dtype=torch.float64)


def _empty_decisions(geometry: Geometry, logits: Tensor, gains, winners: Tensor, links: Tensor):
    stats = logits.new_empty(winners.shape[0], 2, geometry.decisions)
    return stats, _empty_log_prob(geometry, logits, winners, links)[1]


def _empty_conditional(geometry: Geometry, logits: Tensor, sizes, winners: Tensor, links, seed):
    items = winners.shape[0]
    totals, z = (logits.new_empty(items, geometry.decisions, dtype=torch.float64) for _ in range(2))
    return logits.new_empty(items, geometry.keys), totals, z, logits.new_empty(items, dtype=torch.bool)


check_logits = Operator(
    "check_logits",
    {"logits": ROWS},
    [ROWS],
    lambda geometry, x: x.new_empty(x.shape[0], dtype=torch.int8),
)
perturb = Operator(
    "perturb",
    {"logits": ROWS, "items": NUMBER, "seed": SEED},
    [ITEMS],
    lambda geometry, x, items, seed: x.new_empty(items, x.shape[1]),
)
trace = Operator(
    "trace",
    {"g": ITEMS, "sizes": SIZES},
    [ITEMS] * 3,
    lambda geometry, g, sizes: _empty_trace(geometry, g, g.shape[0]),
)
sample = Operator(
    "sample",
    {"logits": ROWS, "sizes": SIZES, "items": NUMBER, "seed": SEED},
    [ITEMS] * 3,
    lambda geometry, x, sizes, items, seed: _empty_trace(geometry, x, items),
)
distinct = Operator(
    "distinct",
    {"logits": ROWS, "sizes": SIZES, "items": NUMBER, "seed": SEED},
    [ITEMS] * 6,
    lambda geometry, x, sizes, items, seed: _empty_distinct(geometry, x, items),
)
indicator = Operator(
    "indicator",
    {"winners": ITEMS, "dtype": DTYPE},
    [ITEMS],
    lambda geometry, winners, dtype: winners.new_empty(winners.shape[0], geometry.keys, dtype=dtype),
)
arrangement = Operator(
    "arrangement",
    {"winners": ITEMS},
    [ITEMS],
    lambda geometry, winners: winners.new_empty(winners.shape, dtype=torch.long),
)
arborescence_edges = Operator(
    "arborescence_edges",
    TRACE,
    [ITEMS],
    lambda geometry, winners, links: winners.new_empty(winners.shape[0], geometry.nodes),
)
log_prob = Operator("log_prob", {"logits": ROWS, **TRACE}, [ITEMS] * 2, _empty_log_prob)
log_prob_grad = Operator(
    "log_prob_grad",
    {"logits": ROWS, **TRACE, "kept": ITEMS, "grad": ITEMS},
    [ROWS],
    lambda geometry, x, *rest: x.new_empty(x.shape),
)
decisions = Operator("decisions", {"logits": ROWS, "gains": ROWS, **TRACE}, [ITEMS] * 2, _empty_decisions)
decisions_grad = Operator(
    "decisions_grad",
    {"logits": ROWS, "gains": ROWS, **TRACE, "stats": ITEMS, "kept": ITEMS, "grad": ITEMS},
    [ROWS],
    lambda geometry, x, *rest: x.new_empty(x.shape),
)
conditional = Operator(
    "conditional",
    {"logits": ROWS, "sizes": SIZES, **TRACE, "seed": SEED},
    [ITEMS] * 4,
    _empty_conditional,
)
conditional_grad = Operator(
    "conditional_grad",
    {"logits": ROWS, **TRACE, "totals": ITEMS, "z": ITEMS, "g": ITEMS, "grad": ITEMS},
    [ROWS],
    lambda geometry, x, *rest: x.new_empty(x.shape),
)
log_totals = Operator(
    "log_totals",
    {"logits": ROWS, **TRACE},
    [ITEMS],
    lambda geometry, x, winners, links: x.new_empty(winners.shape[0], geometry.decisions),
)
log_spread = Operator(
    "log_spread",
    {**TRACE, "z": ITEMS},
    [ITEMS],
    lambda geometry, winners, links, z: z.new_empty(z.shape[0], geometry.keys),
)
to_keys = Operator("to_keys", MAP, [ITEMS], lambda geometry, winners, links, alpha, beta, h: beta.new_empty(beta.shape))
to_decisions = Operator(
    "to_decisions", MAP, [ITEMS], lambda geometry, winners, links, alpha, beta, h: alpha.new_empty(alpha.shape)
)


# Derivatives ---------------------------------------------------------------------------------------


def _save_perturb(ctx, inputs, output):
    ctx.batch = inputs[1].shape[0]
    ctx.save_for_backward(output)


def _perturb_backward(ctx, grad):
    (g,) = ctx.saved_tensors
    return None, _sum_samples(grad.masked_fill(g.isneginf(), 0.0), ctx.batch), None, None


def _save_log_prob(ctx, inputs, output):
    ctx.geometry, logits, winners, links = inputs
    ctx.save_for_backward(logits, winners, links, output[1])
    ctx.set_materialize_grads(False)  # no zeros for results without a gradient


def _log_prob_backward(ctx, grad, _):
    if grad is None:
        return (None,) * 4
    logits, winners, links, kept = ctx.saved_tensors
    if not torch.is_grad_enabled():
        grad = log_prob_grad(ctx.geometry, logits, winners, links, kept, grad)
    else:
        x = repeat(logits, winners.shape[0])
        totals = log_totals(ctx.geometry, x, winners, links)
        lost = to_keys(ctx.geometry, winners, links, -totals, x, grad[:, None].expand_as(totals))
        won = _won(ctx.geometry, winners, links).to(x.dtype)
        grad = _sum_samples(won * grad[:, None] - lost, logits.shape[0])
    return None, grad, None, None


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


def repeat(logits: Tensor, items: int) -> Tensor:
    """(batch, keys) -> (items, keys)."""
    samples = items // max(logits.shape[0], 1)
    return logits.expand(samples, *logits.shape).reshape(samples * logits.shape[0], logits.shape[-1])


def _sum_samples(x: Tensor, batch: int) -> Tensor:
    """(items, keys) -> (batch, keys)."""
    if batch == 0:
        return x
    return x.reshape(x.shape[0] // batch, batch, x.shape[-1]).sum(0)
