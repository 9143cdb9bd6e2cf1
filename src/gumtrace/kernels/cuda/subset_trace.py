"""The first k keys, or all, in order: one by one where k is small, else sorted, by a program or by torch."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.noise import noisy, row_of
from gumtrace.kernels.cuda.order import code, least
from gumtrace.kernels.cuda.sampling import perturb
from gumtrace.kernels.geometry import NOT_A_NUMBER, STUCK, PermutationGeometry

IN_REGISTERS = 1024  # longest row that one program sorts; longer ones go to torch's sort
FEW = 64  # most winners that are picked one by one
MANY = 1 << 20  # keys that torch sorts at once, if that is more than an eighth of them


@triton.jit
def _wanted(g, sizes, size_rows, item, slots):
    """Whether a key is not a number, as a status, and how many winners there shall be: none then."""
    wrong = tl.max(tl.where(g < float("inf"), 0, 2), 0)
    k = slots
    if sizes is not None:
        k = tl.load(sizes + row_of(item, size_rows))
    return wrong, tl.where(wrong > 0, 0, k)


@quick
@triton.jit
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
@triton.jit
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


def trace(geometry, source, sizes, seed, winners, links, status):
    d, slots, items = geometry.keys, geometry.winner_slots, len(winners)
    every = isinstance(geometry, PermutationGeometry)
    few = slots <= FEW and not every
    if d > IN_REGISTERS or (source.dtype == torch.float64 and not few):
        return _by_sorting(geometry, source, sizes, seed, winners, status)
    block = max(16, triton.next_power_of_2(d))
    size_rows = 1 if sizes is None else len(sizes)
    where = (source, len(source), sizes, size_rows, seed, winners, status, d, slots)
    if few:
        _pick[(items,)](*where, WIDTH=block, num_warps=max(1, min(4, block // 256)), **EXACT)
    else:
        _sort[(items,)](*where, ALL=every, WIDTH=block, num_warps=max(1, block // 512), **EXACT)


def _by_sorting(geometry, source, sizes, seed, winners, status):
    """Long rows, and codes that leave no room for an index, by torch's own sort. That takes some six times what it
    sorts, so rows go by in chunks where they are many."""
    items, d = len(winners), geometry.keys
    k = None if sizes is None else sizes.repeat(items // len(sizes))  # (items,)
    rows = max(1, items // 8, MANY // max(d, 1))
    for first in range(0, items, rows):
        some = slice(first, first + rows)
        if seed is None:
            g = source[some] + 0.0  # -0.0 and 0.0 are one number
        else:
            g = torch.empty(len(winners[some]), d, dtype=source.dtype, device=source.device)
            perturb(geometry, source, seed, g, first)
            g += 0.0
        every = isinstance(geometry, PermutationGeometry)
        _sort_rows(g, None if k is None else k[some], every, winners[some], status[some])


def _sort_rows(g, k, every, winners, status):
    slots = winners.shape[1]
    wrong = ~(g < torch.inf).all(-1)  # (rows,)
    g, order = g.sort(dim=-1, descending=True, stable=True)
    idle = g[:, :slots] == -torch.inf  # (rows, slots)
    idle |= wrong[:, None]
    if k is not None:
        idle |= torch.arange(slots, device=g.device) >= k[:, None]
    winners.copy_(order[:, :slots]).masked_fill_(idle, -1)
    status.copy_(wrong).mul_(NOT_A_NUMBER)
    if not every:
        stuck = slots - idle.sum(-1) < (slots if k is None else k)
        status.masked_fill_(stuck & ~wrong, STUCK)
