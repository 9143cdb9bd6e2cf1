"""Kruskal's trace of dense graphs: the tree's edges in order of G.

Prim finds them, a node a step, with the best edge to every node outside in a tile; edges are ranked as they come. Each
pair of nodes is looked at once, when the first of them comes in, so its noise can be drawn on the spot.
"""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.cuda.noise import noisy, row_of
from gumtrace.kernels.cuda.order import before, code, least

SMALLEST = 32  # nodes of a tile: within one warp, and over all of it, a reduction is one instruction


@triton.jit
def _grow(
    start,
    stop,
    u,
    node,
    c,
    key,
    tree_c,
    tree_key,
    rank,
    wrong,
    source,
    seed,
    item,
    n,
    N: tl.constexpr,
):
    """Prim's steps start..stop: u is the node that came last, c and key are the best edges from the tree to `node`.

    Nodes inside have a code below that of -inf. A step that finds no edge continues from some remaining node, and the
    edge of -inf it keeps ranks behind all that exist.
    """
    position = tl.arange(0, N)
    lowest = least(tl.zeros([], source.dtype.element_ty))
    bad = node * 0
    for step in range(start, stop):
        outside = c >= lowest
        edge = tl.minimum(u, node) * n + tl.maximum(u, node)
        g = noisy(source, 1, seed, item, n * n, edge, outside)
        bad = tl.where(g < float("inf"), bad, 2)
        new = code(g)
        better = outside & before(new, edge, c, key)
        c, key = tl.where(better, new, c), tl.where(better, edge, key)
        top = tl.max(c, 0)
        packed = tl.min(tl.where(c == top, (key << 9) + node, 2**31 - 1), 0)
        won, u = packed >> 9, packed & 511
        c = tl.where(node == u, lowest - 1, c)
        beaten = before(top, won, tree_c, tree_key)
        own = tl.sum((beaten == 0).to(tl.int32), 0)
        here = position == step
        rank = tl.where(here, own, rank + beaten.to(tl.int32))
        tree_c, tree_key = tl.where(here, top, tree_c), tl.where(here, won, tree_key)
    return u, c, key, tree_c, tree_key, rank, tl.maximum(wrong, tl.max(bad, 0))


@quick
@triton.jit(do_not_specialize=["rows", "size_rows", "n", "components", "slots"])
def _trace(
    source,
    rows,
    sizes,
    size_rows,
    seed,
    winners,
    status,
    n,
    components,
    slots,
    N: tl.constexpr,
    FEW: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    source += row_of(item, rows) * n * n
    node = tl.arange(0, N)
    nodes = n
    if sizes is not None:
        nodes = tl.load(sizes + row_of(item, size_rows))
    steps = nodes - components
    lowest = least(tl.zeros([], source.dtype.element_ty))
    inside = tl.zeros([N], lowest.dtype) + (lowest - 1)
    c, key = tl.where((node > 0) & (node < nodes), lowest, inside), node * 0
    tree_c, tree_key, rank = inside, node * 0, node * 0
    u, wrong = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    last = tl.where(steps > 0, nodes - 1, 0)
    middle = tl.full((), 0, tl.int32)
    left = node
    if FEW < N:  # when most nodes are inside, noise is drawn for a smaller tile that holds the others
        middle = tl.maximum(last - FEW, 0)
        u, c, key, tree_c, tree_key, rank, wrong = _grow(
            0, middle, u, node, c, key, tree_c, tree_key, rank, wrong, source, seed, item, n, N
        )
        left = tl.gather(tl.sort(tl.where(c < lowest, node + N, node)), tl.arange(0, FEW), 0) & (N - 1)
        c, key = tl.gather(c, left, 0), tl.gather(key, left, 0)
    u, c, key, tree_c, tree_key, rank, wrong = _grow(
        middle, last, u, left, c, key, tree_c, tree_key, rank, wrong, source, seed, item, n, N
    )
    unseen = tl.where(steps > 0, nodes, 0)  # padding may hold no nan either
    for v in range(tl.where(unseen < n, n, 0)):
        above = (node > v) & (node >= unseen) & (node < n)
        x = tl.load(source + v * n + node, mask=above, other=0.0)
        wrong = tl.maximum(wrong, tl.max(tl.where(x < float("inf"), 0, 2), 0))
    found = tree_c > lowest
    stuck = (steps < 0) | (tl.sum(found.to(tl.int32), 0) < steps)
    kept = tl.where(stuck | (wrong > 0), 0, steps)
    tl.store(winners + item * slots + rank, tree_key, mask=found & (rank < kept))
    tl.store(winners + item * slots + node, -1, mask=(node < slots) & (node >= kept))
    tl.store(status + item, tl.maximum(wrong, stuck.to(tl.int32)).to(tl.int8))


def trace(geometry, source, sizes, seed, winners, links, status):
    tile, warps = tile_of(geometry)
    size_rows = 1 if sizes is None else sizes.shape[0]
    where = (source, source.shape[0], sizes, size_rows, seed, winners, status, *shape_of(geometry))
    few = max(SMALLEST, tile // 2)
    _trace[(winners.shape[0],)](*where, N=tile, FEW=few, num_warps=warps, **EXACT)


def tile_of(geometry):
    """A tile that holds all nodes, and warps for it."""
    tile = max(SMALLEST, power_of_2(geometry.nodes))
    return tile, max(1, tile // 128)


def shape_of(geometry):
    return geometry.nodes, geometry.components, geometry.winner_slots
