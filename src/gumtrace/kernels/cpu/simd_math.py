"""Elementary functions over rows, written so that LLVM turns their loops into SIMD code.

Numba calls libm once a number for `exp` and `log`; the versions here are plain polynomials without a branch, five to
ten times faster and good to about one unit in the last place.
"""

from functools import partial

import numpy as np
from numba import types
from numba.extending import overload

from gumtrace.kernels.cpu.arrays import as_bits
from gumtrace.kernels.cpu.jit import ANY_ORDER, PART, jit


def lowest_winner(x):
    """The least G of a winner, in the dtype of x: half the lowest finite number. As many floats lie below it as a chain
    may have decisions, so that each can be strictly below the one before and none is -inf."""
    raise NotImplementedError("compiled code only")


@overload(lowest_winner, inline="always")
def _lowest_winner(x):
    if x.dtype == types.float32:
        return lambda x: np.float32(-(2.0**127))
    return lambda x: -(2.0**1023)


@jit
def _exp32(x, n, scratch):
    """x[:n] = e^x, for x <= 88; below -87 it is zero."""
    for i in range(n):
        t = min(x[i], np.float32(88.0))
        k = np.floor(max(t, np.float32(-90.0)) * np.float32(1.44269504) + np.float32(0.5))
        f = (t - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4)
        p = np.float32(0.00139419973)
        p = p * f + np.float32(0.00836874414)
        p = p * f + np.float32(0.0416663871)
        p = p * f + np.float32(0.166665205)
        p = p * f + np.float32(0.5)
        p = p * f + np.float32(1.0)
        alive = t > np.float32(-87.0)
        x[i] = p * f + np.float32(1.0) if alive else np.float32(0.0)
        scratch[i] = (np.int32(k) + np.int32(127)) << np.int32(23) if alive else np.int32(0)
    scale = as_bits(scratch)
    for i in range(n):
        x[i] *= scale[i]


@jit
def _log32(x, n, scratch):
    """x[:n] = log x, for normal positive x."""
    bits = as_bits(x)
    for i in range(n):
        b = bits[i]
        e = (b - np.int32(0x3F3504F3)) >> np.int32(23)  # mantissa between sqrt(1/2) and sqrt(2)
        scratch[i] = b - (e << np.int32(23))
        x[i] = np.float32(e)
    mantissa = as_bits(scratch)
    for i in range(n):
        f = mantissa[i] - np.float32(1.0)
        q = np.float32(-0.0763494255)
        q = q * f + np.float32(0.1276182)
        q = q * f + np.float32(-0.131601165)
        q = q * f + np.float32(0.142017138)
        q = q * f + np.float32(-0.166233601)
        q = q * f + np.float32(0.200012294)
        q = q * f + np.float32(-0.25000821)
        q = q * f + np.float32(0.333333317)
        x[i] = x[i] * np.float32(0.69314718) + (f - f * f * (np.float32(0.5) - f * q))


@jit
def exp64(x, n, scratch):
    """x[:n] = e^x, for x <= 709; below -708 it is zero."""
    for i in range(n):
        t = min(x[i], 709.0)
        k = np.floor(max(t, -709.0) * 1.4426950408889634 + 0.5)
        f = (t - k * 0.6931471803691238) - k * 1.9082149292705877e-10
        p = 1.0 / 6227020800.0  # Taylor to f^13: |f| < 0.35, so the rest is below 2^-57
        p = p * f + 1.0 / 479001600.0
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
        alive = t > -708.0
        x[i] = p * f + 1.0 if alive else 0.0
        scratch[i] = (np.int64(k) + np.int64(1023)) << np.int64(52) if alive else np.int64(0)
    scale = as_bits(scratch)
    for i in range(n):
        x[i] *= scale[i]


@jit
def log64(x, n, scratch):
    """x[:n] = log x, for normal positive x: the method of fdlibm."""
    bits = as_bits(x)
    for i in range(n):
        b = bits[i]
        e = (b - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)  # mantissa between sqrt(1/2) and sqrt(2)
        scratch[i] = b - (e << np.int64(52))
        x[i] = np.float64(e)
    mantissa = as_bits(scratch)
    for i in range(n):
        f = mantissa[i] - 1.0
        s = f / (2.0 + f)
        z = s * s
        p = 0.1479819860511658591
        p = p * z + 0.1531383769920937332
        p = p * z + 0.1818357216161805012
        p = p * z + 0.2222219843214978396
        p = p * z + 0.2857142874366239149
        p = p * z + 0.3999999999940941908
        p = p * z + 0.6666666666666735130
        half = 0.5 * f * f
        low = x[i] * 1.90821492927058770002e-10
        x[i] = x[i] * 6.93147180369123816490e-01 - ((half - (s * (half + p * z) + low)) - f)


def exp_row(x, n, scratch):
    """x[:n] = e^x in place; scratch holds n integers as wide as x."""
    raise NotImplementedError("compiled code only")


def log_row(x, n, scratch):
    """x[:n] = log x in place, x positive; scratch holds n integers as wide as x."""
    raise NotImplementedError("compiled code only")


@overload(exp_row, jit_options=PART)
def _exp_row(x, n, scratch):
    if x.dtype == types.float32:
        return lambda x, n, scratch: _exp32(x, n, scratch)
    return lambda x, n, scratch: exp64(x, n, scratch)


@overload(log_row, jit_options=PART)
def _log_row(x, n, scratch):
    if x.dtype == types.float32:
        return lambda x, n, scratch: _log32(x, n, scratch)
    return lambda x, n, scratch: log64(x, n, scratch)


@jit
def random_bits(seed, index):
    """64 random bits for a position: SplitMix64's two rounds with half the seed added before and half between them."""
    z = np.uint64(seed[0]) + np.uint64(index) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27)) ^ np.uint64(seed[1])) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def attempt_seed(seed, attempt, out):
    """The seed of a further attempt at the same draw: a stream of its own. Attempt 0 has the seed itself."""
    for half in range(2):
        beyond = (np.uint64(1) << np.uint64(63)) + np.uint64(2 * attempt + half)  # positions that no draw reaches
        out[half] = random_bits(seed, beyond) if attempt > 0 else seed[half]


@jit
def log_exponential_row(seed, index, out, n, spare, scratch):
    """out[:n] = log of standard exponentials, positions index, index + 1, ... of the stream.

    One bit picks the half of (0, 1) and the other 63 a point w in the half, measured from its own end: so both tails
    keep full relative precision, w is never 0, and E = -log w or -log(1 - w) lies between 5e-20 and 45.
    """
    one = out.dtype.type(1.0)
    zero = out.dtype.type(0.0)
    unit = out.dtype.type(2.0**-64)
    for i in range(n):
        z = random_bits(seed, index + i)
        w = out.dtype.type(np.int64((z >> np.uint64(1)) | np.uint64(1))) * unit
        low = (z & np.uint64(1)) == np.uint64(1)
        f = w if low else one - w
        spare[i] = zero if low else ((f - one) + w) / f  # what 1 - w lost by rounding
        out[i] = f
    log_row(out, n, scratch)
    for i in range(n):
        out[i] = spare[i] - out[i]
    log_row(out, n, scratch)


@jit
def perturb_row(logits, seed, index, g, spare, scratch):
    """g = logits + Gumbel noise, from the place `index` of the stream on."""
    log_exponential_row(seed, index, g, g.size, spare, scratch)
    for k in range(g.size):
        g[k] = logits[k] - g[k]


@jit
def places(start, stop):
    """range(start, stop) for loops over a piece of an array. Unsigned, or Numba would ask of every index whether it
    counts from the end, and LLVM would not turn the loop into SIMD code."""
    return range(np.uint64(start), np.uint64(stop))


@jit
def fetch(x):
    """Read x in order, a number here and there, before it is read in an order that no processor foresees: this brings
    it from memory in half the time. Returns something that must be kept, or LLVM would leave it all out."""
    bits = as_bits(x)
    seen = bits[0]
    for i in range(16, x.size, 16):
        seen ^= bits[i]
    return seen


@partial(jit, fastmath=ANY_ORDER)
def sum_range(x, start, stop):
    """Σ x[start:stop] in float64, in any order."""
    total = 0.0
    for i in places(start, stop):
        total += np.float64(x[i])
    return total
