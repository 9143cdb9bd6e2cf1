"""The shift ν that brings a soft subset to its size: the root of Σ_i f(u_i + ν) = k, with f increasing from 0 to 1.

relaxations/subset.py says which f there are and where their brackets come from; it has the same search in torch.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels.cpu.arrays import integer_row
from gumtrace.kernels.cpu.jit import ANY_ORDER, jit, kernel
from gumtrace.kernels.cpu.order import kth_largest
from gumtrace.kernels.cpu.simd_math import exp_row
from gumtrace.kernels.cpu.threads import run

EUCLIDEAN, CATEGORICAL, BINARY = range(3)
KINDS = {"euclidean": EUCLIDEAN, "categorical": CATEGORICAL, "binary": BINARY}

_fast = partial(jit, fastmath=ANY_ORDER)  # sums over keys in any order, so in SIMD


@_fast
def _excess(kind, v, limit, n, y, x, scratch):
    """Σ f(v + y) - limit, and the slope of that in y. Keys as good as in or out add next to nothing, not even noise."""
    zero = x.dtype.type(0.0)
    half = x.dtype.type(0.5)
    one = x.dtype.type(1.0)
    total = slope = 0.0
    if kind == EUCLIDEAN:
        for i in range(n):
            t = min(max(v[i] + y, zero), one)
            total += t - limit[i]
            slope += one if zero < t < one else zero
    elif kind == CATEGORICAL:
        for i in range(n):
            x[i] = min(v[i] + y, zero)
        exp_row(x, n, scratch)
        for i in range(n):
            total += x[i] - limit[i]
            slope += x[i] if x[i] < one else zero
    else:
        for i in range(n):
            x[i] = -(v[i] + y)
        exp_row(x, n, scratch)
        for i in range(n):
            t = one / (one + x[i])
            total += (one - limit[i]) - x[i] * t if limit[i] > half else t - limit[i]  # small ones have all digits
            slope += x[i] * t * t
    return total, slope


@jit
def _cold_limit(v, n, k, limit):
    """What f(v / τ) tends to for τ towards 0: 1 above the k-th score, a fair share of what is left for its ties."""
    above = ties = 0
    for i in range(n):
        above += v[i] > 0
        ties += v[i] == 0
    for i in range(n):
        limit[i] = 1.0 if v[i] > 0 else ((k - above) / ties if v[i] == 0 else 0.0)


@jit
def _bracket(kind, k, n, gap):
    """Where the root lies, seen from the k-th largest score; gap: from there down to the next."""
    if kind == EUCLIDEAN:
        return 0.0, 1.0
    if kind == CATEGORICAL:
        return -math.log(n - k + 1), 0.0
    return gap / 2 - math.log(n - k), gap / 2 + math.log(k)


@kernel
def _shift(start, stop, kind, u, k, out):
    """out = u + ν; -inf for keys that do not race, and ±inf for all where there is no root, as k is 0 or too many."""
    keys = u.shape[1]
    v, limit, x = np.empty(keys, u.dtype), np.empty(keys, u.dtype), np.empty(keys, u.dtype)
    scratch = integer_row(u, keys)
    tolerance = np.finfo(u.dtype).eps
    for item in range(start, stop):
        n = 0
        for i in range(keys):
            if u[item, i] > -np.inf:
                v[n] = u[item, i]
                n += 1
        size = k[item]
        if size <= 0 or size >= n:
            for i in range(keys):
                out[item, i] = np.inf if size > 0 and u[item, i] > -np.inf else -np.inf
            continue
        for i in range(n):
            x[i] = v[i]
        centre, below = kth_largest(x, n, size)
        low, high = _bracket(kind, size, n, np.float64(centre) - np.float64(below))
        for i in range(n):
            v[i] -= centre
        _cold_limit(v, n, size, limit)
        y = (low + high) / 2
        step = high - low
        for _ in range(200):  # Newton's steps while each is half the one before at most, else bisection
            total, slope = _excess(kind, v, limit, n, u.dtype.type(y), x, scratch)
            if total < 0:
                low = y
            else:
                high = y
            newton = -total / slope
            good = abs(newton) <= abs(step) / 2 and low <= y + newton <= high
            step = newton if good else (low + high) / 2 - y
            y += step
            if abs(step) <= tolerance * max(abs(y), 0.125):
                break
        for i in range(keys):
            out[item, i] = (u[item, i] - centre) + u.dtype.type(y)


def subset_shift(kind: str, u: Tensor, k: Tensor) -> Tensor:
    """u (items, keys), k (items,) -> u + ν."""
    out = torch.empty(u.shape, dtype=u.dtype, device="cpu")
    arrays = (x.detach().contiguous().numpy() for x in (u, k, out))
    run(_shift, len(u), u.shape[1], KINDS[kind], *arrays)
    return out
