"""What of the update of nodes is no matrix product: sums, relus, and the last layer, which has two outputs.

Rows are nodes in frames, `cells` of them for each sample of each item, in the order item, sample, cell. What samples
share has a row for each cell of an item. A row is read whole; WIDTH is the least power of two that holds it.

    x       (rows, 2), the nodes
    z, h    (rows, H), a layer before its relu and after it
    own     (H, 2), the first layer, of nodes themselves
    last    (2, H), the last layer
"""

import triton
import triton.language as tl


@triton.jit
def _block(rows, ROWS: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a program, their columns, where both are, and whether there are such."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    at = row.to(tl.int64)[:, None] * H + column[None, :]
    return row, column, at, (row < rows)[:, None] & (column < H)[None, :]


@triton.jit
def _shared(row, samples, cells):
    """The rows of what samples share."""
    return (row // (samples * cells)) * cells + row % cells


@triton.jit
def add_relu(z, x, own, bias, rows, samples, cells, ROWS: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr):
    """z ← relu(z + own(x) + bias)."""
    row, column, at, live = _block(rows, ROWS, H, WIDTH)
    wide, there = column < H, row < rows
    total = tl.load(z + at, mask=live, other=0.0).to(tl.float32) + tl.load(bias + column, mask=wide, other=0.0)[None, :]
    for i in tl.static_range(2):
        w = tl.load(own + column * 2 + i, mask=wide, other=0.0)
        total += tl.load(x + _shared(row, samples, cells) * 2 + i, mask=there, other=0.0)[:, None] * w[None, :]
    tl.store(z + at, tl.maximum(total, 0.0).to(z.dtype.element_ty), mask=live)


@triton.jit
def move(
    z, bias, last, last_bias, x, out, rows, samples, cells, ROWS: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr
):
    """out ← x + last(relu(z + bias)), (rows, 2)."""
    row, column, at, live = _block(rows, ROWS, H, WIDTH)
    wide = column < H
    b = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)
    h = tl.maximum(tl.load(z + at, mask=live, other=0.0).to(tl.float32) + b[None, :], 0.0)
    shared = _shared(row, samples, cells)
    for i in tl.static_range(2):
        w = tl.load(last + i * H + column, mask=wide, other=0.0)
        total = tl.sum(h * w[None, :], 1) + tl.load(last_bias + i)
        total += tl.load(x + shared * 2 + i, mask=row < rows, other=0.0)
        tl.store(out + row.to(tl.int64) * 2 + i, total, mask=row < rows)


@triton.jit
def move_backward(
    grad,
    z,
    bias,
    last,
    to_z,
    sums,
    rows,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
    TILES: tl.constexpr,
):
    """The gradient to z, and sums (programs, 3, H) of those to the bias and to the last layer. A program for TILES
    tiles of rows: what it leaves to be summed up is less then."""
    column = tl.arange(0, WIDTH)
    wide = column < H
    b = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)[None, :]
    w0 = tl.load(last + column, mask=wide, other=0.0)[None, :]
    w1 = tl.load(last + H + column, mask=wide, other=0.0)[None, :]
    to_b = tl.zeros((ROWS, WIDTH), tl.float32)
    to_w0, to_w1 = to_b, to_b
    for i in range(TILES):
        row = (tl.program_id(0) * TILES + i) * ROWS + tl.arange(0, ROWS)
        there = row < rows
        at = row.to(tl.int64)[:, None] * H + column[None, :]
        live = there[:, None] & wide[None, :]
        h = tl.where(live, tl.maximum(tl.load(z + at, mask=live, other=0.0).to(tl.float32) + b, 0.0), 0.0)
        g0 = tl.load(grad + row.to(tl.int64) * 2, mask=there, other=0.0)[:, None]
        g1 = tl.load(grad + row.to(tl.int64) * 2 + 1, mask=there, other=0.0)[:, None]
        g = tl.where(h > 0, g0 * w0 + g1 * w1, 0.0)
        tl.store(to_z + at, g.to(to_z.dtype.element_ty), mask=live)
        to_b += g
        to_w0 += g0 * h
        to_w1 += g1 * h
    sums += tl.program_id(0).to(tl.int64) * (3 * H) + column
    tl.store(sums, tl.sum(to_b, 0), mask=wide)
    tl.store(sums + H, tl.sum(to_w0, 0), mask=wide)
    tl.store(sums + 2 * H, tl.sum(to_w1, 0), mask=wide)


@triton.jit
def relu_backward(
    grad,
    h,
    moved,
    x,
    own,
    to_x,
    sums,
    rows,
    samples,
    cells,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """grad ← that before the relu. And to_x, with the gradient to nodes `moved`, which start there, and sums
    (programs, 3, H) of those to the first layer's bias and own. A program for rows of what samples share."""
    row, column, _, live = _block(rows, ROWS, H, WIDTH)
    wide, there = column < H, row < rows
    first = (row // cells).to(tl.int64) * (samples * cells) + row % cells
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for sample in range(samples):
        here = (first + sample * cells)[:, None] * H + column[None, :]
        g = tl.load(grad + here, mask=live, other=0.0)
        g = tl.where(tl.load(h + here, mask=live, other=0.0) > 0, g, 0.0)
        total += g.to(tl.float32)
        tl.store(grad + here, g.to(grad.dtype.element_ty), mask=live)
    sums += tl.program_id(0).to(tl.int64) * (3 * H) + column
    tl.store(sums, tl.sum(total, 0), mask=wide)
    for i in tl.static_range(2):
        to = tl.sum(total * tl.load(own + column * 2 + i, mask=wide, other=0.0)[None, :], 1)
        for sample in range(samples):
            to += tl.load(moved + (first + sample * cells) * 2 + i, mask=there, other=0.0)
        tl.store(to_x + row * 2 + i, to, mask=there)
        factor = tl.load(x + row * 2 + i, mask=there, other=0.0)
        tl.store(sums + (1 + i) * H, tl.sum(total * factor[:, None], 0), mask=wide)
