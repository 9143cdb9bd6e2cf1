"""Long rows of subsets and permutations: several programs an item, each with a block of keys or of decisions.

Sums take two passes. The first writes the sum of each block, its part. In the second every program adds up the parts
that come before its own block, which are few, and then scans the block. A part is a number v 2^e, as everywhere. Keys
that win lie all over the memory: the first pass leaves their log-rates in the order of the decisions for the second.

Here from keys to decisions. Parts of an item: those of keys that win nothing, then those of decisions, the last one
first, so that what races on after a decision is what stands before its own part. subset_long_keys.py goes back to keys.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import (
    EXACT,
    LOG_PROB,
    SCALED,
    SPREAD,
    finish_decisions,
    key_term,
    known,
)
from gumtrace.kernels.cuda.noise import row_of
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, exponential, total
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
def place_of(blocks):
    """The item and the block of a program."""
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks


@triton.jit
def sum_parts(parts, exponents, first, n):
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
def count_of(numbers, first, n):
    """The sum of n integers from the first on."""
    counted = tl.full((), 0, tl.int32)
    for start in range(0, n, TILE):
        i = start + tl.arange(0, TILE)
        counted += tl.sum(tl.load(numbers + first + i, mask=i < n, other=0), 0)
    return counted


@triton.jit
def _set_bits(bits, item, words, winner):
    """One bit for each key that wins."""
    bit = tl.full(winner.shape, 1, tl.int32) << (winner & 31)
    tl.atomic_or(bits + item * words + (winner >> 5), bit, mask=winner >= 0, sem="relaxed")


@triton.jit(do_not_specialize=["rows"])
def _sum_winners(
    winners, beta, rows, h, ordered, bits, left, parts, exponents, d, slots, words, key_blocks, blocks,
    ALL: tl.constexpr, MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Parts of decisions. Winners are marked; in a permutation only if they are not all the keys that race, so there it
    is counted, block by block, how many more keys race than have won."""
    item, block = place_of(blocks)
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    live = winner >= 0
    x = tl.load(beta + row_of(item, rows) * d + winner, mask=live, other=float("-inf"))
    if MODE == SCALED:
        v, e = key_term(beta, rows, h, item, d, winner, live, MODE)
    else:
        v, e = exponential(x)
        tl.store(ordered + item * slots + b, x, mask=b < slots)
    v, e = total(v, e)
    place = item * (key_blocks + blocks) + key_blocks + blocks - 1 - block
    tl.store(parts + place, v)
    tl.store(exponents + place, e)
    if ALL:
        more = racing(beta, rows, item, d, b, b < d, MODE) - (x > float("-inf")).to(tl.int32)
        tl.store(left + item * blocks + block, tl.sum(more, 0))
    else:
        _set_bits(bits, item, words, winner)


@triton.jit
def _mark(winners, left, bits, d, slots, words, blocks, WIDTH: tl.constexpr):
    item, block = place_of(blocks)
    if count_of(left, item * blocks, blocks) > 0:
        _set_bits(bits, item, words, winners_of(winners, item, d, slots, block * WIDTH + tl.arange(0, WIDTH)))


@triton.jit(do_not_specialize=["rows"])
def _sum_losers(
    beta, rows, h, bits, left, parts, exponents, d, words, key_blocks, blocks,
    ALL: tl.constexpr, MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Parts of keys that win nothing; a permutation has none, unless its trace comes from under another mask."""
    item, block = place_of(key_blocks)
    v_all, e_all = tl.full((), 0.0, beta.dtype.element_ty), tl.full((), NOTHING, tl.int32)
    some = 1
    if ALL:
        some = count_of(left, item * blocks, blocks)
    if some > 0:
        key = block * WIDTH + tl.arange(0, WIDTH)
        word = tl.load(bits + item * words + (key >> 5), mask=key < d, other=0)
        free = (key < d) & (((word >> (key & 31)) & 1) == 0)
        v, e = key_term(beta, rows, h, item, d, key, free, MODE)
        v_all, e_all = total(v, e)
    place = item * (key_blocks + blocks) + block
    tl.store(parts + place, v_all)
    tl.store(exponents + place, e_all)


@triton.jit(do_not_specialize=["rows", "items", "stream"])
def _finish_up(
    winners, beta, rows, h, ordered, items, alpha, out, logs, z, seed, stream, parts, exponents, d, slots, key_blocks,
    blocks, MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    item, block = place_of(blocks)
    v_after, e_after = sum_parts(parts, exponents, item * (key_blocks + blocks), key_blocks + blocks - 1 - block)
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    live = winner >= 0
    if MODE == SCALED:
        v, e = key_term(beta, rows, h, item, d, winner, live, MODE)
    else:
        v, e = key_term(ordered, items, h, item, slots, b, b < slots, MODE)
    v, e = tl.associative_scan((v, e), 0, add, reverse=True)
    v, e = add(v, e, v_after, e_after)
    log_prob = finish_decisions(v, e, ordered, items, alpha, out, z, seed, stream, item, slots, slots, b, b, live, MODE)
    if MODE == LOG_PROB:
        tl.store(logs + item * blocks + block, log_prob.to(logs.dtype.element_ty))


def up(geometry, winners, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    d, slots, items, rows = geometry.keys, geometry.winner_slots, len(winners), len(beta)
    every = isinstance(geometry, PermutationGeometry)
    steps, blocks, by_decision = by_decision_of(slots, mode)
    key_blocks, words = triton.cdiv(d, BLOCK), triton.cdiv(d, 32)
    parts, exponents = new_parts(beta, items, key_blocks + blocks)
    left = torch.empty(items, blocks, dtype=torch.int32, device=beta.device) if every else None
    bits = torch.zeros(items, words, dtype=torch.int32, device=beta.device)
    logs = log_prob  # of blocks: of items, if these have but one
    if log_prob is not None and blocks > 1:
        logs = torch.empty(items, blocks, dtype=torch.float64, device=beta.device)
    sums = (parts, exponents)
    ordered = None if mode == SCALED else new_ordered(beta, items, slots)
    where = (winners, beta, rows, h, ordered, bits, left, *sums, d, slots, words, key_blocks, blocks)
    _sum_winners[(items * blocks,)](*where, ALL=every, **by_decision)
    if every:
        _mark[(items * blocks,)](winners, left, bits, d, slots, words, blocks, WIDTH=steps, num_warps=4, **EXACT)
    where = (beta, rows, h, bits, left, *sums, d, words, key_blocks, blocks)
    _sum_losers[(items * key_blocks,)](*where, ALL=every, MODE=mode, WIDTH=BLOCK, num_warps=4, **EXACT)
    where = (winners, beta, rows, h, ordered, items, alpha, out, logs, z, seed, stream, *sums, d, slots)
    _finish_up[(items * blocks,)](*where, key_blocks, blocks, **by_decision)
    if logs is not log_prob:
        log_prob.copy_(logs.sum(-1))


def by_decision_of(slots, mode):
    """Decisions of a program, programs of an item, and options of their launches."""
    steps = min(STEPS, max(2, triton.next_power_of_2(slots)))
    options = {"MODE": mode, "WIDTH": steps, "num_warps": max(1, min(4, steps // 128)), **EXACT}
    return steps, max(1, triton.cdiv(slots, steps)), options


def new_parts(beta, items, blocks):
    parts = torch.empty(items, blocks, dtype=beta.dtype, device=beta.device)
    return parts, torch.empty(items, blocks, dtype=torch.int32, device=beta.device)


def new_ordered(beta, items, slots):
    return torch.empty(items, slots, dtype=beta.dtype, device=beta.device)
