"""Arborescences: reduced weights of all nodes of large items, in tiles."""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_turn import wanted
from gumtrace.kernels.cuda.arborescence_weights import exponential, extent
from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.noise import row_of

TILE = 2048  # weights of a program


@triton.jit
def whole_extent(low_at, high_at, wrong_at, item, strips, STRIPS: tl.constexpr):
    """The extent of an item from those of its strips."""
    strip = tl.arange(0, STRIPS)
    place, some = item * strips + strip, strip < strips
    low = tl.load(low_at + place, mask=some, other=float("inf"))
    high = tl.load(high_at + place, mask=some, other=float("-inf"))
    return extent(low, high, tl.load(wrong_at + place, mask=some, other=0))


@quick
@triton.jit(do_not_specialize=["size_rows", "strips", "n"])
def _reduce(
    sizes,
    size_rows,
    only,
    turned,
    first,
    low_at,
    high_at,
    wrong_at,
    strips,
    weights,
    n,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    STRIPS: tl.constexpr,
):
    """Reduced weights of some nodes: E less that of the first choice."""
    blocks = tl.cdiv(n, ROWS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    if wanted(only, item):
        nodes = n
        if sizes is not None:
            nodes = tl.load(sizes + row_of(item, size_rows))
        wrong, middle, wide = whole_extent(low_at, high_at, wrong_at, item, strips, STRIPS)
        if (wrong | wide) == 0:
            v = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)[:, None]
            u = tl.arange(0, N)[None, :]
            chosen = tl.load(first + item * n + v, mask=v < n, other=-1)
            row = item * n * n + v * n
            best = tl.load(turned + row + chosen, mask=chosen >= 0, other=0.0)
            g = tl.load(turned + row + u, mask=(chosen >= 0) & (u < nodes) & (u != v), other=float("-inf"))
            some = g > float("-inf")
            e = tl.where(some, exponential(tl.where(some, middle - g.to(tl.float64), 0.0)), float("inf"))
            tl.store(weights + row + u, e - exponential(middle - best.to(tl.float64)), mask=(chosen >= 0) & (u < n))


def reduce_weights(read, weights, n, tile):
    """Write weights (items, n²), by target; `read` is what both this kernel and that of the cycles begin with."""
    first, strips = read[4], read[-1]
    rows = max(1, TILE // tile)
    sizes = {"N": tile, "ROWS": rows, "STRIPS": triton.next_power_of_2(strips)}
    _reduce[(len(first) * triton.cdiv(n, rows),)](*read, weights, n, **sizes, num_warps=4, **EXACT)
