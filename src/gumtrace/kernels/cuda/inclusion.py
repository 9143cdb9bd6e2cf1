"""Inclusion probabilities of k-subsets and their Jacobian times a vector, by the sums of cpu/inclusion.py.

At a point, the count of arrivals has the polynomial Π_j (q_j + p_j z), and without key i this divided by its factor.
The chances of counts below k are coefficients, found from its values at R roots ρω, ω^R = -1, as by a Fourier
transform: no states of a walk over the keys are in memory, and none waits for the one before. The chance of m + R
arrivals comes in with that of m, times ρ^R. With ρ = min(1, k / μ), μ the mean of the count, Chernoff's bounds have
this below e^-DROP for the R of `_roots`, and the values over ρ^(k-1) below e², so that errors are those of rounding.

Conjugate roots share their work, so about k serve: keys · points · roots steps, of 6 operations to multiply the factors
and of 7 to leave one out, 12 and 20 for the Jacobian. 128 items, 784 keys, k = 50, 48 points: 5 · 10^9 operations in
float64 and 11 · 10^9 for the Jacobian, at least 0.3 and 0.7 ms of an H200; what is in memory, 0.1 GB, takes less.
"""

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

DROP = 39.0  # e^-39: 1e-17
SCRATCH = 2**27  # numbers in memory at once, 1 GiB: items take turns where they need more
LARGEST = 2**30  # of one item, 8 GiB
LONGEST, FEW = 128, 4  # keys at a time, and points, of a program that computes the chances of all keys
POINTS = 16  # of other programs: a cache line, and of the 48 of the rule a whole number
ROOTS = 16  # of a program that multiplies the factors of all keys
AHEAD = 8  # keys that it loads together
KEYS = 32  # of a program that leaves them out one by one


@triton.jit
def _arrival(y, s, j, keys):
    """u = e^{y_j + s}, q = e^{-u} and p = 1 - q, as cpu/inclusion.py has them; none beyond the keys."""
    u = tl.exp(tl.minimum(tl.load(y + j, mask=j < keys, other=-float("inf")) + s, 7.0))  # e^{-e^7} is 0
    q = tl.exp(-u)
    small = tl.minimum(u, 0.125)  # 1 - e^{-u} by its series, which keeps the digits of small ones
    series = 1.0 - small / 10.0
    for n in tl.static_range(9, 1, -1):
        series = 1.0 - small * series * (1.0 / n)
    return u, q, tl.where(u < 0.125, small * series, 1.0 - q)


@triton.jit
def _root(cosine, sine, root):
    """cos² and sin² of half the root's angle, and the sine of the whole: with all their digits where they are small.
    The tables go by quarters of the step from root to root: root r is at 4 r + 2, half its angle at 2 r + 1."""
    c, s = tl.load(cosine + 2 * root + 1), tl.load(sine + 2 * root + 1)
    return c * c, s * s, 2.0 * c * s


@triton.jit
def _chances(
    y, width, k_ptr, places, v, chance, mark, tilt, scale, keys, points, roots,
    MARKED: tl.constexpr, KEYS: tl.constexpr, POINTS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """`tilt` ρ and the factor `scale` of all terms, (items, points); the `chance` p ρ / (q + p ρ) of each key and its
    `mark` a v / (q + p ρ), (items, keys, points), filled up to a multiple of AHEAD by keys that never arrive."""
    item = (tl.program_id(0) // (points // POINTS)).to(tl.int64)
    point = tl.program_id(0) % (points // POINTS) * POINTS + tl.arange(0, POINTS)
    s = (tl.load(width + item) * tl.load(places + point))[None, :]
    k = tl.load(k_ptr + item)
    y += item * keys
    mean = tl.zeros((KEYS, POINTS), tl.float64)
    for start in range(0, keys, KEYS):
        u, q, p = _arrival(y, s, start + tl.arange(0, KEYS)[:, None], keys)
        mean += p
    rho = tl.minimum(k / tl.sum(mean, 0), 1.0)
    held = tl.cdiv(keys, AHEAD) * AHEAD
    log_all = tl.zeros((KEYS, POINTS), tl.float64)
    for start in range(0, keys, KEYS):
        j = start + tl.arange(0, KEYS)[:, None]
        u, q, p = _arrival(y, s, j, keys)
        weight = rho[None, :] * p
        total = q + weight
        log_all += tl.log(total)
        at = (item * held + j) * points + point[None, :]
        tl.store(chance + at, weight / total, mask=j < held)
        if MARKED:
            marks = u * q * tl.load(v + item * keys + j, mask=j < keys, other=0.0)
            tl.store(mark + at, marks / total, mask=j < held)
    tl.store(tilt + item * points + point, rho)
    # Two conjugates are twice the real part of one, and a mean over all roots is taken.
    tl.store(scale + item * points + point, tl.exp(tl.sum(log_all, 0) - (k - 1) * tl.log(rho)) / roots)


@triton.jit
def _times(a, b, c, d):
    return a * c - b * d, a * d + b * c


@triton.jit
def _products(
    k_ptr, chance, mark, tilt, scale, cosine, sine, terms, keys, points, roots,
    MARKED: tl.constexpr, ROOTS: tl.constexpr, POINTS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """`terms` (items, 2 or 4, roots, points), from Π_i f_i, f_i = 1 + chance_i (ω - 1), at each root ω.

    For probabilities c = Π_i f_i Σ_{m<k} ω^-m ρ^{k-1-m}: Re c / f is Re c + chance Re c (1/ω - 1) over |f|², and the
    two are kept. Marked: Π_i f_i ω^-(k-1), and Σ_i mark_i / f_i times this, real and imaginary parts.
    """
    blocks = points // POINTS
    parts = tl.cdiv(roots, ROOTS) * blocks
    item, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    point = part % blocks * POINTS + tl.arange(0, POINTS)[None, :]
    root = part // blocks * ROOTS + tl.arange(0, ROOTS)[:, None]
    inside = root < roots
    root = tl.where(inside, root, 0)
    _, down, turn = _root(cosine, sine, root)
    down *= -2.0  # ω - 1 = down + i turn
    re, im = tl.full((ROOTS, POINTS), 1.0, tl.float64), tl.zeros((ROOTS, POINTS), tl.float64)
    marked_re, marked_im = im, im  # where a mark is in place of its key's factor, the sum over keys
    held = tl.cdiv(keys, AHEAD) * AHEAD
    for start in range(0, held, AHEAD):
        for n in tl.static_range(AHEAD):  # which are loaded together
            at = (item * held + start + n) * points + point
            p = tl.load(chance + at)
            f_re, f_im = 1.0 + p * down, p * turn
            if MARKED:
                m = tl.load(mark + at)
                marked_re, marked_im = _times(marked_re, marked_im, f_re, f_im)
                marked_re += m * re
                marked_im += m * im
            re, im = _times(re, im, f_re, f_im)
    k, at = tl.load(k_ptr + item), item * points + point
    rho, factor = tl.load(tilt + at), tl.load(scale + at)
    many = roots * points
    out = terms + item * ((4 if MARKED else 2) * many) + root * points + point
    if MARKED:
        turned = (4 * root + 2) * (k - 1) % (8 * roots)
        w_re, w_im = factor * tl.load(cosine + turned), -factor * tl.load(sine + turned)
        re, im = _times(re, im, w_re, w_im)
        marked_re, marked_im = _times(marked_re, marked_im, w_re, w_im)
        tl.store(out + many, im, mask=inside)
        tl.store(out + 2 * many, marked_re, mask=inside)
        tl.store(out + 3 * many, marked_im, mask=inside)
    else:
        turned = (4 * root + 2) * k % (8 * roots)
        w_re = tl.exp(k * tl.log(rho)) - tl.load(cosine + turned)  # the sum is (ρ^k - ω^-k) / (ρ - 1/ω)
        w_im = tl.load(sine + turned)
        factor /= (1.0 - rho) * (1.0 - rho) - 2.0 * rho * down
        w_re, w_im = _times(w_re, w_im, factor * (rho - 1.0 - down), -factor * turn)
        re, im = _times(re, im, w_re, w_im)
        tl.store(out + many, re * down + im * turn, mask=inside)
    tl.store(out, re, mask=inside)


@triton.jit
def _without_each(
    y, width, places, late, middle, v, tilt, cosine, sine, terms, out, slope, keys, points, roots,
    MARKED: tl.constexpr, KEYS: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    """`out` and `slope` (items, keys): sums over roots, in fractions of four roots each, and over points."""
    blocks = tl.cdiv(keys, KEYS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    j = tl.program_id(0) % blocks * KEYS + tl.arange(0, KEYS)[:, None]
    length = tl.load(width + item)
    step = length / (points - 1)
    terms += item * ((4 if MARKED else 2) * roots * points)
    many = roots * points
    sums, slopes = tl.zeros((KEYS, POINTS), tl.float64), tl.zeros((KEYS, POINTS), tl.float64)
    for start in range(0, points, POINTS):
        point = start + tl.arange(0, POINTS)[None, :]
        u, q, p = _arrival(y + item * keys, length * tl.load(places + point), j, keys)
        rate = u * q
        weight = tl.load(tilt + item * points + point) * p
        total = q + weight
        chance = weight / total
        apart = 1.0 - 2.0 * chance
        square, both = apart * apart, 4.0 * chance * (1.0 - chance)
        if MARKED:
            mark = rate * tl.load(v + item * keys + j, mask=j < keys, other=0.0) / total
        share = tl.zeros((KEYS, POINTS), tl.float64)
        for group in range(0, roots, 4):
            above, below = tl.zeros((KEYS, POINTS), tl.float64), tl.full((KEYS, POINTS), 1.0, tl.float64)
            for one in tl.static_range(4):
                half, _, turn = _root(cosine, sine, group + one)
                at = terms + (group + one) * points + point
                a, b = tl.load(at), tl.load(at + many)
                norm = square + both * half  # |f|²
                if MARKED:
                    f_re, f_im = apart + 2.0 * half * chance, turn * chance
                    all_of_them = tl.load(at + 2 * many) * f_re + tl.load(at + 3 * many) * f_im
                    its_own = a * (f_re * f_re - f_im * f_im) + b * (2.0 * f_re * f_im)
                    term = all_of_them * norm - mark * its_own
                    norm *= norm
                else:
                    term = a + b * chance
                above = above * norm + term * below
                below *= norm
            share += above / below
        share /= total
        if MARKED:
            sums += step * rate * share
        else:
            excess = step * rate * (share - tl.load(late + point))
            phi = tl.load(middle + point)
            sums += phi * p + excess
            slopes += phi * rate + excess * (1.0 - u)
    at = item * keys + tl.program_id(0) % blocks * KEYS + tl.arange(0, KEYS)
    inside = tl.program_id(0) % blocks * KEYS + tl.arange(0, KEYS) < keys
    tl.store(out + at, tl.sum(sums, 1), mask=inside)
    if not MARKED:
        tl.store(slope + at, tl.sum(slopes, 1), mask=inside)


def subset_probs_serves(keys: int, most: int, points: int) -> bool:
    """Whether an item fits into memory, in both directions."""
    return _numbers(keys, most, points, True) <= LARGEST


# As functions of tensors, under the names and with the arguments of the CPU's ------------------------


def subset_probs(
    y: Tensor, width: Tensor, k: Tensor, most: int, places: Tensor, late: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    out, slope = _sums(y, width, k, most, places, late, middle, None)
    return out, slope


def subset_pairs(y: Tensor, width: Tensor, k: Tensor, most: int, places: Tensor, v: Tensor) -> Tensor:
    return _sums(y, width, k, most, places, None, None, v)[0]


def _sums(y: Tensor, width: Tensor, k: Tensor, most: int, places: Tensor, late, middle, v) -> Tensor:
    """(2, items, keys), or with v (1, items, keys)."""
    (items, keys), points, roots, marked = y.shape, len(places), _roots(y.shape[1], most), v is not None
    kind = {"dtype": torch.float64, "device": y.device}
    out = torch.empty(1 if marked else 2, items, keys, **kind)
    angle = torch.linspace(0.0, math.tau, 8 * roots + 1, **kind)
    tables = angle.cos(), angle.sin()
    rows = max(1, SCRATCH // _numbers(keys, most, points, marked))
    for start in range(0, items, rows):
        part = slice(start, start + rows)
        x, *more, u = (None if each is None else each[part].contiguous() for each in (y, width, k, v))
        _launch(x, *more, places, late, middle, u, tables, roots, out[:, part])
    return out


def _launch(y, width, k, places, late, middle, v, tables, roots: int, out: Tensor) -> None:
    (items, keys), points, marked = y.shape, len(places), v is not None
    kind = {"dtype": y.dtype, "device": y.device}
    tilt, scale = torch.empty(2, items, points, **kind)
    by_key = torch.empty(2 if marked else 1, items, _held(keys), points, **kind)
    chance, mark = by_key[0], by_key[-1]
    terms = torch.empty(items, 4 if marked else 2, roots, points, **kind)
    sizes = (keys, points, roots, marked)
    with torch.cuda.device_of(y):  # Triton launches on the current one
        tile = min(LONGEST, max(AHEAD, triton.next_power_of_2(keys)))
        _chances[(items * (points // FEW),)](
            y, width, k, places, v, chance, mark, tilt, scale, *sizes, tile, FEW, AHEAD, num_warps=max(1, tile // 32)
        )
        _products[(items * triton.cdiv(roots, ROOTS) * (points // POINTS),)](
            k, chance, mark, tilt, scale, *tables, terms, *sizes, ROOTS, POINTS, AHEAD, num_warps=4
        )
        tile = min(KEYS, triton.next_power_of_2(keys))
        _without_each[(items * triton.cdiv(keys, tile),)](
            y, width, places, late, middle, v, tilt, *tables, terms, out[0], out[-1], *sizes, tile, POINTS,
            num_warps=max(1, tile // 8),
        )  # fmt: skip


@lru_cache
def _roots(keys: int, most: int) -> int:
    """Half of R, by fours. R roots tell apart the counts of R keys, whatever ρ is."""
    count = most
    while count < keys and count * math.log(count / most) - count + most < DROP:
        count += 1
    return 4 * triton.cdiv(count, 8)


def _numbers(keys: int, most: int, points: int, marked: bool) -> int:
    """In memory, for an item."""
    return points * (_held(keys) + 2 * _roots(keys, most) + 2) * (2 if marked else 1)


def _held(keys: int) -> int:
    return AHEAD * triton.cdiv(keys, AHEAD)
