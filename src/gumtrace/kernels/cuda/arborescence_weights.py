"""Arborescences: weights E = e^-G, which traces subtract, and the integers by which they tell where nodes are."""

import triton
import triton.language as tl

WIDEST = tl.constexpr(1300.0)  # the widest span of G that is run on E itself, as on the CPU
PLACES = tl.constexpr(4096)  # node * PLACES + place is one integer
NOWHERE = tl.constexpr(2**30)  # beyond every node, and a multiple of PLACES


@triton.jit
def exponential(t):
    """e^t, |t| <= 650, by the same operations as the CPU's exp64: equal bits, so that equal weights stay equal."""
    k = tl.floor(t * 1.4426950408889634 + 0.5)
    f = (t - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    p = f * (1.0 / 6227020800.0) + 1.0 / 479001600.0
    p = p * f + 1.0 / 39916800.0
    p = p * f + 1.0 / 3628800.0
    p = p * f + 1.0 / 362880.0
    p = p * f + 1.0 / 40320.0
    p = p * f + 1.0 / 5040.0
    p = p * f + 1.0 / 720.0
    p = p * f + 1.0 / 120.0
    p = p * f + 1.0 / 24.0
    p = p * f + 1.0 / 6.0
    p = p * f + 0.5
    p = p * f + 1.0
    return (p * f + 1.0) * ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def extent(low, high, wrong):
    """From the least and the largest of some keys each, (inf, -inf) for none, and whether one is not a number: whether
    one of all is not, the middle of the others, and whether their span is too wide for E."""
    some = tl.max(high, 0) > float("-inf")
    low = tl.where(some, tl.min(low, 0), 0.0).to(tl.float64)
    high = tl.where(some, tl.max(high, 0), 0.0).to(tl.float64)
    return tl.max(wrong, 0) > 0, 0.5 * low + 0.5 * high, high - low > WIDEST
