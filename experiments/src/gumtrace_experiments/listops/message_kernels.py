"""Messages between all tokens, summed up at their receivers, without a tensor of all pairs in memory.

    h_ij = relu(a_i + b_j),      z_ij = W h_ij + c,      r_i = Σ_j X_ij relu(z_ij)

i receives and j sends. A program takes every PARTS-th receiver of one structure, one after the other, each with all
senders: a tile of SENDERS rows and WIDTH columns, powers of two. Beyond H all is 0, beyond N the weights X are. Every
pass computes once more what it needs at the pairs. Nothing is added up atomically: equal inputs give equal bits.

    structure, X   (structures, N, N), receivers before senders
    receiving, a   (structures, N, H)
    sending, b     (structures, N, H), -inf where nothing is to be sent
    weight, W      (H, H), outputs before inputs
    bias, c        (H,)
    out, r         (structures, N, H)
    grad, g        (structures, N, H), to out

Gradients are named after what they belong to. Where programs have a share in one, each has its own place, to be summed:
grad_sending (structures, PARTS, N, H), and grad_layer (structures, PARTS, H + 1, H), which has c below W and is made if
wanted, TO_LAYER.

Programs stop at the last receiver to which anything is not 0. Padding comes behind it, and in the backward pass of the
last round all tokens but the first.
"""

import triton
import triton.language as tl


@triton.jit
def _rows(tensor, row, column, N: tl.constexpr, H: tl.constexpr):
    """Rows of a matrix (N, H)."""
    return tl.load(tensor + row * H + column, mask=(row < N) & (column < H), other=0.0)


@triton.jit
def _weights(tensor, row, N: tl.constexpr, SENDERS: tl.constexpr):
    """Weights of all senders, as a column."""
    sender = tl.arange(0, SENDERS)[:, None]
    return tl.load(tensor + row * N + sender, mask=sender < N, other=0.0)


@triton.jit
def _layer(weight, bias, H: tl.constexpr, WIDTH: tl.constexpr):
    """W, W transposed, and c as a row. What a product sums over lies side by side: the matrix units want it so."""
    row, column = tl.arange(0, WIDTH)[:, None], tl.arange(0, WIDTH)[None, :]
    turned = tl.load(weight + column * H + row, mask=(row < H) & (column < H), other=0.0)
    return _rows(weight, row, column, H, H), turned, tl.load(bias + column, mask=column < H, other=0.0)


@triton.jit
def _end(tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, H: tl.constexpr):
    """The row of a matrix (N, H) from which on it is 0."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return tl.max(tl.where(_rows(tensor, row, column, N, H) != 0, row + 1, 0))


@triton.jit
def _clear(tensor, end, part, ROWS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, H: tl.constexpr, PARTS):
    """A program's rows of a matrix (N, H), from there on."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    here = (row >= end) & (row < N) & (row % PARTS == part) & (column < H)
    tl.store(tensor + row * H + column, tl.zeros((ROWS, COLUMNS), tl.float32), mask=here)


@triton.jit
def _put(tensor, row, x, H: tl.constexpr, WIDTH: tl.constexpr):
    """A row of a matrix with H columns."""
    column = tl.arange(0, WIDTH)
    tl.store(tensor + row * H + column, x, mask=column < H)


@triton.jit
def _put_rows(tensor, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, H: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(tensor + row * H + column, x, mask=(row < N) & (column < H))


@triton.jit
def forward(
    structure,
    receiving,
    sending,
    weight,
    bias,
    out,
    N: tl.constexpr,
    H: tl.constexpr,
    SENDERS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    item, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sender, column = tl.arange(0, SENDERS)[:, None], tl.arange(0, WIDTH)[None, :]
    structure, receiving, out = structure + item * N * N, receiving + item * N * H, out + item * N * H
    _, turned, c = _layer(weight, bias, H, WIDTH)
    b = _rows(sending + item * N * H, sender, column, N, H)
    end = _end(structure, SENDERS, SENDERS, N, N)
    _clear(out, end, part, SENDERS, WIDTH, N, H, PARTS)
    for i in tl.range(part, end, PARTS):  # type: ignore[reportGeneralTypeIssues]
        h = tl.maximum(_rows(receiving, i, column, N, H) + b, 0.0)
        z = tl.dot(h, turned, input_precision=PRECISION) + c
        _put(out, i, tl.sum(_weights(structure, i, N, SENDERS) * tl.maximum(z, 0.0), 0), H, WIDTH)


@triton.jit
def backward(
    grad,
    structure,
    receiving,
    sending,
    weight,
    bias,
    grad_structure,
    grad_receiving,
    grad_sending,
    grad_layer,
    N: tl.constexpr,
    H: tl.constexpr,
    SENDERS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    TO_LAYER: tl.constexpr,
):
    item, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    program = item * PARTS + part
    sender, column = tl.arange(0, SENDERS)[:, None], tl.arange(0, WIDTH)[None, :]
    structure, grad_structure = structure + item * N * N, grad_structure + item * N * N
    receiving, grad_receiving = receiving + item * N * H, grad_receiving + item * N * H
    grad += item * N * H
    w, turned, c = _layer(weight, bias, H, WIDTH)
    b = _rows(sending + item * N * H, sender, column, N, H)
    end = _end(grad, SENDERS, WIDTH, N, H)
    _clear(grad_structure, end, part, SENDERS, SENDERS, N, N, PARTS)
    _clear(grad_receiving, end, part, SENDERS, WIDTH, N, H, PARTS)
    to_b = tl.zeros((SENDERS, WIDTH), tl.float32)
    to_w, to_c = tl.zeros((WIDTH, WIDTH), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for i in tl.range(part, end, PARTS):  # type: ignore[reportGeneralTypeIssues]
        g = _rows(grad, i, column, N, H)
        h = tl.maximum(_rows(receiving, i, column, N, H) + b, 0.0)
        z = tl.dot(h, turned, input_precision=PRECISION) + c
        _put(grad_structure, i, tl.sum(g * tl.maximum(z, 0.0), 1), N, SENDERS)
        to_z = tl.where(z > 0, _weights(structure, i, N, SENDERS) * g, 0.0)
        to_h = tl.where(h > 0, tl.dot(to_z, w, input_precision=PRECISION), 0.0)
        _put(grad_receiving, i, tl.sum(to_h, 0), H, WIDTH)
        to_b += to_h
        if TO_LAYER:
            to_w = tl.dot(tl.trans(to_z), h, to_w, input_precision=PRECISION)
            to_c += tl.sum(to_z, 0)
    _put_rows(grad_sending + program * N * H, to_b, SENDERS, WIDTH, N, H)
    if TO_LAYER:
        _put_rows(grad_layer + program * (H + 1) * H, to_w, WIDTH, WIDTH, H, H)
        _put(grad_layer + program * (H + 1) * H, H, to_c, H, WIDTH)


@triton.jit
def backward_twice(
    along_structure,
    along_receiving,
    along_sending,
    along_layer,
    grad,
    structure,
    receiving,
    sending,
    weight,
    bias,
    grad_grad,
    grad_structure,
    grad_receiving,
    grad_sending,
    grad_layer,
    N: tl.constexpr,
    H: tl.constexpr,
    SENDERS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    ALONG_LAYER: tl.constexpr,
    TO_LAYER: tl.constexpr,
):
    """Back through `backward`: the gradient of Σ_i g_i · r'_i, with r' the derivative of r along (X', a', b', W', c').

        h'_ij = 1[h_ij > 0] (a'_i + b'_j),      z'_ij = 1[z_ij > 0] (W h'_ij + W' h_ij + c')

        r'_i = Σ_j X'_ij relu(z_ij) + X_ij z'_ij

    W' and c' need not be there, ALONG_LAYER. They are h1, z1 and so on here.
    """
    item, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    program = item * PARTS + part
    sender, column = tl.arange(0, SENDERS)[:, None], tl.arange(0, WIDTH)[None, :]
    structure, grad_structure = structure + item * N * N, grad_structure + item * N * N
    receiving, grad_receiving = receiving + item * N * H, grad_receiving + item * N * H
    along_structure, along_receiving = along_structure + item * N * N, along_receiving + item * N * H
    grad, grad_grad = grad + item * N * H, grad_grad + item * N * H
    w, turned, c = _layer(weight, bias, H, WIDTH)
    b = _rows(sending + item * N * H, sender, column, N, H)
    b1 = _rows(along_sending + item * N * H, sender, column, N, H)
    end = tl.maximum(_end(structure, SENDERS, SENDERS, N, N), _end(along_structure, SENDERS, SENDERS, N, N))
    end = tl.maximum(end, _end(grad, SENDERS, WIDTH, N, H))
    _clear(grad_structure, end, part, SENDERS, SENDERS, N, N, PARTS)
    _clear(grad_receiving, end, part, SENDERS, WIDTH, N, H, PARTS)
    _clear(grad_grad, end, part, SENDERS, WIDTH, N, H, PARTS)
    to_b = tl.zeros((SENDERS, WIDTH), tl.float32)
    to_w, to_c = tl.zeros((WIDTH, WIDTH), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for i in tl.range(part, end, PARTS):  # type: ignore[reportGeneralTypeIssues]
        g = _rows(grad, i, column, N, H)
        x, x1 = _weights(structure, i, N, SENDERS), _weights(along_structure, i, N, SENDERS)
        h = tl.maximum(_rows(receiving, i, column, N, H) + b, 0.0)
        h1 = tl.where(h > 0, _rows(along_receiving, i, column, N, H) + b1, 0.0)
        z = tl.dot(h, turned, input_precision=PRECISION) + c
        z1 = tl.dot(h1, turned, input_precision=PRECISION)
        if ALONG_LAYER:  # read anew for each receiver: shared memory has no room to keep it
            _, turned1, c1 = _layer(along_layer, along_layer + H * H, H, WIDTH)
            z1 = tl.dot(h, turned1, z1, input_precision=PRECISION) + c1
        z1 = tl.where(z > 0, z1, 0.0)
        _put(grad_grad, i, tl.sum(x1 * tl.maximum(z, 0.0) + x * z1, 0), H, WIDTH)
        _put(grad_structure, i, tl.sum(g * z1, 1), N, SENDERS)
        to_z, to_z1 = tl.where(z > 0, x1 * g, 0.0), tl.where(z > 0, x * g, 0.0)
        to_h = tl.dot(to_z, w, input_precision=PRECISION)
        if ALONG_LAYER:
            w1, _, _ = _layer(along_layer, along_layer + H * H, H, WIDTH)
            to_h = tl.dot(to_z1, w1, to_h, input_precision=PRECISION)
        to_h = tl.where(h > 0, to_h, 0.0)
        _put(grad_receiving, i, tl.sum(to_h, 0), H, WIDTH)
        to_b += to_h
        if TO_LAYER:
            to_w = tl.dot(tl.trans(to_z), h, to_w, input_precision=PRECISION)
            to_w = tl.dot(tl.trans(to_z1), h1, to_w, input_precision=PRECISION)
            to_c += tl.sum(to_z, 0)
    _put_rows(grad_sending + program * N * H, to_b, SENDERS, WIDTH, N, H)
    if TO_LAYER:
        _put_rows(grad_layer + program * (H + 1) * H, to_w, WIDTH, WIDTH, H, H)
        _put(grad_layer + program * (H + 1) * H, H, to_c, H, WIDTH)
