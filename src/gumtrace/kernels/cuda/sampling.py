"""Noise for a batch, and what can be wrong with log-rates."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gumtrace.kernels import kinds
from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.noise import noisy

SPANNING_TREE, ARBORESCENCE = tl.constexpr(kinds.SPANNING_TREE), tl.constexpr(kinds.ARBORESCENCE)


@triton.jit
def _perturb(logits, rows, seed, out, first, keys, blocks, n, root, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    key = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    g = noisy(logits, rows, seed, first + row, keys, key, key < keys)
    if KIND == SPANNING_TREE:
        g = tl.where(key // n < key % n, g, float("-inf"))
    if KIND == ARBORESCENCE:
        g = tl.where((key // n != key % n) & (key % n != root), g, float("-inf"))
    tl.store(out + row * keys + key, g, mask=key < keys)


def perturb(geometry: kinds.Geometry, logits: Tensor, seed: Tensor, out: Tensor, first: int = 0) -> None:
    """The noise of items from the first on, as many as `out` has rows."""
    block = min(1024, max(32, triton.next_power_of_2(geometry.keys)))
    blocks = triton.cdiv(geometry.keys, block)
    kind = geometry.kind if geometry.kind in (kinds.SPANNING_TREE, kinds.ARBORESCENCE) else -1
    where = (logits, len(logits), seed, out, first, geometry.keys, blocks, max(geometry.n, 1), geometry.extra)
    grid = (len(out) * blocks,)  # in one axis: the others end at 65,535
    _perturb[grid](*where, KIND=kind, BLOCK=block, num_warps=max(1, min(4, block // 128)), **EXACT)


def racing_by_kind(geometry: kinds.Geometry, device: torch.device) -> Tensor | None:
    """(keys,) bool: which keys the structure lets race; None for all."""
    if geometry.kind not in (kinds.SPANNING_TREE, kinds.ARBORESCENCE):
        return None
    u = torch.arange(geometry.n, device=device)[:, None]
    v = u.mT
    racing = u < v if geometry.kind == kinds.SPANNING_TREE else (u != v) & (v != geometry.extra)
    return racing.flatten()
