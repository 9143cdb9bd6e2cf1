"""Greedy matchings: take the largest entry, cross out its row and column, repeat.

Rows and columns that all rank each other by G have one stable matching, and it is the greedy one. So rows propose: a
row takes the best of the columns that would have it, which are those that are free or hold a smaller entry, and the
row it drives out proposes again. A proposal reads one row of the matrix and nothing else. With the rows in order of
their largest entries there are about 1.2 n proposals, a few times n where rows or columns agree on what is best; the
order is for speed alone. Where the noise is drawn here, anew for every proposal and never stored, rows go in order of
their largest log-rates: about 1.4 n. Ranking the pairs then gives the order of the trace.

An entry is crossed out with its row or with its column, whichever is matched first. So sums over the entries of a
row, and over those of a column, make the sums over what each step crosses out.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    LOG_PROB,
    SHARE,
    decision_term,
    finish_decisions,
    finish_keys,
    key_term,
    known,
    winner_code,
)
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.noise import noisy, row_of
from gumtrace.kernels.cuda.order import before, code, least, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, scaled

WIDEST = 512  # most columns: a program holds a number for each
RANKED = tl.constexpr(8)  # columns that are compared with all at a time


@triton.jit
def _entries(block, n, m, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Some rows (ROWS,), and the keys of their entries (ROWS, COLS). Behind the last row it comes again: a mask by rows
    would cost more than it spares."""
    row, col = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    return row, tl.minimum(row, n - 1)[:, None] * m + col[None, :], (col < m)[None, :]


@triton.jit
def _tops(source, n, m, N: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Codes of the largest entry of each row (N,); of inf for a row with a nan."""
    lowest = least(tl.full((), 0.0, source.dtype.element_ty))
    tops = tl.full([N // ROWS, ROWS], 0, tl.int32) + lowest
    for block in range(tl.cdiv(n, ROWS)):
        row, key, inside = _entries(block, n, m, ROWS, COLS)
        x = tl.load(source + key, mask=inside, other=float("-inf"))
        top = tl.max(code(tl.where(x < float("inf"), x, float("inf"))), 1)
        tops = _put(tops, block, tl.where(row < n, top, lowest))
    return tl.reshape(tops, [N])


@triton.jit
def _put(all_rows, block, some_rows):
    """Numbers by row (blocks, ROWS), with those of one block (ROWS,) filled in."""
    here = tl.arange(0, all_rows.shape[0])[:, None] == block
    return tl.where(here, some_rows[None, :], all_rows)


@quick
@triton.jit
def _trace(
    source,
    rows,
    seed,
    winners,
    status,
    n,
    m,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    row, col = tl.arange(0, N), tl.arange(0, COLS)
    lowest = least(tl.full((), 0.0, source.dtype.element_ty))
    source += row_of(item, rows) * n * m
    tops = _tops(source, n, m, N, ROWS, COLS)
    wrong = tl.max(tops, 0) == code(tl.full((), float("inf"), source.dtype.element_ty))
    tl.store(status + item, tl.where(wrong, 2, 0).to(tl.int8))
    held = lowest + col * 0  # the entry that each column holds, and its row
    holder = col * 0 - 1
    for _ in range(tl.where(wrong, 0, n)):
        top = tl.max(tops, 0)
        proposer = tl.min(tl.where(tops == top, row, N), 0)
        tops = tl.where(row == proposer, lowest - 1, tops)
        proposer = tl.where(top > lowest, proposer, -1)
        while proposer >= 0:
            c = code(noisy(source, 1, seed, item, n * m, proposer * m + col, col < m))
            welcome = before(c, proposer, held, holder)
            best = tl.max(tl.where(welcome, c, lowest), 0)
            place = tl.min(tl.where(welcome & (c == best), (col << 16) | (holder + 1), 0x7FFF0000), 0)
            taken = col == (place >> 16)
            held = tl.where(taken, best, held)
            holder = tl.where(taken, proposer, holder)
            proposer = (place & 0xFFFF) - 1  # who was driven out; -1 also where no column was left
    _rank(winners + item * n, held, holder, n, m, N, COLS)


@triton.jit
def _rank(winners, held, holder, n, m, N: tl.constexpr, COLS: tl.constexpr):
    """Write the pairs in order, -1 behind them."""
    col = tl.arange(0, COLS)
    matched = holder >= 0
    key = holder * m + col
    rank = col * 0
    for start in range(0, COLS, RANKED):
        other = start + tl.arange(0, RANKED)
        other_held, other_key = tl.gather(held, other, 0), tl.gather(key, other, 0)
        sooner = before(other_held[:, None], other_key[:, None], held[None, :], key[None, :])  # (RANKED, COLS)
        rank += tl.sum(sooner.to(tl.int32), 0)
    tl.store(winners + rank, key, mask=matched)
    b = tl.arange(0, N)
    tl.store(winners + b, -1, mask=(b >= tl.sum(matched.to(tl.int32), 0)) & (b < n))


@triton.jit
def _steps(winners, steps, n, m, never, N: tl.constexpr, COLS: tl.constexpr):
    """Write the steps that matched each row, and behind them each column; n for rows that were not, `never` for
    columns."""
    b, col = tl.arange(0, N), tl.arange(0, COLS)
    tl.store(steps + b, n, mask=b < n)
    tl.store(steps + n + col, never, mask=col < m)
    winner = known(tl.load(winners + b, mask=b < n, other=-1), n * m)
    tl.debug_barrier()
    tl.store(steps + winner // m, b, mask=winner >= 0)
    tl.store(steps + n + winner % m, b, mask=winner >= 0)
    tl.debug_barrier()
    return winner, tl.load(steps + n + col, mask=col < m, other=0)


@quick
@triton.jit
def _up(
    winners,
    steps,
    beta,
    rows,
    h,
    alpha,
    out,
    log_prob,
    z,
    seed,
    stream,
    n,
    m,
    MODE: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    beta += row_of(item, rows) * n * m
    steps += item * (n + m)
    winner, col_step = _steps(winners + item * n, steps, n, m, n, N, COLS)
    dtype: tl.constexpr = beta.dtype.element_ty
    v_rows, e_rows = tl.zeros([N // ROWS, ROWS], dtype), tl.full([N // ROWS, ROWS], NOTHING, tl.int32)
    v_cols, e_cols = tl.zeros([COLS], dtype), tl.full([COLS], NOTHING, tl.int32)
    for block in range(tl.cdiv(n, ROWS)):
        row, key, inside = _entries(block, n, m, ROWS, COLS)
        row_step = tl.load(steps + row, mask=row < n, other=-1)  # rows behind the last keep to themselves
        by_row = row_step[:, None] <= col_step[None, :]  # (ROWS, COLS): crossed out with the row, or with the column
        v, e = key_term(beta, 1, h, item, n * m, key, inside, MODE)
        e_row = tl.max(tl.where(by_row, e, NOTHING), 1)
        e_col = tl.max(tl.where(by_row, NOTHING, e), 0)
        v = scaled(v, e - tl.where(by_row, e_row[:, None], e_col[None, :]))
        v_rows = _put(v_rows, block, tl.sum(tl.where(by_row, v, 0.0), 1))
        e_rows = _put(e_rows, block, e_row)
        v_cols, e_cols = add(v_cols, e_cols, tl.sum(tl.where(by_row, 0.0, v), 0), e_col)
    live = winner >= 0
    key = tl.maximum(winner, 0)
    v_row, e_row = tl.gather(tl.reshape(v_rows, [N]), key // m, 0), tl.gather(tl.reshape(e_rows, [N]), key // m, 0)
    v, e = add(v_row, e_row, tl.gather(v_cols, key % m, 0), tl.gather(e_cols, key % m, 0))
    v, e = tl.associative_scan((tl.where(live, v, 0.0), tl.where(live, e, NOTHING)), 0, add, reverse=True)
    b = tl.arange(0, N)
    part = finish_decisions(v, e, beta, 1, alpha, out, z, seed, stream, item, n * m, n, b, winner, live, MODE)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, part.to(dtype))


@quick
@triton.jit
def _down(
    winners,
    steps,
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
    n,
    m,
    MODE: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    beta += row_of(item, rows) * n * m
    steps += item * (n + m)
    # entries that are never crossed out are no winners, but in SHARE they are: so no gradient comes through them
    never = n if MODE == SHARE else n + 1
    winner, col_step = _steps(winners + item * n, steps, n, m, never, N, COLS)
    b = tl.arange(0, N)
    dtype: tl.constexpr = beta.dtype.element_ty
    v, e = decision_term(alpha, h, beta, 1, item, n * m, n, b, winner, winner >= 0, MODE, dtype)
    v, e = tl.associative_scan((v, e), 0, add)
    cap = e
    if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
        cap = tl.associative_scan(winner_code(v, e, dtype) + b, 0, smaller) - b
    v_cols, e_cols, cap_cols = _at(v, e, cap, col_step, n)
    for block in range(tl.cdiv(n, ROWS)):
        row, key, inside = _entries(block, n, m, ROWS, COLS)
        row_step = tl.load(steps + tl.minimum(row, n - 1))
        v_rows, e_rows, cap_rows = _at(v, e, cap, row_step, n)
        by_row = row_step[:, None] <= col_step[None, :]  # (ROWS, COLS): crossed out with the row, or with the column
        won = row_step[:, None] == col_step[None, :]
        finish_keys(
            tl.where(by_row, v_rows[:, None], v_cols[None, :]),
            tl.where(by_row, e_rows[:, None], e_cols[None, :]),
            tl.where(by_row, cap_rows[:, None], cap_cols[None, :]) - tl.where(won, 0, 1),
            won,
            beta,
            1,
            grad,
            g,
            out,
            more,
            seed,
            stream,
            item,
            n * m,
            key,
            inside,
            MODE,
        )


@triton.jit
def _at(v, e, cap, step, n):
    """What is by step, at some steps; nothing where there was none, and a cap that leaves -inf."""
    some = step < n
    place = tl.where(some, step, 0)
    none = (least(v) + 1).to(cap.dtype)
    v, e, cap = tl.gather(v, place, 0), tl.gather(e, place, 0), tl.gather(cap, place, 0)
    return tl.where(some, v, 0.0), tl.where(some, e, NOTHING), tl.where(some, cap, none)


def serves(geometry):
    return geometry.columns <= WIDEST


def trace(geometry, source, sizes, seed, winners, links, status):
    shape, warps = _tile(geometry)
    where = (source, len(source), seed, winners, status, *_shape(geometry))
    _trace[(len(winners),)](*where, **shape, num_warps=warps, **EXACT)


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    shape, warps = _tile(geometry)
    steps = _new_steps(geometry, winners)
    where = (winners, steps, beta, len(beta), h, alpha, out, log_prob, z, seed, stream, *_shape(geometry))
    _up[(len(winners),)](*where, MODE=mode, **shape, num_warps=warps, **EXACT)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    shape, warps = _tile(geometry)
    where = (winners, _new_steps(geometry, winners), alpha, h, beta, len(beta), grad, g, out, more, seed, stream)
    _down[(len(winners),)](*where, *_shape(geometry), MODE=mode, **shape, num_warps=warps, **EXACT)


def _shape(geometry):
    return geometry.rows, max(geometry.columns, 1)


def _new_steps(geometry, winners):
    """Scratch."""
    return torch.empty(len(winners), sum(_shape(geometry)), dtype=torch.int32, device=winners.device)


def _tile(geometry):
    """Rows and columns as powers of two, and how many rows go by at a time."""
    n, cols = max(16, triton.next_power_of_2(geometry.rows)), max(16, triton.next_power_of_2(geometry.columns))
    warps = max(1, cols // 128)
    return {"N": n, "ROWS": min(n, 256 * warps // cols), "COLS": cols}, warps
