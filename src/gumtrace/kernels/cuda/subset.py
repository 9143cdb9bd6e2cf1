"""Subsets and permutations: the first k, or all, of the keys in order. Rows of any length go by in blocks."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    LOG_PROB,
    SPREAD,
    decision_term,
    finish_decisions,
    finish_keys,
    key_term,
    winner_code,
)
from gumtrace.kernels.cuda.noise import noisy, row_of
from gumtrace.kernels.cuda.order import code, least, smaller
from gumtrace.kernels.cuda.sampling import perturb
from gumtrace.kernels.cuda.wide import NOTHING, add, at, total
from gumtrace.kernels.kinds import NOT_A_NUMBER, PERMUTATION, STUCK

LONGEST = 1 << 23  # a code plus a position must fit an integer
IN_REGISTERS = 1024  # longest row that one program sorts; longer ones go to torch's sort
BLOCK = 1024  # keys or decisions that go by at once in `up` and `down`
FEW = 64  # most winners that are picked one by one


@triton.jit
def _pick(source, rows, sizes, size_rows, seed, winners, status, d, slots, DRAW: tl.constexpr, WIDTH: tl.constexpr):
    """The first k keys, one by one."""
    item = tl.program_id(0).to(tl.int64)
    key = tl.arange(0, WIDTH)
    g = noisy(source, rows, seed, item, d, key, key < d, DRAW)
    wrong = tl.max(tl.where(g < float("inf"), 0, 2), 0)
    lowest = least(g)
    c = code(g)
    k = slots
    if sizes is not None:
        k = tl.load(sizes + row_of(item, size_rows))
    found = 0
    for b in range(slots):
        top = tl.max(c, 0)
        winner = tl.min(tl.where(c == top, key, WIDTH), 0)
        good = (top > lowest) & (b < k)
        tl.store(winners + item * slots + b, tl.where(good, winner, -1))
        c = tl.where(key == winner, lowest, c)
        found += good.to(tl.int32)
    tl.store(status + item, tl.maximum(wrong, (found < k).to(tl.int32)).to(tl.int8))


@triton.jit
def _sort(
    source,
    rows,
    sizes,
    size_rows,
    seed,
    winners,
    status,
    d,
    slots,
    ALL: tl.constexpr,
    DRAW: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Keys in order, all or the first k: float32 codes with their indices behind them as one integer."""
    item = tl.program_id(0).to(tl.int64)
    key = tl.arange(0, WIDTH)
    g = noisy(source, rows, seed, item, d, key, key < d, DRAW)
    wrong = tl.max(tl.where(g < float("inf"), 0, 2), 0)
    packed = tl.sort((code(g).to(tl.int64) << 32) | (WIDTH - 1 - key).to(tl.int64), descending=True)
    k = slots
    if sizes is not None:
        k = tl.load(sizes + row_of(item, size_rows))
    good = ((packed >> 32).to(tl.int32) > least(g)) & (key < k)
    tl.store(
        winners + item * slots + key,
        tl.where(good, WIDTH - 1 - (packed & 0xFFFFFFFF).to(tl.int32), -1),
        mask=key < slots,
    )
    if not ALL:
        wrong = tl.maximum(wrong, (tl.sum(good.to(tl.int32), 0) < k).to(tl.int32))
    tl.store(status + item, wrong.to(tl.int8))


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
def _mark(winners, chosen, item, d, slots, WIDTH: tl.constexpr):
    for start in range(0, slots, WIDTH):
        b = start + tl.arange(0, WIDTH)
        winner = tl.load(winners + item * slots + b, mask=b < slots, other=-1)
        tl.store(chosen + item * d + winner, 1, mask=winner >= 0)
    tl.debug_barrier()


@triton.jit
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
    """Keys go by WIDTH at a time, decisions by STEPS, from the last to the first."""
    item = tl.program_id(0).to(tl.int64)
    v_after = tl.full((), 0.0, beta.dtype.element_ty)  # what races on after the decisions seen so far
    e_after = tl.full((), NOTHING, tl.int32)
    if not ALL:  # keys that were not chosen race in every decision
        if MARKED:
            _mark(winners, chosen, item, d, slots, WIDTH)
        for start in range(0, d, WIDTH):
            key = start + tl.arange(0, WIDTH)
            free = _unchosen(winners, chosen, item, d, slots, key, MARKED)
            v, e = key_term(beta, rows, h, item, d, key, free, MODE)
            v, e = total(v, e)
            v_after, e_after = add(v_after, e_after, v, e)
    log_probs = tl.full((), 0.0, tl.float64)
    step = tl.arange(0, STEPS)
    blocks = tl.cdiv(slots, STEPS)
    for i in range(blocks):
        b = (blocks - 1 - i) * STEPS + step
        winner = tl.load(winners + item * slots + b, mask=b < slots, other=-1)
        live = winner >= 0
        v, e = key_term(beta, rows, h, item, d, winner, live, MODE)
        v, e = tl.associative_scan((v, e), 0, add, reverse=True)
        v, e = add(v, e, v_after, e_after)
        log_probs += finish_decisions(
            v, e, beta, rows, alpha, out, z, seed, stream, item, d, slots, b, winner, live, MODE
        )
        v_after, e_after = at(v, e, step == 0)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, log_probs.to(beta.dtype.element_ty))


@triton.jit
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
    dtype: tl.constexpr = beta.dtype.element_ty
    v_all = tl.full((), 0.0, dtype)
    e_all = tl.full((), NOTHING, tl.int32)
    lowest = code(tl.full((), float("inf"), dtype))  # of code + position, over the winners so far
    count = tl.full((), 0, tl.int32)
    step = tl.arange(0, STEPS)
    for start in range(0, slots, STEPS):
        b = start + step
        winner = tl.load(winners + item * slots + b, mask=b < slots, other=-1)
        live = winner >= 0
        count += tl.sum(live.to(tl.int32), 0)
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
    if MARKED:
        _mark(winners, chosen, item, d, slots, WIDTH)
    for start in range(0, d, WIDTH):
        key = start + tl.arange(0, WIDTH)
        if ALL:  # every key that races has won
            x = tl.load(beta + row_of(item, rows) * d + key, mask=key < d, other=0.0)
            free = x == float("-inf")
        else:
            free = _unchosen(winners, chosen, item, d, slots, key, MARKED)
        v, e = v_all + tl.zeros([WIDTH], dtype), e_all + tl.zeros([WIDTH], tl.int32)
        cap = lowest - count + tl.zeros([WIDTH], tl.int32)
        finish_keys(v, e, cap, key < 0, beta, rows, grad, g, out, more, seed, stream, item, d, key, free, MODE)


WRITES_EVERY_KEY = True


def serves(geometry, dtype):
    return geometry.keys <= LONGEST


def trace(geometry, source, sizes, seed, draw, winners, links, status):
    d, slots, items = geometry.keys, geometry.winner_slots, len(winners)
    every = geometry.kind == PERMUTATION
    few = slots <= FEW and not every
    if d > IN_REGISTERS or (source.dtype == torch.float64 and not few):
        if draw:
            g = torch.empty(items, d, dtype=source.dtype, device=source.device)
            perturb(geometry, source, seed, g)
            source = g
        return _by_sorting(source, sizes, every, winners, status)
    block = max(16, triton.next_power_of_2(d))
    size_rows = 1 if sizes is None else len(sizes)
    where = (source, len(source), sizes, size_rows, seed, winners, status, d, slots)
    if few:
        _pick[(items,)](*where, DRAW=draw, WIDTH=block, num_warps=max(1, min(4, block // 256)), **EXACT)
    else:
        _sort[(items,)](*where, ALL=every, DRAW=draw, WIDTH=block, num_warps=max(1, block // 512), **EXACT)


def _by_sorting(g, sizes, every, winners, status):
    """Long rows, and codes that leave no room for an index, by torch's own sort."""
    items, slots = winners.shape
    order = (g + 0.0).sort(dim=-1, descending=True, stable=True)  # -0.0 and 0.0 are one number
    good = order.values[:, :slots] > -torch.inf
    k = torch.full((1,), slots, device=g.device) if sizes is None else sizes.repeat(items // len(sizes))
    good &= torch.arange(slots, device=g.device) < k[:, None]
    winners.copy_(torch.where(good, order.indices[:, :slots], -1))
    wrong = torch.where((g < torch.inf).all(-1), 0, NOT_A_NUMBER)
    status.copy_(wrong if every else torch.where(good.sum(-1) < k, wrong.clamp(min=STUCK), wrong))


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    where = (beta, len(beta), h, alpha, out, log_prob, z, seed, stream)
    _walk(_up, geometry, winners, mode, where)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    if geometry.kind == PERMUTATION and mode == SPREAD:
        out.fill_(-torch.inf)  # keys that do not race
    where = (alpha, h, beta, len(beta), grad, g, out, more, seed, stream)
    _walk(_down, geometry, winners, mode, where)


def _walk(kernel, geometry, winners, mode, where):
    d, slots, items = geometry.keys, geometry.winner_slots, len(winners)
    every = geometry.kind == PERMUTATION
    marked = slots > FEW and not every
    chosen = torch.zeros(items, d, dtype=torch.int8, device=winners.device) if marked else None
    width = min(BLOCK, max(16, triton.next_power_of_2(d)))
    steps = min(width, max(2, triton.next_power_of_2(slots)))
    kinds = {"ALL": every, "MARKED": marked, "MODE": mode, "WIDTH": width, "STEPS": steps}
    warps = max(1, min(4, width // 128))
    kernel[(items,)](winners, chosen, *where, d, slots, **kinds, num_warps=warps, **EXACT)
