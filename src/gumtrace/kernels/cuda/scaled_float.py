"""Numbers v 2^e, v a float and e an integer: sums of rates from e^-10000 to e^10000 without an exponential a step.

Every function works on scalars and tiles alike. Zero is v = 0 with e = NOTHING, so that it never sets the scale.
"""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.noise import PTX

NOTHING = tl.constexpr(-(2**30))
FAR = tl.constexpr(2**30)
LN2 = tl.constexpr(0.6931471805599453)
LARGEST = tl.constexpr(7e8)  # logarithms beyond this would not fit the exponent
LARGEST_RATE = tl.constexpr(2.0**28)  # log-rates beyond this count as this, so that ratios of sums still fit
LARGEST_RATE_32 = tl.constexpr(2.0**22)  # in float32, which has no digits left beyond


@triton.jit
def held(x):
    """A log-rate as sums take it; 0 for -inf, whose rate is nothing."""
    most: tl.constexpr = LARGEST_RATE if x.dtype == tl.float64 else LARGEST_RATE_32
    return tl.where(x > float("-inf"), tl.minimum(tl.maximum(x, -most), most), 0.0)


@triton.jit
def exponential(x):
    """e^x of a log-rate; 0 for x = -inf."""
    some = x > float("-inf")
    v, e = _split(held(x), x.dtype)
    return tl.where(some, v, 0.0), tl.where(some, e, NOTHING)


@triton.jit
def exponential_as(x, dtype: tl.constexpr):
    """e^x of any logarithm, 0 for -inf, with v of another type: float64 exponents are exact, but their e^x need not
    be."""
    some = x > float("-inf")
    v, e = _split(tl.where(some, tl.minimum(tl.maximum(x, -LARGEST), LARGEST), 0.0), dtype)
    return tl.where(some, v, 0.0), tl.where(some, e, NOTHING)


@triton.jit
def _split(y, dtype: tl.constexpr):
    """e^y as v 2^e, v between the roots of 1/2 and 2, for a y whose e is an integer of 32 bits."""
    e = tl.floor(y * 1.4426950408889634 + 0.5)
    if y.dtype == tl.float64:  # ln 2 in two parts, so that y - e ln 2 keeps its bits
        f = (y - e * 0.6931471803691238) - e * 1.9082149292705877e-10
    else:
        f = tl.fma(e, 2.12194440e-4, tl.fma(e, -0.693359375, y))
    return _small_exp(f.to(dtype)), e.to(tl.int32)


@triton.jit
def _small_exp(f):
    """e^f for f near 0, without the guard of tl.exp around large ones."""
    if f.dtype == tl.float64:
        return tl.exp(f)
    elif PTX:
        y = f * 1.4426950408889634
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [y], tl.float32, is_pure=True, pack=1)
    else:
        return tl.exp(f)


@triton.jit
def scaled(v, e):
    """v 2^e as a float; 0 where it underflows."""
    if v.dtype == tl.float64:
        bits = (tl.minimum(tl.maximum(e, -1023), 1023).to(tl.int64) + 1023) << 52
        return v * bits.to(tl.float64, bitcast=True)
    else:
        bits = (tl.minimum(tl.maximum(e, -127), 127) + 127) << 23
        return v * bits.to(tl.float32, bitcast=True)


@triton.jit
def add(v1, e1, v2, e2):
    e = tl.maximum(e1, e2)
    return scaled(v1, e1 - e) + scaled(v2, e2 - e), e


@triton.jit
def normal(v, e):
    """The same number with |v| between 1 and 2, unless v is subnormal or about to overflow."""
    if v.dtype == tl.float64:
        k = tl.minimum(((v.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32) - 1023, 1022)
    else:
        k = tl.minimum(((v.to(tl.int32, bitcast=True) >> 23) & 255) - 127, 126)
    return scaled(v, -k), tl.where(v == 0, NOTHING, e + k)


@triton.jit
def total(v, e):
    """The sum of a row of numbers."""
    top = tl.max(e, 0)
    return tl.sum(scaled(v, e - top), 0), top


@triton.jit
def common(e, dtype: tl.constexpr):
    """The exponent of which all numbers of a tile can be multiples, if none is too small beside the largest for that:
    the largest. Else FAR."""
    top = tl.max(e)
    low = tl.min(tl.where(e > NOTHING, e, top))
    most: tl.constexpr = 512 if dtype == tl.float64 else 64  # half of the exponents: factors may be small too
    return tl.where(top - low <= most, top, FAR)


@triton.jit
def near(v, e):
    """Numbers of a tile as multiples of one power of two, where that can be: v and the exponent of all. Else v as it
    is, and FAR."""
    top = common(e, v.dtype)
    return tl.where(top < FAR, scaled(v, e - top), v), top


@triton.jit
def sum_some(v, e, top, some, AXIS: tl.constexpr):
    """The sums over some numbers of each row, or column, of a tile: v and top as `near` gives them, e as it gets it."""
    if top < FAR:
        v_sum = tl.sum(tl.where(some, v, 0.0), AXIS)
        e_sum = tl.where(v_sum == 0, NOTHING, top)
    else:
        e_some = tl.where(some, e, NOTHING)
        e_sum = tl.max(e_some, AXIS)
        v_sum = tl.sum(tl.where(some, scaled(v, e_some - tl.expand_dims(e_sum, AXIS)), 0.0), AXIS)
    return v_sum, e_sum


@triton.jit
def at(v, e, here):
    """The one number of a row where `here` holds."""
    return tl.sum(tl.where(here, v, 0.0), 0), tl.max(tl.where(here, e, NOTHING), 0)


@triton.jit
def logarithm(v, e):
    """log(v 2^e) in float64, which large exponents need; -inf for 0."""
    return tl.where(v > 0, tl.log(tl.where(v > 0, v, 1.0)).to(tl.float64) + e.to(tl.float64) * LN2, float("-inf"))
