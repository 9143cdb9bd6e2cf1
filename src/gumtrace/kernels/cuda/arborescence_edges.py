"""Arborescences: the tree of a trace."""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_trace import layout
from gumtrace.kernels.cuda.formula import EXACT, known
from gumtrace.kernels.cuda.launch import quick


@triton.jit
def around(links, slot, mask, slots):
    """The cycles around supernodes, -1 for none. They have later numbers; other values are ignored, so that paths along
    them end, and stay inside the tensor."""
    link = tl.load(links + slot, mask=mask, other=-1)
    return tl.where((link > slot) & (link < slots), link, -1)


@quick
@triton.jit(do_not_specialize=["n", "slots"])
def _entering(winners, links, edges, n, slots, N: tl.constexpr):
    """From the outside in: the edge that enters a cycle replaces the winner of the member it enters."""
    item = tl.program_id(0).to(tl.int64)
    links += item * slots
    slot = tl.arange(0, 2 * N)
    edge = known(tl.load(winners + item * slots + slot, mask=slot < slots, other=-1), n * n)
    s = tl.max(tl.where(edge >= 0, slot, -1), 0)
    while s >= n:
        entering = tl.max(tl.where(slot == s, edge, -1), 0)
        inner = tl.maximum(entering, 0) % n
        outer = around(links, inner, True, slots)
        while (outer >= 0) & (outer != s):
            inner = outer
            outer = around(links, inner, True, slots)
        edge = tl.where((slot == inner) & (outer == s) & (entering >= 0), entering, edge)
        s -= 1
    tl.store(edges + item * n + slot, tl.maximum(edge, -1), mask=slot < n)


def entering(geometry, winners, links, edges):
    if geometry.nodes > 0:
        tile, warps, _ = layout(geometry.nodes, winners.shape[0], winners.device)
        where = (winners, links, edges, geometry.nodes, geometry.winner_slots)
        _entering[(winners.shape[0],)](*where, N=tile, num_warps=warps, **EXACT)
