"""Kruskal's merges on large dense graphs, as incidence: who is joined by which merge, by several programs an item.

Of a tile of pairs it takes two numbers a node and level to know their merges (spanning_tree_levels.py). What is summed
by merge is first summed by node and level, at the node by whose reach the pair is joined.
"""

import torch
import triton
import triton.language as tl

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
from gumtrace.kernels.cuda.order import code, decode, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, scaled
from gumtrace.kernels.cuda.spanning_tree_levels import decisions, levels, met, new, shape_of
from gumtrace.kernels.cuda.spanning_tree_rounds import tile_at

ROWS, COLS = 32, 64  # of a tile of pairs
SIDE = 32  # of a tile of keys that are written


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
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """For some nodes, the sums by level over the pairs that they meet there by their own reach."""
    blocks = tl.cdiv(n, ROWS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    u = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    levels, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
    slot = tl.arange(0, SLOTS)
    v_all = tl.zeros([SLOTS, ROWS], beta.dtype.element_ty)
    e_all = tl.full([SLOTS, ROWS], NOTHING, tl.int32)
    own = item * (LEVELS + 1) * n
    for start in range(0, nodes, COLS):
        v = start + tl.arange(0, COLS)
        low, high = tl.minimum(u[:, None], v[None, :]), tl.maximum(u[:, None], v[None, :])
        apart = (low < high) & (high < nodes)
        first = (u[:, None] < v[None, :]).to(tl.int32)
        v_key, e_key = key_term(beta, rows, h, item, n * n, low * n + high, apart, MODE)
        for level in range(levels):
            meet, reach_u, reach_v = met(part, reach, own + level * n, u, v, apart, n)
            apart = apart & (meet == 0)
            ours = meet & (reach_u + first > reach_v)  # of equal reaches the first node's
            e_ours = tl.where(ours, e_key, NOTHING)
            e_row = tl.max(e_ours, 1)
            v_row = tl.sum(tl.where(ours, scaled(v_key, e_ours - e_row[:, None]), 0.0), 1)
            here = slot[:, None] == level
            v_new, e_new = tl.where(here, v_row[None, :], 0.0), tl.where(here, e_row[None, :], NOTHING)
            v_all, e_all = add(v_all, e_all, v_new, e_new)
    place = own + slot[:, None] * n + u[None, :]
    mask = (slot < levels)[:, None] & (u < n)[None, :]
    tl.store(sums_v + place, v_all, mask=mask)
    tl.store(sums_e + place, e_all, mask=mask)


@triton.jit(do_not_specialize=["n", "slots"])
def _totals(
    reach,
    number,
    sums_v,
    sums_e,
    total_v,
    total_e,
    n,
    slots,
    LEVELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """For some decisions, the sums over what is joined by them or later."""
    blocks = tl.cdiv(slots, ROWS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    b = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    v_all = tl.zeros([ROWS], sums_v.dtype.element_ty)
    e_all = tl.full([ROWS], NOTHING, tl.int32)
    count = tl.load(number + 2 * item) * n
    own = item * (LEVELS + 1) * n
    for start in range(0, count, COLS):
        place = start + tl.arange(0, COLS)
        mask = place < count
        far = tl.load(reach + own + place, mask=mask, other=-1)
        e = tl.load(sums_e + own + place, mask=mask, other=NOTHING)
        v = tl.load(sums_v + own + place, mask=mask, other=0.0)
        races = far[None, :] >= b[:, None]
        e = tl.where(races, e[None, :], NOTHING)
        e_here = tl.max(e, 1)
        v_here = tl.where(races, scaled(v[None, :], e - e_here[:, None]), 0.0)
        v_all, e_all = add(v_all, e_all, tl.sum(v_here, 1), e_here)
    tl.store(total_v + item * slots + b, v_all, mask=b < slots)
    tl.store(total_e + item * slots + b, e_all, mask=b < slots)


@triton.jit(do_not_specialize=["rows", "stream", "n", "slots"])
def _finish(
    winners,
    total_v,
    total_e,
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
    N: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, N)
    winner, steps = decisions(winners, item, n, slots, N)
    live = b < steps
    v = tl.load(total_v + item * slots + b, mask=live, other=0.0)
    e = tl.load(total_e + item * slots + b, mask=live, other=NOTHING)
    logs = finish_decisions(v, e, beta, rows, alpha, out, z, seed, stream, item, n * n, slots, b, winner, live, MODE)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, logs.to(beta.dtype.element_ty))


@triton.jit(do_not_specialize=["rows", "n", "slots"])
def _shares(
    winners,
    alpha,
    h,
    beta,
    rows,
    share_v,
    share_e,
    caps,
    n,
    slots,
    MODE: tl.constexpr,
    N: tl.constexpr,
):
    """What each merge hands to the pairs it joins: the sum of what decisions up to it do."""
    item = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, N)
    dtype: tl.constexpr = beta.dtype.element_ty
    winner, steps = decisions(winners, item, n, slots, N)
    live = b < steps
    v, e = decision_term(alpha, h, beta, rows, item, n * n, slots, b, winner, live, MODE, dtype)
    v, e = tl.associative_scan((v, e), 0, add)
    tl.store(share_v + item * n + b, v, mask=b < n)
    tl.store(share_e + item * n + b, e, mask=b < n)
    if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
        held = tl.where(live, winner_code(v, e, dtype) + b, code(tl.full((), float("inf"), dtype)))
        held = tl.associative_scan(held, 0, smaller) - tl.minimum(b, tl.maximum(steps - 1, 0))
        tl.store(caps + item * n + b, decode(held), mask=b < n)


@triton.jit(do_not_specialize=["rows", "stream", "n", "slots"])
def _spread(
    winners,
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
    slots,
    MODE: tl.constexpr,
    LEVELS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """A tile of pairs, and its mirror image below the diagonal, where no key races."""
    blocks = tl.cdiv(n, SIDE)
    tiles = blocks * (blocks + 1) // 2
    item = (tl.program_id(0) // tiles).to(tl.int64)
    row, column = tile_at(tl.program_id(0) % tiles)
    u, v = row * SIDE + tl.arange(0, SIDE), column * SIDE + tl.arange(0, SIDE)
    levels, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
    key = u[:, None] * n + v[None, :]
    inside = (u < n)[:, None] & (v < n)[None, :]
    pair = (u[:, None] < v[None, :]) & (v < nodes)[None, :]
    store_idle(out, more, item * n * n + key, inside & (pair == 0), MODE)
    if row != column:
        lower, left = column * SIDE + tl.arange(0, SIDE), row * SIDE + tl.arange(0, SIDE)
        mirrored = lower[:, None] * n + left[None, :]
        store_idle(out, more, item * n * n + mirrored, (lower < n)[:, None] & (left < n)[None, :], MODE)
    merge = key * 0
    apart = pair
    own = item * (LEVELS + 1) * n
    for level in range(levels):
        meet, reach_u, reach_v = met(part, reach, own + level * n, u, v, apart, n)
        apart = apart & (meet == 0)
        merge = tl.where(meet, tl.maximum(reach_u, reach_v), merge)
    won = tl.load(winners + item * slots + merge, mask=pair & (merge < slots), other=-1) == key
    v_key = tl.load(share_v + item * n + merge, mask=pair, other=0.0)
    e_key = tl.load(share_e + item * n + merge, mask=pair, other=NOTHING)
    cap = key
    if MODE == CONDITIONAL:
        cap = code(tl.load(caps + item * n + merge, mask=pair, other=0.0)) - (won == 0).to(tl.int32)
    finish_keys(v_key, e_key, cap, won, beta, rows, grad, g, out, more, seed, stream, item, n * n, key, pair, MODE)


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    shape, tile = shape_of(geometry)
    part, reach, number = levels(geometry, winners)
    sums_v, total_v = new(winners, beta.dtype, reach.shape, (items, slots))
    sums_e, total_e = new(winners, torch.int32, reach.shape, (items, slots))
    most = shape["LEVELS"]
    sized = {"LEVELS": most, "SLOTS": triton.next_power_of_2(most + 1), "ROWS": ROWS, "COLS": COLS}
    where = (part, reach, number, beta, len(beta), h, sums_v, sums_e, n)
    _sums[(items * triton.cdiv(n, ROWS),)](*where, MODE=mode, **sized, num_warps=4, **EXACT)
    where = (reach, number, sums_v, sums_e, total_v, total_e, n, slots)
    grid = (items * triton.cdiv(slots, ROWS),)
    if slots > 0:
        _totals[grid](*where, LEVELS=most, ROWS=ROWS, COLS=COLS, num_warps=4, **EXACT)
    where = (winners, total_v, total_e, beta, len(beta), alpha, out, log_prob, z, seed, stream, n, slots)
    _finish[(items,)](*where, MODE=mode, **tile, **EXACT)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    shape, tile = shape_of(geometry)
    found = levels(geometry, winners)
    share_v, caps = new(winners, beta.dtype, (items, n), (items, n if mode == CONDITIONAL else 0))
    (share_e,) = new(winners, torch.int32, (items, n))
    where = (winners, alpha, h, beta, len(beta), share_v, share_e, caps, n, slots)
    _shares[(items,)](*where, MODE=mode, **tile, **EXACT)
    blocks = triton.cdiv(n, SIDE)
    where = (winners, *found, share_v, share_e, caps, beta, len(beta), grad, g, out, more, seed, stream, n, slots)
    grid = (items * (blocks * (blocks + 1) // 2),)
    _spread[grid](*where, MODE=mode, LEVELS=shape["LEVELS"], SIDE=SIDE, num_warps=4, **EXACT)
