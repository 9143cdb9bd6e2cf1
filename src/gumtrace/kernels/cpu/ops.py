"""The CPU kernels as functions of tensors. Tensors on other devices are copied to the CPU, and their results back.

Outputs come from `torch.empty`, and kernels fill their own rows: a fill by torch would wake OpenMP threads, which go on
spinning for a while on the cores that ours need.
"""

from functools import cache
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels.cpu import arborescence, formula, matrix_tree, sampling
from gumtrace.kernels.cpu import conditional as conditionals
from gumtrace.kernels.cpu import decisions as by_decision
from gumtrace.kernels.cpu import distinct as distincts
from gumtrace.kernels.cpu import racing_keys as listing
from gumtrace.kernels.cpu.inclusion import subset_pairs as subset_pairs  # of the kernels here, as are
from gumtrace.kernels.cpu.inclusion import subset_probs as subset_probs
from gumtrace.kernels.cpu.marginals import subset_covariance as subset_covariance
from gumtrace.kernels.cpu.marginals import subset_marginals as subset_marginals
from gumtrace.kernels.cpu.marginals import subset_third_cumulant as subset_third_cumulant
from gumtrace.kernels.cpu.marginals import subset_weights as subset_weights
from gumtrace.kernels.cpu.sinkhorn import sinkhorn as sinkhorn
from gumtrace.kernels.cpu.subset_shift import subset_shift as subset_shift
from gumtrace.kernels.cpu.threads import run
from gumtrace.kernels.geometry import ATTEMPTS, ArborescenceGeometry, Geometry, PermutationGeometry, WithTensor
from gumtrace.kernels.tree_marginals import by_triangles


def _array(x: Tensor):
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "gumtrace has no CUDA kernel for these items (gumtrace.backends() lists what its kernels take): they are "
            "copied to the CPU and back, which a CUDA graph cannot record; take this part out of the graph"
        )
    return x.detach().cpu().contiguous().numpy()


@cache
def _register_steps(module: str) -> None:
    """Import a structure's file, which registers its steps, see `hooks`: before the first kernel is compiled for it."""
    import_module(f"gumtrace.kernels.cpu.{module}")


def compiled(geometry: Geometry) -> Geometry:
    """As compiled code takes it."""
    _register_steps(geometry.module)
    return type(geometry)(*geometry[:-1], _array(geometry[-1])) if isinstance(geometry, WithTensor) else geometry


def _seed(seed: Tensor):
    return _array(seed).view("uint64")


def _sizes(geometry: Geometry, sizes: Tensor | None):
    return np.array([geometry.default_size], np.int32) if sizes is None else _array(sizes)


def _new_trace(geometry: Geometry, items: int) -> tuple[Tensor, Tensor, Tensor]:
    winners = torch.empty(items, geometry.winner_slots, dtype=torch.int32, device="cpu")
    links = torch.empty(items, geometry.link_slots, dtype=torch.int32, device="cpu")
    return winners, links, torch.empty(items, dtype=torch.int8, device="cpu")


def check_logits(geometry: Geometry, logits: Tensor) -> Tensor:
    """Status of each row: NOT_A_NUMBER where a key that races has a nan or +inf."""
    status = torch.empty(len(logits), dtype=torch.int8, device="cpu")
    run(sampling.check_logits, len(logits), geometry.keys, compiled(geometry), _array(logits), status.numpy())
    return status.to(logits.device)


def perturb(geometry: Geometry, logits: Tensor, items: int, seed: Tensor) -> Tensor:
    """logits (batch, keys) -> G (items, keys)."""
    g = torch.empty(items, geometry.keys, dtype=logits.dtype, device="cpu")
    run(sampling.perturb, items, geometry.keys, compiled(geometry), _array(logits), _seed(seed), g.numpy())
    return g.to(logits.device)


def trace(geometry: Geometry, g: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """G (items, keys) -> winners, links, status."""
    winners, links, status = _new_trace(geometry, len(g))
    arrays = (_array(g), _sizes(geometry, sizes), winners.numpy(), links.numpy(), status.numpy())
    run(sampling.trace, len(g), geometry.keys, compiled(geometry), *arrays)
    return winners.to(g.device), links.to(g.device), status.to(g.device)


def sample(geometry: Geometry, logits: Tensor, sizes: Tensor | None, items: int, seed: Tensor):
    """`trace` of `perturb`, without keeping G."""
    winners, links, status = _new_trace(geometry, items)
    arrays = (_array(logits), _sizes(geometry, sizes), _seed(seed), winners.numpy(), links.numpy(), status.numpy())
    run(sampling.sample, items, geometry.keys, compiled(geometry), *arrays)
    return winners.to(logits.device), links.to(logits.device), status.to(logits.device)


def distinct(geometry: Geometry, logits: Tensor, sizes: Tensor | None, items: int, seed: Tensor):
    """Different traces of each row, items / batch of them in the order of their arrival: winners, links, log P(T),
    perturbed log-probabilities, log of the probability that is left, (items,), and status, STUCK where none is left."""
    winners, links, status = _new_trace(geometry, items)
    numbers = [torch.empty(items, dtype=logits.dtype, device="cpu") for _ in range(3)]
    arrays = (_array(logits), _sizes(geometry, sizes), _seed(seed), winners.numpy(), links.numpy())
    runs = items // max(len(logits), 1)
    outputs = (*(x.numpy() for x in numbers), status.numpy())
    run(distincts.distinct, len(logits), geometry.keys * runs, compiled(geometry), *arrays, *outputs)
    return tuple(x.to(logits.device) for x in (winners, links, *numbers, status))


def indicator(geometry: Geometry, winners: Tensor, dtype: torch.dtype) -> Tensor:
    """(items, keys): 1 where a key won; symmetric for trees and forests of a dense graph."""
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    out = torch.empty(len(winners), geometry.keys, dtype=wide, device="cpu")
    run(sampling.indicator, len(winners), geometry.keys, compiled(geometry), _array(winners), out.numpy())
    return out.to(winners.device, dtype)


def arrangement(geometry: PermutationGeometry, winners: Tensor) -> Tensor:
    """(items, keys) of a permutation: its winners in order, at the indices of the keys that race; the others are at
    their own. A trace may come from anywhere: what is no key does not race, and is `keys` in the result."""
    items, keys = winners.shape
    known = torch.where((winners >= 0) & (winners < keys), winners, keys).long()
    races = torch.zeros(items, keys + 1, dtype=torch.bool, device=winners.device).scatter_(1, known, True)[:, :-1]
    place = (races.cumsum(1) - 1).clamp(min=0)
    return torch.where(races, known.gather(1, place), torch.arange(keys, device=winners.device))


def arborescence_edges(geometry: ArborescenceGeometry, winners: Tensor, links: Tensor) -> Tensor:
    """(items, n): the edge of the tree that enters each node, by its key; -1 for none."""
    edges = torch.empty(len(winners), geometry.nodes, dtype=torch.int32, device="cpu")
    run(arborescence.entering, len(winners), geometry.nodes, geometry, _array(winners), _array(links), edges.numpy())
    return edges.to(winners.device)


def log_prob(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """log P(T) (items,), and what its gradient needs: log Λ as a sum of two numbers (items, 2, decisions)."""
    items = len(winners)
    out = torch.empty(items, dtype=logits.dtype, device="cpu")
    # in float64, as large logits cancel in what follows
    kept = torch.empty(items, 2, geometry.decisions, dtype=torch.float64, device="cpu")
    arrays = (_array(logits), _array(winners), _array(links), out.numpy(), kept.numpy())
    run(formula.log_prob, items, geometry.keys, compiled(geometry), *arrays)
    return out.to(logits.device), kept.to(logits.device)


def log_totals(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor) -> Tensor:
    """log Λ in the dtype of the log-rates."""
    return log_prob(geometry, logits, winners, links)[1].sum(-2).to(logits.dtype)


def log_prob_grad(
    geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor, kept: Tensor, grad: Tensor
) -> Tensor:
    """d/dlogits of Σ grad · log P(T), (batch, keys)."""
    out = torch.empty(logits.shape, dtype=logits.dtype, device="cpu")
    arrays = (_array(logits), _array(winners), _array(links), _array(kept), _array(grad), out.numpy())
    run(formula.log_prob_grad, len(logits), geometry.keys, compiled(geometry), *arrays)
    return out.to(logits.device)


def decisions(geometry: Geometry, logits: Tensor, gains: Tensor, winners: Tensor, links: Tensor):
    """log P of each decision and the mean gain of its racing keys (items, 2, decisions), and log Λ as in `log_prob`."""
    items = len(winners)
    out = torch.empty(items, 2, geometry.decisions, dtype=logits.dtype, device="cpu")
    kept = torch.empty(items, 2, geometry.decisions, dtype=torch.float64, device="cpu")
    arrays = (_array(logits), _array(gains), _array(winners), _array(links), out.numpy(), kept.numpy())
    run(by_decision.decisions, items, geometry.keys, compiled(geometry), *arrays)
    return out.to(logits.device), kept.to(logits.device)


def decisions_grad(
    geometry: Geometry,
    logits: Tensor,
    gains: Tensor,
    winners: Tensor,
    links: Tensor,
    stats: Tensor,
    kept: Tensor,
    grad: Tensor,
) -> Tensor:
    """d/dlogits of Σ grad · what `decisions` gives, (batch, keys)."""
    out = torch.empty(logits.shape, dtype=logits.dtype, device="cpu")
    trace = (_array(winners), _array(links))
    arrays = (_array(logits), _array(gains), *trace, _array(stats), _array(kept), _array(grad), out.numpy())
    run(by_decision.decisions_grad, len(logits), geometry.keys, compiled(geometry), *arrays)
    return out.to(logits.device)


def to_keys(geometry: Geometry, winners: Tensor, links: Tensor, alpha: Tensor, beta: Tensor, h: Tensor) -> Tensor:
    """Σ_b A[b, k] e^(α_b + β_k) h_b, (items, keys)."""
    out = torch.empty(beta.shape, dtype=beta.dtype, device="cpu")
    arrays = (_array(winners), _array(links), _array(alpha), _array(beta), _array(h), out.numpy())
    run(formula.to_keys, len(winners), geometry.keys, compiled(geometry), *arrays)
    return out.to(beta.device)


def to_decisions(geometry: Geometry, winners: Tensor, links: Tensor, alpha: Tensor, beta: Tensor, h: Tensor) -> Tensor:
    """Σ_k A[b, k] e^(α_b + β_k) h_k, (items, decisions)."""
    out = torch.empty(alpha.shape, dtype=alpha.dtype, device="cpu")
    arrays = (_array(winners), _array(links), _array(alpha), _array(beta), _array(h), out.numpy())
    run(formula.to_decisions, len(winners), geometry.keys, compiled(geometry), *arrays)
    return out.to(alpha.device)


def log_spread(geometry: Geometry, winners: Tensor, links: Tensor, z: Tensor) -> Tensor:
    """log Σ_b A[b, k] e^z_b, (items, keys); -inf for keys in no decision."""
    out = torch.empty(len(z), geometry.keys, dtype=z.dtype, device="cpu")
    arrays = (_array(winners), _array(links), _array(z), out.numpy())
    run(formula.log_spread, len(z), geometry.keys, compiled(geometry), *arrays)
    return out.to(z.device)


def conditional(geometry: Geometry, logits: Tensor, sizes: Tensor | None, winners: Tensor, links: Tensor, seed: Tensor):
    """G | T (items, keys), log Λ and the log minima z (items, decisions), and which items lost their trace to
    rounding after all (items,)."""
    items = len(winners)
    g = torch.empty(items, geometry.keys, dtype=logits.dtype, device="cpu")
    # in float64, as large logits cancel in what follows
    totals = torch.empty(items, geometry.decisions, dtype=torch.float64, device="cpu")
    z = torch.empty_like(totals)
    failed = torch.empty(items, dtype=torch.bool, device="cpu")
    inputs = (_array(logits), _sizes(geometry, sizes), _array(winners), _array(links), _seed(seed), ATTEMPTS)
    run(
        conditionals.conditional,
        items,
        geometry.keys,
        compiled(geometry),
        *inputs,
        g.numpy(),
        totals.numpy(),
        z.numpy(),
        failed.numpy(),
    )
    device = logits.device
    return g.to(device), totals.to(device), z.to(device), failed.to(device)


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
    out = torch.empty(logits.shape, dtype=logits.dtype, device="cpu")
    arrays = (_array(winners), _array(links), _array(totals), _array(z), _array(g), _array(grad), out.numpy())
    run(conditionals.conditional_grad, len(logits), geometry.keys, compiled(geometry), _array(logits), *arrays)
    return out.to(logits.device)


def racing_keys(geometry: Geometry, winners: Tensor, links: Tensor) -> list[np.ndarray]:
    """The keys of each decision of one trace in increasing order, empty where there was none. Traces do not know of
    masks, nor does this."""
    return listing.racing_keys(compiled(geometry), _array(winners), _array(links))


def tree_marginals(
    u: Tensor, first: Tensor | None, second: Tensor | None, sizes: Tensor | None, root: int, fold: bool
) -> Tensor:
    """Edge marginals of random trees and their derivatives, (items, n, n), see `by_triangles`."""
    return by_triangles(matrix_tree.tree_marginals, u, first, second, sizes, root, fold)
