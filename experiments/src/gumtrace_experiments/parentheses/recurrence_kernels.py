"""What an LSTM computes at each entry of a step, in four passes: forward, backward, and the derivatives of both along a
direction. Matrix products are left to others: their results are `carried`.

    i, f, o = sigmoid of their gates,      g = tanh of its gate,      c = f c' + i g,      m = tanh c,      h = o m

c' is the cell before. Derivatives of the loss are marked d, those along the direction by a 1 behind the name. A program
takes BLOCK entries of ROWS rows, each of H hidden units; gates are (ROWS, 4 H) in the order above, the rest (ROWS, H).
"""

import triton
import triton.language as tl


@triton.jit
def _place(ROWS, H: tl.constexpr, BLOCK: tl.constexpr):
    """Of entries, of their first gate, and whether they are there."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return entry, entry // H * (4 * H) + entry % H, entry < ROWS * H


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _four(tensor, gate, there, H: tl.constexpr):
    return (
        tl.load(tensor + gate, mask=there, other=0.0),
        tl.load(tensor + gate + H, mask=there, other=0.0),
        tl.load(tensor + gate + 2 * H, mask=there, other=0.0),
        tl.load(tensor + gate + 3 * H, mask=there, other=0.0),
    )


@triton.jit
def _put(tensor, gate, i, f, o, g, there, H: tl.constexpr):
    tl.store(tensor + gate, i, mask=there)
    tl.store(tensor + gate + H, f, mask=there)
    tl.store(tensor + gate + 2 * H, o, mask=there)
    tl.store(tensor + gate + 3 * H, g, mask=there)


@triton.jit
def forward(gates, carried, before, opened, cell, hidden, ROWS, H: tl.constexpr, BLOCK: tl.constexpr):
    """From gates and c' to i, f, o, g (`opened`), c and h."""
    entry, gate, there = _place(ROWS, H, BLOCK)
    i, f, o, g = _four(gates, gate, there, H)
    i1, f1, o1, g1 = _four(carried, gate, there, H)
    i, f, o, g = tl.sigmoid(i + i1), tl.sigmoid(f + f1), tl.sigmoid(o + o1), _tanh(g + g1)
    c = f * tl.load(before + entry, mask=there, other=0.0) + i * g
    _put(opened, gate, i, f, o, g, there, H)
    tl.store(cell + entry, c, mask=there)
    tl.store(hidden + entry, o * _tanh(c), mask=there)


@triton.jit
def backward(
    grad, carried, later, opened, before, cell, to_gates, to_hidden, to_cell, to_before, ROWS, H: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """From dh, the sum of `grad` and `carried`, and the part of dc that comes from `later` steps: to the gates, and to
    c'. Keeps dh and dc."""
    entry, gate, there = _place(ROWS, H, BLOCK)
    i, f, o, g = _four(opened, gate, there, H)
    dh = tl.load(grad + entry, mask=there, other=0.0) + tl.load(carried + entry, mask=there, other=0.0)
    m = _tanh(tl.load(cell + entry, mask=there, other=0.0))
    dc = tl.load(later + entry, mask=there, other=0.0) + dh * o * (1 - m * m)
    old = tl.load(before + entry, mask=there, other=0.0)
    to_o = dh * m * o * (1 - o)
    _put(to_gates, gate, dc * g * i * (1 - i), dc * old * f * (1 - f), to_o, dc * i * (1 - g * g), there, H)
    tl.store(to_hidden + entry, dh, mask=there)
    tl.store(to_cell + entry, dc, mask=there)
    tl.store(to_before + entry, dc * f, mask=there)


@triton.jit
def forward_along(
    gates1, carried1, before1, opened, before, cell, opened1, cell1, hidden1, ROWS, H: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The derivatives of what `forward` gives along those of the gates, the sum of two, and of c'."""
    entry, gate, there = _place(ROWS, H, BLOCK)
    i, f, o, g = _four(opened, gate, there, H)
    i1, f1, o1, g1 = _four(gates1, gate, there, H)
    i2, f2, o2, g2 = _four(carried1, gate, there, H)
    i1, f1, o1 = (i1 + i2) * i * (1 - i), (f1 + f2) * f * (1 - f), (o1 + o2) * o * (1 - o)
    g1 = (g1 + g2) * (1 - g * g)
    old, old1 = tl.load(before + entry, mask=there, other=0.0), tl.load(before1 + entry, mask=there, other=0.0)
    m = _tanh(tl.load(cell + entry, mask=there, other=0.0))
    c1 = f1 * old + f * old1 + i1 * g + i * g1
    _put(opened1, gate, i1, f1, o1, g1, there, H)
    tl.store(cell1 + entry, c1, mask=there)
    tl.store(hidden1 + entry, o1 * m + o * (1 - m * m) * c1, mask=there)


@triton.jit
def backward_along(
    carried1, later1, to_hidden, to_cell, opened, before, cell, opened1, before1, cell1, to_gates1, to_before1, ROWS,
    H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The derivatives of what `backward` gives, where `grad` has none."""
    entry, gate, there = _place(ROWS, H, BLOCK)
    i, f, o, g = _four(opened, gate, there, H)
    i1, f1, o1, g1 = _four(opened1, gate, there, H)
    dh, dc = tl.load(to_hidden + entry, mask=there, other=0.0), tl.load(to_cell + entry, mask=there, other=0.0)
    dh1 = tl.load(carried1 + entry, mask=there, other=0.0)
    old, old1 = tl.load(before + entry, mask=there, other=0.0), tl.load(before1 + entry, mask=there, other=0.0)
    m = _tanh(tl.load(cell + entry, mask=there, other=0.0))
    m1 = (1 - m * m) * tl.load(cell1 + entry, mask=there, other=0.0)
    dc1 = tl.load(later1 + entry, mask=there, other=0.0)
    dc1 += (dh1 * o + dh * o1) * (1 - m * m) - 2 * dh * o * m * m1
    # A gate's derivative is a product of three, of which the last is the slope of its sigmoid or tanh.
    to_i = (dc1 * g + dc * g1) * i * (1 - i) + dc * g * (1 - 2 * i) * i1
    to_f = (dc1 * old + dc * old1) * f * (1 - f) + dc * old * (1 - 2 * f) * f1
    to_o = (dh1 * m + dh * m1) * o * (1 - o) + dh * m * (1 - 2 * o) * o1
    to_g = (dc1 * i + dc * i1) * (1 - g * g) - 2 * dc * i * g * g1
    _put(to_gates1, gate, to_i, to_f, to_o, to_g, there, H)
    tl.store(to_before1 + entry, dc1 * f + dc * f1, mask=there)
