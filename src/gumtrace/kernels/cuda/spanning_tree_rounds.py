"""Kruskal's trace of large dense graphs: the tree's edges in order of G, found by several programs an item.

Borůvka's rounds: every part of the forest takes its best edge to another part, and parts that are joined become one, so
that at most half of them remain. The first round is one pass over the pairs in tiles: it draws the noise, stores its
codes for either end of a pair, and notes the best edge of each node into each block of nodes. An edge that is the best
remains so until its ends are in one part, so that later rounds look again at those blocks only where that has happened:
a tenth of them, until few parts are left. A program an item then joins. The number of launches is that of the rounds
that may be needed; items that need no more return at once.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.noise import multiple, noisy
from gumtrace.kernels.cuda.order import code, least
from gumtrace.kernels.cuda.spanning_tree_ranks import nodes_of, rank

TILE = 64  # nodes on either side of a tile of pairs
SCANNED = 128  # best edges of nodes into blocks that a program looks at
STALE = 32  # of these, how many are found anew at once
NONE = tl.constexpr(2**31 - 1)  # the edge of a part that has none


@triton.jit
def tile_at(index):
    """Row and column, row <= column, of a tile of the upper triangle."""
    column = ((tl.sqrt(8.0 * index.to(tl.float32) + 1.5) - 1.0) * 0.5).to(tl.int32)
    return index - column * (column + 1) // 2, column


@triton.jit
def tile_of(one, two):
    """The index of the tile of two blocks, in any order."""
    column = tl.maximum(one, two)
    return column * (column + 1) // 2 + tl.minimum(one, two)


@triton.jit
def joined(parent, most):
    """The part that each part ends in, where each names the one that it joins, and two may name each other. At most so
    many join others."""
    part = tl.arange(0, parent.shape[0])
    first = (tl.gather(parent, parent, 0) == part) & (part < parent)
    parent = tl.where(first, part, parent)
    hooked = parent != part
    span = tl.full((), 1, tl.int32)  # how many joins each has followed
    while span < most:
        parent = tl.gather(parent, parent, 0)
        span *= 2
    return parent, hooked


@triton.jit(do_not_specialize=["rows", "size_rows", "n", "blocks"])
def _draw(
    source,
    rows,
    sizes,
    size_rows,
    seed,
    codes,
    best_c,
    best_other,
    n,
    blocks,
    FOURS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The codes of a tile of pairs, stored for both ends of each; and the best edge from each node of the tile into its
    other side: its code and other end."""
    tiles = blocks * (blocks + 1) // 2
    item = (tl.program_id(0) // tiles).to(tl.int64)
    row, column = tile_at(tl.program_id(0) % tiles)
    n = multiple(n, FOURS)
    u, v = row * TILE + tl.arange(0, TILE), column * TILE + tl.arange(0, TILE)
    inside = (u < n)[:, None] & (v < n)[None, :]
    key = u[:, None] * n + v[None, :]
    g = noisy(source, rows, seed, item, n * n, key, inside)
    lowest = least(tl.zeros([], g.dtype))
    pair = inside & (u[:, None] < v[None, :])
    races = pair & (v < nodes_of(sizes, size_rows, item, n))[None, :]
    c = tl.where(races, code(g), lowest)
    c = tl.where(pair & ((g < float("inf")) == 0), code(tl.full((), float("inf"), g.dtype)), c)
    if row == column:
        c = tl.maximum(c, tl.trans(c))
    codes += item * n * n
    tl.store(codes + key, c, mask=inside)
    top = tl.max(c, 1)
    other = tl.min(tl.where(c == top[:, None], v[None, :], NONE), 1)  # of equal ones the first key
    place = (item * blocks + column) * n + u
    tl.store(best_c + place, top, mask=u < n)
    tl.store(best_other + place, other, mask=u < n)
    if row != column:
        tl.store(codes + v[:, None] * n + u[None, :], tl.trans(c), mask=(v < n)[:, None] & (u < n)[None, :])
        top = tl.max(c, 0)
        other = tl.min(tl.where(c == top[None, :], u[:, None], NONE), 0)
        place = (item * blocks + row) * n + v
        tl.store(best_c + place, top, mask=v < n)
        tl.store(best_other + place, other, mask=v < n)


@triton.jit(do_not_specialize=["n", "blocks"])
def _best(
    codes,
    part,
    state,
    best_c,
    best_other,
    stale_at,
    node_c,
    node_other,
    n,
    blocks,
    FOURS: tl.constexpr,
    NODES: tl.constexpr,
    BLOCKS: tl.constexpr,
    STALE: tl.constexpr,
    TILE: tl.constexpr,
):
    """The best edge to another part from some nodes: its code and other end. Of their best edges into each block, those
    that do not leave the part any more are found anew; the others are still the best."""
    groups = tl.cdiv(n, NODES)
    item = (tl.program_id(0) // groups).to(tl.int64)
    if tl.load(state + 2 * item) == 0:
        return
    n = multiple(n, FOURS)
    first = tl.program_id(0) % groups * NODES
    lowest = least(tl.zeros([], tl.float64 if codes.dtype.element_ty == tl.int64 else tl.float32))
    codes += item * n * n
    part += item * n
    best_c += item * blocks * n
    best_other += item * blocks * n
    place = tl.arange(0, NODES * BLOCKS)  # node by node
    node, block = first + place // BLOCKS, place % BLOCKS
    here = (node < n) & (block < blocks)
    found = here & (tl.load(best_c + block * n + node, mask=here, other=lowest) > lowest)
    end = tl.load(best_other + block * n + node, mask=found, other=0)
    stale = found & (tl.load(part + node, mask=found, other=0) == tl.load(part + end, mask=found, other=-1))
    upto = tl.cumsum(stale.to(tl.int32), 0)
    number = tl.max(upto, 0)
    stale_at += tl.program_id(0).to(tl.int64) * (NODES * BLOCKS)
    tl.store(stale_at + upto - 1, place, mask=stale)
    tl.debug_barrier()  # and several threads have read the same
    for start in range(0, number, STALE):
        behind = start + tl.arange(0, STALE)
        some = behind < number
        which = tl.load(stale_at + behind, mask=some, other=0, cache_modifier=".cg")
        u, into = first + which // BLOCKS, which % BLOCKS
        v = into[:, None] * TILE + tl.arange(0, TILE)[None, :]
        inside = some[:, None] & (v < n)
        c = tl.load(codes + u[:, None] * n + v, mask=inside, other=lowest)
        part_u = tl.load(part + u, mask=some, other=0)
        c = tl.where(tl.load(part + v, mask=inside, other=-1) == part_u[:, None], lowest, c)
        top = tl.max(c, 1)
        other = tl.min(tl.where(c == top[:, None], v, NONE), 1)  # of equal ones the first key
        tl.store(best_c + into * n + u, top, mask=some)
        tl.store(best_other + into * n + u, other, mask=some)
    tl.debug_barrier()
    nodes, into_all = first + tl.arange(0, NODES), tl.arange(0, BLOCKS)
    at = into_all[None, :] * n + nodes[:, None]
    mask = (nodes < n)[:, None] & (into_all < blocks)[None, :]
    c_all = tl.load(best_c + at, mask=mask, other=lowest, cache_modifier=".cg")
    c_best = tl.max(c_all, 1)
    ends = tl.load(best_other + at, mask=mask & (c_all == c_best[:, None]), other=NONE, cache_modifier=".cg")
    tl.store(node_c + item * n + nodes, c_best, mask=nodes < n)
    tl.store(node_other + item * n + nodes, tl.min(ends, 1), mask=nodes < n)


@triton.jit
def _best_of_parts(c, key, part, found, top_at, first_at, lowest, inside):
    """The best edge of every part, at the node it is named after: code and key, of its nodes' best edges. Atomics have
    numbers that change nothing in place of masks, which the interpreter refuses. Barriers order them: what is not
    relaxed waits for all memory, each time."""
    node = tl.arange(0, c.shape[0])
    at = tl.where(found, part, 0)
    tl.store(top_at + node, lowest, mask=inside)
    tl.store(first_at + node, NONE, mask=inside)
    tl.debug_barrier()
    tl.atomic_max(top_at + at, tl.where(found, c, lowest), sem="relaxed")
    tl.debug_barrier()
    top = tl.load(top_at + at, cache_modifier=".cg")
    tl.atomic_min(first_at + at, tl.where(found & (c == top), key, NONE), sem="relaxed")
    tl.debug_barrier()
    c = tl.load(top_at + node, mask=inside, other=lowest, cache_modifier=".cg")
    return c, tl.load(first_at + node, mask=inside, other=NONE, cache_modifier=".cg")


@triton.jit(do_not_specialize=["size_rows", "n", "blocks"])
def _join(
    sizes,
    size_rows,
    part,
    state,
    best_c,
    best_other,
    tree_c,
    tree_key,
    top_at,
    first_at,
    n,
    blocks,
    FIRST: tl.constexpr,
    N: tl.constexpr,
):
    """Join the parts along their best edges. A part is named after one of its nodes; an edge is kept at the name that
    is given up for it. The state of an item: how many joins may be left, and whether some G is not a number."""
    item = tl.program_id(0).to(tl.int64)
    if not FIRST:  # noqa: SIM102 (known at compile time: then nothing is loaded)
        if tl.load(state + 2 * item) == 0:
            return
    node = tl.arange(0, N)
    inside = node < n
    lowest = least(tl.zeros([], tl.float64 if best_c.dtype.element_ty == tl.int64 else tl.float32))
    c, other = tl.zeros([N], best_c.dtype.element_ty) + lowest, node
    for block in range(blocks):
        place = (item * blocks + block) * n + node
        new = tl.load(best_c + place, mask=inside, other=lowest)
        other = tl.where(new > c, tl.load(best_other + place, mask=inside, other=0), other)
        c = tl.maximum(c, new)
    found = c > lowest
    own = item * n
    left = tl.full((), 0, tl.int32)
    names = node
    if FIRST:
        wrong = tl.max(c, 0) == -lowest  # the code of inf
        found = found & (wrong == 0)
        left += nodes_of(sizes, size_rows, item, n) - 1
        tl.store(state + 2 * item + 1, wrong.to(tl.int32))
    else:
        names = tl.load(part + own + node, mask=inside, other=0)
        left += tl.load(state + 2 * item)
    key = tl.minimum(node, other) * n + tl.maximum(node, other)
    top, edge = _best_of_parts(c, key, names, found, top_at + own, first_at + own, lowest, inside)
    some = edge < NONE
    edge = tl.where(some, edge, 0)
    one, two = tl.gather(names, edge // n, 0), tl.gather(names, edge % n, 0)
    last, hooked = joined(tl.where(some, tl.where(one == node, two, one), node), left)
    tl.store(part + own + node, tl.gather(last, names, 0), mask=inside)
    kept = inside if FIRST else inside & hooked
    tl.store(tree_c + own + node, tl.where(hooked, top, lowest), mask=kept)
    tl.store(tree_key + own + node, edge, mask=kept)
    joins = tl.sum(hooked.to(tl.int32), 0)
    tl.store(state + 2 * item, tl.where(joins > 0, left - joins, 0))


def trace(geometry, source, sizes, seed, winners, links, status):
    n, items, device = geometry.nodes, len(winners), source.device
    levels = max(1, (n - 1).bit_length())
    width, blocks = max(16, 1 << levels), triton.cdiv(n, TILE)
    of_codes = torch.int64 if source.dtype == torch.float64 else torch.int32
    part, best_other, node_other, tree_key, first_at = (
        torch.empty(items, rows, n, dtype=torch.int32, device=device) for rows in (1, blocks, 1, 1, 1)
    )
    codes, best_c, node_c, tree_c, top_at = (
        torch.empty(items, rows, n, dtype=of_codes, device=device) for rows in (n, blocks, 1, 1, 1)
    )
    state = torch.empty(items, 2, dtype=torch.int32, device=device)
    sized = (sizes, 1 if sizes is None else len(sizes))
    tile = {"FOURS": n % 4 == 0, "TILE": TILE, **EXACT}
    wide = triton.next_power_of_2(blocks)
    some = max(1, SCANNED // wide)
    groups = triton.cdiv(n, some)
    stale_at = torch.empty(items, groups * some * wide, dtype=torch.int32, device=device)
    for step in range(levels):
        if step == 0:
            grid, found = (items * (blocks * (blocks + 1) // 2),), (best_c, best_other, n, blocks)
            _draw[grid](source, len(source), *sized, seed, codes, *found, num_warps=8 if n % 4 == 0 else 16, **tile)
        else:
            grid, found = (items * groups,), (node_c, node_other, n, 1)
            where = (codes, part, state, best_c, best_other, stale_at, node_c, node_other, n, blocks)
            _best[grid](*where, NODES=some, BLOCKS=wide, STALE=STALE, num_warps=4, **tile)
        kept = (part, state, *found[:2], tree_c, tree_key, top_at, first_at, *found[2:])
        shape = {"FIRST": step == 0, "N": width, "num_warps": max(1, width // 128)}
        _join[(items,)](*sized, *kept, **shape, **EXACT)
    rank(geometry, tree_c, tree_key, state, sized, winners, status)
