"""Subsets and permutations, the first k, or all, of the keys in order: who raced with whom. Rows go by in blocks,
keys WIDTH and decisions STEPS at a time; long ones in several programs (subset_long.py, subset_long_keys.py). How the
first are found is in subset_trace.py.

All keys that race in a permutation win, so only winners are looked at. Where a trace comes from under another mask some
have not won: they are counted, and then the item is done once more with them as the losers that they are.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda import subset_long, subset_long_keys
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
from gumtrace.kernels.cuda.order import code, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, at, total
from gumtrace.kernels.cuda.subset_long import racing, winners_of
from gumtrace.kernels.cuda.subset_trace import FEW
from gumtrace.kernels.cuda.subset_trace import trace as trace  # of this structure's functions
from gumtrace.kernels.geometry import PermutationGeometry

LONGEST = 1 << 23  # a code plus a position must fit an integer
BLOCK = 1024  # keys or decisions that go by at once


@triton.jit
def _mark(winners, chosen, item, d, slots, WIDTH: tl.constexpr):
    for start in range(0, slots, WIDTH):
        winner = winners_of(winners, item, d, slots, start + tl.arange(0, WIDTH))
        tl.store(chosen + item * d + winner, 1, mask=winner >= 0)
    tl.debug_barrier()


@triton.jit
def _unchosen(winners, chosen, item, d, slots, key, MARKED: tl.constexpr):
    """Which of some keys are no winners: told by marks in `chosen`, or by going through the few winners."""
    free = key < d
    if MARKED:
        return tl.load(chosen + item * d + key, mask=free, other=1) == 0
    for b in range(slots):
        free &= key != tl.load(winners + item * slots + b)
    return free


@triton.jit
def _left_out(beta, rows, item, d, met, MODE: tl.constexpr, WIDTH: tl.constexpr):
    """How many keys race beyond those met as winners, `met` of each lane. Comes last: by now they are in the cache."""
    lane = tl.arange(0, WIDTH)
    left = -met
    for start in range(0, d, WIDTH):
        left += racing(beta, rows, item, d, start + lane, start + lane < d, MODE)
    return tl.sum(left, 0)


@triton.jit
def _sum_unchosen(
    winners, chosen, beta, rows, h, item, d, slots, MARKED: tl.constexpr, MODE: tl.constexpr, WIDTH: tl.constexpr
):
    """What the keys add that race in every decision."""
    v_all, e_all = tl.full((), 0.0, beta.dtype.element_ty), tl.full((), NOTHING, tl.int32)
    for start in range(0, d, WIDTH):
        key = start + tl.arange(0, WIDTH)
        free = _unchosen(winners, chosen, item, d, slots, key, MARKED)
        v, e = key_term(beta, rows, h, item, d, key, free, MODE)
        v, e = total(v, e)
        v_all, e_all = add(v_all, e_all, v, e)
    return v_all, e_all


@triton.jit
def _sum_chosen(
    winners, beta, rows, h, alpha, out, z, seed, stream, item, d, slots, v_after, e_after, MODE, STEPS: tl.constexpr
):
    """Decisions from the last to the first, given what races on after the last. Returns their part of log P(T), and how
    many winners race, of each lane."""
    log_probs = tl.full((), 0.0, tl.float64)
    step = tl.arange(0, STEPS)
    met = step * 0
    blocks = tl.cdiv(slots, STEPS)
    for i in range(blocks):
        b = (blocks - 1 - i) * STEPS + step
        winner = winners_of(winners, item, d, slots, b)
        live = winner >= 0
        met += racing(beta, rows, item, d, winner, live, MODE)
        v, e = key_term(beta, rows, h, item, d, winner, live, MODE)
        v, e = tl.associative_scan((v, e), 0, add, reverse=True)
        v, e = add(v, e, v_after, e_after)
        log_probs += finish_decisions(
            v, e, beta, rows, alpha, out, z, seed, stream, item, d, slots, b, winner, live, MODE
        )
        v_after, e_after = at(v, e, step == 0)
    return log_probs, met


@quick
@triton.jit(do_not_specialize=["rows", "stream"])
def _up(
    winners,
    chosen,
    beta,
    rows,
    h,
    alpha,
    out,
    log_prob,
    z,
    seed,
    stream,
    d,
    slots,
    ALL: tl.constexpr,
    MARKED: tl.constexpr,
    MODE: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    v, e = tl.full((), 0.0, beta.dtype.element_ty), tl.full((), NOTHING, tl.int32)
    if not ALL:
        if MARKED:
            _mark(winners, chosen, item, d, slots, WIDTH)
        v, e = _sum_unchosen(winners, chosen, beta, rows, h, item, d, slots, MARKED, MODE, WIDTH)
    logs, met = _sum_chosen(winners, beta, rows, h, alpha, out, z, seed, stream, item, d, slots, v, e, MODE, STEPS)
    left = 0
    if ALL:
        left = _left_out(beta, rows, item, d, met, MODE, WIDTH)
    if left > 0:
        tl.debug_barrier()
        for start in range(0, d, WIDTH):  # `out`, which is as long, lends its memory for the marks
            key = start + tl.arange(0, WIDTH)
            tl.store(out + item * d + key, 0, mask=key < d)
        tl.debug_barrier()
        _mark(winners, out, item, d, slots, WIDTH)
        v, e = _sum_unchosen(winners, out, beta, rows, h, item, d, slots, True, MODE, WIDTH)
        tl.debug_barrier()
        logs, met = _sum_chosen(winners, beta, rows, h, alpha, out, z, seed, stream, item, d, slots, v, e, MODE, STEPS)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, logs.to(beta.dtype.element_ty))


@triton.jit
def _hand_to_chosen(
    winners, alpha, h, beta, rows, grad, g, out, more, seed, stream, item, d, slots, MODE, STEPS: tl.constexpr
):
    """Winners get the sum over their own decision and all before it. Returns the sum over all, the code that losers may
    not pass, and how many winners race, of each lane."""
    dtype: tl.constexpr = beta.dtype.element_ty
    v_all, e_all = tl.full((), 0.0, dtype), tl.full((), NOTHING, tl.int32)
    lowest = code(tl.full((), float("inf"), dtype))  # of code + position, over the winners so far
    count = tl.full((), 0, tl.int32)
    step = tl.arange(0, STEPS)
    met = step * 0
    for start in range(0, slots, STEPS):
        b = start + step
        winner = winners_of(winners, item, d, slots, b)
        live = winner >= 0
        count += tl.sum(live.to(tl.int32), 0)
        met += racing(beta, rows, item, d, winner, live, MODE)
        v, e = decision_term(alpha, h, beta, rows, item, d, slots, b, winner, live, MODE, dtype)
        v, e = tl.associative_scan((v, e), 0, add)
        v, e = add(v, e, v_all, e_all)
        v_all, e_all = at(v, e, step == STEPS - 1)
        cap = lowest + step * 0
        if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
            held = tl.where(live, winner_code(v, e, dtype) + b, cap)
            cap = tl.minimum(tl.associative_scan(held, 0, smaller), lowest)
            lowest = tl.min(cap, 0)
            cap -= b
        finish_keys(v, e, cap, live, beta, rows, grad, g, out, more, seed, stream, item, d, winner, live, MODE)
    return v_all, e_all, lowest - count, met


@quick
@triton.jit(do_not_specialize=["rows", "stream"])
def _down(
    winners,
    chosen,
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
    d,
    slots,
    ALL: tl.constexpr,
    MARKED: tl.constexpr,
    MODE: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    if ALL:
        for start in range(0, d, WIDTH):  # every key, as if it did not race; winners follow
            store_idle(out, more, item * d + start + lane, start + lane < d, MODE)
        tl.debug_barrier()
    v_all, e_all, below, met = _hand_to_chosen(
        winners, alpha, h, beta, rows, grad, g, out, more, seed, stream, item, d, slots, MODE, STEPS
    )
    left = 1
    if ALL:
        left = _left_out(beta, rows, item, d, met, MODE, WIDTH)
    if MARKED:
        _mark(winners, chosen, item, d, slots, WIDTH)
    if left > 0:
        if ALL:
            tl.debug_barrier()
        v, e, cap = v_all + tl.zeros([WIDTH], v_all.dtype), e_all + lane * 0, below + lane * 0
        for start in range(0, d, WIDTH):
            key = start + lane
            free = key < d
            if not ALL:
                free = _unchosen(winners, chosen, item, d, slots, key, MARKED)
            finish_keys(v, e, cap, key < 0, beta, rows, grad, g, out, more, seed, stream, item, d, key, free, MODE)
        if ALL:
            tl.debug_barrier()
            _hand_to_chosen(
                winners, alpha, h, beta, rows, grad, g, out, more, seed, stream, item, d, slots, MODE, STEPS
            )


def serves(geometry):
    return geometry.keys <= LONGEST


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    if geometry.keys > subset_long.SHORT:
        return subset_long.up(geometry, winners, mode, beta, h, alpha, out, log_prob, z, seed, stream)
    where = (beta, beta.shape[0], h, alpha, out, log_prob, z, seed, stream)
    _walk(_up, geometry, winners, mode, where)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    if geometry.keys > subset_long.SHORT:
        return subset_long_keys.down(geometry, winners, mode, alpha, h, beta, grad, g, out, more, seed, stream)
    where = (alpha, h, beta, beta.shape[0], grad, g, out, more, seed, stream)
    _walk(_down, geometry, winners, mode, where)


def _walk(kernel, geometry, winners, mode, where):
    d, slots, items = geometry.keys, geometry.winner_slots, winners.shape[0]
    every = isinstance(geometry, PermutationGeometry)
    marked = slots > FEW and not every
    chosen = torch.zeros(items, d, dtype=torch.int8, device=winners.device) if marked else None
    width = min(BLOCK, max(16, power_of_2(d)))
    steps = width if every else min(width, max(2, power_of_2(slots)))
    kinds = {"ALL": every, "MARKED": marked, "MODE": mode, "WIDTH": width, "STEPS": steps}
    warps = max(1, min(4, width // 128))
    kernel[(items,)](winners, chosen, *where, d, slots, **kinds, num_warps=warps, **EXACT)
