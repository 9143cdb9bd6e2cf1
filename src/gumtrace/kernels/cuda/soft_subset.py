"""Soft k-subsets: the shift ν that brings one to its size, and marginals of the "expfamily" kind with their derivative.

relaxations/subset.py and relaxations/expfamily.py have the reasons, and the same formulas in torch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gumtrace.kernels.cuda.order import code, decode, least

EUCLIDEAN, CATEGORICAL, BINARY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
KINDS = {"euclidean": EUCLIDEAN, "categorical": CATEGORICAL, "binary": BINARY}
HALVINGS = {torch.float32: 28, torch.float64: 57}  # of a bracket 2 log d wide, down to rounding
LONGEST = 8192  # keys whose shift is searched in registers
TILE = 1024  # numbers of a program, or more where one row has more
NODES = 128  # and of one that goes through the keys one by one


@triton.jit
def _soft(y, KIND: tl.constexpr):
    if KIND == EUCLIDEAN:
        return tl.minimum(tl.maximum(y, 0.0), 1.0)
    elif KIND == CATEGORICAL:
        return tl.exp(tl.minimum(y, 0.0))
    else:
        e = tl.exp(-tl.abs(y))
        return tl.where(y >= 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def _slope(x, KIND: tl.constexpr):
    if KIND == EUCLIDEAN:
        return tl.where((x > 0.0) & (x < 1.0), 1.0, 0.0)
    elif KIND == CATEGORICAL:
        return tl.where(x < 1.0, x, 0.0)
    else:
        return x * (1.0 - x)


@triton.jit
def _row_sum(x):
    """In float64: what is summed nearly cancels."""
    return tl.sum(x.to(tl.float64), 1, keep_dims=True)


@triton.jit
def _count(condition):
    return tl.sum(condition.to(tl.int32), 1, keep_dims=True)


@triton.jit
def _kth_largest(u, racing, k, BITS: tl.constexpr):
    """The k-th largest score of each row and the next, by bisection of their codes."""
    c = tl.where(racing, code(u), least(u))
    low = tl.min(c, 1, keep_dims=True)
    high = tl.max(c, 1, keep_dims=True) + 1
    for _ in range(BITS):
        middle = (low & high) + ((low ^ high) >> 1)  # of two integers whose sum may be too large for one
        enough = _count(racing & (c >= middle)) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    below = tl.max(tl.where(racing & (c < low), c, least(u)), 1, keep_dims=True)
    return decode(low), decode(tl.where(_count(racing & (c >= low)) > k, low, below))


@triton.jit
def _shift(
    u_ptr, k_ptr, out, items, d,
    KIND: tl.constexpr, BITS: tl.constexpr, HALVINGS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """The search of relaxations/subset.py, step by step."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, D)[None, :]
    inside = (row < items) & (lane < d)
    u = tl.load(u_ptr + row * d + lane, mask=inside, other=float("-inf"))
    racing = u > float("-inf")
    n = _count(racing)
    k = tl.load(k_ptr + row, mask=row < items, other=0).to(tl.int32)
    has_root = (k > 0) & (k < n)
    size = tl.where(has_root, k, 1)
    centre, runner_up = _kth_largest(u, racing, size, BITS)
    centre = tl.where(has_root, centre, 0.0)
    v = u - centre
    others, chosen = tl.where(has_root, n - k, 1).to(tl.float64), size.to(tl.float64)
    if KIND == EUCLIDEAN:
        low, width = tl.zeros_like(others), tl.full(others.shape, 1.0, tl.float64)
    elif KIND == CATEGORICAL:
        width = tl.log(1.0 + others)
        low = -width
    else:
        gap = tl.where(has_root, centre.to(tl.float64) - runner_up.to(tl.float64), 0.0)
        low, width = gap / 2 - tl.log(others), tl.log(others) + tl.log(chosen)
    low, width = low.to(u.dtype), width.to(u.dtype)
    share = (k - _count(v > 0.0)).to(u.dtype) / tl.maximum(_count(v == 0.0), 1).to(u.dtype)
    limit = tl.where(v == 0.0, share, tl.where(v > 0.0, 1.0, 0.0))  # of x when cold: keys close to it add no noise
    for _ in range(HALVINGS):
        width = width / 2
        excess = _row_sum(_soft(v + (low + width), KIND) - limit)
        low = tl.where(excess < 0.0, low + width, low)
    for _ in range(2):
        x = _soft(v + low, KIND)
        slope = _row_sum(_slope(x, KIND))
        step = tl.where(slope > 0.0, _row_sum(limit - x) / tl.where(slope > 0.0, slope, 1.0), 0.0).to(u.dtype)
        low = low + tl.minimum(tl.maximum(step, -width), width)
    z = tl.where(has_root, v + low, tl.where(k > 0, float("inf"), float("-inf")))
    tl.store(out + row * d + lane, tl.where(racing, z, float("-inf")), mask=inside)


@triton.jit
def _chances(p, away, sine):
    """r = p e^{iθ} / (1 + p (e^{iθ} - 1)), with away = 1 - cos θ."""
    q = 1.0 - p
    a, b = 1.0 - p * away, p * sine
    scale = p / (a * a + b * b)
    return (1.0 - q * away) * scale, q * sine * scale


@triton.jit
def _nodes(theta, m, M: tl.constexpr):
    """(1, M), in float64: 1 - cos θ, sin θ, θ, and which of them there are."""
    node = tl.arange(0, M)[None, :]
    t = tl.load(theta + node, mask=node < m, other=0.0)
    return 1.0 - tl.cos(t), tl.sin(t), t, node < m


@triton.jit
def _store_complex(out, place, re, im, mask):
    tl.store(out + 2 * place, re.to(out.dtype.element_ty), mask=mask)
    tl.store(out + 2 * place + 1, im.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _weights(theta, p, k_ptr, out, items, d, m, ROWS: tl.constexpr, M: tl.constexpr):
    """w ∝ e^{-ikθ} Π_i (1 + p_i (e^{iθ} - 1)), scaled so that Σ Re w = 1. In float64: there are many factors."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    away, sine, t, some = _nodes(theta, m, M)
    re = tl.full((ROWS, M), 1.0, tl.float64)
    im = tl.zeros((ROWS, M), tl.float64)
    for i in range(d):
        chance = tl.load(p + row * d + i, mask=row < items, other=0.0).to(tl.float64)
        a, b = 1.0 - chance * away, chance * sine
        re, im = re * a - im * b, re * b + im * a
    turn = tl.load(k_ptr + row, mask=row < items, other=0).to(tl.float64) * t
    a, b = tl.cos(turn), tl.sin(turn)
    re, im = re * a + im * b, im * a - re * b
    total = tl.sum(tl.where(some, re, 0.0), 1, keep_dims=True)
    place = row * m + tl.arange(0, M)[None, :]
    _store_complex(out, place, re / total, im / total, some & (row < items))


@triton.jit
def _means(theta, p, g, w, out, items, d, m, ROWS: tl.constexpr, M: tl.constexpr):
    """w Σ_i g_i r_i at each node."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    away, sine, _, some = _nodes(theta, m, M)
    dtype = p.dtype.element_ty
    away, sine = away.to(dtype), sine.to(dtype)
    re = tl.zeros((ROWS, M), dtype)
    im = tl.zeros((ROWS, M), dtype)
    for i in range(d):
        chance = tl.load(p + row * d + i, mask=row < items, other=0.0)
        weight = tl.load(g + row * d + i, mask=row < items, other=0.0)
        r, s = _chances(chance, away, sine)
        re += weight * r
        im += weight * s
    place = row * m + tl.arange(0, M)[None, :]
    mask = some & (row < items)
    a = tl.load(w + 2 * place, mask=mask, other=0.0)
    b = tl.load(w + 2 * place + 1, mask=mask, other=0.0)
    _store_complex(out, place, a * re - b * im, a * im + b * re, mask)


@triton.jit
def _sum_over_nodes(
    theta, p_ptr, w, x_ptr, g_ptr, means, out, items, d, m,
    COVARIANCE: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Σ Re w r of each key, or Σ Re (r - x) mean + w r (1 - r) g, where `means` has w Σ g r."""
    tiles = tl.cdiv(d, D)  # of keys; a grid's second dimension would end at 65535
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.program_id(0) % tiles * D + tl.arange(0, D)[None, :]
    inside = (row < items) & (lane < d)
    place = row * d + lane
    p = tl.load(p_ptr + place, mask=inside, other=0.0)
    total = tl.zeros((ROWS, D), p.dtype)
    if COVARIANCE:
        x = tl.load(x_ptr + place, mask=inside, other=0.0)
        g = tl.load(g_ptr + place, mask=inside, other=0.0)
    for node in range(m):
        t = tl.load(theta + node)
        re, im = _chances(p, (1.0 - tl.cos(t)).to(p.dtype), tl.sin(t).to(p.dtype))
        at = 2 * (row * m + node)
        a = tl.load(w + at, mask=row < items, other=0.0)
        b = tl.load(w + at + 1, mask=row < items, other=0.0)
        if COVARIANCE:
            mean_re = tl.load(means + at, mask=row < items, other=0.0)
            mean_im = tl.load(means + at + 1, mask=row < items, other=0.0)
            var_re, var_im = re * (1.0 - re) + im * im, im * (1.0 - 2.0 * re)
            total += mean_re * (re - x) - mean_im * im + g * (a * var_re - b * var_im)
        else:
            total += a * re - b * im
    tl.store(out + place, total, mask=inside)


# As functions of tensors, under the names and with the arguments of the CPU's ------------------------


def subset_shift(kind: str, u: Tensor, k: Tensor) -> Tensor | None:
    """None for rows beyond the kernel's range."""
    items, d = u.shape
    if d > LONGEST:
        return None
    u, out, lanes = u.contiguous(), torch.empty_like(u, memory_format=torch.contiguous_format), _lanes(d)
    rows = max(1, TILE // lanes)
    sizes = {"BITS": 8 * u.element_size(), "HALVINGS": HALVINGS[u.dtype], "ROWS": rows, "D": lanes}
    with torch.cuda.device_of(u):  # Triton launches on the current one
        grid = (triton.cdiv(items, rows),)
        _shift[grid](u, k.contiguous(), out, items, d, KIND=KINDS[kind], **sizes, num_warps=_warps(rows * lanes))
    return out


def subset_weights(theta: Tensor, p: Tensor, k: Tensor) -> Tensor:
    out = torch.empty(len(p), len(theta), dtype=p.dtype.to_complex(), device=p.device)
    _by_nodes(_weights, theta, p, k, torch.view_as_real(out))
    return out


def subset_marginals(theta: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(p)
    _by_keys(theta, p, torch.view_as_real(w), None, None, None, out, False)
    return out


def subset_covariance(theta: Tensor, p: Tensor, x: Tensor, w: Tensor, g: Tensor) -> Tensor:
    out, w = torch.empty_like(p), torch.view_as_real(w)
    means = torch.empty_like(w)
    _by_nodes(_means, theta, p, g, w, means)
    _by_keys(theta, p, w, x, g, means, out, True)
    return out


def _by_nodes(kernel, theta: Tensor, p: Tensor, *more: Tensor) -> None:
    """Tiles of rows and nodes, which go through the keys."""
    (items, d), m = p.shape, len(theta)
    tile = triton.next_power_of_2(m)
    rows = max(1, NODES // tile)
    with torch.cuda.device_of(p):
        grid = (triton.cdiv(items, rows),)
        kernel[grid](theta, p, *more, items, d, m, ROWS=rows, M=tile, num_warps=_warps(rows * tile))


def _by_keys(theta: Tensor, p: Tensor, w: Tensor, x, g, means, out: Tensor, covariance: bool) -> None:
    """Tiles of rows and keys, which go through the nodes."""
    items, d = p.shape
    lanes = min(_lanes(d), TILE)
    rows = TILE // lanes
    with torch.cuda.device_of(p):
        grid = (triton.cdiv(items, rows) * triton.cdiv(d, lanes),)
        sizes = {"COVARIANCE": covariance, "ROWS": rows, "D": lanes, "num_warps": _warps(rows * lanes)}
        _sum_over_nodes[grid](theta, p, w, x, g, means, out, items, d, len(theta), **sizes)


def _lanes(d: int) -> int:
    return max(4, triton.next_power_of_2(d))


def _warps(numbers: int) -> int:
    """A thread has up to eight."""
    return min(16, max(1, numbers // 256))
