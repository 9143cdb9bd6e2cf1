"""Long rows of subsets and permutations: several programs an item, each with a block of keys or of decisions.

Sums take two passes. The first writes the sum of each block, its part. In the second every program adds up the parts
that come before its own block, which are few, and then scans the block. A part is a number v 2^e, as everywhere.
"""

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
    known,
    winner_code,
)
from gumtrace.kernels.cuda.noise import row_of
from gumtrace.kernels.cuda.order import code, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, total
from gumtrace.kernels.geometry import PermutationGeometry

SHORT = 4096  # longest row that one program walks over
BLOCK = 2048  # keys of a program
STEPS = 1024  # decisions of a program
TILE = tl.constexpr(128)  # parts that are added up at once


@triton.jit
def winners_of(winners, item, d, slots, b):
    return known(tl.load(winners + item * slots + b, mask=b < slots, other=-1), d)


@triton.jit
def racing(beta, rows, item, d, key, mask, MODE: tl.constexpr):
    """Which of some keys race, as numbers; all in SPREAD, which knows no log-rates."""
    some = mask
    if MODE != SPREAD:
        some = tl.load(beta + row_of(item, rows) * d + key, mask=mask, other=float("-inf")) > float("-inf")
    return some.to(tl.int32)


@triton.jit
def _place(blocks):
    """The item and the block of a program."""
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks


@triton.jit
def _sum_parts(parts, exponents, first, n):
    """The sum of n parts from the first on."""
    v_all, e_all = tl.full((), 0.0, parts.dtype.element_ty), tl.full((), NOTHING, tl.int32)
    for start in range(0, n, TILE):
        i = start + tl.arange(0, TILE)
        v = tl.load(parts + first + i, mask=i < n, other=0.0)
        e = tl.load(exponents + first + i, mask=i < n, other=NOTHING)
        v, e = total(v, e)
        v_all, e_all = add(v_all, e_all, v, e)
    return v_all, e_all


@triton.jit
def _count(numbers, first, n):
    """The sum of n integers from the first on."""
    counted = tl.full((), 0, tl.int32)
    for start in range(0, n, TILE):
        i = start + tl.arange(0, TILE)
        counted += tl.sum(tl.load(numbers + first + i, mask=i < n, other=0), 0)
    return counted


# From keys to decisions. Parts of an item: those of keys that win nothing, then those of decisions, the last one first,
# so that what races on after a decision is what stands before its own part.


@triton.jit
def _set_bits(bits, item, words, winner):
    """One bit for each key that wins."""
    bit = tl.full(winner.shape, 1, tl.int32) << (winner & 31)
    tl.atomic_or(bits + item * words + (winner >> 5), bit, mask=winner >= 0)


@triton.jit
def _sum_winners(
    winners, beta, rows, h, bits, left, parts, exponents, d, slots, words, key_blocks, blocks,
    ALL: tl.constexpr, MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Parts of decisions. Winners are marked; in a permutation only if they are not all the keys that race, so there it
    is counted, block by block, how many more keys race than have won."""
    item, block = _place(blocks)
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    live = winner >= 0
    v, e = key_term(beta, rows, h, item, d, winner, live, MODE)
    v, e = total(v, e)
    place = item * (key_blocks + blocks) + key_blocks + blocks - 1 - block
    tl.store(parts + place, v)
    tl.store(exponents + place, e)
    if ALL:
        more = racing(beta, rows, item, d, b, b < d, MODE) - racing(beta, rows, item, d, winner, live, MODE)
        tl.store(left + item * blocks + block, tl.sum(more, 0))
    else:
        _set_bits(bits, item, words, winner)


@triton.jit
def _mark(winners, left, bits, d, slots, words, blocks, WIDTH: tl.constexpr):
    item, block = _place(blocks)
    if _count(left, item * blocks, blocks) > 0:
        _set_bits(bits, item, words, winners_of(winners, item, d, slots, block * WIDTH + tl.arange(0, WIDTH)))


@triton.jit
def _sum_losers(
    beta, rows, h, bits, left, parts, exponents, d, words, key_blocks, blocks,
    ALL: tl.constexpr, MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Parts of keys that win nothing; a permutation has none, unless its trace comes from under another mask."""
    item, block = _place(key_blocks)
    v_all, e_all = tl.full((), 0.0, beta.dtype.element_ty), tl.full((), NOTHING, tl.int32)
    some = 1
    if ALL:
        some = _count(left, item * blocks, blocks)
    if some > 0:
        key = block * WIDTH + tl.arange(0, WIDTH)
        word = tl.load(bits + item * words + (key >> 5), mask=key < d, other=0)
        free = (key < d) & (((word >> (key & 31)) & 1) == 0)
        v, e = key_term(beta, rows, h, item, d, key, free, MODE)
        v_all, e_all = total(v, e)
    place = item * (key_blocks + blocks) + block
    tl.store(parts + place, v_all)
    tl.store(exponents + place, e_all)


@triton.jit
def _finish_up(
    winners, beta, rows, h, alpha, out, logs, z, seed, stream, parts, exponents, d, slots, key_blocks, blocks,
    MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    item, block = _place(blocks)
    v_after, e_after = _sum_parts(parts, exponents, item * (key_blocks + blocks), key_blocks + blocks - 1 - block)
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    live = winner >= 0
    v, e = key_term(beta, rows, h, item, d, winner, live, MODE)
    v, e = tl.associative_scan((v, e), 0, add, reverse=True)
    v, e = add(v, e, v_after, e_after)
    log_prob = finish_decisions(v, e, beta, rows, alpha, out, z, seed, stream, item, d, slots, b, winner, live, MODE)
    if MODE == LOG_PROB:
        tl.store(logs + item * blocks + block, log_prob.to(logs.dtype.element_ty))


def up(geometry, winners, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    d, slots, items, rows = geometry.keys, geometry.winner_slots, len(winners), len(beta)
    every = isinstance(geometry, PermutationGeometry)
    steps, blocks, by_decision = _decisions(slots, mode)
    key_blocks, words = triton.cdiv(d, BLOCK), triton.cdiv(d, 32)
    parts, exponents = _new_parts(beta, items, key_blocks + blocks)
    left = torch.empty(items, blocks, dtype=torch.int32, device=beta.device) if every else None
    bits = torch.zeros(items, words, dtype=torch.int32, device=beta.device)
    logs = log_prob  # of blocks: of items, if these have but one
    if log_prob is not None and blocks > 1:
        logs = torch.empty(items, blocks, dtype=torch.float64, device=beta.device)
    sums = (parts, exponents)
    where = (winners, beta, rows, h, bits, left, *sums, d, slots, words, key_blocks, blocks)
    _sum_winners[(items * blocks,)](*where, ALL=every, **by_decision)
    if every:
        _mark[(items * blocks,)](winners, left, bits, d, slots, words, blocks, WIDTH=steps, num_warps=4, **EXACT)
    where = (beta, rows, h, bits, left, *sums, d, words, key_blocks, blocks)
    _sum_losers[(items * key_blocks,)](*where, ALL=every, MODE=mode, WIDTH=BLOCK, num_warps=4, **EXACT)
    where = (winners, beta, rows, h, alpha, out, logs, z, seed, stream, *sums, d, slots, key_blocks, blocks)
    _finish_up[(items * blocks,)](*where, **by_decision)
    if logs is not log_prob:
        log_prob.copy_(logs.sum(-1))


# From decisions to keys. Every key is first written as one that wins nothing, then the winners are.


@triton.jit
def _sum_decisions(
    winners, alpha, h, beta, rows, parts, exponents, d, slots, blocks, MODE: tl.constexpr, WIDTH: tl.constexpr
):
    item, block = _place(blocks)
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    v, e = decision_term(alpha, h, beta, rows, item, d, slots, b, winner, winner >= 0, MODE, beta.dtype.element_ty)
    v, e = total(v, e)
    tl.store(parts + item * blocks + block, v)
    tl.store(exponents + item * blocks + block, e)


@triton.jit
def _sum_to(alpha, h, beta, rows, parts, exponents, item, block, d, slots, blocks, b, winner, MODE: tl.constexpr):
    """The sums over each decision of a block and all before it."""
    v, e = decision_term(alpha, h, beta, rows, item, d, slots, b, winner, winner >= 0, MODE, beta.dtype.element_ty)
    v, e = tl.associative_scan((v, e), 0, add)
    v_before, e_before = _sum_parts(parts, exponents, item * blocks, block)
    return add(v, e, v_before, e_before)


@triton.jit
def _hold(
    winners, alpha, h, beta, rows, parts, exponents, codes, lowest, count, d, slots, blocks,
    MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Code + position of each winner, the lowest of a block, and how many winners it has."""
    item, block = _place(blocks)
    dtype: tl.constexpr = beta.dtype.element_ty
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    v, e = _sum_to(alpha, h, beta, rows, parts, exponents, item, block, d, slots, blocks, b, winner, MODE)
    top = code(tl.full((), float("inf"), dtype))
    held = tl.where(winner >= 0, winner_code(v, e, dtype) + b, top)
    tl.store(codes + item * slots + b, held, mask=b < slots)
    tl.store(lowest + item * blocks + block, tl.min(held, 0))
    tl.store(count + item * blocks + block, tl.sum((winner >= 0).to(tl.int32), 0))


@triton.jit
def _lowest_of(lowest, first, n, dtype: tl.constexpr):
    """The least code + position of n blocks from the first on."""
    low = code(tl.full((), float("inf"), dtype))
    top = low
    for start in range(0, n, TILE):
        i = start + tl.arange(0, TILE)
        low = tl.minimum(low, tl.min(tl.load(lowest + first + i, mask=i < n, other=top), 0))
    return low


@triton.jit
def _finish_losers(
    beta, rows, grad, g, out, more, seed, stream, parts, exponents, lowest, count, d, key_blocks, blocks,
    MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    item, block = _place(key_blocks)
    key = block * WIDTH + tl.arange(0, WIDTH)
    v_all, e_all = _sum_parts(parts, exponents, item * blocks, blocks)
    v, e = v_all + tl.zeros([WIDTH], v_all.dtype), e_all + key * 0
    cap = key
    if MODE == CONDITIONAL:  # below the last winner
        cap = _lowest_of(lowest, item * blocks, blocks, v_all.dtype) - _count(count, item * blocks, blocks) + key * 0
    finish_keys(v, e, cap, key < 0, beta, rows, grad, g, out, more, seed, stream, item, d, key, key < d, MODE)


@triton.jit
def _finish_winners(
    winners, alpha, h, beta, rows, grad, g, out, more, seed, stream, parts, exponents, codes, lowest, d, slots, blocks,
    MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    item, block = _place(blocks)
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    live = winner >= 0
    v, e = _sum_to(alpha, h, beta, rows, parts, exponents, item, block, d, slots, blocks, b, winner, MODE)
    cap = b
    if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
        above = _lowest_of(lowest, item * blocks, block, beta.dtype.element_ty)
        held = tl.load(codes + item * slots + b, mask=b < slots, other=0)  # those beyond come last
        cap = tl.minimum(tl.associative_scan(held, 0, smaller), above) - b
    finish_keys(v, e, cap, live, beta, rows, grad, g, out, more, seed, stream, item, d, winner, live, MODE)


def down(geometry, winners, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    d, slots, items, rows = geometry.keys, geometry.winner_slots, len(winners), len(beta)
    _, blocks, by_decision = _decisions(slots, mode)
    key_blocks = triton.cdiv(d, BLOCK)
    parts, exponents = _new_parts(beta, items, blocks)
    codes = lowest = count = None
    terms, sums, ends = (winners, alpha, h, beta, rows), (parts, exponents), (d, slots, blocks)
    _sum_decisions[(items * blocks,)](*terms, *sums, *ends, **by_decision)
    if mode == CONDITIONAL:
        kind = {"dtype": torch.int64 if beta.dtype == torch.float64 else torch.int32, "device": beta.device}
        codes, lowest = torch.empty(items, slots, **kind), torch.empty(items, blocks, **kind)
        count = torch.empty(items, blocks, dtype=torch.int32, device=beta.device)
        _hold[(items * blocks,)](*terms, *sums, codes, lowest, count, *ends, **by_decision)
    where = (grad, g, out, more, seed, stream, *sums)
    options = {"MODE": mode, "WIDTH": BLOCK, "num_warps": 4, **EXACT}
    _finish_losers[(items * key_blocks,)](beta, rows, *where, lowest, count, d, key_blocks, blocks, **options)
    _finish_winners[(items * blocks,)](*terms, *where, codes, lowest, *ends, **by_decision)


def _decisions(slots, mode):
    """Decisions of a program, programs of an item, and options of their launches."""
    steps = min(STEPS, max(2, triton.next_power_of_2(slots)))
    options = {"MODE": mode, "WIDTH": steps, "num_warps": max(1, min(4, steps // 128)), **EXACT}
    return steps, max(1, triton.cdiv(slots, steps)), options


def _new_parts(beta, items, blocks):
    parts = torch.empty(items, blocks, dtype=beta.dtype, device=beta.device)
    return parts, torch.empty(items, blocks, dtype=torch.int32, device=beta.device)
