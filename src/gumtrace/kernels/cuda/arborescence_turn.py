"""Arborescences: G of large items to memory by target, by several programs an item, for the one that runs on it."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.noise import noisy, row_of

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
    low_at,
    high_at,
    wrong_at,
    n,
    root,
    SIDE: tl.constexpr,
):
    """A tile: its G, turned; the least and the largest of those that race, and whether one is not a number."""
    blocks = tl.cdiv(n, SIDE)
    tile = tl.program_id(0).to(tl.int64)
    item = tile // (blocks * blocks)
    if wanted(only, item):
        place = (tile % (blocks * blocks)).to(tl.int32)
        u = place // blocks * SIDE + tl.arange(0, SIDE)
        v = place % blocks * SIDE + tl.arange(0, SIDE)
        nodes = n
        if sizes is not None:
            nodes = tl.load(sizes + row_of(item, size_rows))
        source_at, target = u[:, None], v[None, :]
        g = noisy(source, rows, seed, item, n * n, source_at * n + target, (source_at < n) & (target < n))
        behind = item * n * n + v[:, None] * n + u[None, :]
        tl.store(turned + behind, tl.trans(g), mask=(v < n)[:, None] & (u < n)[None, :])
        races = (source_at < n) & (target < n) & (source_at != target) & (target != root)
        wrong = races & ((g < float("inf")) == 0)
        tl.store(wrong_at + tile, tl.max(tl.max(wrong.to(tl.int32), 1), 0))
        races = races & (source_at < nodes) & (target < nodes) & (g > float("-inf"))
        tl.store(low_at + tile, tl.min(tl.min(tl.where(races, g, float("inf")), 1), 0))
        tl.store(high_at + tile, tl.max(tl.max(tl.where(races, g, float("-inf")), 1), 0))


def is_large(n):
    """Whether tiles of their own programs do what can be done for each key alone."""
    return n > ONE_PROGRAM


def turn(source, rows, sizes, size_rows, seed, only, turned, n, root):
    """Write `turned`; returns the least, the largest, what is wrong, (items, tiles), and the number of tiles."""
    tiles = triton.cdiv(n, SIDE) ** 2
    low, high = (torch.empty(len(turned), tiles, dtype=source.dtype, device=source.device) for _ in range(2))
    wrong = torch.empty(len(turned), tiles, dtype=torch.int32, device=source.device)
    where = (source, rows, sizes, size_rows, seed, only, turned, low, high, wrong, n, root)
    _turn[(len(turned) * tiles,)](*where, SIDE=SIDE, num_warps=4, **EXACT)
    return low, high, wrong, tiles
