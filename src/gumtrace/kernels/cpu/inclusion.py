"""Inclusion probabilities of k-subsets, and their Jacobian times a vector: sums over the points of a quadrature.

At a point, key j has arrived with chance p_j = 1 - q_j, and a_j = dp_j / dlogit_j. How many keys have arrived is a sum
of independent 0/1 variables. Walking over the keys, `before` has the chances of each number among those passed, and
`after` what those ahead still allow: together they leave out one key, or two, and only positive numbers are added.
structures/inclusion.py has the formulas, and the same in torch.

Points are the fastest index, `lanes` of them at a time. All states in front of the keys of one block are held; of other
blocks only the first is kept, and the block is walked through again.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels.cpu.arrays import integer_row
from gumtrace.kernels.cpu.jit import jit, kernel
from gumtrace.kernels.cpu.simd_math import exp64
from gumtrace.kernels.cpu.threads import run

LANES = 24  # three registers of AVX-512; the points of a single item are at least two parts, for two threads

_part = partial(jit, fastmath={"contract"})
_kernel = partial(kernel, fastmath={"contract"})


@_part
def _block_size(keys):
    """Few enough for the processor's cache; of many keys so many that the first states of all blocks are no more."""
    return max(1, min(keys, max(32, int(math.sqrt(keys)) // 2)))


@_part
def _arrivals(y, first, last, points, lanes, q, p, u, scratch):
    """u = e^{y + point}, q = e^{-u} and p = 1 - q of the keys from first to last, (keys, lanes)."""
    n = np.uint64(last - first) * lanes
    for j in range(first, last):
        at = np.uint64(j - first) * lanes
        for i in range(lanes):
            u[at + i] = min(y[j] + points[i], 7.0)  # e^{-e^7} is 0
    exp64(u, n, scratch)
    for i in range(n):
        q[i] = -u[i]
    exp64(q, n, scratch)
    for i in range(n):
        x = u[i]
        s = 1.0 / 3628800.0  # the series of 1 - e^{-x}, which keeps the digits of small ones
        s = 1.0 / 362880.0 - s * x
        s = 1.0 / 40320.0 - s * x
        s = 1.0 / 5040.0 - s * x
        s = 1.0 / 720.0 - s * x
        s = 1.0 / 120.0 - s * x
        s = 1.0 / 24.0 - s * x
        s = 1.0 / 6.0 - s * x
        s = 0.5 - s * x
        p[i] = x * (1.0 - s * x) if x < 0.125 else 1.0 - q[i]


@_part
def _fill(x, start, stop, value):
    for i in range(start, stop):
        x[i] = value


@_part
def _copy(x, n, out):
    for i in range(n):
        out[i] = x[i]


@_part
def _walk(first, last, k, lanes, q, p, before):
    """The chances of 0, 1, ..., k - 1 arrivals behind each key from first to last; before[0] are those in front."""
    for j in range(last - first):
        at, top = np.uint64(j) * lanes, np.uint64(min(first + j + 1, k - 1))
        for i in range(lanes):
            before[j + 1, i] = q[at + i] * before[j, i]
        for m in range(np.uint64(1), top + np.uint64(1)):
            here = m * lanes
            below = here - lanes
            for i in range(lanes):
                before[j + 1, here + i] = q[at + i] * before[j, here + i] + p[at + i] * before[j, below + i]
        if first + j + 2 < k:  # the next key can make it so many
            _fill(before[j + 1], (top + np.uint64(1)) * lanes, (top + np.uint64(2)) * lanes, 0.0)


@_part
def _leave_out(j, top, lanes, q, p, before, after, out):
    """out = Σ_m before[j, m] after[m], m <= top, without key j; then `after` goes on to be in front of it."""
    at = np.uint64(j) * lanes
    _fill(out, 0, lanes, 0.0)
    for m in range(np.uint64(top + 1)):
        here = m * lanes
        above = here + lanes
        for i in range(lanes):
            out[i] += before[j, here + i] * after[here + i]
            after[here + i] = q[at + i] * after[here + i] + p[at + i] * after[above + i]


@_kernel
def _probs(start, stop, y, width, k, most, places, late, middle, lanes, out, slope):
    keys, chunks = y.shape[1], places.size // lanes
    held = _block_size(keys)
    blocks, row = -(-keys // held), np.uint64(lanes)
    q, p, u = np.empty(held * lanes), np.empty(held * lanes), np.empty(held * lanes)
    scratch = integer_row(q, held * lanes)
    before, kept = np.empty((held + 1, most * lanes)), np.empty((blocks, most * lanes))
    after, points, share = np.empty((most + 1) * lanes), np.empty(lanes), np.empty(lanes)
    for task in range(start, stop):
        item, chunk = task // chunks, task % chunks
        x, size, step, now = y[item], k[item], width[item] / (places.size - 1), chunk * lanes
        for i in range(lanes):
            points[i] = width[item] * places[now + i]
        _fill(kept[0], 0, min(size, 2) * lanes, 0.0)
        _fill(kept[0], 0, lanes, 1.0)
        for b in range(blocks - 1):
            _arrivals(x, b * held, (b + 1) * held, points, row, q, p, u, scratch)
            _copy(kept[b], size * lanes, before[0])
            _walk(b * held, (b + 1) * held, size, row, q, p, before)
            _copy(before[held], size * lanes, kept[b + 1])
        _fill(after, 0, size * lanes, 1.0)  # at most k - 1 others: m have arrived, k - 1 - m may yet
        _fill(after, size * lanes, (size + 1) * lanes, 0.0)
        for b in range(blocks - 1, -1, -1):
            first, last = b * held, min((b + 1) * held, keys)
            _arrivals(x, first, last, points, row, q, p, u, scratch)
            _copy(kept[b], size * lanes, before[0])
            _walk(first, last, size, row, q, p, before)
            for j in range(last - first - 1, -1, -1):
                _leave_out(j, min(first + j, size - 1), row, q, p, before, after, share)
                total = total_slope = 0.0
                for i in range(lanes):
                    at = j * lanes + i
                    rate = u[at] * q[at]
                    excess = step * rate * (share[i] - late[now + i])
                    total += middle[now + i] * p[at] + excess
                    total_slope += middle[now + i] * rate + excess * (1.0 - u[at])
                out[item, chunk, first + j] = total
                slope[item, chunk, first + j] = total_slope


@_part
def _walk_marked(first, last, k, lanes, q, p, marks, before, marked):
    """As `_walk`, of Σ_i marks_i · (the chances without key i), i among the keys passed."""
    for j in range(last - first):
        at, top = np.uint64(j) * lanes, np.uint64(min(first + j + 1, k - 1))
        for i in range(lanes):
            marked[j + 1, i] = q[at + i] * marked[j, i] + marks[at + i] * before[j, i]
        for m in range(np.uint64(1), top + np.uint64(1)):
            here = m * lanes
            below = here - lanes
            for i in range(lanes):
                passed = q[at + i] * marked[j, here + i] + p[at + i] * marked[j, below + i]
                marked[j + 1, here + i] = passed + marks[at + i] * before[j, here + i]
        if first + j + 2 < k:
            _fill(marked[j + 1], (top + np.uint64(1)) * lanes, (top + np.uint64(2)) * lanes, 0.0)


@_part
def _leave_out_two(j, top, lanes, q, p, marks, before, marked, after, marked_after, out):
    """out = Σ_i marks_i · (the chance without keys i and j), i before or after j; then on to be in front of key j."""
    at = np.uint64(j) * lanes
    _fill(out, 0, lanes, 0.0)
    for m in range(np.uint64(top + 1)):
        here = m * lanes
        above = here + lanes
        for i in range(lanes):
            out[i] += marked[j, here + i] * after[here + i] + before[j, here + i] * marked_after[here + i]
            passed = q[at + i] * marked_after[here + i] + p[at + i] * marked_after[above + i]
            marked_after[here + i] = passed + marks[at + i] * after[here + i]
            after[here + i] = q[at + i] * after[here + i] + p[at + i] * after[above + i]


@_kernel
def _pairs(start, stop, y, width, k, most, places, v, lanes, out):
    keys, chunks = y.shape[1], places.size // lanes
    held = _block_size(keys)
    blocks, row = -(-keys // held), np.uint64(lanes)
    q, p, u = np.empty(held * lanes), np.empty(held * lanes), np.empty(held * lanes)
    marks, scratch = np.empty(held * lanes), integer_row(q, held * lanes)
    before, marked = np.empty((held + 1, most * lanes)), np.empty((held + 1, most * lanes))
    kept, kept_marked = np.empty((blocks, most * lanes)), np.empty((blocks, most * lanes))
    after, marked_after = np.empty((most + 1) * lanes), np.empty((most + 1) * lanes)
    points, share = np.empty(lanes), np.empty(lanes)
    for task in range(start, stop):
        item, chunk = task // chunks, task % chunks
        x, size, step = y[item], k[item], width[item] / (places.size - 1)
        for i in range(lanes):
            points[i] = width[item] * places[chunk * lanes + i]
        _fill(kept_marked[0], 0, min(size, 2) * lanes, 0.0)
        _fill(kept[0], 0, min(size, 2) * lanes, 0.0)
        _fill(kept[0], 0, lanes, 1.0)
        _fill(marked_after, 0, (size + 1) * lanes, 0.0)
        _fill(after, 0, (size + 1) * lanes, 0.0)
        _fill(after, (size - 1) * lanes, size * lanes, 1.0)  # k - 1 others exactly
        for turn in range(2 * blocks - 1):  # to the last block, and back
            b = min(turn, 2 * blocks - 2 - turn)
            first, last = b * held, min((b + 1) * held, keys)
            _arrivals(x, first, last, points, row, q, p, u, scratch)
            for j in range(last - first):
                for i in range(j * lanes, (j + 1) * lanes):
                    marks[i] = u[i] * q[i] * v[item, first + j]
            _copy(kept[b], size * lanes, before[0])
            _copy(kept_marked[b], size * lanes, marked[0])
            _walk(first, last, size, row, q, p, before)
            _walk_marked(first, last, size, row, q, p, marks, before, marked)
            if turn < blocks - 1:
                _copy(before[held], size * lanes, kept[b + 1])
                _copy(marked[held], size * lanes, kept_marked[b + 1])
                continue
            for j in range(last - first - 1, -1, -1):
                top = min(first + j, size - 1)
                _leave_out_two(j, top, row, q, p, marks, before, marked, after, marked_after, share)
                total = 0.0
                for i in range(lanes):
                    total += u[j * lanes + i] * q[j * lanes + i] * share[i]
                out[item, chunk, first + j] = step * total


# As functions of tensors: y (items, keys), width and k (items,), k from 1 to `most`; all else (points,) ---------------


def subset_probs(
    y: Tensor, width: Tensor, k: Tensor, most: int, places: Tensor, late: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    """(items, keys) Σ middle p_i + step a_i (P(at most k - 1 others) - late), and its derivative by its own logit."""
    out, slope = torch.empty(2, len(y), len(places) // LANES, y.shape[1], dtype=y.dtype, device="cpu")
    points = (x.numpy() for x in (places, late, middle))
    _run(_probs, out, y, width, k, most, *points, LANES, out.numpy(), slope.numpy())
    return out.sum(1), slope.sum(1)


def subset_pairs(y: Tensor, width: Tensor, k: Tensor, most: int, places: Tensor, v: Tensor) -> Tensor:
    """(items, keys) Σ step a_j Σ_{i≠j} a_i v_i P(k - 1 others than i and j)."""
    out = torch.empty(len(y), len(places) // LANES, y.shape[1], dtype=y.dtype, device="cpu")
    _run(_pairs, out, y, width, k, most, places.numpy(), v.contiguous().numpy(), LANES, out.numpy())
    return out.sum(1)


def _run(kernel, out: Tensor, y: Tensor, width: Tensor, k: Tensor, most: int, *args) -> None:
    items, chunks, keys = out.shape
    run(kernel, items * chunks, keys * most, *(x.contiguous().numpy() for x in (y, width, k)), most, *args)
