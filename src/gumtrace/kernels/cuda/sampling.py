"""Noise for a batch, and what can be wrong with log-rates."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.cuda.noise import noisy
from gumtrace.kernels.geometry import ArborescenceGeometry, Geometry, SpanningTreeGeometry, SparseSpanningTreeGeometry

ALL, UPPER, ROOTED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # keys that race: i < j, or i != j and j no root


@quick
@triton.jit(do_not_specialize=["rows", "first", "root"])
def _perturb(logits, rows, seed, out, first, keys, blocks, n, root, RACING: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    key = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    g = noisy(logits, rows, seed, first + row, keys, key, key < keys)
    if RACING == UPPER:
        g = tl.where(key // n < key % n, g, float("-inf"))
    if RACING == ROOTED:
        g = tl.where((key // n != key % n) & (key % n != root), g, float("-inf"))
    tl.store(out + row * keys + key, g + 0.0, mask=key < keys)  # -0.0 and 0.0 are one number, for torch's sort too


def perturb(geometry: Geometry, logits: Tensor, seed: Tensor, out: Tensor, first: int = 0) -> None:
    """The noise of items from the first on, as many as `out` has rows."""
    block = min(1024, max(32, power_of_2(geometry.keys)))
    blocks = triton.cdiv(geometry.keys, block)
    which, n, root = _racing(geometry)
    where = (logits, logits.shape[0], seed, out, first, geometry.keys, blocks, n, root)
    grid = (len(out) * blocks,)  # in one axis: the others end at 65,535
    _perturb[grid](*where, RACING=which, BLOCK=block, num_warps=max(1, min(4, block // 128)), **EXACT)
    if isinstance(geometry, SparseSpanningTreeGeometry):
        out.masked_fill_(~_no_loop(geometry, out.device), -torch.inf)


def racing(geometry: Geometry, device: torch.device) -> Tensor | None:
    """(keys,) bool: which keys the structure lets race; None for all."""
    if isinstance(geometry, SparseSpanningTreeGeometry):
        return _no_loop(geometry, device)
    which, n, root = _racing(geometry)
    if which == ALL.value or geometry.keys == 0:
        return None
    u = torch.arange(n, device=device)[:, None]
    v = u.mT
    return (u < v if which == UPPER.value else (u != v) & (v != root)).flatten()


def _no_loop(geometry: SparseSpanningTreeGeometry, device: torch.device) -> Tensor:
    ends = geometry.edges.to(device)
    return ends[0] != ends[1]


def _racing(geometry: Geometry) -> tuple[int, int, int]:
    """Which keys race, and the number of columns and the root that this needs."""
    if isinstance(geometry, SpanningTreeGeometry):
        return UPPER.value, max(geometry.nodes, 1), 0
    if isinstance(geometry, ArborescenceGeometry):
        return ROOTED.value, max(geometry.nodes, 1), geometry.root
    return ALL.value, 1, 0
