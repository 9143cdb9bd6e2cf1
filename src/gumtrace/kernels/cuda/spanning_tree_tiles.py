"""Large spanning trees the other way, from merges to the pairs that they join: a tile of pairs a program. Their sums by
merge are in spanning_tree_sums.py, the levels by which merges are known in spanning_tree_levels.py.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    SPREAD,
    decision_term,
    finish_read_keys,
    store_idle,
    winner_code,
)
from gumtrace.kernels.cuda.noise import multiple, row_of
from gumtrace.kernels.cuda.order import code, decode, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add
from gumtrace.kernels.cuda.spanning_tree_levels import (
    decisions,
    either,
    levels,
    merge_of,
    new,
    number_of,
    pair_of,
    shape_of,
)
from gumtrace.kernels.cuda.spanning_tree_rounds import tile_at

SIDE = 32  # of a tile of pairs


@triton.jit(do_not_specialize=["rows", "n", "slots"])
def _shares(
    winners,
    reach,
    number,
    alpha,
    h,
    beta,
    rows,
    merge_v,
    merge_e,
    share_v,
    share_e,
    caps,
    n,
    slots,
    MODE: tl.constexpr,
    LEVELS: tl.constexpr,
    N: tl.constexpr,
):
    """What each merge hands to the pairs it joins, the sum of what decisions up to it do; and by node and level, since
    the merge of a pair is the reach of one of its nodes."""
    item = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, N)
    dtype: tl.constexpr = beta.dtype.element_ty
    winner, steps = decisions(winners, item, n, slots, N)
    live = b < steps
    v, e = decision_term(alpha, h, beta, rows, item, n * n, slots, b, winner, live, MODE, dtype)
    v, e = tl.associative_scan((v, e), 0, add)
    merge_v += item * n
    merge_e += item * n
    tl.store(merge_v + b, v, mask=b < n)
    tl.store(merge_e + b, e, mask=b < n)
    tl.debug_barrier()
    for level in range(tl.load(number + 2 * item)):
        place = (item * (LEVELS + 1) + level) * n + b
        merge = merge_of(tl.load(reach + place, mask=b < n, other=0))
        tl.store(share_v + place, tl.load(merge_v + merge, mask=b < n, other=0.0, cache_modifier=".cg"), mask=b < n)
        tl.store(share_e + place, tl.load(merge_e + merge, mask=b < n, other=0, cache_modifier=".cg"), mask=b < n)
    if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
        held = tl.where(live, winner_code(v, e, dtype) + b, code(tl.full((), float("inf"), dtype)))
        held = tl.associative_scan(held, 0, smaller) - tl.minimum(b, tl.maximum(steps - 1, 0))
        tl.store(caps + item * n + b, decode(held), mask=b < n)


@triton.jit(do_not_specialize=["rows", "stream", "n"])
def _spread(
    part,
    reach,
    number,
    share_v,
    share_e,
    caps,
    beta,
    rows,
    grad,
    g,
    out,
    more,
    seed,
    stream,
    n,
    MODE: tl.constexpr,
    LEVELS: tl.constexpr,
    FOURS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """A tile of pairs, and its mirror image below the diagonal, where no key races."""
    blocks = tl.cdiv(n, SIDE)
    tiles = blocks * (blocks + 1) // 2
    item = (tl.program_id(0) // tiles).to(tl.int64)
    row, column = tile_at(tl.program_id(0) % tiles)
    n = multiple(n, FOURS)
    u, v = row * SIDE + tl.arange(0, SIDE), column * SIDE + tl.arange(0, SIDE)
    levels, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
    key = u[:, None] * n + v[None, :]
    inside = (u < n)[:, None] & (v < n)[None, :]
    pair = (u[:, None] < v[None, :]) & (v < nodes)[None, :]
    if row != column:
        mirrored = v[:, None] * n + u[None, :]
        store_idle(out, more, item * n * n + mirrored, (v < n)[:, None] & (u < n)[None, :], MODE)
    v_key, e_key, farthest = tl.zeros(key.shape, beta.dtype.element_ty), key * 0 + NOTHING, key * 0
    apart, x = pair, v_key
    if MODE != SPREAD:
        x = tl.load(beta + row_of(item, rows) * n * n + key, mask=inside, other=float("-inf"))
        apart = apart & (
            x == x
        )  # a nan has no share; and thus the compiler keeps the tile as it is read, four keys a thread
    for level in range(levels):
        place = item * (LEVELS + 1) * n + level * n
        part_u, part_v = either(part + place, u, v, n)
        reach_u, reach_v = either(reach + place, u, v, n)
        meet = apart & (part_u[:, None] == part_v[None, :])
        apart = apart & (meet == 0)
        far = reach_u[:, None] >= reach_v[None, :]
        v_u, v_v = either(share_v + place, u, v, n)
        e_u, e_v = either(share_e + place, u, v, n)
        v_key = tl.where(meet, tl.where(far, v_u[:, None], v_v[None, :]), v_key)
        e_key = tl.where(meet, tl.where(far, e_u[:, None], e_v[None, :]), e_key)
        farthest = tl.where(meet, tl.where(far, reach_u[:, None], reach_v[None, :]), farthest)
    won = pair_of(farthest) == number_of(u[:, None], v[None, :])
    cap = key
    if MODE == CONDITIONAL:
        cap = tl.load(caps + item * n + merge_of(farthest), mask=pair & (apart == 0) & (x == x), other=0.0)
        cap = code(cap) - (won == 0).to(tl.int32)
    # all of the tile, by a mask that is known four keys at a time
    finish_read_keys(x, v_key, e_key, cap, won, grad, g, out, more, seed, stream, item, n * n, key, inside, MODE)
    if (row == column) | (column * SIDE + SIDE > nodes):
        tl.debug_barrier()
        store_idle(out, more, item * n * n + key, inside & (pair == 0), MODE)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    shape = shape_of(geometry)
    part, reach, number = levels(geometry, winners)
    caps_of = (items, n if mode == CONDITIONAL else 0)
    merge_v, share_v, caps = new(winners, beta.dtype, (items, n), reach.shape, caps_of)
    merge_e, share_e = new(winners, torch.int32, (items, n), reach.shape)
    share = (share_v, share_e, caps)
    where = (winners, reach, number, alpha, h, beta, len(beta), merge_v, merge_e, *share, n, slots)
    _shares[(items,)](*where, MODE=mode, **shape, **EXACT)
    blocks = triton.cdiv(n, SIDE)
    where = (part, reach, number, *share, beta, len(beta), grad, g, out, more, seed, stream, n)
    sized = {"LEVELS": shape["LEVELS"], "FOURS": n % 4 == 0, "SIDE": SIDE, "num_warps": 4}
    _spread[(items * (blocks * (blocks + 1) // 2),)](*where, MODE=mode, **sized, **EXACT)
