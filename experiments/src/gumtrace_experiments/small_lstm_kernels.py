"""All steps of LSTMs of at most 64 units in one kernel: a program takes ROWS rows of one LSTM and keeps its weights.
Gates are in torch's order: in, forget, new and out.

    i, f, o = sigmoid of their gates,      g = tanh of its gate,      c = f c' + i g,      h = o tanh c

Gates are (LSTMs, items, n, 4 H), states (LSTMs, items, n, H), the weights (LSTMs, 4 H, H), outputs before inputs.
WIDTH is a power of two that holds H, PRECISION that of products.
"""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _rows(items, n, H: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """(ROWS, WIDTH): where the first states of a program's rows are, and which are there."""
    row, unit = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    first = (tl.program_id(1).to(tl.int64) * items + row) * n * H
    return first[:, None] + unit[None, :], (row[:, None] < items) & (unit[None, :] < H)


@triton.jit
def _weights(carry, gate, TURNED, H: tl.constexpr, WIDTH: tl.constexpr):
    """(WIDTH, WIDTH) of one gate, 0 beyond H: outputs before inputs, or turned."""
    unit = tl.arange(0, WIDTH)
    there = (unit[:, None] < H) & (unit[None, :] < H)
    place = unit[:, None] + unit[None, :] * H if TURNED else unit[:, None] * H + unit[None, :]
    return tl.load(carry + (tl.program_id(1) * 4 + gate) * H * H + place, mask=there, other=0.0)


@triton.jit
def forward(
    gates, carry, opened, cells, hidden, before, items, n, H: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From gates to i, f, g, o (`opened`), cells, states, and the states before each step."""
    step, there = _rows(items, n, H, WIDTH, ROWS)
    unit = tl.arange(0, WIDTH)[None, :]
    w_i, w_f = _weights(carry, 0, True, H, WIDTH), _weights(carry, 1, True, H, WIDTH)
    w_g, w_o = _weights(carry, 2, True, H, WIDTH), _weights(carry, 3, True, H, WIDTH)
    h = tl.zeros([ROWS, WIDTH], gates.dtype.element_ty)
    c = h
    for _ in range(n):
        gate = 4 * step - 3 * unit
        i = tl.dot(h, w_i, tl.load(gates + gate, mask=there, other=0.0), input_precision=PRECISION)
        f = tl.dot(h, w_f, tl.load(gates + gate + H, mask=there, other=0.0), input_precision=PRECISION)
        g = tl.dot(h, w_g, tl.load(gates + gate + 2 * H, mask=there, other=0.0), input_precision=PRECISION)
        o = tl.dot(h, w_o, tl.load(gates + gate + 3 * H, mask=there, other=0.0), input_precision=PRECISION)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
        tl.store(before + step, h, mask=there)
        c = f * c + i * g
        h = tl.where(there, o * _tanh(c), 0.0)
        tl.store(opened + gate, i, mask=there)
        tl.store(opened + gate + H, f, mask=there)
        tl.store(opened + gate + 2 * H, g, mask=there)
        tl.store(opened + gate + 3 * H, o, mask=there)
        tl.store(cells + step, c, mask=there)
        tl.store(hidden + step, h, mask=there)
        step += H


@triton.jit
def backward(
    grad, carry, opened, cells, to_gates, items, n, H: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From gradients to the states to those to the gates, from the last step to the first."""
    first, there = _rows(items, n, H, WIDTH, ROWS)
    unit = tl.arange(0, WIDTH)[None, :]
    w_i, w_f = _weights(carry, 0, False, H, WIDTH), _weights(carry, 1, False, H, WIDTH)
    w_g, w_o = _weights(carry, 2, False, H, WIDTH), _weights(carry, 3, False, H, WIDTH)
    step = first + (n - 1) * H
    dh = tl.zeros([ROWS, WIDTH], grad.dtype.element_ty)  # from the step behind, as is dc
    dc = dh
    for _ in range(n):
        gate = 4 * step - 3 * unit
        i, f = tl.load(opened + gate, mask=there, other=0.0), tl.load(opened + gate + H, mask=there, other=0.0)
        g, o = (
            tl.load(opened + gate + 2 * H, mask=there, other=0.0),
            tl.load(opened + gate + 3 * H, mask=there, other=0.0),
        )
        m = _tanh(tl.load(cells + step, mask=there, other=0.0))
        old = tl.load(cells + step - H, mask=there & (step > first), other=0.0)
        dh += tl.load(grad + step, mask=there, other=0.0)
        dc += dh * o * (1 - m * m)
        to_i, to_f = dc * g * i * (1 - i), dc * old * f * (1 - f)
        to_g, to_o = dc * i * (1 - g * g), dh * m * o * (1 - o)
        tl.store(to_gates + gate, to_i, mask=there)
        tl.store(to_gates + gate + H, to_f, mask=there)
        tl.store(to_gates + gate + 2 * H, to_g, mask=there)
        tl.store(to_gates + gate + 3 * H, to_o, mask=there)
        dh = tl.dot(to_i, w_i, input_precision=PRECISION)
        dh = tl.dot(to_f, w_f, dh, input_precision=PRECISION)
        dh = tl.dot(to_g, w_g, dh, input_precision=PRECISION)
        dh = tl.dot(to_o, w_o, dh, input_precision=PRECISION)
        dc *= f
        step -= H
