"""The Triton kernels as functions of tensors, under the names of the CPU kernels (where shapes are documented).

What no kernel here serves is copied to the CPU and back: forests with links, a user's recursion, and items beyond a
kernel's range."""

import warnings
from types import ModuleType

import torch
from torch import Tensor

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cpu.ops import distinct as distinct  # copied to the CPU and back
from gumtrace.kernels.cuda import (
    arborescence,
    binary_tree,
    formula,
    matching,
    matrix_tree,
    sampling,
    spanning_tree,
    sparse_tree,
    subset,
)
from gumtrace.kernels.cuda.arrangement import arrangement as arrangement  # of the functions here
from gumtrace.kernels.cuda.inclusion import subset_pairs as subset_pairs
from gumtrace.kernels.cuda.inclusion import subset_probs as subset_probs
from gumtrace.kernels.cuda.inclusion import subset_probs_serves as subset_probs_serves
from gumtrace.kernels.cuda.indicator import indicator as indicator
from gumtrace.kernels.cuda.soft_subset import subset_covariance as subset_covariance
from gumtrace.kernels.cuda.soft_subset import subset_marginals as subset_marginals
from gumtrace.kernels.cuda.soft_subset import subset_shift as subset_shift
from gumtrace.kernels.cuda.soft_subset import subset_weights as subset_weights
from gumtrace.kernels.cuda.subset_trace import IN_REGISTERS
from gumtrace.kernels.geometry import (
    NOT_A_NUMBER,
    SOME_IDLE,
    ArborescenceGeometry,
    BatchedSpanningTreeGeometry,
    BinaryTreeGeometry,
    CustomGeometry,
    Geometry,
    MatchingGeometry,
    PermutationGeometry,
    SpanningTreeGeometry,
    SparseSpanningTreeGeometry,
    SubsetGeometry,
)

STRUCTURES: dict[type, ModuleType] = {
    ArborescenceGeometry: arborescence,
    MatchingGeometry: matching,
    BinaryTreeGeometry: binary_tree,
    SpanningTreeGeometry: spanning_tree,
    SparseSpanningTreeGeometry: sparse_tree,
    BatchedSpanningTreeGeometry: sparse_tree,
    SubsetGeometry: subset,
    PermutationGeometry: subset,
}

SMALL = 2**18  # numbers that a kernel writes in about the time of a launch

RANGES = {  # for `gumtrace.backends()`
    "Subset and Permutation": f"to {subset.LONGEST} keys (torch sorts permutations of more than {IN_REGISTERS})",
    "Matching": f"to {matching.WIDEST} columns",
    "SpanningTree": f"to {spanning_tree.MOST_NODES} nodes",
    "SpanningTree.from_edges": f"to {sparse_tree.MOST_DECISIONS} nodes and {sparse_tree.MOST_KEYS} edges a graph",
    "Arborescence": f"to {arborescence.LARGEST} nodes",
    "BinaryTree": f"to {binary_tree.LARGEST} tokens",
    "soft trees (relax)": f"to {matrix_tree.LARGEST} nodes (larger ones in torch, on the device)",
}


def served(geometry: Geometry) -> bool:
    """Whether a kernel here takes such items. Larger ones come as a surprise: a warning, of which Python shows the
    first."""
    structure = STRUCTURES.get(type(geometry))
    if structure is None or structure.serves(geometry):
        return structure is not None
    name = type(geometry).__name__.removesuffix("Geometry")
    warnings.warn(
        f"gumtrace has no CUDA kernel for a {name} of this size (gumtrace.backends() lists the largest items): it is "
        "copied to the CPU and back at every call",
        stacklevel=1,  # this line for all operators: Python shows it once for each structure
    )
    return False


def _new_trace(geometry: Geometry, like: Tensor, items: int) -> tuple[Tensor, Tensor, Tensor]:
    winners = torch.empty(items, geometry.winner_slots, dtype=torch.int32, device=like.device)
    links = torch.empty(items, geometry.link_slots, dtype=torch.int32, device=like.device)
    return winners, links, torch.empty(items, dtype=torch.int8, device=like.device)


def _new_keys(geometry: Geometry, like: Tensor, items: int) -> Tensor:
    return torch.empty(items, geometry.keys, dtype=like.dtype, device=like.device)


def check_logits(geometry: Geometry, logits: Tensor) -> Tensor:
    if type(geometry) not in STRUCTURES:
        return cpu.check_logits(geometry, logits)
    wrong, idle = ~(logits < torch.inf), logits.isneginf().any(-1)
    if (racing := sampling.racing(geometry, logits.device)) is not None:
        wrong = wrong & racing
    return torch.where(wrong.any(-1), NOT_A_NUMBER, torch.where(idle, SOME_IDLE, 0)).to(torch.int8)


def perturb(geometry: Geometry, logits: Tensor, items: int, seed: Tensor) -> Tensor:
    if type(geometry) not in (*STRUCTURES, CustomGeometry):  # which keys race is not known here
        return cpu.perturb(geometry, logits, items, seed)
    g = _new_keys(geometry, logits, items)
    if g.numel() > 0:
        sampling.perturb(geometry, logits, seed, g)
    return g


def trace(geometry: Geometry, g: Tensor, sizes: Tensor | None):
    if not served(geometry):
        return cpu.trace(geometry, g, sizes)
    out = _new_trace(geometry, g, g.shape[0])
    if g.shape[0] > 0:
        STRUCTURES[type(geometry)].trace(geometry, g, sizes, None, *out)
    return out


def sample(geometry: Geometry, logits: Tensor, sizes: Tensor | None, items: int, seed: Tensor):
    if not served(geometry):
        return trace(geometry, perturb(geometry, logits, items, seed), sizes)
    out = _new_trace(geometry, logits, items)
    if items > 0:
        STRUCTURES[type(geometry)].trace(geometry, logits, sizes, seed, *out)
    return out


def arborescence_edges(geometry: ArborescenceGeometry, winners: Tensor, links: Tensor) -> Tensor:
    if not served(geometry):
        return cpu.arborescence_edges(geometry, winners, links)
    edges = torch.empty(winners.shape[0], geometry.nodes, dtype=torch.int32, device=winners.device)
    if winners.shape[0] > 0:
        arborescence.entering(geometry, winners, links, edges)
    return edges


def log_prob(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor):
    """log P(T) (items,), and what its gradient needs: here the log-probability of each decision."""
    if not served(geometry):
        return cpu.log_prob(geometry, logits, winners, links)
    items = winners.shape[0]
    out = torch.empty(items, dtype=logits.dtype, device=logits.device)
    each = torch.empty(items, geometry.decisions, dtype=logits.dtype, device=logits.device)
    _up(geometry, winners, links, formula.LOG_PROB, beta=logits, out=each, log_prob=out)
    return out, each


def log_totals(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor) -> Tensor:
    if not served(geometry):
        return cpu.log_totals(geometry, logits, winners, links)
    totals = torch.empty(winners.shape[0], geometry.decisions, dtype=logits.dtype, device=logits.device)
    _up(geometry, winners, links, formula.TOTALS, beta=logits, out=totals)
    return totals


def log_prob_grad(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor, kept: Tensor, grad: Tensor):
    if not served(geometry):
        return cpu.log_prob_grad(geometry, logits, winners, links, kept, grad)
    return _sum_samples(item_scores(geometry, logits, winners, links, kept, grad), logits)


def item_scores(geometry: Geometry, logits: Tensor, winners: Tensor, links: Tensor, kept: Tensor, grad: Tensor):
    """∇ log P(T) of each item times a number of its own, (items, keys)."""
    out = _new_keys(geometry, logits, winners.shape[0])
    _down(geometry, winners, links, formula.GRAD, alpha=kept, h=grad, beta=logits, grad=grad, out=out)
    return out


def host_bound(geometry: Geometry, items: int) -> bool:
    """Whether the host takes longer to launch kernels on all keys of such items than the device to run them. Inside a
    CUDA graph it does not launch any."""
    return items * geometry.keys <= SMALL and served(geometry) and not torch.cuda.is_current_stream_capturing()


def decisions(geometry: Geometry, logits: Tensor, gains: Tensor, winners: Tensor, links: Tensor):
    """As on the CPU, by the kernels that there are: its gradient is written with them too. log Λ is one number."""
    if not served(geometry):
        return cpu.decisions(geometry, logits, gains, winners, links)
    totals = log_totals(geometry, logits, winners, links)
    _, each = log_prob(geometry, logits, winners, links)
    repeated = (x.repeat(winners.shape[0] // max(len(x), 1), 1) for x in (logits, gains))
    means = to_decisions(geometry, winners, links, -totals, *repeated)
    return torch.stack([each, means], 1), totals


def to_keys(geometry: Geometry, winners: Tensor, links: Tensor, alpha: Tensor, beta: Tensor, h: Tensor) -> Tensor:
    if not served(geometry):
        return cpu.to_keys(geometry, winners, links, alpha, beta, h)
    out = _new_keys(geometry, beta, winners.shape[0])
    _down(geometry, winners, links, formula.SCALED, alpha=alpha, h=h, beta=beta, out=out)
    return out


def to_decisions(geometry: Geometry, winners: Tensor, links: Tensor, alpha: Tensor, beta: Tensor, h: Tensor) -> Tensor:
    if not served(geometry):
        return cpu.to_decisions(geometry, winners, links, alpha, beta, h)
    out = torch.empty_like(alpha)
    _up(geometry, winners, links, formula.SCALED, beta=beta, h=h, alpha=alpha, out=out)
    return out


def log_spread(geometry: Geometry, winners: Tensor, links: Tensor, z: Tensor) -> Tensor:
    if not served(geometry):
        return cpu.log_spread(geometry, winners, links, z)
    out = _new_keys(geometry, z, winners.shape[0])
    _down(geometry, winners, links, formula.SPREAD, alpha=z, beta=out, out=out)
    return out


def conditional(
    geometry: Geometry, logits: Tensor, sizes: Tensor | None, winners: Tensor, links: Tensor, seed: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not served(geometry):
        return cpu.conditional(geometry, logits, sizes, winners, links, seed)
    items = winners.shape[0]
    g = _new_keys(geometry, logits, items)
    totals = torch.empty(items, geometry.decisions, dtype=torch.float64, device=logits.device)
    z = torch.empty_like(totals)
    failed = torch.zeros(items, dtype=torch.bool, device=logits.device)
    _up(geometry, winners, links, formula.DRAW_MINIMA, beta=logits, out=totals, z=z, seed=seed)
    _down(geometry, winners, links, formula.CONDITIONAL, alpha=z, beta=logits, out=g, seed=seed)
    if isinstance(geometry, ArborescenceGeometry) and items > 0:
        arborescence.redraw(geometry, logits, sizes, winners, links, seed, g, totals, z, failed)
    return g, totals, z, failed


def conditional_grad(
    geometry: Geometry,
    logits: Tensor,
    winners: Tensor,
    links: Tensor,
    totals: Tensor,
    z: Tensor,
    g: Tensor,
    grad: Tensor,
) -> Tensor:
    """Down for the share of the minima in each E, up to the minima and so to log Λ, down to the keys."""
    if not served(geometry):
        return cpu.conditional_grad(geometry, logits, winners, links, totals, z, g, grad)
    items = winners.shape[0]
    shared = _new_keys(geometry, z, items)  # in float64, as z: large ones cancel
    through = _new_keys(geometry, logits, items)
    _down(geometry, winners, links, formula.SHARE, alpha=z, beta=logits, grad=grad, g=g, out=shared, more=through)
    to_totals = torch.empty(items, geometry.decisions, dtype=logits.dtype, device=logits.device)
    _up(geometry, winners, links, formula.SCALED, beta=shared, h=through, alpha=z, out=to_totals)
    out = _new_keys(geometry, logits, items)
    tail = {"alpha": totals, "h": to_totals, "beta": logits, "grad": grad, "more": through, "out": out}
    _down(geometry, winners, links, formula.TAIL, **tail)
    return _sum_samples(out, logits)


def tree_marginals(
    u: Tensor, first: Tensor | None, second: Tensor | None, sizes: Tensor | None, root: int, fold: bool
) -> Tensor | None:
    """As on the CPU; None for items beyond the kernel's range."""
    if not matrix_tree.serves(u.shape[-1]) or u.numel() == 0:
        return None
    out = u.new_empty(u.shape)
    tensors = (x if x is None else x.contiguous() for x in (u, first, second, sizes))
    with torch.cuda.device_of(u):  # Triton launches on the current one
        matrix_tree.marginals(*tensors, root, fold, out)
    return out


def _up(geometry, winners, links, mode, *, beta, out, h=None, alpha=None, log_prob=None, z=None, seed=None, stream=0):
    if winners.shape[0] > 0:
        kernel = STRUCTURES[type(geometry)].up
        kernel(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream)


def _down(
    geometry, winners, links, mode, *, alpha, beta, out, h=None, grad=None, g=None, more=None, seed=None, stream=0
):
    if winners.shape[0] > 0:
        kernel = STRUCTURES[type(geometry)].down
        kernel(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream)


def _sum_samples(x: Tensor, logits: Tensor) -> Tensor:
    """(items, keys) -> (batch, keys)."""
    items, batch = x.shape[0], logits.shape[0]
    return x if items == batch else x.reshape(items // batch, batch, x.shape[1]).sum(0)
