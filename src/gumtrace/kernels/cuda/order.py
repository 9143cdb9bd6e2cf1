"""The order of keys as integers: larger G first, equal ones by index, as everywhere."""

import triton
import triton.language as tl


@triton.jit
def code(g):
    """An integer as wide as g, larger for larger g; one less for the next float below. -0.0 and 0.0 are one number."""
    if g.dtype == tl.float64:
        bits = g.to(tl.int64, bitcast=True)
        return tl.where(bits < 0, -(bits & 0x7FFFFFFFFFFFFFFF), bits)
    else:
        bits = g.to(tl.int32, bitcast=True)
        return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@triton.jit
def decode(c):
    """The float of a code."""
    if c.dtype == tl.int64:
        high = (-c) | (tl.full(c.shape, 1, tl.int64) << 63)
        return tl.where(c < 0, high, c).to(tl.float64, bitcast=True)
    else:
        return tl.where(c < 0, (-c) | -(2**31), c).to(tl.float32, bitcast=True)


@triton.jit
def before(c1, key1, c2, key2):
    """Whether the first key beats the second."""
    return (c1 > c2) | ((c1 == c2) & (key1 < key2))


@triton.jit
def least(g):
    """The code of -inf, as a scalar of the width of g's codes."""
    if g.dtype == tl.float64:
        return tl.full((), -0x7FF0000000000000, tl.int64)
    else:
        return tl.full((), -0x7F800000, tl.int32)


@triton.jit
def smaller(c1, c2):
    """For scans: the least code so far."""
    return tl.minimum(c1, c2)
