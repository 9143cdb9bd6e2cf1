"""Hyperdual numbers with an exponent: (x0 + x1 ε₁ + x2 ε₂ + x3 ε₁ε₂) 2^e with ε₁² = ε₂² = 0, which carry derivatives
along however small or large they are. See cpu/hyperdual.py for hyperdual numbers, scaled_float.py for v 2^e.

A number is five values, x0, x1, x2, x3 and e. DUAL is how many components there are, 1, 2 or 4: the others are passed
through and never read. Stored exponents lie within 2^30, so that the sum of any two and their difference fit the
integer. Unless WIDE, numbers have no exponent, and e is passed through like a component that is not there: a third of
the instructions, for numbers that float64 can hold.
"""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.scaled_float import NOTHING, scaled

HIGHEST = tl.constexpr(2**29)  # the largest exponent that is stored; NOTHING is the smallest


@triton.jit
def times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL: tl.constexpr, WIDE: tl.constexpr):
    z1, z2, z3 = x1, x2, x3
    if DUAL > 1:
        z1 = x0 * y1 + x1 * y0
    if DUAL > 2:
        z2 = x0 * y2 + x2 * y0
        z3 = x0 * y3 + x3 * y0 + (x1 * y2 + x2 * y1)
    if WIDE:
        xe = tl.maximum(xe + ye, NOTHING)
    return x0 * y0, z1, z2, z3, xe


@triton.jit
def plus(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL: tl.constexpr, WIDE: tl.constexpr):
    x, y = 1.0, 1.0
    if WIDE:
        e = tl.maximum(xe, ye)
        x, y = _power(xe - e), _power(ye - e)
        xe = e
    x0 = x0 * x + y0 * y
    if DUAL > 1:
        x1 = x1 * x + y1 * y
    if DUAL > 2:
        x2 = x2 * x + y2 * y
        x3 = x3 * x + y3 * y
    return x0, x1, x2, x3, xe


@triton.jit
def _power(e):
    """2^e of e <= 0; 0 where it underflows."""
    return ((tl.maximum(e, -1023) + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def total(x0, x1, x2, x3, xe, DUAL: tl.constexpr, WIDE: tl.constexpr):
    """Sums over rows, (rows, lanes) -> (rows, 1)."""
    x = 1.0
    if WIDE:
        e = tl.max(xe, 1, keep_dims=True)
        x = _power(xe - e)
        xe = e
    x0 = tl.sum(x0 * x, 1, keep_dims=True)
    if DUAL > 1:
        x1 = tl.sum(x1 * x, 1, keep_dims=True)
    if DUAL > 2:
        x2 = tl.sum(x2 * x, 1, keep_dims=True)
        x3 = tl.sum(x3 * x, 1, keep_dims=True)
    return x0, x1, x2, x3, xe


@triton.jit
def totals(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL: tl.constexpr, WIDE: tl.constexpr):
    """Sums of x and of y over columns, (rows, lanes) -> (1, lanes). In pairs, as all threads wait for each other twice
    in every sum."""
    x, y = 1.0, 1.0
    if WIDE:
        ex, ey = tl.split(tl.max(tl.join(xe, ye), 0, keep_dims=True))
        x, y = _power(xe - ex), _power(ye - ey)
        xe, ye = ex, ey
    x0, y0 = _pair(x0 * x, y0 * y)
    if DUAL > 1:
        x1, y1 = _pair(x1 * x, y1 * y)
    if DUAL > 2:
        x2, y2 = _pair(x2 * x, y2 * y)
        x3, y3 = _pair(x3 * x, y3 * y)
    return x0, x1, x2, x3, xe, y0, y1, y2, y3, ye


@triton.jit
def _pair(x, y):
    return tl.split(tl.sum(tl.join(x, y), 0, keep_dims=True))


@triton.jit
def inverse(x0, x1, x2, x3, xe, DUAL: tl.constexpr, WIDE: tl.constexpr):
    """1 / x, of x0 > 0."""
    y0 = 1.0 / x0
    y1, y2, y3 = x1, x2, x3
    if DUAL > 1:
        y1 = -x1 * y0 * y0
    if DUAL > 2:
        y2 = -x2 * y0 * y0
        y3 = -(x3 * y0 + (x1 * y2 + x2 * y1)) * y0
    if WIDE:
        xe = -xe
    return y0, y1, y2, y3, xe


@triton.jit
def normal(x0, x1, x2, x3, xe, DUAL: tl.constexpr, WIDE: tl.constexpr):
    """The same with components about 1, so that sums and products of a few stay far from the ends of float64."""
    if WIDE:
        size = tl.abs(x0)
        if DUAL > 1:
            size += tl.abs(x1)
        if DUAL > 2:
            size += tl.abs(x2) + tl.abs(x3)
        e = (size.to(tl.int64, bitcast=True) >> 52).to(tl.int32) - 1023
        x0 = scaled(x0, -e)
        if DUAL > 1:
            x1 = scaled(x1, -e)
        if DUAL > 2:
            x2, x3 = scaled(x2, -e), scaled(x3, -e)
        xe = tl.where(size > 0, tl.minimum(tl.maximum(xe + e, NOTHING), HIGHEST), NOTHING)
    return x0, x1, x2, x3, xe


@triton.jit
def load(values, scales, place, mask, DUAL: tl.constexpr, WIDE: tl.constexpr, PLANE: tl.constexpr):
    """Zero elsewhere. Component k lies k PLANE behind the first."""
    x0 = tl.load(values + place, mask=mask, other=0.0)
    x1, x2, x3 = 0.0, 0.0, 0.0
    if DUAL > 1:
        x1 = tl.load(values + PLANE + place, mask=mask, other=0.0)
    if DUAL > 2:
        x2 = tl.load(values + 2 * PLANE + place, mask=mask, other=0.0)
        x3 = tl.load(values + 3 * PLANE + place, mask=mask, other=0.0)
    e = 0
    if WIDE:
        e = tl.load(scales + place, mask=mask, other=NOTHING)
    return x0, x1, x2, x3, e


@triton.jit
def store(values, scales, place, mask, x0, x1, x2, x3, xe, DUAL: tl.constexpr, WIDE: tl.constexpr, PLANE: tl.constexpr):
    tl.store(values + place, x0, mask=mask)
    if DUAL > 1:
        tl.store(values + PLANE + place, x1, mask=mask)
    if DUAL > 2:
        tl.store(values + 2 * PLANE + place, x2, mask=mask)
        tl.store(values + 3 * PLANE + place, x3, mask=mask)
    if WIDE:
        tl.store(scales + place, xe, mask=mask)


@triton.jit
def zeros(ROWS: tl.constexpr, LANES: tl.constexpr, DUAL: tl.constexpr, WIDE: tl.constexpr):
    x0 = tl.zeros([ROWS, LANES], tl.float64)
    x1, x2, x3 = 0.0, 0.0, 0.0
    if DUAL > 1:
        x1 = x0
    if DUAL > 2:
        x2, x3 = x0, x0
    e = 0
    if WIDE:
        e = tl.full([ROWS, LANES], NOTHING, tl.int32)
    return x0, x1, x2, x3, e


@triton.jit
def kept(x0, x1, x2, x3, xe, mask, DUAL: tl.constexpr, WIDE: tl.constexpr):
    """Zero elsewhere."""
    if DUAL > 1:
        x1 = tl.where(mask, x1, 0.0)
    if DUAL > 2:
        x2, x3 = tl.where(mask, x2, 0.0), tl.where(mask, x3, 0.0)
    if WIDE:
        xe = tl.where(mask, xe, NOTHING)
    return tl.where(mask, x0, 0.0), x1, x2, x3, xe
