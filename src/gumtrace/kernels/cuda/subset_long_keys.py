"""Long rows of subsets and permutations, from decisions to keys: several programs an item, as in subset_long.py. Every
key is first written as one that wins nothing, then the winners are.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda import subset_long
from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    GRAD,
    finish_keys,
    finish_read_keys,
    read_decision_term,
    winner_code,
)
from gumtrace.kernels.cuda.noise import row_of
from gumtrace.kernels.cuda.order import code, smaller
from gumtrace.kernels.cuda.scaled_float import add, total
from gumtrace.kernels.cuda.subset_long import (
    TILE,
    by_decision_of,
    count_of,
    new_ordered,
    new_parts,
    place_of,
    sum_parts,
    winners_of,
)


@triton.jit(do_not_specialize=["rows"])
def _sum_decisions(
    winners, alpha, h, beta, rows, ordered, parts, exponents, d, slots, blocks,
    MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    item, block = place_of(blocks)
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    x = b
    if MODE == GRAD:
        x = tl.load(beta + row_of(item, rows) * d + winner, mask=winner >= 0, other=0.0)
        tl.store(ordered + item * slots + b, x, mask=b < slots)
    v, e = read_decision_term(x, alpha, h, item, slots, b, winner >= 0, MODE, beta.dtype.element_ty)
    v, e = total(v, e)
    tl.store(parts + item * blocks + block, v)
    tl.store(exponents + item * blocks + block, e)


@triton.jit
def _sum_to(
    x, alpha, h, parts, exponents, item, block, slots, blocks, b, live, MODE: tl.constexpr, dtype: tl.constexpr
):
    """The sums over each decision of a block and all before it."""
    v, e = read_decision_term(x, alpha, h, item, slots, b, live, MODE, dtype)
    v, e = tl.associative_scan((v, e), 0, add)
    v_before, e_before = sum_parts(parts, exponents, item * blocks, block)
    return add(v, e, v_before, e_before)


@triton.jit
def _hold(
    winners, alpha, h, beta, parts, exponents, codes, lowest, count, d, slots, blocks,
    MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Code + position of each winner, the lowest of a block, and how many winners it has."""
    item, block = place_of(blocks)
    dtype: tl.constexpr = beta.dtype.element_ty
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    v, e = _sum_to(b, alpha, h, parts, exponents, item, block, slots, blocks, b, winner >= 0, MODE, dtype)
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


@triton.jit(do_not_specialize=["rows", "stream"])
def _finish_losers(
    beta, rows, grad, g, out, more, seed, stream, parts, exponents, lowest, count, d, key_blocks, blocks,
    MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    item, block = place_of(key_blocks)
    key = block * WIDTH + tl.arange(0, WIDTH)
    v_all, e_all = sum_parts(parts, exponents, item * blocks, blocks)
    v, e = v_all + tl.zeros([WIDTH], v_all.dtype), e_all + key * 0
    cap = key
    if MODE == CONDITIONAL:  # below the last winner
        cap = _lowest_of(lowest, item * blocks, blocks, v_all.dtype) - count_of(count, item * blocks, blocks) + key * 0
    finish_keys(v, e, cap, key < 0, beta, rows, grad, g, out, more, seed, stream, item, d, key, key < d, MODE)


@triton.jit(do_not_specialize=["rows", "stream"])
def _finish_winners(
    winners, alpha, h, beta, rows, ordered, grad, g, out, more, seed, stream, parts, exponents, codes, lowest, d, slots,
    blocks, MODE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    item, block = place_of(blocks)
    dtype: tl.constexpr = beta.dtype.element_ty
    b = block * WIDTH + tl.arange(0, WIDTH)
    winner = winners_of(winners, item, d, slots, b)
    live = winner >= 0
    x = b
    if MODE == GRAD:
        x = tl.load(ordered + item * slots + b, mask=b < slots, other=0.0)
    v, e = _sum_to(x, alpha, h, parts, exponents, item, block, slots, blocks, b, live, MODE, dtype)
    cap = b
    if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
        above = _lowest_of(lowest, item * blocks, block, dtype)
        held = tl.load(codes + item * slots + b, mask=b < slots, other=0)  # those beyond come last
        cap = tl.minimum(tl.associative_scan(held, 0, smaller), above) - b
    if MODE == GRAD:
        finish_read_keys(x, v, e, cap, live, grad, g, out, more, seed, stream, item, d, winner, live, MODE)
    else:
        finish_keys(v, e, cap, live, beta, rows, grad, g, out, more, seed, stream, item, d, winner, live, MODE)


def down(geometry, winners, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    d, slots, items, rows = geometry.keys, geometry.winner_slots, len(winners), len(beta)
    _, blocks, by_decision = by_decision_of(slots, mode)
    key_blocks = triton.cdiv(d, subset_long.BLOCK)
    parts, exponents = new_parts(beta, items, blocks)
    codes = lowest = count = None
    ordered = new_ordered(beta, items, slots) if mode == GRAD else None  # the one that needs them twice
    terms, sums, ends = (winners, alpha, h, beta), (parts, exponents), (d, slots, blocks)
    _sum_decisions[(items * blocks,)](*terms, rows, ordered, *sums, *ends, **by_decision)
    if mode == CONDITIONAL:
        kind = {"dtype": torch.int64 if beta.dtype == torch.float64 else torch.int32, "device": beta.device}
        codes, lowest = torch.empty(items, slots, **kind), torch.empty(items, blocks, **kind)
        count = torch.empty(items, blocks, dtype=torch.int32, device=beta.device)
        _hold[(items * blocks,)](*terms, *sums, codes, lowest, count, *ends, **by_decision)
    where = (grad, g, out, more, seed, stream, *sums)
    options = {"MODE": mode, "WIDTH": subset_long.BLOCK, "num_warps": 4, **EXACT}
    _finish_losers[(items * key_blocks,)](beta, rows, *where, lowest, count, d, key_blocks, blocks, **options)
    where = (*terms, rows, ordered, *where, codes, lowest, *ends)
    _finish_winners[(items * blocks,)](*where, **by_decision)
