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
    PAIRS,
    decisions,
    either,
    levels,
    merge_of,
    met,
    new,
    number_of,
    pair_of,
    resident,
    shape_of,
)
from gumtrace.kernels.cuda.spanning_tree_rounds import tile_at

SIDE, WARPS = 32, 2  # of a tile of pairs


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


@triton.jit
def _farther(numbers, far, u, v, inside_u, inside_v):
    """Of each pair of a tile, the number of the node that reaches farther."""
    number_u, number_v = either(numbers, u, v, inside_u, inside_v)
    return tl.where(far, number_u[:, None], number_v[None, :])


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
    others = (row == column) | (column * SIDE + SIDE > nodes)  # whether the tile has some that are no pairs
    if row != column:
        mirrored = v[:, None] * n + u[None, :]
        store_idle(out, more, item * n * n + mirrored, (v < n)[:, None] & (u < n)[None, :], MODE)
    x = tl.zeros(key.shape, beta.dtype.element_ty)
    if MODE != SPREAD:
        x = tl.load(beta + row_of(item, rows) * n * n + key, mask=inside, other=float("-inf"))
    # Nothing, unless x is nan, where it does not matter. As it depends on x, the compiler keeps the tile as it is read:
    # four keys a thread.
    v_key = tl.where(x == x, 0.0, 1.0).to(x.dtype)
    e_key, farthest = tl.where(x == x, NOTHING, 0), tl.where(x == x, 0, PAIRS)
    own, inside_u, inside_v = item * (LEVELS + 1) * n, u < n, v < n
    part, reach, share_v, share_e = part + own, reach + own, share_v + own, share_e + own
    for back in range(levels):  # from the last level, so that what is kept is of the first where they are in one part
        level = (levels - 1 - back) * n
        meet, far = met(part, reach, level + u, level + v, inside_u, inside_v)
        v_key = tl.where(meet, _farther(share_v, far, level + u, level + v, inside_u, inside_v), v_key)
        e_key = tl.where(meet, _farther(share_e, far, level + u, level + v, inside_u, inside_v), e_key)
        farthest = tl.where(meet, _farther(reach, far, level + u, level + v, inside_u, inside_v), farthest)
    if others:
        e_key = tl.where(pair, e_key, NOTHING)  # what is not a pair is not to overflow
    won = pair_of(farthest) == number_of(u[:, None], v[None, :])
    cap = key
    if MODE == CONDITIONAL:
        merge = merge_of(farthest)
        cap = tl.load(caps + item * n + merge, mask=pair & (merge < n), other=0.0)
        cap = code(cap) - (won == 0).to(tl.int32)
    # all of the tile, by a mask that is known four keys at a time
    finish_read_keys(x, v_key, e_key, cap, won, grad, g, out, more, seed, stream, item, n * n, key, inside, MODE)
    if others:
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
    sized = {"LEVELS": shape["LEVELS"], "FOURS": n % 4 == 0, "SIDE": SIDE, **resident(WARPS, beta.dtype)}
    _spread[(items * (blocks * (blocks + 1) // 2),)](*where, MODE=mode, **sized, **EXACT)
