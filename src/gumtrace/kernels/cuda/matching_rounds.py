"""Greedy matchings of large matrices, by several programs an item.

Rows propose as in matching.py, but all free rows at once: in a round each finds the best of the columns that would have
it, and each column keeps the best of its proposals. The matching is the same, whatever the order. Free rows are about
0.4 times as many after each round, so that a program an item is soon enough for those that are left: the last of the
launches, of which the number is fixed. That is repeated in rounds, as long as these are few, and ends as matching.py
does: where rows agree on what is best, a round serves one. The first round draws the noise and stores it.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.noise import multiple, noisy
from gumtrace.kernels.cuda.order import before, code, least

ROUNDS = 8  # at most
ALONE = 1 << 15  # entries of free rows that are left to one program
ROWS, COLS = 4, 256  # of a tile
WAITING = 16  # rows of a tile of those that are left
TURNS = 8  # rounds of these, before they propose one by one
NOBODY = tl.constexpr(2**31 - 1)  # for minima over rows
RANKED = tl.constexpr(8)  # columns that are compared with all at a time


@triton.jit
def _bids(source, rows, seed, drawn, held, holder, item, row, here, n, m, FIRST: tl.constexpr, COLS: tl.constexpr):
    """The best column that would have each of some free rows, and G there: -1 for none, the code of inf for a row with
    what is not a number. What columns hold may come from other threads, by atomics."""
    lowest = least(tl.zeros([], source.dtype.element_ty))
    best = tl.zeros(row.shape, lowest.dtype) + lowest
    place = row * 0 - 1
    for start in range(0, m, COLS):
        col = start + tl.arange(0, COLS)
        key = row[:, None] * m + col[None, :]
        inside = here[:, None] & (col < m)[None, :]
        g = noisy(source, rows, seed, item, n * m, key, inside)
        c = code(g)
        if FIRST:
            if drawn is not None:
                tl.store(drawn + item * n * m + key, g, mask=inside)
            c = tl.where(g < float("inf"), c, code(tl.full((), float("inf"), g.dtype)))
        else:
            c_held = tl.load(held + col, mask=col < m, other=lowest, cache_modifier=".cg")
            by = tl.load(holder + col, mask=col < m, other=-1, cache_modifier=".cg")
            c = tl.where(before(c, row[:, None], c_held[None, :], by[None, :]), c, lowest)
        top = tl.max(c, 1)
        first = tl.min(tl.where(c == top[:, None], col[None, :], NOBODY), 1)
        place = tl.where(top > best, first, place)
        best = tl.maximum(best, top)
    return best, place


@triton.jit(do_not_specialize=["rows", "n", "m"])
def _propose(
    source,
    rows,
    seed,
    drawn,
    held,
    holder,
    free,
    bid_c,
    bid_col,
    n,
    m,
    FIRST: tl.constexpr,
    FOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The proposals of a block of rows."""
    blocks = tl.cdiv(n, ROWS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    here = row < n
    if not FIRST:
        here = here & (tl.load(free + item * n + row, mask=here, other=0) != 0)
        if tl.max(here.to(tl.int32), 0) == 0:
            return
    m = multiple(m, FOURS)
    held += item * m
    holder += item * m
    best, place = _bids(source, rows, seed, drawn, held, holder, item, row, here, n, m, FIRST, COLS)
    tl.store(bid_c + item * n + row, best, mask=here)
    tl.store(bid_col + item * n + row, place, mask=here)


@triton.jit
def _keep(
    held, holder, free, bid_c, bid_col, first_at, status, n, m, FIRST: tl.constexpr, N: tl.constexpr, M: tl.constexpr
):
    """Columns keep their best proposals; rows that were refused or driven out are free. Returns how many are. Atomics
    have numbers that change nothing in place of masks, which the interpreter refuses. Barriers order them: what is not
    relaxed waits for all memory, each time."""
    row, col = tl.arange(0, N), tl.arange(0, M)
    lowest = least(tl.zeros([], tl.float64 if bid_c.dtype.element_ty == tl.int64 else tl.float32))
    c = tl.load(bid_c + row, mask=row < n, other=lowest, cache_modifier=".cg")
    place = tl.load(bid_col + row, mask=row < n, other=-1, cache_modifier=".cg")
    bids = (row < n) & (place >= 0)
    old_holder = col * 0 - 1
    if FIRST:
        wrong = tl.max(c, 0) == -lowest  # the code of inf
        tl.store(status, tl.where(wrong, 2, 0).to(tl.int8))
        bids = bids & (wrong == 0)
        tl.store(held + col, lowest, mask=col < m)
    else:
        bids = bids & (tl.load(free + row, mask=row < n, other=0, cache_modifier=".cg") != 0)
        old_holder = tl.load(holder + col, mask=col < m, other=-1, cache_modifier=".cg")
    tl.store(first_at + col, NOBODY, mask=col < m)
    tl.debug_barrier()
    place = tl.where(bids, place, 0)
    tl.atomic_max(held + place, tl.where(bids, c, lowest), sem="relaxed")
    tl.debug_barrier()
    best = bids & (tl.load(held + place, cache_modifier=".cg") == c)
    tl.atomic_min(first_at + place, tl.where(best, row, NOBODY), sem="relaxed")
    tl.debug_barrier()
    refused = bids & (tl.load(first_at + place, cache_modifier=".cg") != row)
    tl.store(free + row, refused.to(tl.int32), mask=row < n)
    tl.debug_barrier()
    new = tl.load(first_at + col, mask=col < m, other=NOBODY, cache_modifier=".cg")
    driven = (new < NOBODY) & (old_holder >= 0)
    tl.store(free + old_holder, 1, mask=driven)
    tl.store(holder + col, tl.where(new < NOBODY, new, old_holder), mask=col < m)
    return tl.sum(refused.to(tl.int32), 0) + tl.sum(driven.to(tl.int32), 0)


@triton.jit(do_not_specialize=["n", "m"])
def _accept(
    held,
    holder,
    free,
    bid_c,
    bid_col,
    first_at,
    left,
    status,
    n,
    m,
    FIRST: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    if not FIRST:  # noqa: SIM102 (known at compile time: then nothing is loaded)
        if tl.load(left + item) == 0:
            return
    held, holder, first_at = held + item * m, holder + item * m, first_at + item * m
    free, bid_c, bid_col = free + item * n, bid_c + item * n, bid_col + item * n
    tl.store(left + item, _keep(held, holder, free, bid_c, bid_col, first_at, status + item, n, m, FIRST, N, M))


@triton.jit
def propose(tops, held, holder, source, rows, seed, item, n, m):
    """Rows propose one by one, those with larger tops first, until none is free: code of the entry that each column
    holds, and its row. Rows whose top is not above the code of -inf do not propose."""
    row, col = tl.arange(0, tops.shape[0]), tl.arange(0, held.shape[0])
    lowest = least(tl.zeros([], source.dtype.element_ty))
    for _ in range(tl.sum((tops > lowest).to(tl.int32), 0)):
        top = tl.max(tops, 0)
        proposer = tl.min(tl.where(tops == top, row, NOBODY), 0)
        tops = tl.where(row == proposer, lowest - 1, tops)
        while proposer >= 0:
            c = code(noisy(source, rows, seed, item, n * m, proposer * m + col, col < m))
            welcome = before(c, proposer, held, holder)
            best = tl.max(tl.where(welcome, c, lowest), 0)
            place = tl.min(tl.where(welcome & (c == best), (col << 16) | (holder + 1), 0x7FFF0000), 0)
            taken = col == (place >> 16)
            held = tl.where(taken, best, held)
            holder = tl.where(taken, proposer, holder)
            proposer = (place & 0xFFFF) - 1  # who was driven out; -1 also where no column was left
    return held, holder


@triton.jit
def rank(winners, held, holder, n, m, N: tl.constexpr):
    """Write the pairs in order, -1 behind them."""
    col = tl.arange(0, held.shape[0])
    matched = holder >= 0
    key = holder * m + col
    order = col * 0
    for start in range(0, held.shape[0], RANKED):
        other = start + tl.arange(0, RANKED)
        other_held, other_key = tl.gather(held, other, 0), tl.gather(key, other, 0)
        sooner = before(other_held[:, None], other_key[:, None], held[None, :], key[None, :])  # (RANKED, columns)
        order += tl.sum(sooner.to(tl.int32), 0)
    tl.store(winners + order, key, mask=matched)
    b = tl.arange(0, N)
    tl.store(winners + b, -1, mask=(b >= tl.sum(matched.to(tl.int32), 0)) & (b < n))


@triton.jit(do_not_specialize=["n", "m"])
def _finish(
    source,
    held,
    holder,
    free,
    bid_c,
    bid_col,
    first_at,
    waiting,
    left,
    winners,
    n,
    m,
    FOURS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The rows that are left: further rounds, a few rows at a time, and one by one those that still are."""
    item = tl.program_id(0).to(tl.int64)
    row, col = tl.arange(0, N), tl.arange(0, M)
    lowest = least(tl.zeros([], source.dtype.element_ty))
    m = multiple(m, FOURS)
    source += item * n * m
    held, holder, first_at = held + item * m, holder + item * m, first_at + item * m
    free, bid_c, bid_col, waiting = free + item * n, bid_c + item * n, bid_col + item * n, waiting + item * n
    more = tl.load(left + item)
    turn = tl.full((), 0, tl.int32)
    while (more > 0) & (turn < TURNS):
        waits = tl.load(free + row, mask=row < n, other=0, cache_modifier=".cg") != 0
        tl.store(waiting + tl.cumsum(waits.to(tl.int32), 0) - 1, row, mask=waits)
        tl.debug_barrier()
        for start in range(0, more, ROWS):
            i = start + tl.arange(0, ROWS)
            here = i < more
            some = tl.load(waiting + i, mask=here, other=0, cache_modifier=".cg")
            best, place = _bids(source, 1, None, None, held, holder, item, some, here, n, m, False, COLS)
            tl.store(bid_c + some, best, mask=here)
            tl.store(bid_col + some, place, mask=here)
        tl.debug_barrier()
        more = _keep(held, holder, free, bid_c, bid_col, first_at, None, n, m, False, N, M)
        turn += 1
        tl.debug_barrier()
    waits = tl.load(free + row, mask=row < n, other=0, cache_modifier=".cg") != 0
    tops = tl.load(bid_c + row, mask=row < n, other=lowest, cache_modifier=".cg")
    c = tl.load(held + col, mask=col < m, other=lowest, cache_modifier=".cg")
    by = tl.load(holder + col, mask=col < m, other=-1, cache_modifier=".cg")
    c, by = propose(tl.where(waits, tops, lowest - 1), c, by, source, 1, None, item, n, m)
    rank(winners + item * n, c, by, n, m, N)


def trace(geometry, source, seed, winners, status):
    n, m, items = geometry.rows, geometry.columns, len(winners)
    codes = torch.int64 if source.dtype == torch.float64 else torch.int32
    width = {"N": max(16, triton.next_power_of_2(n)), "M": max(16, triton.next_power_of_2(m))}
    warps = min(16, max(1, max(width.values()) // 128))
    fours = {"FOURS": m % 4 == 0, "COLS": COLS}

    def new(size, dtype=torch.int32):
        return torch.empty(items, size, dtype=dtype, device=source.device)

    held, holder, free, bid_c, bid_col = new(m, codes), new(m), new(n), new(n, codes), new(n)
    first_at, waiting, left = new(m), new(n), new(1)
    g = source if seed is None else new(n * m, source.dtype)
    for step in range(rounds_of(n, m)):
        drawn = None if seed is None or step > 0 else g
        read = (source, len(source), seed, drawn) if step == 0 else (g, len(g), None, None)
        first = {"FIRST": step == 0, **EXACT}
        bids = (held, holder, free, bid_c, bid_col)
        rows = 2 * ROWS if step == 0 else ROWS  # all of them propose, and later few
        _propose[(items * triton.cdiv(n, rows),)](*read, *bids, n, m, ROWS=rows, num_warps=4, **fours, **first)
        _accept[(items,)](*bids, first_at, left, status, n, m, **width, num_warps=warps, **first)
    where = (g, held, holder, free, bid_c, bid_col, first_at, waiting, left, winners, n, m)
    _finish[(items,)](*where, TURNS=TURNS, ROWS=WAITING, num_warps=max(8, warps), **fours, **width, **EXACT)


def rounds_of(n, m):
    """How many rounds several programs an item take: until one is soon done with the rows that are left."""
    rounds = 1
    while rounds < ROUNDS and n * m * 0.4**rounds > ALONE:
        rounds += 1
    return rounds
