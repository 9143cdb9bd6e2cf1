"""All rounds of the classifier along 0/1 structures, in which a token sends one message a round, to its head:

    h_j = relu(a_head(j) + S s_j),      m_j = relu(W h_j + c),      s_i ← norm(e_i + Σ_j X_ij m_j)

s are the states, at first norm(e), and what dropout leaves out of S s_j is -inf. A program takes one structure: tiles
of TOKENS rows and WIDTH columns, powers of two, 0 beyond N and H. It keeps the states of each round for the backward
pass, which computes the rest once more. Nothing is added up atomically: equal inputs give equal bits.

    structure, X    (structures, N, N), receivers before senders; 0 in the padding
    own, e          (items, N, H), structure p is one of item p % items
    receiving, a    (items, N, H)
    keep            (ROUNDS, items, N, H), which entries are sent
    sender, S       (H, H), outputs before inputs, as the weight W; bias c, and scale and shift of the norm, (H,)
    states, s       (structures, ROUNDS, N, H), before each round
    out             (structures, H), of the first token after the last round

Gradients to own and receiving are those of each structure, and so is grad_layers (structures, 2 H + 3, H): of S, of W,
and of c, scale and shift.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, H: tl.constexpr):
    """A matrix (N, H)."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return tl.load(tensor + row * H + column, mask=(row < N) & (column < H), other=0.0)


@triton.jit
def _transposed(tensor, WIDTH: tl.constexpr, H: tl.constexpr):
    """A matrix (H, H), transposed."""
    row, column = tl.arange(0, WIDTH)[:, None], tl.arange(0, WIDTH)[None, :]
    return tl.load(tensor + column * H + row, mask=(row < H) & (column < H), other=0.0)


@triton.jit
def _row(tensor, WIDTH: tl.constexpr, H: tl.constexpr):
    column = tl.arange(0, WIDTH)[None, :]
    return tl.load(tensor + column, mask=column < H, other=0.0)


@triton.jit
def _store(tensor, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, H: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(tensor + row * H + column, x, mask=(row < N) & (column < H))


@triton.jit
def _normalised(x, eps, WIDTH: tl.constexpr, H: tl.constexpr):
    """Rows with mean 0 and variance 1 over H columns, 0 beyond them; and 1 / their standard deviation before."""
    there = tl.arange(0, WIDTH)[None, :] < H
    centred = tl.where(there, x - (tl.sum(x, 1) / H)[:, None], 0.0)
    inverse = (1 / tl.sqrt(tl.sum(centred * centred, 1) / H + eps))[:, None]
    return centred * inverse, inverse


@triton.jit
def _through_norm(grad, scale, normal, inverse, WIDTH: tl.constexpr, H: tl.constexpr):
    """The gradient to what was normalised."""
    u = grad * scale
    along = (tl.sum(u * normal, 1) / H)[:, None]
    return tl.where(tl.arange(0, WIDTH)[None, :] < H, inverse * (u - (tl.sum(u, 1) / H)[:, None] - normal * along), 0.0)


@triton.jit
def _sent(state, received, sender, keep, KEEP: tl.constexpr, TOKENS, WIDTH, N, H, PRECISION: tl.constexpr):
    """h, where `keep` is that of the round and `sender` transposed."""
    sent = tl.dot(state, sender, input_precision=PRECISION)
    if KEEP:
        sent = tl.where(_tile(keep, TOKENS, WIDTH, N, H) != 0, sent, float("-inf"))
    return tl.maximum(received + sent, 0.0)


@triton.jit
def forward(
    structure,
    own,
    receiving,
    keep,
    sender,
    weight,
    bias,
    scale,
    shift,
    states,
    out,
    items,
    eps,
    ROUNDS: tl.constexpr,
    KEEP: tl.constexpr,
    N: tl.constexpr,
    H: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    item = program % items
    x = _tile(structure + program * N * N, TOKENS, TOKENS, N, N)
    e = _tile(own + item * N * H, TOKENS, WIDTH, N, H)
    received = tl.dot(tl.trans(x), _tile(receiving + item * N * H, TOKENS, WIDTH, N, H), input_precision=PRECISION)
    s_transposed, w_transposed = _transposed(sender, WIDTH, H), _transposed(weight, WIDTH, H)
    c, gamma, beta = _row(bias, WIDTH, H), _row(scale, WIDTH, H), _row(shift, WIDTH, H)
    normal, _ = _normalised(e, eps, WIDTH, H)
    state = normal * gamma + beta
    for i in range(ROUNDS):
        _store(states + (program * ROUNDS + i) * N * H, state, TOKENS, WIDTH, N, H)
        kept = keep + (i * items + item) * N * H
        h = _sent(state, received, s_transposed, kept, KEEP, TOKENS, WIDTH, N, H, PRECISION)
        m = tl.maximum(tl.dot(h, w_transposed, input_precision=PRECISION) + c, 0.0)
        normal, _ = _normalised(e + tl.dot(x, m, input_precision=PRECISION), eps, WIDTH, H)
        state = normal * gamma + beta
    column = tl.arange(0, WIDTH)
    first = tl.sum(tl.where(tl.arange(0, TOKENS)[:, None] == 0, state, 0.0), 0)
    tl.store(out + program * H + column, first, mask=column < H)


@triton.jit
def backward(
    grad,
    structure,
    own,
    receiving,
    keep,
    sender,
    weight,
    bias,
    scale,
    states,
    grad_own,
    grad_receiving,
    grad_layers,
    items,
    eps,
    ROUNDS: tl.constexpr,
    KEEP: tl.constexpr,
    N: tl.constexpr,
    H: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    item = program % items
    x = _tile(structure + program * N * N, TOKENS, TOKENS, N, N)
    e = _tile(own + item * N * H, TOKENS, WIDTH, N, H)
    received = tl.dot(tl.trans(x), _tile(receiving + item * N * H, TOKENS, WIDTH, N, H), input_precision=PRECISION)
    c, gamma = _row(bias, WIDTH, H), _row(scale, WIDTH, H)
    to_state = tl.where(tl.arange(0, TOKENS)[:, None] == 0, _row(grad + program * H, WIDTH, H), 0.0)
    to_own, to_received = tl.zeros((TOKENS, WIDTH), tl.float32), tl.zeros((TOKENS, WIDTH), tl.float32)
    to_s, to_w = tl.zeros((WIDTH, WIDTH), tl.float32), tl.zeros((WIDTH, WIDTH), tl.float32)
    to_c, to_scale, to_shift = tl.sum(to_own, 0), tl.sum(to_own, 0), tl.sum(to_own, 0)
    for back in range(ROUNDS):
        i = ROUNDS - 1 - back
        state = _tile(states + (program * ROUNDS + i) * N * H, TOKENS, WIDTH, N, H)
        kept = keep + (i * items + item) * N * H
        h = _sent(state, received, _transposed(sender, WIDTH, H), kept, KEEP, TOKENS, WIDTH, N, H, PRECISION)
        m = tl.maximum(tl.dot(h, _transposed(weight, WIDTH, H), input_precision=PRECISION) + c, 0.0)
        normal, inverse = _normalised(e + tl.dot(x, m, input_precision=PRECISION), eps, WIDTH, H)
        to_scale += tl.sum(to_state * normal, 0)
        to_shift += tl.sum(to_state, 0)
        to_sum = _through_norm(to_state, gamma, normal, inverse, WIDTH, H)
        to_own += to_sum
        to_m = tl.where(m > 0, tl.dot(tl.trans(x), to_sum, input_precision=PRECISION), 0.0)
        to_c += tl.sum(to_m, 0)
        to_w = tl.dot(tl.trans(to_m), h, to_w, input_precision=PRECISION)
        to_h = tl.dot(to_m, _tile(weight, WIDTH, WIDTH, H, H), input_precision=PRECISION)
        to_h = tl.where(h > 0, to_h, 0.0)
        to_received += to_h
        to_s = tl.dot(tl.trans(to_h), state, to_s, input_precision=PRECISION)
        to_state = tl.dot(to_h, _tile(sender, WIDTH, WIDTH, H, H), input_precision=PRECISION)
    normal, inverse = _normalised(e, eps, WIDTH, H)
    to_scale += tl.sum(to_state * normal, 0)
    to_shift += tl.sum(to_state, 0)
    to_own += _through_norm(to_state, gamma, normal, inverse, WIDTH, H)
    _store(grad_own + program * N * H, to_own, TOKENS, WIDTH, N, H)
    to_receiving = tl.dot(x, to_received, input_precision=PRECISION)
    _store(grad_receiving + program * N * H, to_receiving, TOKENS, WIDTH, N, H)
    layers = grad_layers + program * (2 * H + 3) * H
    _store(layers, to_s, WIDTH, WIDTH, H, H)
    _store(layers + H * H, to_w, WIDTH, WIDTH, H, H)
    column = tl.arange(0, WIDTH)
    there = column < H
    tl.store(layers + 2 * H * H + column, to_c, mask=there)
    tl.store(layers + (2 * H + 1) * H + column, to_scale, mask=there)
    tl.store(layers + (2 * H + 2) * H + column, to_shift, mask=there)
