"""Arborescences: G of large items to memory by target, and the first choice of every node, by several programs an item,
for the one that runs on it."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_weights import NOWHERE
from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.noise import noisy, row_of
from gumtrace.kernels.cuda.order import code, decode, least

SIDE = 32  # nodes on either side of a tile
ONE_PROGRAM = 128  # nodes of the largest graphs that are one program's


@triton.jit
def wanted(only, item):
    """Whether to do this item: all, or those marked."""
    marked = item >= 0
    if only is not None:
        marked = tl.load(only + item) != 0
    return marked


@triton.jit(do_not_specialize=["rows", "size_rows", "n", "root"])
def _turn(
    source,
    rows,
    sizes,
    size_rows,
    seed,
    only,
    turned,
    first,
    low_at,
    high_at,
    wrong_at,
    n,
    root,
    SIDE: tl.constexpr,
):
    """Of some targets: G, turned; the first of the best sources, -1 for none; the least and the largest G of those that
    race, and whether one is not a number."""
    blocks = tl.cdiv(n, SIDE)
    strip = tl.program_id(0).to(tl.int64)
    item = strip // blocks
    if wanted(only, item):
        nodes = n
        if sizes is not None:
            nodes = tl.load(sizes + row_of(item, size_rows))
        v = (strip % blocks).to(tl.int32) * SIDE + tl.arange(0, SIDE)
        target = v[None, :]
        low = tl.full([SIDE, SIDE], float("inf"), source.dtype.element_ty)
        best = tl.zeros([SIDE, SIDE], code(low).dtype) + least(low)
        best_source = tl.full([SIDE, SIDE], NOWHERE, tl.int32)
        wrong = best_source < 0
        for start in range(0, n, SIDE):
            u = start + tl.arange(0, SIDE)
            source_at = u[:, None]
            here = (source_at < n) & (target < n)
            g = noisy(source, rows, seed, item, n * n, source_at * n + target, here)
            behind = item * n * n + v[:, None] * n + u[None, :]
            tl.store(turned + behind, tl.trans(g), mask=(v < n)[:, None] & (u < n)[None, :])
            races = here & (source_at != target) & (target != root)
            wrong |= races & ((g < float("inf")) == 0)
            races = races & (source_at < nodes) & (target < nodes) & (g > float("-inf"))
            low = tl.minimum(low, tl.where(races, g, float("inf")))
            better = races & (code(g) > best)  # sources come in order
            best = tl.where(better, code(g), best)
            best_source = tl.where(better, source_at, best_source)
        top = tl.max(best, 0)
        winner = tl.min(tl.where(best == top[None, :], best_source, NOWHERE), 0)
        tl.store(first + item * n + v, tl.where(winner < NOWHERE, winner, -1), mask=v < n)
        tl.store(wrong_at + strip, tl.max(tl.max(wrong.to(tl.int32), 1), 0))
        tl.store(low_at + strip, tl.min(tl.min(low, 1), 0))
        tl.store(high_at + strip, decode(tl.max(top, 0)))


def is_large(n):
    """Whether tiles of their own programs do what can be done for each key alone."""
    return n > ONE_PROGRAM


def turn(source, rows, sizes, size_rows, seed, only, turned, n, root):
    """Write `turned`; returns the first choices (items, n), and of (items, strips) the least, the largest, what is
    wrong, and the number of strips."""
    items, strips = len(turned), triton.cdiv(n, SIDE)
    first = torch.empty(items, n, dtype=torch.int32, device=source.device)
    low, high = (torch.empty(items, strips, dtype=source.dtype, device=source.device) for _ in range(2))
    wrong = torch.empty(items, strips, dtype=torch.int32, device=source.device)
    where = (source, rows, sizes, size_rows, seed, only, turned, first, low, high, wrong, n, root)
    _turn[(items * strips,)](*where, SIDE=SIDE, num_warps=8, **EXACT)
    return first, (low, high, wrong, strips)
