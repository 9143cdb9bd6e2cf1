"""Kruskal's algorithm on dense graphs: as trace in its own file, here as incidence (who is joined by which merge).

All is read from the winners, since a trace may come from anywhere. Prim's order of the nodes, along the edges that won,
leaves no component before that is complete. So in this order every component of the run is an interval of "leaves", a
merge closes the gap between two of them, and two nodes are joined by the last merge among the gaps between their
leaves. The parts of a forest are joined too, by merges after the last decision: their pairs outlived it.

An item is one program's here. Larger ones are shared by several, in spanning_tree_rounds.py, spanning_tree_sums.py and
spanning_tree_tiles.py.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda import spanning_tree_rounds, spanning_tree_sums, spanning_tree_tiles, spanning_tree_trace
from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    LOG_PROB,
    decision_term,
    finish_decisions,
    finish_keys,
    key_term,
    store_idle,
    winner_code,
)
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.cuda.noise import row_of
from gumtrace.kernels.cuda.order import code, decode, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add
from gumtrace.kernels.cuda.spanning_tree_levels import decisions
from gumtrace.kernels.cuda.spanning_tree_trace import shape_of, tile_of

MOST_NODES = 2048  # one program has a number for each
ONE_PROGRAM = 128  # nodes of the largest graphs that are always one program's
PACKED = 512  # of those that can be: a node has 9 bits of an integer
# From so many items on they are one program's. At n = 500 on an NVIDIA H200 a step takes a program 1.1 ms, however many
# items there are, up to four a multiprocessor; several programs an item take 0.5 ms for 64 items and 1.0 for 128.
MANY = 192


@triton.jit
def _divided(p, by):
    """p // by for p < 2^18 and by <= 512: (p + 1/2) / by is far enough from an integer for float32."""
    return ((p + 0.5) * (1.0 / tl.maximum(by, 1))).to(tl.int32)


@triton.jit
def _leaves(winner, steps, n, components, FOREST: tl.constexpr, N: tl.constexpr, W: tl.constexpr):
    """The number of nodes, and of each leaf its node and the merge at the gap in front of it; always below W."""
    lane = tl.arange(0, N)  # of decisions, of nodes, of leaves
    nodes = tl.minimum(steps + components, n)
    u = tl.where(lane < steps, _divided(winner, n), -1)
    v = tl.where(lane < steps, winner - u * n, -1)
    none = (W - 1) * 512  # merge W - 1, to node 0: behind all that there are
    ahead = lane * 0 + none  # edges that leave the tree: their merge and the node outside
    parts = (steps - 1 << 9) + lane  # nodes outside, where no edge leads
    picked = tl.full((), none, tl.int32)
    leaves = lane * 0
    for leaf in range(nodes):
        merge, node = picked >> 9, picked & 511
        leaves = tl.where(lane == leaf, picked, leaves)
        ahead = tl.where(u == node, (lane << 9) + v, tl.where(v == node, (lane << 9) + u, ahead))
        ahead = tl.where(lane == merge, none, ahead)
        nearest = ahead
        if FOREST:
            parts = tl.where(lane == node, none, parts) + tl.where(merge < steps, 0, 512)
            nearest = tl.minimum(ahead, parts)
        picked = tl.min(nearest, 0)
    return nodes, leaves & 511, tl.minimum(leaves >> 9, W - 1)


@triton.jit
def _largest(table, merge, N: tl.constexpr, W: tl.constexpr, LEVELS: tl.constexpr):
    """Row k of the table: the largest merge of 2^k gaps, from each one on."""
    gap = tl.arange(0, N)
    tl.store(table + gap, merge, mask=gap < W)
    for k in range(1, LEVELS):
        tl.debug_barrier()
        row = table + (k - 1) * W
        behind = gap + (1 << (k - 1))
        merge = tl.maximum(merge, tl.load(row + behind, mask=behind < W, other=0))
        tl.store(row + W + gap, merge, mask=gap < W)
    tl.debug_barrier()


@triton.jit
def _sides(table, merge, nodes, N: tl.constexpr, W: tl.constexpr, LEVELS: tl.constexpr):
    """The leaves that a gap's merge joins: those from `first` to the gap with those from the gap to `last`."""
    gap = tl.arange(0, N)
    first, last = tl.where(gap < W, gap, 0), gap
    for i in range(LEVELS):
        k = LEVELS - 1 - i
        span = 1 << k
        lower = tl.load(table + k * W + first - span, mask=first > span, other=N) < merge
        first = tl.where(lower, first - span, first)
        lower = tl.load(table + k * W + last + 1, mask=last + span < nodes, other=N) < merge
        last = tl.where(lower, last + span, last)
    return first - 1, last


@triton.jit
def _shares(sides_at, end_at, nodes, N: tl.constexpr, W: tl.constexpr, LEVELS: tl.constexpr):
    """The pairs lie in the order of their merges, and lanes have equal shares of them: how large, how much of it there
    is, where each merge begins, and the merge where each share ends."""
    lane = tl.arange(0, N)
    sides = tl.load(sides_at + lane, mask=lane < nodes - 1, other=0)
    gap = sides >> 9 & 511
    count = tl.where(lane < nodes - 1, (gap - (sides >> 18)) * ((sides & 511) - gap + 1), 0)
    end = tl.cumsum(count, 0)
    tl.store(end_at + lane, end, mask=lane < W)
    tl.debug_barrier()
    pairs = tl.max(end, 0)
    share = tl.maximum(tl.cdiv(pairs, N), 1)
    number = tl.minimum(share, pairs - lane * share)
    m = lane * 0  # as many as end before the last pair
    for k in range(LEVELS):
        span = 1 << (LEVELS - 1 - k)
        m = tl.where(tl.load(end_at + m + span - 1) < lane * share + number, m + span, m)
    return share, number, end - count, m


@quick
@triton.jit(do_not_specialize=["rows", "stream", "n", "components", "slots"])
def _up(
    winners,
    scratch,
    sums,
    beta,
    rows,
    h,
    alpha,
    out,
    log_prob,
    z,
    seed,
    stream,
    n,
    components,
    slots,
    MODE: tl.constexpr,
    FOREST: tl.constexpr,
    N: tl.constexpr,
    W: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Each lane sums its share of the pairs, from its last one on, and at the first pair of a merge notes the sum."""
    item = tl.program_id(0).to(tl.int64)
    beta += row_of(item, rows) * n * n
    lane = tl.arange(0, N)
    winner, steps = decisions(winners, item, n, slots, N)
    nodes, node, merge = _leaves(winner, steps, n, components, FOREST, N, W)
    node_at = scratch + item * ((LEVELS + 2) * W + 1)
    sides_at, table = node_at + W, node_at + 2 * W
    end_at, e_at = table, table + W  # in its place, once it has been read
    v_at = sums + item * (W + 1)
    tl.store(node_at + lane, node, mask=lane < W)
    tl.store(sides_at + lane, (1 << 9) + 1, mask=lane < W)  # a pair for merges that never were: none may be empty
    _largest(table, merge, N, W, LEVELS)
    first, last = _sides(table, merge, nodes, N, W, LEVELS)
    tl.store(sides_at + merge, (first << 18) + (lane << 9) + last, mask=(lane > 0) & (lane < nodes))
    tl.debug_barrier()
    share, number, begin, m = _shares(sides_at, end_at, nodes, N, W, LEVELS)
    sides = tl.load(sides_at + m)
    first, gap, last = sides >> 18, sides >> 9 & 511, sides & 511
    width = last - gap + 1
    pair = lane * share + number - 1 - (tl.load(end_at + m) - (gap - first) * width)  # of its merge
    i = first + _divided(pair, width)
    j = gap + pair - (i - first) * width
    v = tl.zeros([N], beta.dtype.element_ty)
    e = lane * 0 + NOTHING
    for q in range(share):
        mask = q < number
        a = tl.load(node_at + i, mask=mask, other=0)
        b = tl.load(node_at + j, mask=mask, other=0)
        key = tl.minimum(a, b) * n + tl.maximum(a, b)
        v_key, e_key = key_term(beta, 1, h, item, n * n, key, mask, MODE)
        v, e = add(v, e, v_key, e_key)
        whole_row = j == gap
        whole = mask & whole_row & (i == first)
        tl.store(v_at + m, v, mask=whole)
        tl.store(e_at + m, e, mask=whole)
        m -= whole.to(tl.int32)
        sides = tl.load(sides_at + m, mask=whole & (m >= 0), other=sides)
        first, gap, last = sides >> 18, sides >> 9 & 511, sides & 511
        i = tl.where(whole, gap, i) - whole_row.to(tl.int32)
        j = tl.where(whole_row, last, j - 1)
    tl.debug_barrier()
    v, e = tl.associative_scan((v, e), 0, add, reverse=True)
    behind = _divided(begin, share) + 1  # the lanes behind the one where the merge begins
    v, e = tl.gather(v, tl.minimum(behind, N - 1), 0), tl.gather(e, tl.minimum(behind, N - 1), 0)
    v, e = tl.where(behind < N, v, 0.0), tl.where(behind < N, e, NOTHING)
    live = lane < steps
    v_own, e_own = tl.load(v_at + lane, mask=live, other=0.0), tl.load(e_at + lane, mask=live, other=NOTHING)
    v, e = add(v, tl.where(live, e, NOTHING), v_own, e_own)
    logs = finish_decisions(v, e, beta, 1, alpha, out, z, seed, stream, item, n * n, slots, lane, winner, live, MODE)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, logs.to(beta.dtype.element_ty))


@quick
@triton.jit(do_not_specialize=["rows", "stream", "n", "components", "slots"])
def _down(
    winners,
    scratch,
    sums,
    alpha,
    h,
    beta,
    rows,
    grad,
    g,
    out,
    more,
    seed,
    stream,
    n,
    components,
    slots,
    MODE: tl.constexpr,
    FOREST: tl.constexpr,
    N: tl.constexpr,
    W: tl.constexpr,
    LEVELS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, N)
    dtype: tl.constexpr = beta.dtype.element_ty
    beta += row_of(item, rows) * n * n
    for start in range(0, n * n, N):  # every key, as if it did not race; pairs follow
        store_idle(out, more, item * n * n + start + lane, start + lane < n * n, MODE)
    winner, steps = decisions(winners, item, n, slots, N)
    nodes, node, merge = _leaves(winner, steps, n, components, FOREST, N, W)
    leaf_of = scratch + item * ((LEVELS + 2) * W + 1)
    e_of, table = leaf_of + W, leaf_of + 2 * W
    v_of = sums + item * ((2 if MODE == CONDITIONAL else 1) * W + 1)
    tl.store(leaf_of + lane, 0, mask=lane < W)
    tl.debug_barrier()
    tl.store(leaf_of + node, lane, mask=lane < nodes)
    live = lane < steps
    v, e = decision_term(alpha, h, beta, 1, item, n * n, slots, lane, winner, live, MODE, dtype)
    v, e = tl.associative_scan((v, e), 0, add)
    tl.store(v_of + lane, v, mask=lane < W)
    tl.store(e_of + lane, e, mask=lane < W)
    if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
        held = tl.where(live, winner_code(v, e, dtype) + lane, code(tl.full((), float("inf"), dtype)))
        held = tl.associative_scan(held, 0, smaller) - tl.minimum(lane, tl.maximum(steps - 1, 0))
        tl.store(v_of + W + lane, decode(held), mask=lane < W)
    _largest(table, merge, N, W, LEVELS)
    folded = n * ((n + 1) // 2)  # rows r and n - 1 - r of the triangle lie in one, which is n - 1 long
    for start in range(0, folded, N):
        p = tl.minimum(start + lane, folded - 1)
        r = _divided(p, n)
        column = p - r * n
        low = tl.where(column > r, r, n - 1 - r)
        high = tl.where(column > r, column, column + low)
        once = (column > r) | ((column > 0) & (2 * r != n - 1))
        mask = once & (high < nodes)
        i, j = tl.load(leaf_of + low), tl.load(leaf_of + high)
        gaps = tl.maximum(tl.abs(i - j), 1)
        k = (gaps.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127  # rounded down logarithm
        row = table + k * W + tl.maximum(i, j) + 1
        merge = tl.maximum(tl.load(row - gaps), tl.load(row - (1 << k)))
        key = low * n + high
        won = tl.load(winners + item * slots + merge, mask=merge < slots, other=-1) == key
        cap = key
        if MODE == CONDITIONAL:
            cap = code(tl.load(v_of + W + merge)) - (won == 0).to(tl.int32)
        v_key, e_key = tl.load(v_of + merge), tl.load(e_of + merge)
        finish_keys(v_key, e_key, cap, won, beta, 1, grad, g, out, more, seed, stream, item, n * n, key, mask, MODE)


def serves(geometry):
    return geometry.nodes <= MOST_NODES


def _is_shared(geometry, items):
    """Whether several programs take an item: those that are too large for one, and few large ones."""
    return geometry.nodes > PACKED or (geometry.nodes > ONE_PROGRAM and items < MANY)


def trace(geometry, source, sizes, seed, winners, links, status):
    kernel = spanning_tree_rounds if _is_shared(geometry, winners.shape[0]) else spanning_tree_trace
    kernel.trace(geometry, source, sizes, seed, winners, links, status)


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    if _is_shared(geometry, winners.shape[0]):
        where = (winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream)
        return spanning_tree_sums.up(geometry, *where)
    shape, warps = _tiles(geometry)
    scratch = _scratch(winners, shape, beta.dtype)
    where = (winners, *scratch, beta, beta.shape[0], h, alpha, out, log_prob, z, seed, stream, *shape_of(geometry))
    _up[(winners.shape[0],)](*where, MODE=mode, **shape, num_warps=warps, **EXACT)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    if _is_shared(geometry, winners.shape[0]):
        where = (winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream)
        return spanning_tree_tiles.down(geometry, *where)
    shape, warps = _tiles(geometry)
    scratch = _scratch(winners, shape, beta.dtype, 2 if mode == CONDITIONAL else 1)
    where = (winners, *scratch, alpha, h, beta, beta.shape[0], grad, g, out, more, seed, stream, *shape_of(geometry))
    _down[(winners.shape[0],)](*where, MODE=mode, **shape, num_warps=warps, **EXACT)


def _tiles(geometry):
    """A tile is no smaller than a warp; what goes to memory is only as wide as the nodes ask for."""
    tile, warps = tile_of(geometry)
    width = max(4, power_of_2(geometry.nodes))
    return {"FOREST": geometry.components > 1, "N": tile, "W": width, "LEVELS": width.bit_length() - 1}, warps


def _scratch(winners, shape, dtype, rows=1):
    """Rows of odd length: the compiler then sees no vectors in them, and keeps all tiles in one layout."""
    widths = {torch.int32: (shape["LEVELS"] + 2) * shape["W"] + 1, dtype: rows * shape["W"] + 1}
    return [torch.empty(winners.shape[0], width, dtype=kind, device=winners.device) for kind, width in widths.items()]
