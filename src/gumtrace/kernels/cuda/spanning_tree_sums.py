"""Sums over large spanning trees by merge, by several programs an item.

Of a tile of pairs it takes two numbers a node and level to know their merges (spanning_tree_levels.py). What is summed
by merge is first summed by node and level, at the node by whose reach the pair is joined. Many nodes have the same
reach, in no order: their sums are added as integers, which add up to the same in any order. The unit is 2^(e - BITS),
where e is the largest exponent at the merge: the sum of m numbers is exact to m 2^-46 of the largest, in float64 too.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT, LOG_PROB, finish_decisions, key_term
from gumtrace.kernels.cuda.noise import multiple
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, near, normal, scaled, sum_some, total
from gumtrace.kernels.cuda.spanning_tree_levels import decisions, levels, merge_of, met, new, shape_of
from gumtrace.kernels.cuda.spanning_tree_rounds import tile_at

SIDE = 64  # of a tile of pairs
FOLDED = 128  # nodes of a program that adds up what tiles left
BITS, UNIT = tl.constexpr(46), tl.constexpr(2.0**-46)  # of sums as integers: 2^16 numbers below 2 fit 63 bits
BROKEN = tl.constexpr(2**29)  # the exponent of what is infinite or not a number


@triton.jit(do_not_specialize=["rows", "n"])
def _sums(
    part,
    reach,
    number,
    beta,
    rows,
    h,
    sums_v,
    sums_e,
    n,
    MODE: tl.constexpr,
    LEVELS: tl.constexpr,
    FOURS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Of a tile of pairs, for the nodes on either side, the sums by level over those that they meet there by their own
    reach: (levels, blocks, n)."""
    blocks = tl.cdiv(n, SIDE)
    tiles = blocks * (blocks + 1) // 2
    item = (tl.program_id(0) // tiles).to(tl.int64)
    row, column = tile_at(tl.program_id(0) % tiles)
    n = multiple(n, FOURS)
    u, v = row * SIDE + tl.arange(0, SIDE), column * SIDE + tl.arange(0, SIDE)
    levels, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
    inside = (u < n)[:, None] & (v < n)[None, :]
    v_key, e_key = key_term(beta, rows, h, item, n * n, u[:, None] * n + v[None, :], inside, MODE)
    apart = (u[:, None] < v[None, :]) & (v < nodes)[None, :]
    e_key = tl.where(apart, e_key, NOTHING)
    v_key, top = near(v_key, e_key)
    for level in range(levels):
        meet, reach_u, reach_v = met(part, reach, item * (LEVELS + 1) * n + level * n, u, v, apart, n)
        apart = apart & (meet == 0)
        far = reach_u >= reach_v  # of equal reaches the first node's
        v_row, e_row = sum_some(v_key, e_key, top, meet & far, 1)
        v_col, e_col = sum_some(v_key, e_key, top, meet & (far == 0), 0)
        place = (item * (LEVELS + 1) + level) * blocks * n
        if row == column:
            v_row, e_row = add(v_row, e_row, v_col, e_col)
        else:
            tl.store(sums_v + place + row * n + v, v_col, mask=v < n)
            tl.store(sums_e + place + row * n + v, e_col, mask=v < n)
        tl.store(sums_v + place + column * n + u, v_row, mask=u < n)
        tl.store(sums_e + place + column * n + u, e_row, mask=u < n)


@triton.jit(do_not_specialize=["n", "blocks"])
def _fold(
    reach,
    number,
    tile_v,
    tile_e,
    sums_v,
    sums_e,
    tops,
    n,
    blocks,
    LEVELS: tl.constexpr,
    BLOCKS: tl.constexpr,
    NODES: tl.constexpr,
):
    """The sums by level of some nodes, over all tiles; and the largest exponent of those of a merge."""
    groups = tl.cdiv(n, NODES)
    level = tl.program_id(0) // groups % (LEVELS + 1)
    item = (tl.program_id(0) // groups // (LEVELS + 1)).to(tl.int64)
    if level >= tl.load(number + 2 * item):
        return
    node, block = tl.program_id(0) % groups * NODES + tl.arange(0, NODES), tl.arange(0, BLOCKS)
    place = (item * (LEVELS + 1) + level) * n + node
    at = ((item * (LEVELS + 1) + level) * blocks + block[:, None]) * n + node[None, :]
    mask = (block < blocks)[:, None] & (node < n)[None, :]
    v = tl.load(tile_v + at, mask=mask, other=0.0)
    v, e = total(v, tl.load(tile_e + at, mask=mask, other=NOTHING))
    v, e = normal(v, e)
    e = tl.where(tl.abs(v) < float("inf"), e, BROKEN)
    tl.store(sums_v + place, v, mask=node < n)
    tl.store(sums_e + place, e, mask=node < n)
    merge = merge_of(tl.load(reach + place, mask=node < n, other=0))
    tl.atomic_max(tops + item * n + tl.where(node < n, merge, 0), tl.where(node < n, e, NOTHING), sem="relaxed")


@triton.jit(do_not_specialize=["rows", "stream", "n", "slots"])
def _finish(
    winners,
    reach,
    number,
    sums_v,
    sums_e,
    tops,
    whole,
    beta,
    rows,
    alpha,
    out,
    log_prob,
    z,
    seed,
    stream,
    n,
    slots,
    MODE: tl.constexpr,
    LEVELS: tl.constexpr,
    N: tl.constexpr,
):
    """What races in a decision is what is joined by its merge and by later ones."""
    item = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, N)  # of nodes, of decisions
    winner, steps = decisions(winners, item, n, slots, N)
    live = b < steps
    dtype: tl.constexpr = beta.dtype.element_ty
    tops += item * n
    whole += item * n
    for level in range(tl.load(number + 2 * item)):
        place = (item * (LEVELS + 1) + level) * n + b
        merge = tl.where(b < n, merge_of(tl.load(reach + place, mask=b < n, other=0)), 0)
        v = tl.load(sums_v + place, mask=b < n, other=0.0).to(tl.float64)
        e = tl.load(sums_e + place, mask=b < n, other=NOTHING)
        some = (e > NOTHING) & (e < BROKEN)
        shift = tl.where(some, e - tl.load(tops + merge), NOTHING) + BITS
        tl.atomic_add(whole + merge, scaled(tl.where(some, v, 0.0), shift).to(tl.int64), sem="relaxed")
    tl.debug_barrier()
    v = tl.load(whole + b, mask=live, other=0, cache_modifier=".cg").to(tl.float64) * UNIT
    e = tl.load(tops + b, mask=live, other=NOTHING)
    v = tl.where(e < BROKEN, v, float("nan")).to(dtype)
    v, e = tl.associative_scan((v, e), 0, add, reverse=True)
    logs = finish_decisions(v, e, beta, rows, alpha, out, z, seed, stream, item, n * n, slots, b, winner, live, MODE)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, logs.to(dtype))


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    shape = shape_of(geometry)
    most, blocks = shape["LEVELS"], triton.cdiv(n, SIDE)
    (tops,), (whole,) = new(winners, torch.int32, (items, n)), new(winners, torch.int64, (items, n))
    part, reach, number = levels(geometry, winners, tops, whole)
    by_tile = (items, most + 1, blocks, n)
    tile_v, sums_v = new(winners, beta.dtype, by_tile, reach.shape)
    tile_e, sums_e = new(winners, torch.int32, by_tile, reach.shape)
    where = (part, reach, number, beta, len(beta), h, tile_v, tile_e, n)
    grid = (items * (blocks * (blocks + 1) // 2),)
    _sums[grid](*where, MODE=mode, LEVELS=most, FOURS=n % 4 == 0, SIDE=SIDE, num_warps=8, **EXACT)
    where = (reach, number, tile_v, tile_e, sums_v, sums_e, tops, n, blocks)
    folded = {"LEVELS": most, "BLOCKS": triton.next_power_of_2(blocks), "NODES": FOLDED}
    _fold[(items * (most + 1) * triton.cdiv(n, FOLDED),)](*where, **folded, num_warps=4, **EXACT)
    where = (winners, reach, number, sums_v, sums_e, tops, whole, beta, len(beta), alpha, out, log_prob, z)
    _finish[(items,)](*where, seed, stream, n, slots, MODE=mode, **shape, **EXACT)
