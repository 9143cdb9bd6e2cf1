"""Inclusion probabilities of k-subsets and their Jacobian times a vector, by the sums of cpu/inclusion.py.

A lane is an item at a point of the quadrature, and walks over its keys and back. Its states, for each key and number of
arrivals, are in memory with the lanes side by side, so that all of them read and write together; what a lane adds to a
key's sum is written likewise, and torch adds up the points.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 64  # of a program
SCRATCH = 2**27  # numbers in memory at once, 1 GiB: items take turns where they need more


@triton.jit
def _arrival(y, width, places, row, point, j, keys, inside):
    """u = e^{y_j + point}, q = e^{-u} and p = 1 - q, as cpu/inclusion.py has them."""
    s = tl.load(width + row, mask=inside, other=1.0) * tl.load(places + point, mask=inside, other=0.0)
    u = tl.exp(tl.minimum(tl.load(y + row * keys + j, mask=inside, other=0.0) + s, 7.0))  # e^{-e^7} is 0
    q = tl.exp(-u)
    small = tl.minimum(u, 0.125)  # 1 - e^{-u} by its series, which keeps the digits of small ones
    series = 1.0 - small / 10.0
    for n in tl.static_range(9, 1, -1):
        series = 1.0 - small * series / n
    return u, q, tl.where(u < 0.125, small * series, 1.0 - q)


@triton.jit
def _lanes(items, points, LANES: tl.constexpr):
    lane = (tl.program_id(0) * LANES + tl.arange(0, LANES)).to(tl.int64)
    return lane, lane // points, lane % points, lane < items * points


@triton.jit
def _probs(
    y, width, k_ptr, places, late, middle, before, after, out, slope, items, keys, points, most, LANES: tl.constexpr
):
    """`before` (keys, most, lanes), `after` (most + 1, lanes), `out` and `slope` (keys, lanes)."""
    lane, row, point, inside = _lanes(items, points, LANES)
    total = (items * points).to(tl.int64)
    zero = tl.zeros((LANES,), tl.float64)
    k = tl.load(k_ptr + row, mask=inside, other=1)
    for m in range(most):
        tl.store(before + m * total + lane, zero + tl.where(m == 0, 1.0, 0.0), mask=inside)
        tl.store(after + m * total + lane, tl.where(m < k, zero + 1.0, zero), mask=inside)
    tl.store(after + most * total + lane, zero, mask=inside)
    tl.debug_barrier()  # another thread of the program may read what this one wrote
    for j in range(keys - 1):
        _, q, p = _arrival(y, width, places, row, point, j, keys, inside)
        here = before + (j * most) * total + lane
        one_less = zero
        for m in range(most):
            now = tl.load(here + m * total, mask=inside, other=0.0)
            tl.store(here + (most + m) * total, q * now + p * one_less, mask=inside)
            one_less = now
        tl.debug_barrier()
    step = tl.load(width + row, mask=inside, other=1.0) / (points - 1)
    w, phi = tl.load(late + point, mask=inside, other=0.0), tl.load(middle + point, mask=inside, other=0.0)
    for back in range(keys):
        j = keys - 1 - back
        u, q, p = _arrival(y, width, places, row, point, j, keys, inside)
        here = before + (j * most) * total + lane
        share = zero
        now = tl.load(after + lane, mask=inside, other=0.0)
        for m in range(most):
            one_more = tl.load(after + (m + 1) * total + lane, mask=inside, other=0.0)
            share += tl.load(here + m * total, mask=inside, other=0.0) * now
            tl.store(after + m * total + lane, q * now + p * one_more, mask=inside)
            now = one_more
        tl.debug_barrier()
        rate = u * q
        excess = step * rate * (share - w)
        tl.store(out + j * total + lane, phi * p + excess, mask=inside)
        tl.store(slope + j * total + lane, phi * rate + excess * (1.0 - u), mask=inside)


@triton.jit
def _pairs(
    y, width, k_ptr, places, v, before, marked, after, marked_after, out, items, keys, points, most,
    LANES: tl.constexpr
):  # fmt: skip
    """As `_probs`, where `marked` and `marked_after` have Σ_i a_i v_i · (the chances without key i)."""
    lane, row, point, inside = _lanes(items, points, LANES)
    total = (items * points).to(tl.int64)
    zero = tl.zeros((LANES,), tl.float64)
    k = tl.load(k_ptr + row, mask=inside, other=1)
    for m in range(most + 1):
        tl.store(after + m * total + lane, tl.where(m == k - 1, zero + 1.0, zero), mask=inside)
        tl.store(marked_after + m * total + lane, zero, mask=inside)
    for m in range(most):
        tl.store(before + m * total + lane, zero + tl.where(m == 0, 1.0, 0.0), mask=inside)
        tl.store(marked + m * total + lane, zero, mask=inside)
    tl.debug_barrier()
    for j in range(keys - 1):
        u, q, p = _arrival(y, width, places, row, point, j, keys, inside)
        mark = u * q * tl.load(v + row * keys + j, mask=inside, other=0.0)
        at = (j * most) * total + lane
        one_less = zero
        marked_less = zero
        for m in range(most):
            now = tl.load(before + at + m * total, mask=inside, other=0.0)
            also = tl.load(marked + at + m * total, mask=inside, other=0.0)
            tl.store(before + at + (most + m) * total, q * now + p * one_less, mask=inside)
            tl.store(marked + at + (most + m) * total, q * also + p * marked_less + mark * now, mask=inside)
            one_less = now
            marked_less = also
        tl.debug_barrier()
    step = tl.load(width + row, mask=inside, other=1.0) / (points - 1)
    for back in range(keys):
        j = keys - 1 - back
        u, q, p = _arrival(y, width, places, row, point, j, keys, inside)
        mark = u * q * tl.load(v + row * keys + j, mask=inside, other=0.0)
        at = (j * most) * total + lane
        share = zero
        now = tl.load(after + lane, mask=inside, other=0.0)
        also = tl.load(marked_after + lane, mask=inside, other=0.0)
        for m in range(most):
            one_more = tl.load(after + (m + 1) * total + lane, mask=inside, other=0.0)
            marked_more = tl.load(marked_after + (m + 1) * total + lane, mask=inside, other=0.0)
            share += tl.load(marked + at + m * total, mask=inside, other=0.0) * now
            share += tl.load(before + at + m * total, mask=inside, other=0.0) * also
            tl.store(after + m * total + lane, q * now + p * one_more, mask=inside)
            tl.store(marked_after + m * total + lane, q * also + p * marked_more + mark * now, mask=inside)
            now = one_more
            also = marked_more
        tl.debug_barrier()
        tl.store(out + j * total + lane, step * u * q * share, mask=inside)


def subset_probs_serves(keys: int, most: int, points: int) -> bool:
    """Whether the states of an item fit into memory, in both directions."""
    return 2 * keys * (most + 1) * points <= SCRATCH


# As functions of tensors, under the names and with the arguments of the CPU's ------------------------


def subset_probs(
    y: Tensor, width: Tensor, k: Tensor, most: int, places: Tensor, late: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    parts = []
    for x, *more in _turns(y, width, k, most, len(places)):
        out, slope = _memory(x, 2, 1, places)
        states = (*_memory(x, 1, most, places), *_memory(x[:, :1], 1, most + 1, places))
        _launch(_probs, x, *more, places, late, middle, *states, out, slope, most)
        parts.append([_over_points(each, len(x)) for each in (out, slope)])
    probs, slopes = (torch.cat(each) for each in zip(*parts, strict=True))
    return probs, slopes


def subset_pairs(y: Tensor, width: Tensor, k: Tensor, most: int, places: Tensor, v: Tensor) -> Tensor:
    parts, start = [], 0
    for x, *more in _turns(y, width, k, 2 * most, len(places)):
        (out,) = _memory(x, 1, 1, places)
        states = (*_memory(x, 2, most, places), *_memory(x[:, :1], 2, most + 1, places))
        _launch(_pairs, x, *more, places, v[start : start + len(x)].contiguous(), *states, out, most)
        parts.append(_over_points(out, len(x)))
        start += len(x)
    return torch.cat(parts)


def _turns(y: Tensor, width: Tensor, k: Tensor, states: int, points: int):
    """Items, so many at a time that their states fit."""
    rows = max(1, SCRATCH // (y.shape[1] * (states + 2) * points))  # with what is summed up in the end
    return zip(*(x.contiguous().split(rows) for x in (y, width, k)), strict=True)


def _memory(y: Tensor, count: int, states: int, places: Tensor) -> Tensor:
    """(count, keys · states, lanes)."""
    return torch.empty(count, y.shape[1] * states, len(y) * len(places), dtype=torch.float64, device=y.device)


def _launch(kernel, y: Tensor, *args) -> None:
    *tensors, most = args
    places = tensors[2]
    items, keys = y.shape
    grid = (triton.cdiv(items * len(places), LANES),)
    with torch.cuda.device_of(y):  # Triton launches on the current one
        kernel[grid](y, *tensors, items, keys, len(places), most, LANES=LANES, num_warps=2)


def _over_points(out: Tensor, items: int) -> Tensor:
    """(keys, lanes) -> (items, keys)."""
    return out.view(len(out), items, -1).sum(-1).T
