"""Greedy matchings: take the largest entry, cross out its row and column, repeat.

Rows and columns that all rank each other by G have one stable matching, and it is the greedy one. So rows propose: a
row takes the best of the columns that would have it, which are those that are free or hold a smaller entry, and the
row it drives out proposes again. A proposal reads one row of the matrix and nothing else. With the rows in order of
their largest entries there are about 1.2 n proposals, a few times n where rows or columns agree on what is best; the
order is for speed alone. Where the noise is drawn here, anew for every proposal and never stored, rows go in order of
their largest log-rates: about 1.4 n. Ranking the pairs then gives the order of the trace.

An entry is crossed out with its row or with its column, whichever is matched first. So sums over the entries of a
row, and over those of a column, make the sums over what each step crosses out.

An item is one program's here. Larger ones are shared by several, in matching_rounds.py and matching_tiles.py.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda import matching_rounds, matching_tiles
from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    LOG_PROB,
    SHARE,
    decision_term,
    finish_decisions,
    finish_keys,
    key_term,
    winner_code,
)
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.cuda.matching_rounds import propose, rank
from gumtrace.kernels.cuda.matching_tiles import steps_of
from gumtrace.kernels.cuda.noise import row_of
from gumtrace.kernels.cuda.order import code, least, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, scaled

WIDEST = 2048  # most columns: a program holds a number for each
MOST_ROWS = 16384  # also, and it packs a row and a column into 32 bits
ONE_PROGRAM = 128  # rows and columns of the largest items that are one program's


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
@triton.jit(do_not_specialize=["rows"])
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
    col = tl.arange(0, COLS)
    lowest = least(tl.full((), 0.0, source.dtype.element_ty))
    source += row_of(item, rows) * n * m
    tops = _tops(source, n, m, N, ROWS, COLS)
    wrong = tl.max(tops, 0) == code(tl.full((), float("inf"), source.dtype.element_ty))
    tl.store(status + item, tl.where(wrong, 2, 0).to(tl.int8))
    held = lowest + col * 0  # the entry that each column holds, and its row
    holder = col * 0 - 1
    tops = tl.where(wrong, lowest - 1, tops)
    held, holder = propose(tops, held, holder, source, 1, seed, item, n, m)
    rank(winners + item * n, held, holder, n, m, N)


@triton.jit
def _col_steps(steps, n, m, COLS: tl.constexpr):
    col = tl.arange(0, COLS)
    return tl.load(steps + n + col, mask=col < m, other=0)


@quick
@triton.jit(do_not_specialize=["rows", "stream"])
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
    winner = steps_of(winners + item * n, steps, n, m, n, N, COLS)
    col_step = _col_steps(steps, n, m, COLS)
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
@triton.jit(do_not_specialize=["rows", "stream"])
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
    winner = steps_of(winners + item * n, steps, n, m, never, N, COLS)
    col_step = _col_steps(steps, n, m, COLS)
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
    return geometry.columns <= WIDEST and geometry.rows <= MOST_ROWS


def _is_large(geometry):
    return max(geometry.rows, geometry.columns) > ONE_PROGRAM


def trace(geometry, source, sizes, seed, winners, links, status):
    if _is_large(geometry):
        return matching_rounds.trace(geometry, source, seed, winners, status)
    shape, warps = _tile(geometry)
    where = (source, source.shape[0], seed, winners, status, *_shape(geometry))
    _trace[(winners.shape[0],)](*where, **shape, num_warps=warps, **EXACT)


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    if _is_large(geometry):
        return matching_tiles.up(geometry, winners, mode, beta, h, alpha, out, log_prob, z, seed, stream)
    shape, warps = _tile(geometry)
    steps = _new_steps(geometry, winners)
    where = (winners, steps, beta, beta.shape[0], h, alpha, out, log_prob, z, seed, stream, *_shape(geometry))
    _up[(winners.shape[0],)](*where, MODE=mode, **shape, num_warps=warps, **EXACT)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    if _is_large(geometry):
        return matching_tiles.down(geometry, winners, mode, alpha, h, beta, grad, g, out, more, seed, stream)
    shape, warps = _tile(geometry)
    where = (winners, _new_steps(geometry, winners), alpha, h, beta, beta.shape[0], grad, g, out, more, seed, stream)
    _down[(winners.shape[0],)](*where, *_shape(geometry), MODE=mode, **shape, num_warps=warps, **EXACT)


def _shape(geometry):
    return geometry.rows, max(geometry.columns, 1)


def _new_steps(geometry, winners):
    """Scratch."""
    return torch.empty(winners.shape[0], sum(_shape(geometry)), dtype=torch.int32, device=winners.device)


def _tile(geometry):
    """Rows and columns as powers of two, and how many rows go by at a time."""
    n, cols = max(16, power_of_2(geometry.rows)), max(16, power_of_2(geometry.columns))
    warps = max(1, cols // 128)
    return {"N": n, "ROWS": min(n, 256 * warps // cols), "COLS": cols}, warps
