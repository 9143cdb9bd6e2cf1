"""Attention with relations, of one sequence and one head a program:

    s_ij = (⟨q_i, k_j⟩ + ⟨q_i, u_ij⟩) / √SIZE for j ≤ i,      p = softmax of s over j,      out_i = Σ_j p_ij v_j

where u_ij is one of three vectors, for element i left of element j, the same, and right of it. Tiles are of ROWS rows
and WIDTH columns, powers of two; beyond the N elements and the SIZE columns they are 0, and get no attention. The
backward pass computes p once more.

    heads        (sequences, N, 3, HEADS, SIZE): queries, keys and values
    left, right  (sequences, N, N): whether element i is on that side of element j
    relative     (3, SIZE)
    out          (sequences, N, HEADS, SIZE)
"""

import triton
import triton.language as tl


@triton.jit
def _part(tensor, which, N, HEADS, SIZE, ROWS: tl.constexpr, WIDTH: tl.constexpr, PARTS):
    """Where the rows of this program are in a tensor of so many parts, and which are there."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    place = ((sequence * N + row) * PARTS + which) * HEADS + head
    return tensor + place * SIZE + column, (row < N) & (column < SIZE)


@triton.jit
def _sides(left, right, N, ROWS: tl.constexpr):
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    place = (tl.program_id(0).to(tl.int64) * N + i) * N + j
    there = (i < N) & (j < N)
    return tl.load(left + place, mask=there, other=0) != 0, tl.load(right + place, mask=there, other=0) != 0


@triton.jit
def _vector(relative, which, SIZE, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    return tl.load(relative + which * SIZE + column, mask=column < SIZE, other=0.0)[None, :]


@triton.jit
def _attention(
    q, k, is_left, is_right, relative, scale, N, SIZE, ROWS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr
):
    """The weights p."""
    on_left = tl.sum(q * _vector(relative, 0, SIZE, WIDTH), 1, keep_dims=True)
    same = tl.sum(q * _vector(relative, 1, SIZE, WIDTH), 1, keep_dims=True)
    on_right = tl.sum(q * _vector(relative, 2, SIZE, WIDTH), 1, keep_dims=True)
    by_relation = tl.where(is_left, on_left, tl.where(is_right, on_right, same))
    s = (tl.dot(q, tl.trans(k), input_precision=PRECISION) + by_relation) * scale
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    s = tl.where((j <= i) & (j < N), s, float("-inf"))
    p = tl.exp(s - tl.max(s, 1, keep_dims=True))
    return p / tl.sum(p, 1, keep_dims=True)


@triton.jit
def forward(
    heads, left, right, relative, out, scale, N: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    of_q, there = _part(heads, 0, N, HEADS, SIZE, ROWS, WIDTH, 3)
    of_k, _ = _part(heads, 1, N, HEADS, SIZE, ROWS, WIDTH, 3)
    of_v, _ = _part(heads, 2, N, HEADS, SIZE, ROWS, WIDTH, 3)
    q, k = tl.load(of_q, mask=there, other=0.0), tl.load(of_k, mask=there, other=0.0)
    is_left, is_right = _sides(left, right, N, ROWS)
    p = _attention(q, k, is_left, is_right, relative, scale, N, SIZE, ROWS, WIDTH, PRECISION)
    to, _ = _part(out, 0, N, HEADS, SIZE, ROWS, WIDTH, 1)
    tl.store(to, tl.dot(p, tl.load(of_v, mask=there, other=0.0), input_precision=PRECISION), mask=there)


@triton.jit
def backward(
    grad, heads, left, right, relative, to_heads, to_relative, scale, N: tl.constexpr, HEADS: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """To queries, keys and values; and to the three vectors by each program, (sequences, HEADS, 3, SIZE)."""
    of_q, there = _part(heads, 0, N, HEADS, SIZE, ROWS, WIDTH, 3)
    of_k, _ = _part(heads, 1, N, HEADS, SIZE, ROWS, WIDTH, 3)
    of_v, _ = _part(heads, 2, N, HEADS, SIZE, ROWS, WIDTH, 3)
    of_grad, _ = _part(grad, 0, N, HEADS, SIZE, ROWS, WIDTH, 1)
    q, k = tl.load(of_q, mask=there, other=0.0), tl.load(of_k, mask=there, other=0.0)
    v, g = tl.load(of_v, mask=there, other=0.0), tl.load(of_grad, mask=there, other=0.0)
    is_left, is_right = _sides(left, right, N, ROWS)
    p = _attention(q, k, is_left, is_right, relative, scale, N, SIZE, ROWS, WIDTH, PRECISION)
    to_p = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    to_s = p * (to_p - tl.sum(to_p * p, 1, keep_dims=True)) * scale
    to_left = tl.sum(tl.where(is_left, to_s, 0.0), 1, keep_dims=True)
    to_right = tl.sum(tl.where(is_right, to_s, 0.0), 1, keep_dims=True)
    to_same = tl.sum(tl.where(is_left | is_right, 0.0, to_s), 1, keep_dims=True)
    to_q = tl.dot(to_s, k, input_precision=PRECISION)
    to_q += to_left * _vector(relative, 0, SIZE, WIDTH) + to_same * _vector(relative, 1, SIZE, WIDTH)
    to_q += to_right * _vector(relative, 2, SIZE, WIDTH)
    to, _ = _part(to_heads, 0, N, HEADS, SIZE, ROWS, WIDTH, 3)
    tl.store(to, to_q, mask=there)
    to, _ = _part(to_heads, 1, N, HEADS, SIZE, ROWS, WIDTH, 3)
    tl.store(to, tl.dot(tl.trans(to_s), q, input_precision=PRECISION), mask=there)
    to, _ = _part(to_heads, 2, N, HEADS, SIZE, ROWS, WIDTH, 3)
    tl.store(to, tl.dot(tl.trans(p), g, input_precision=PRECISION), mask=there)
    column = tl.arange(0, WIDTH)
    own = to_relative + (tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)) * 3 * SIZE + column
    tl.store(own, tl.sum(to_left * q, 0), mask=column < SIZE)
    tl.store(own + SIZE, tl.sum(to_same * q, 0), mask=column < SIZE)
    tl.store(own + 2 * SIZE, tl.sum(to_right * q, 0), mask=column < SIZE)
