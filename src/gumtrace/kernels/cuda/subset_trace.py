"""The first k keys, or all, in order: one by one where k is small, else sorted, by a program or by torch. Of long rows
the first k are selected (subset_select.py) and then sorted."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda import subset_select
from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.cuda.noise import noisy, row_of
from gumtrace.kernels.cuda.order import code, least
from gumtrace.kernels.cuda.sampling import perturb
from gumtrace.kernels.geometry import PermutationGeometry

IN_REGISTERS = 1024  # longest row that one program sorts
FEW = 64  # most winners that are picked one by one
MANY = 1 << 21  # keys that torch sorts at once, if that is more than an eighth of them


@triton.jit
def _wanted(g, sizes, size_rows, item, slots):
    """Whether a key is not a number, as a status, and how many winners there shall be: none then."""
    wrong = tl.max(tl.where(g < float("inf"), 0, 2), 0)
    k = slots
    if sizes is not None:
        k = tl.load(sizes + row_of(item, size_rows))
    return wrong, tl.where(wrong > 0, 0, k)


@quick
@triton.jit(do_not_specialize=["rows", "size_rows"])
def _pick(source, rows, sizes, size_rows, seed, winners, status, d, slots, WIDTH: tl.constexpr):
    """The first k keys, one by one."""
    item = tl.program_id(0).to(tl.int64)
    key = tl.arange(0, WIDTH)
    g = noisy(source, rows, seed, item, d, key, key < d)
    wrong, k = _wanted(g, sizes, size_rows, item, slots)
    lowest = least(g)
    c = code(g)
    found = 0
    for b in range(slots):
        top = tl.max(c, 0)
        winner = tl.min(tl.where(c == top, key, WIDTH), 0)
        good = (top > lowest) & (b < k)
        tl.store(winners + item * slots + b, tl.where(good, winner, -1))
        c = tl.where(key == winner, lowest, c)
        found += good.to(tl.int32)
    tl.store(status + item, tl.maximum(wrong, (found < k).to(tl.int32)).to(tl.int8))


@quick
@triton.jit(do_not_specialize=["rows", "size_rows"])
def _sort(source, rows, sizes, size_rows, seed, winners, status, d, slots, ALL: tl.constexpr, WIDTH: tl.constexpr):
    """Keys in order, all or the first k: float32 codes with their indices behind them as one integer."""
    item = tl.program_id(0).to(tl.int64)
    key = tl.arange(0, WIDTH)
    g = noisy(source, rows, seed, item, d, key, key < d)
    wrong, k = _wanted(g, sizes, size_rows, item, slots)
    packed = tl.sort((code(g).to(tl.int64) << 32) | (WIDTH - 1 - key).to(tl.int64), descending=True)
    good = ((packed >> 32).to(tl.int32) > least(g)) & (key < k)
    tl.store(
        winners + item * slots + key,
        tl.where(good, WIDTH - 1 - (packed & 0xFFFFFFFF).to(tl.int32), -1),
        mask=key < slots,
    )
    if not ALL:
        wrong = tl.maximum(wrong, (tl.sum(good.to(tl.int32), 0) < k).to(tl.int32))
    tl.store(status + item, wrong.to(tl.int8))


@triton.jit(do_not_specialize=["size_rows"])
def _order(values, keys, sizes, size_rows, winners, status, slots, n, WIDTH: tl.constexpr):
    """The first k of n selected keys in order, as `_sort` does it."""
    item = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, WIDTH)
    g = tl.load(values + item * n + b, mask=b < n, other=float("-inf"))
    key = tl.load(keys + item * n + b, mask=b < n, other=0)
    wrong, k = _wanted(g, sizes, size_rows, item, slots)
    packed = tl.sort((code(g).to(tl.int64) << 32) | (0x7FFFFFFF - key).to(tl.int64), descending=True)
    good = ((packed >> 32).to(tl.int32) > least(g)) & (b < k)
    winner = 0x7FFFFFFF - (packed & 0xFFFFFFFF).to(tl.int32)
    tl.store(winners + item * slots + b, tl.where(good, winner, -1), mask=b < slots)
    stuck = (tl.sum(good.to(tl.int32), 0) < k).to(tl.int32)
    tl.store(status + item, tl.maximum(wrong, stuck).to(tl.int8))


@triton.jit(do_not_specialize=["size_rows", "first"])
def _take(
    g, order, keys, sizes, size_rows, winners, status, first, n, slots, blocks, ALL: tl.constexpr, WIDTH: tl.constexpr
):
    """The first k of rows that torch has sorted, where what is not a number comes first."""
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    b = block * WIDTH + tl.arange(0, WIDTH)
    top = tl.load(g + row * n, mask=n > 0, other=float("-inf"))
    wrong = tl.where(top < float("inf"), 0, 2)
    k = slots
    if sizes is not None:
        k = tl.load(sizes + row_of(first + row, size_rows))
    value = tl.load(g + row * n + b, mask=b < n, other=float("-inf"))
    winner = tl.load(order + row * n + b, mask=b < n, other=0)
    if keys is not None:
        winner = tl.load(keys + row * n + winner, mask=b < n, other=0)
    good = (value > float("-inf")) & (wrong == 0) & (b < k)
    tl.store(winners + row * slots + b, tl.where(good, winner.to(tl.int32), -1), mask=b < slots)
    if block == 0:
        if not ALL:
            last = tl.load(g + row * n + k - 1, mask=(k > 0) & (k <= n), other=float("-inf"))
            wrong = tl.maximum(wrong, ((k > 0) & (last == float("-inf"))).to(tl.int32))
        tl.store(status + row, wrong.to(tl.int8))


def trace(geometry, source, sizes, seed, winners, links, status):
    d, slots, items = geometry.keys, geometry.winner_slots, winners.shape[0]
    every = isinstance(geometry, PermutationGeometry)
    few = slots <= FEW and not every
    if d > IN_REGISTERS and not every and subset_select.serves(slots):
        return _by_selection(source, sizes, seed, winners, status)
    if d > IN_REGISTERS or (source.dtype == torch.float64 and not few):
        return _by_sorting(geometry, source, sizes, seed, winners, status)
    block = max(16, power_of_2(d))
    size_rows = 1 if sizes is None else sizes.shape[0]
    where = (source, source.shape[0], sizes, size_rows, seed, winners, status, d, slots)
    if few:
        _pick[(items,)](*where, WIDTH=block, num_warps=max(1, min(4, block // 256)), **EXACT)
    else:
        _sort[(items,)](*where, ALL=every, WIDTH=block, num_warps=max(1, block // 512), **EXACT)


def _by_selection(source, sizes, seed, winners, status):
    """Long rows, few winners: only those are sorted."""
    items, slots = winners.shape
    n = max(slots, 1)  # one at least tells whether all are numbers
    values, keys = subset_select.select(source, seed, items, n)
    if source.dtype == torch.float64 or n > IN_REGISTERS:
        return _sort_rows(values, keys, sizes, 0, False, winners, status)
    size_rows = 1 if sizes is None else sizes.shape[0]
    width = max(16, power_of_2(n))
    where = (values, keys, sizes, size_rows, winners, status, slots, n)
    _order[(items,)](*where, WIDTH=width, num_warps=max(1, width // 256), **EXACT)


def _by_sorting(geometry, source, sizes, seed, winners, status):
    """Long rows, and codes that leave no room for an index, by torch's own sort. That takes some six times what it
    sorts, so rows go by in chunks where they are many."""
    items, d = winners.shape[0], geometry.keys
    every = isinstance(geometry, PermutationGeometry)
    rows = max(1, items // 8, MANY // max(d, 1))
    for first in range(0, items, rows):
        some = slice(first, first + rows)
        if seed is None:
            g = source[some] + 0.0  # -0.0 and 0.0 are one number
        else:
            g = torch.empty(len(winners[some]), d, dtype=source.dtype, device=source.device)
            perturb(geometry, source, seed, g, first)
        _sort_rows(g, None, sizes, first, every, winners[some], status[some])


def _sort_rows(g, keys, sizes, first, every, winners, status):
    """Items from the first on, given G, and the keys that it is of if these are not 0, 1, .."""
    g, order = g.sort(dim=-1, descending=True, stable=True)
    slots = winners.shape[1]
    width = min(1024, max(16, power_of_2(slots)))
    blocks = max(1, triton.cdiv(slots, width))
    size_rows = 1 if sizes is None else sizes.shape[0]
    where = (g, order, keys, sizes, size_rows, winners, status, first, g.shape[1], slots, blocks)
    _take[(len(g) * blocks,)](*where, ALL=every, WIDTH=width, num_warps=max(1, width // 256), **EXACT)
