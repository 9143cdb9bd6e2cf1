"""The first k of a long row without sorting it, by rounds: each program finds the first k of one chunk, these are put
side by side, and the next round takes the chunks of what is left, until one chunk was enough.

A chunk's own first k hold those of the row that it has, whatever the keys are: equal keys cost time at most. What is
kept of a row stays in order of its keys, so that ties go by position in every round.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.noise import noisy
from gumtrace.kernels.cuda.order import code, decode, least

CHUNK = 8192  # most keys of a program,
SMALL_CHUNK = 2048  # and how many they are if k is small: then several programs share a multiprocessor


@triton.jit
def _threshold(c, lowest, k):
    """The largest code that at least k of a chunk reach, or one that just k of them reach, by bisection."""
    low, high = lowest, tl.max(c, 0)
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)  # rounded up, and no sum that overflows
        reached = tl.sum((c >= middle).to(tl.int32), 0)
        low = tl.where(reached >= k, middle, low)
        high = tl.where(reached == k, middle, tl.where(reached > k, high, middle - 1))
    return low


@triton.jit
def _keep(g, key, values, keys, first, k):
    """Write the first k of a chunk in order of their keys. What is not a number becomes inf, which comes first."""
    lowest = least(g)
    c = tl.where(g < float("inf"), code(g), -lowest)
    bound = _threshold(c, lowest, k)
    above, equal = (c > bound).to(tl.int32), (c == bound).to(tl.int32)
    room = k - tl.sum(above, 0)  # for keys on the threshold itself
    both = above + (equal << 16)
    earlier = tl.cumsum(both, 0) - both
    above_earlier, equal_earlier = earlier & 0xFFFF, earlier >> 16
    kept = (above > 0) | ((equal > 0) & (equal_earlier < room))
    place = above_earlier + tl.minimum(equal_earlier, room)
    tl.store(values + first + place, decode(c), mask=kept)
    tl.store(keys + first + place, key, mask=kept)


@triton.jit(do_not_specialize=["rows"])
def _first_round(source, rows, seed, values, keys, d, chunks, k, WIDTH: tl.constexpr):
    item, chunk = (tl.program_id(0) // chunks).to(tl.int64), tl.program_id(0) % chunks
    key = chunk * WIDTH + tl.arange(0, WIDTH)
    g = noisy(source, rows, seed, item, d, key, key < d)
    _keep(g, key, values, keys, (item * chunks + chunk) * k, k)


@triton.jit
def _next_round(values, keys, values_out, keys_out, left, chunks, k, WIDTH: tl.constexpr):
    item, chunk = (tl.program_id(0) // chunks).to(tl.int64), tl.program_id(0) % chunks
    place = chunk * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(values + item * left + place, mask=place < left, other=float("-inf"))
    key = tl.load(keys + item * left + place, mask=place < left, other=-1)
    _keep(g, key, values_out, keys_out, (item * chunks + chunk) * k, k)


def serves(k):
    """Whether each round leaves few enough: a quarter of the keys at most."""
    return 4 * k <= CHUNK


def _width(left, k):
    """Keys of a chunk: one for the whole row, or with 16 times as many keys as it leaves, or as many as can be."""
    row = triton.next_power_of_2(left)
    if row > CHUNK:
        row = min(CHUNK, max(SMALL_CHUNK, triton.next_power_of_2(16 * k)))
    return max(16, row, triton.next_power_of_2(k))


def select(source, seed, items, k):
    """The first k keys of each item, k > 0: G (items, k), inf for what is not a number, and the keys, in their order.
    Rows that are shorter end in G = -inf."""
    values, keys, left = None, None, source.shape[1]
    while True:
        width = _width(left, k)
        chunks = triton.cdiv(left, width)
        shape = (items, chunks * k)
        values_out = torch.empty(shape, dtype=source.dtype, device=source.device)
        keys_out = torch.empty(shape, dtype=torch.int32, device=source.device)
        options = {"WIDTH": width, "num_warps": max(1, min(16, width // 256)), **EXACT}
        if values is None:
            where = (source, len(source), seed, values_out, keys_out, left)
            _first_round[(items * chunks,)](*where, chunks, k, **options)
        else:
            _next_round[(items * chunks,)](values, keys, values_out, keys_out, left, chunks, k, **options)
        values, keys, left = values_out, keys_out, chunks * k
        if chunks == 1:
            return values, keys
