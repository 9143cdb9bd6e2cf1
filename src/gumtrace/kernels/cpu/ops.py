"""The CPU kernels as functions of tensors. Tensors on other devices visit the CPU, and their results go back.

Outputs come from `torch.empty`, and kernels fill their own rows: a fill by torch would wake OpenMP threads, which go on
spinning for a while on the cores that ours need.
"""

import torch
from torch import Tensor

from gumtrace.kernels.cpu import formula, sampling
from gumtrace.kernels.cpu.sampling import NOT_A_NUMBER as NOT_A_NUMBER  # what a status says
from gumtrace.kernels.cpu.threads import run
from gumtrace.kernels.kinds import Geometry

ATTEMPTS = (
    16  # draws of an arborescence's G | T before the last one is kept as it is; rounding breaks about one in 10^5
)


def _array(x: Tensor):
    return x.detach().cpu().contiguous().numpy()


def _seed(generator: torch.Generator | None):
    device = generator.device if generator is not None else "cpu"
    seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device, generator=generator)
    return _array(seed).view("uint64")


def _new_trace(geometry: Geometry, items: int) -> tuple[Tensor, Tensor, Tensor]:
    winners = torch.empty(items, geometry.winner_slots, dtype=torch.int32)
    links = torch.empty(items, geometry.link_slots, dtype=torch.int32)
    return winners, links, torch.empty(items, dtype=torch.int8)


def check_logits(geometry: Geometry, logits: Tensor) -> Tensor:
    """Status of each row: NOT_A_NUMBER where a key that races has a nan or +inf."""
    status = torch.empty(len(logits), dtype=torch.int8)
    run(sampling.check_logits, len(logits), geometry.keys, geometry, _array(logits), status.numpy())
    return status


def perturb(geometry: Geometry, logits: Tensor, items: int, generator: torch.Generator | None) -> Tensor:
    """logits (batch, keys) -> G (items, keys)."""
    g = torch.empty(items, geometry.keys, dtype=logits.dtype)
    run(sampling.perturb, items, geometry.keys, geometry, _array(logits), _seed(generator), g.numpy())
    return g.to(logits.device)


def trace(geometry: Geometry, g: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """G (items, keys) -> winners, links, status."""
    winners, links, status = _new_trace(geometry, len(g))
    arrays = (_array(g), _array(sizes), winners.numpy(), links.numpy(), status.numpy())
    run(sampling.trace, len(g), geometry.keys, geometry, *arrays)
    return winners.to(g.device), links.to(g.device), status


def sample(geometry: Geometry, logits: Tensor, sizes: Tensor, items: int, generator: torch.Generator | None):
    """`trace` of `perturb`, without keeping G."""
    winners, links, status = _new_trace(geometry, items)
    arrays = (_array(logits), _array(sizes), _seed(generator), winners.numpy(), links.numpy(), status.numpy())
    run(sampling.sample, items, geometry.keys, geometry, *arrays)
    return winners.to(logits.device), links.to(logits.device), status


def arborescence_heads(geometry: Geometry, winners: Tensor, links: Tensor) -> Tensor:
    """(items, n): the node each node's edge comes from, -1 for none."""
    head = torch.empty(len(winners), geometry.n, dtype=torch.int32)
    run(sampling.arborescence_heads, len(winners), geometry.n, geometry, _array(winners), _array(links), head.numpy())
    return head.to(winners.device)


def log_prob(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """log P(T) (items,) and log Λ (items, decisions)."""
    items = len(winners)
    out = torch.empty(items, dtype=logits.dtype)
    totals = torch.empty(items, geometry.decisions, dtype=torch.float64)  # large logits cancel in what follows
    arrays = (_array(logits), _array(winners), _array(links), out.numpy(), totals.numpy())
    run(formula.log_prob, items, geometry.keys, geometry, *arrays)
    return out.to(logits.device), totals.to(logits.device)


def log_prob_grad(
    geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor, totals: Tensor, grad: Tensor
) -> Tensor:
    """d/dlogits of Σ grad · log P(T), (batch, keys)."""
    out = torch.empty(logits.shape, dtype=logits.dtype)
    arrays = (_array(logits), _array(winners), _array(links), _array(totals), _array(grad), out.numpy())
    run(formula.log_prob_grad, len(logits), geometry.keys, geometry, *arrays)
    return out.to(logits.device)


def to_keys(geometry: Geometry, winners: Tensor, links: Tensor, alpha: Tensor, beta: Tensor, h: Tensor) -> Tensor:
    """Σ_b A[b, k] e^(α_b + β_k) h_b, (items, keys)."""
    out = torch.empty(beta.shape, dtype=beta.dtype)
    arrays = (_array(winners), _array(links), _array(alpha), _array(beta), _array(h), out.numpy())
    run(formula.to_keys, len(winners), geometry.keys, geometry, *arrays)
    return out.to(beta.device)


def to_decisions(geometry: Geometry, winners: Tensor, links: Tensor, alpha: Tensor, beta: Tensor, h: Tensor) -> Tensor:
    """Σ_k A[b, k] e^(α_b + β_k) h_k, (items, decisions)."""
    out = torch.empty(alpha.shape, dtype=alpha.dtype)
    arrays = (_array(winners), _array(links), _array(alpha), _array(beta), _array(h), out.numpy())
    run(formula.to_decisions, len(winners), geometry.keys, geometry, *arrays)
    return out.to(alpha.device)


def log_spread(geometry: Geometry, winners: Tensor, links: Tensor, z: Tensor) -> Tensor:
    """log Σ_b A[b, k] e^z_b, (items, keys); -inf for keys in no decision."""
    out = torch.empty(len(z), geometry.keys, dtype=z.dtype)
    arrays = (_array(winners), _array(links), _array(z), out.numpy())
    run(formula.log_spread, len(z), geometry.keys, geometry, *arrays)
    return out.to(z.device)


def conditional(
    geometry: Geometry, logits: Tensor, sizes: Tensor, winners: Tensor, links: Tensor, generator: torch.Generator | None
):
    """G | T (items, keys), log Λ and the log minima z (items, decisions), and which items lost their trace to
    rounding after all (items,)."""
    items = len(winners)
    g = torch.empty(items, geometry.keys, dtype=logits.dtype)
    totals = torch.empty(items, geometry.decisions, dtype=torch.float64)  # large logits cancel in what follows
    z = torch.empty_like(totals)
    failed = torch.empty(items, dtype=torch.bool)
    inputs = (_array(logits), _array(sizes), _array(winners), _array(links), _seed(generator), ATTEMPTS)
    run(
        formula.conditional,
        items,
        geometry.keys,
        geometry,
        *inputs,
        g.numpy(),
        totals.numpy(),
        z.numpy(),
        failed.numpy(),
    )
    device = logits.device
    return g.to(device), totals.to(device), z.to(device), failed


def conditional_grad(
    geometry: Geometry,
    logits: Tensor,
    winners: Tensor,
    links: Tensor,
    totals: Tensor,
    z: Tensor,
    g: Tensor,
    grad: Tensor,
):
    """d/dlogits of Σ grad · G, (batch, keys)."""
    out = torch.empty(logits.shape, dtype=logits.dtype)
    arrays = (_array(winners), _array(links), _array(totals), _array(z), _array(g), _array(grad), out.numpy())
    run(formula.conditional_grad, len(logits), geometry.keys, geometry, _array(logits), *arrays)
    return out.to(logits.device)
