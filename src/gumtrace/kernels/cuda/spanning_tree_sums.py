"""Sums over large spanning trees by merge, by several programs an item.

Of a tile of pairs it takes two numbers a node and level to know their merges (spanning_tree_levels.py). What is summed
by merge is first summed by node and level, at the node by whose reach the pair is joined. Many nodes have the same
reach, in no order: their sums are added as integers, which add up to the same in any order. The unit is 2^(e - BITS),
where e is the largest exponent at the merge, and BITS as many as fit: 46 and more, in float64 too.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT, LOG_PROB, SCALED, finish_decisions, read_key_term, read_keys
from gumtrace.kernels.cuda.noise import multiple
from gumtrace.kernels.cuda.scaled_float import FAR, NOTHING, add, common, normal, scaled, sum_some, total
from gumtrace.kernels.cuda.spanning_tree_levels import decisions, levels, merge_of, met, new, resident, shape_of
from gumtrace.kernels.cuda.spanning_tree_rounds import tile_at, tile_of

SIDE, WARPS = 32, 1  # of a tile of pairs: one warp sums rows and columns without a barrier
FOLDED = 128  # nodes of a program that adds up what tiles left
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
    scales,
    n,
    MODE: tl.constexpr,
    LEVELS: tl.constexpr,
    FOURS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Of a tile of pairs, for the nodes on either side, the sums by level over those that they meet there by their own
    reach: (levels, blocks, n). Their exponent is the tile's, in `scales`, or where that is FAR in `sums_e`."""
    blocks = tl.cdiv(n, SIDE)
    tiles = blocks * (blocks + 1) // 2
    item = (tl.program_id(0) // tiles).to(tl.int64)
    row, column = tile_at(tl.program_id(0) % tiles)
    n = multiple(n, FOURS)
    u, v = row * SIDE + tl.arange(0, SIDE), column * SIDE + tl.arange(0, SIDE)
    levels, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
    inside = (u < n)[:, None] & (v < n)[None, :]
    key = u[:, None] * n + v[None, :]
    x, factor = read_keys(beta, rows, h, item, n * n, key, inside, MODE)
    pair = (u[:, None] < v[None, :]) & (v < nodes)[None, :]
    v_key, e_key = read_key_term(tl.where(pair, x, float("-inf")), factor, MODE)
    if MODE == SCALED:  # h may be anything, at what is no pair too
        v_key = tl.where(pair, v_key, 0.0)
        e_key = tl.where(pair, tl.where(tl.abs(v_key) < float("inf"), e_key, BROKEN), NOTHING)
    top = common(e_key, v_key.dtype)
    top = tl.where(top < BROKEN, top, FAR)
    tl.store(scales + tl.program_id(0), top)
    own = item * (LEVELS + 1) * n
    part, reach, sums_v, sums_e = part + own, reach + own, sums_v + own * blocks, sums_e + own * blocks
    inside_u, inside_v = u < n, v < n
    if top < FAR:
        v_key = scaled(v_key, e_key - top)
        for level in range(levels):
            meet, far = met(part, reach, level * n + u, level * n + v, inside_u, inside_v)
            apart = tl.where(meet, 0.0, v_key)
            taken = v_key - apart  # exact, and cheaper than a choice
            by_row = tl.where(far, taken, 0.0)
            v_row, v_col = tl.sum(by_row, 1), tl.sum(taken - by_row, 0)
            v_key = apart
            if row == column:
                v_row += v_col
            else:
                tl.store(sums_v + (level * blocks + row) * n + v, v_col, mask=inside_v)
            tl.store(sums_v + (level * blocks + column) * n + u, v_row, mask=inside_u)
    else:
        for level in range(levels):
            meet, far = met(part, reach, level * n + u, level * n + v, inside_u, inside_v)
            v_row, e_row = sum_some(v_key, e_key, FAR, meet & far, 1)
            v_col, e_col = sum_some(v_key, e_key, FAR, meet & (far == 0), 0)
            v_key, e_key = tl.where(meet, 0.0, v_key), tl.where(meet, NOTHING, e_key)
            if row == column:
                v_row, e_row = add(v_row, e_row, v_col, e_col)
            else:
                at = (level * blocks + row) * n + v
                tl.store(sums_v + at, v_col, mask=inside_v)
                tl.store(sums_e + at, e_col, mask=inside_v)
            at = (level * blocks + column) * n + u
            tl.store(sums_v + at, v_row, mask=inside_u)
            tl.store(sums_e + at, e_row, mask=inside_u)


@triton.jit(do_not_specialize=["n", "blocks"])
def _fold(
    reach,
    number,
    tile_v,
    tile_e,
    scales,
    sums_v,
    sums_e,
    tops,
    n,
    blocks,
    LEVELS: tl.constexpr,
    BLOCKS: tl.constexpr,
    NODES: tl.constexpr,
    SIDE: tl.constexpr,
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
    tile = item * (blocks * (blocks + 1) // 2) + tile_of(block[:, None], node[None, :] // SIDE)
    scale = tl.load(scales + tile, mask=mask, other=NOTHING)
    e = tl.load(tile_e + at, mask=mask & (scale == FAR), other=NOTHING)
    v, e = total(v, tl.where(v == 0, NOTHING, tl.where(scale == FAR, e, scale)))
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
    BITS: tl.constexpr,
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
        units = tl.floor(scaled(tl.where(some, v, 0.0), shift) + 0.5)
        tl.atomic_add(whole + merge, units.to(tl.int64), sem="relaxed")
    tl.debug_barrier()
    v = tl.load(whole + b, mask=live, other=0, cache_modifier=".cg").to(tl.float64) * 0.5**BITS
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
    tiles = items * (blocks * (blocks + 1) // 2)
    (scales,) = new(winners, torch.int32, (tiles,))
    where = (part, reach, number, beta, len(beta), h, tile_v, tile_e, scales, n)
    launched = resident(WARPS, beta.dtype)
    _sums[(tiles,)](*where, MODE=mode, LEVELS=most, FOURS=n % 4 == 0, SIDE=SIDE, **launched, **EXACT)
    where = (reach, number, tile_v, tile_e, scales, sums_v, sums_e, tops, n, blocks)
    wide = triton.next_power_of_2(blocks)
    folded = {"LEVELS": most, "BLOCKS": wide, "NODES": FOLDED, "SIDE": SIDE, "num_warps": max(4, wide // 4)}
    _fold[(items * (most + 1) * triton.cdiv(n, FOLDED),)](*where, **folded, **EXACT)
    where = (winners, reach, number, sums_v, sums_e, tops, whole, beta, len(beta), alpha, out, log_prob, z)
    bits = 61 - (n * (most + 1)).bit_length()  # a merge has fewer than n (most + 1) sums, all below 4
    _finish[(items,)](*where, seed, stream, n, slots, MODE=mode, BITS=bits, **shape, **EXACT)
