"""Greedy matchings of large matrices as incidence, by several programs an item; matching.py has the sums.

A program an item finds the steps that matched each row and column; tiles of entries, a program each, are then summed by
row and by column, or written.
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
from gumtrace.kernels.cuda.noise import multiple
from gumtrace.kernels.cuda.order import least, smaller
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, near, sum_some

ROWS, COLS = 32, 64  # of a tile


@triton.jit
def steps_of(winners, steps, n, m, never, N: tl.constexpr, M: tl.constexpr):
    """Write the steps that matched each row, and behind them each column; n for rows that were not, `never` for
    columns. Returns the winners."""
    b, col = tl.arange(0, N), tl.arange(0, M)
    tl.store(steps + b, n, mask=b < n)
    tl.store(steps + n + col, never, mask=col < m)
    winner = known(tl.load(winners + b, mask=b < n, other=-1), n * m)
    tl.debug_barrier()
    tl.store(steps + winner // m, b, mask=winner >= 0)
    tl.store(steps + n + winner % m, b, mask=winner >= 0)
    tl.debug_barrier()
    return winner


@triton.jit(do_not_specialize=["n", "m"])
def _steps(winners, steps, n, m, N: tl.constexpr, M: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    steps_of(winners + item * n, steps + item * (n + m), n, m, n, N, M)


@triton.jit(do_not_specialize=["rows", "n", "m"])
def _sums(
    steps,
    beta,
    rows,
    h,
    rows_v,
    rows_e,
    cols_v,
    cols_e,
    n,
    m,
    MODE: tl.constexpr,
    FOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Of a block of rows, the sums by row of what is crossed out with the row, and by column of the rest."""
    dtype: tl.constexpr = beta.dtype.element_ty
    m = multiple(m, FOURS)
    blocks = tl.cdiv(n, ROWS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    row = block * ROWS + tl.arange(0, ROWS)
    steps += item * (n + m)
    row_step = tl.load(steps + row, mask=row < n, other=-1)
    v_rows, e_rows = tl.zeros([ROWS], dtype), tl.full([ROWS], NOTHING, tl.int32)
    for start in range(0, m, COLS):
        col = start + tl.arange(0, COLS)
        inside = (row < n)[:, None] & (col < m)[None, :]
        col_step = tl.load(steps + n + col, mask=col < m, other=0)
        by_row = row_step[:, None] <= col_step[None, :]
        v, e = key_term(beta, rows, h, item, n * m, row[:, None] * m + col[None, :], inside, MODE)
        v, top = near(v, e)
        v_row, e_row = sum_some(v, e, top, by_row, 1)
        v_rows, e_rows = add(v_rows, e_rows, v_row, e_row)
        v_col, e_col = sum_some(v, e, top, by_row == 0, 0)
        place = (item * blocks + block) * m + col
        tl.store(cols_v + place, v_col, mask=col < m)
        tl.store(cols_e + place, e_col, mask=col < m)
    tl.store(rows_v + item * n + row, v_rows, mask=row < n)
    tl.store(rows_e + item * n + row, e_rows, mask=row < n)


@triton.jit(do_not_specialize=["rows", "stream", "n", "m", "blocks"])
def _finish(
    winners,
    rows_v,
    rows_e,
    cols_v,
    cols_e,
    beta,
    rows,
    alpha,
    out,
    log_prob,
    z,
    seed,
    stream,
    n,
    m,
    blocks,
    MODE: tl.constexpr,
    N: tl.constexpr,
):
    """Each step crosses out its row and its column; what races at a step is all that it and later ones cross out."""
    item = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, N)
    winner = known(tl.load(winners + item * n + b, mask=b < n, other=-1), n * m)
    live = winner >= 0
    row, col = tl.where(live, winner // m, 0), tl.where(live, winner % m, 0)
    v = tl.load(rows_v + item * n + row, mask=live, other=0.0)
    e = tl.load(rows_e + item * n + row, mask=live, other=NOTHING)
    for block in range(blocks):
        place = (item * blocks + block) * m + col
        v_col = tl.load(cols_v + place, mask=live, other=0.0)
        v, e = add(v, e, v_col, tl.load(cols_e + place, mask=live, other=NOTHING))
    v, e = tl.associative_scan((v, e), 0, add, reverse=True)
    part = finish_decisions(v, e, beta, rows, alpha, out, z, seed, stream, item, n * m, n, b, winner, live, MODE)
    if MODE == LOG_PROB:
        tl.store(log_prob + item, part.to(beta.dtype.element_ty))


@triton.jit(do_not_specialize=["rows", "n", "m"])
def _shares(
    winners,
    steps,
    alpha,
    h,
    beta,
    rows,
    share_v,
    share_e,
    caps,
    n,
    m,
    MODE: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
):
    """What each step hands to the entries it crosses out: the sum of what decisions up to it do."""
    item = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = beta.dtype.element_ty
    # entries that are never crossed out are no winners, but in SHARE they are: so no gradient comes through them
    never = n if MODE == SHARE else n + 1
    winner = steps_of(winners + item * n, steps + item * (n + m), n, m, never, N, M)
    b = tl.arange(0, N)
    v, e = decision_term(alpha, h, beta, rows, item, n * m, n, b, winner, winner >= 0, MODE, dtype)
    v, e = tl.associative_scan((v, e), 0, add)
    tl.store(share_v + item * n + b, v, mask=b < n)
    tl.store(share_e + item * n + b, e, mask=b < n)
    if MODE == CONDITIONAL:  # each winner strictly below the one before, after rounding
        cap = tl.associative_scan(winner_code(v, e, dtype) + b, 0, smaller) - b
        tl.store(caps + item * n + b, cap, mask=b < n)


@triton.jit
def _at(share_v, share_e, caps, step, n, MODE: tl.constexpr):
    """What is by step, at some steps; nothing where there was none, and a cap that leaves -inf."""
    some = (step >= 0) & (step < n)
    v = tl.load(share_v + step, mask=some, other=0.0)
    e = tl.load(share_e + step, mask=some, other=NOTHING)
    cap = e
    if MODE == CONDITIONAL:
        cap = tl.load(caps + step, mask=some, other=0)
        cap = tl.where(some, cap, least(v) + 1)
    return v, e, cap


@triton.jit(do_not_specialize=["rows", "stream", "n", "m"])
def _write(
    steps,
    share_v,
    share_e,
    caps,
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
    FOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    m = multiple(m, FOURS)
    blocks = tl.cdiv(m, COLS)
    tiles = tl.cdiv(n, ROWS) * blocks
    item = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles // blocks * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(0) % tiles % blocks * COLS + tl.arange(0, COLS)
    steps += item * (n + m)
    row_step = tl.load(steps + row, mask=row < n, other=-1)[:, None]
    col_step = tl.load(steps + n + col, mask=col < m, other=-1)[None, :]
    own_v, own_e, own_caps = share_v + item * n, share_e + item * n, caps + item * n
    v_row, e_row, cap_row = _at(own_v, own_e, own_caps, row_step, n, MODE)
    v_col, e_col, cap_col = _at(own_v, own_e, own_caps, col_step, n, MODE)
    by_row = row_step <= col_step
    won = row_step == col_step
    v, e = tl.where(by_row, v_row, v_col), tl.where(by_row, e_row, e_col)
    cap = tl.where(by_row, cap_row, cap_col) - tl.where(won, 0, 1)
    key = row[:, None] * m + col[None, :]
    mask = (row < n)[:, None] & (col < m)[None, :]
    finish_keys(v, e, cap, won, beta, rows, grad, g, out, more, seed, stream, item, n * m, key, mask, MODE)


def up(geometry, winners, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    n, m, items = geometry.rows, geometry.columns, len(winners)
    width, warps = _width(n, m)
    blocks = triton.cdiv(n, ROWS)
    steps = _new(winners, torch.int32, n + m)
    _steps[(items,)](winners, steps, n, m, **width, num_warps=warps, **EXACT)
    rows_v, cols_v = _new(winners, beta.dtype, n), _new(winners, beta.dtype, blocks * m)
    rows_e, cols_e = _new(winners, torch.int32, n), _new(winners, torch.int32, blocks * m)
    sums = (rows_v, rows_e, cols_v, cols_e)
    where = (steps, beta, len(beta), h, *sums, n, m)
    _sums[(items * blocks,)](*where, MODE=mode, FOURS=m % 4 == 0, ROWS=ROWS, COLS=COLS, num_warps=4, **EXACT)
    where = (winners, *sums, beta, len(beta), alpha, out, log_prob, z, seed, stream, n, m, blocks)
    _finish[(items,)](*where, MODE=mode, N=width["N"], num_warps=warps, **EXACT)


def down(geometry, winners, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    n, m, items = geometry.rows, geometry.columns, len(winners)
    width, warps = _width(n, m)
    steps, share_e = _new(winners, torch.int32, n + m), _new(winners, torch.int32, n)
    share_v = _new(winners, beta.dtype, n)
    caps = _new(winners, torch.int64 if beta.dtype == torch.float64 else torch.int32, n if mode == CONDITIONAL else 0)
    where = (winners, steps, alpha, h, beta, len(beta), share_v, share_e, caps, n, m)
    _shares[(items,)](*where, MODE=mode, **width, num_warps=warps, **EXACT)
    grid = (items * triton.cdiv(n, ROWS) * triton.cdiv(m, COLS),)
    where = (steps, share_v, share_e, caps, beta, len(beta), grad, g, out, more, seed, stream, n, m)
    _write[grid](*where, MODE=mode, FOURS=m % 4 == 0, ROWS=ROWS, COLS=COLS, num_warps=4, **EXACT)


def _width(n, m):
    """Of programs that have all rows and columns, and their warps."""
    width = {"N": max(16, triton.next_power_of_2(n)), "M": max(16, triton.next_power_of_2(m))}
    return width, min(16, max(1, max(width.values()) // 128))


def _new(winners, dtype, size):
    return torch.empty(len(winners), size, dtype=dtype, device=winners.device)
