"""Exponential noise from Philox: a pure function of the seed, the stream, the item and the position, so that what one
kernel drew another can draw again."""

import torch
import triton
import triton.language as tl

KEYS = tl.constexpr(0)  # streams: the noise of a key,
MINIMA = tl.constexpr(1)  # and of a decision's minimum; further attempts take the next two, and so on


ROUNDS = tl.constexpr(7)  # the fewest with which Philox-2x32 passes BigCrush (Salmon et al. 2011, table 2)


@triton.jit
def philox(key, c0, c1, rounds: tl.constexpr = ROUNDS):
    """Philox-2x32: 64 random bits, as two words, for each counter (c0, c1)."""
    for _ in tl.static_range(rounds):
        high = tl.umulhi(c0, tl.full((), 0xD256D193, tl.uint32))
        c1, c0 = c0 * 0xD256D193, high ^ key ^ c1
        key += 0x9E3779B9
    return c0, c1


# Known to NVIDIA's GPUs alone, and not to Triton's interpreter.
PTX = tl.constexpr(isinstance(philox, triton.JITFunction) and torch.version.hip is None)


@triton.jit
def log(x):
    """The logarithm of a positive normal number, without a guard for any other."""
    if x.dtype == tl.float64:
        return tl.log(x)
    else:
        bits = x.to(tl.int32, bitcast=True)
        e = (bits - 0x3F3504F3) >> 23  # x = m 2^e with m between the roots of 1/2 and 2
        t = (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0
        p = tl.fma(t, 7.0376836292e-2, -1.1514610310e-1)
        p = tl.fma(t, p, 1.1676998740e-1)
        p = tl.fma(t, p, -1.2420140846e-1)
        p = tl.fma(t, p, 1.4249322787e-1)
        p = tl.fma(t, p, -1.6668057665e-1)
        p = tl.fma(t, p, 2.0000714765e-1)
        p = tl.fma(t, p, -2.4999993993e-1)
        p = tl.fma(t, p, 3.3333331174e-1)
        s = t * t
        exponent = e.to(tl.float32)
        y = tl.fma(t * s, p, tl.fma(exponent, -2.12194440e-4, -0.5 * s))
        return tl.fma(exponent, 0.693359375, t + y)


@triton.jit
def rough_log(x):
    """The same with an absolute error of 2^-22 near 1 and a relative one elsewhere: one instruction and a product."""
    if x.dtype == tl.float64:
        return log(x)
    elif PTX:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
        return y * 0.6931471805599453
    else:
        return log(x)


@triton.jit
def log_exponential(seed, stream, item, position, dtype: tl.constexpr):
    """log of a standard exponential for each position.

    One bit picks the half of (0, 1) and the other 63 a point w in the half, measured from its own end: so both tails
    keep full relative precision, w is never 0, and E = -log w or -log(1 - w) lies between 5e-20 and 45.
    """
    first, second = tl.load(seed), tl.load(seed + 1)  # half of the seed is the key, half says where counters begin
    key = (first & 0xFFFFFFFF).to(tl.uint32) + (second & 0xFFFFFFFF).to(tl.uint32) + stream * 0x632BE5AB
    row = (first >> 32).to(tl.uint32) + item.to(tl.uint32)
    column = (second >> 32).to(tl.uint32) + position.to(tl.uint32)
    r0, r1 = philox(key.to(tl.uint32), column, row + column * 0)
    w = (r0 >> 1).to(dtype) * 2.3283064365386963e-10 + (r1 | 1).to(dtype) * 5.421010862427522e-20  # 2^-32 and 2^-64
    near_zero = (r0 & 1) == 0
    f = tl.where(near_zero, w, 1.0 - w)
    lost = tl.where(near_zero, 0.0, ((f - 1.0) + w) * (1.0 + w))  # what log(1 - w) lost by rounding 1 - w
    return rough_log(lost - log(f))  # E to its last bits, since rare small ones win; G = -log E only as a number


@triton.jit
def row_of(item, rows):
    """Which row of log-rates an item reads. A grid is shorter than 2^31, and a short remainder much cheaper."""
    return (item.to(tl.int32) % rows).to(tl.int64)


@triton.jit
def multiple(n, FOURS: tl.constexpr):
    """n, told to the compiler as a multiple of four where it is: then rows are read and written four numbers at a
    time."""
    return n // 4 * 4 if FOURS else n


@triton.jit
def noisy(source, rows, seed, item, keys, key, mask):
    """G at some keys of an item: read, or where there is a seed the log-rates read and the noise drawn. -inf for keys
    that do not race."""
    g = tl.load(source + row_of(item, rows) * keys + key, mask=mask, other=float("-inf"))
    if seed is not None:
        g -= log_exponential(seed, KEYS, item, key, g.dtype)
    return g
