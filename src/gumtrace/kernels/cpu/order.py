"""The order of keys: larger G first, equal ones by index. Every kernel and the literal recursion keep to it."""

import numpy as np

from gumtrace.kernels.cpu.jit import jit
from gumtrace.kernels.cpu.vectors import float_bits


@jit
def before(g, a, b):
    """Whether key a beats key b."""
    return g[a] > g[b] or (g[a] == g[b] and a < b)


@jit
def insertion_sort(g, keys, count):
    """Sort few keys in place, first winner first."""
    for i in range(1, count):
        key = keys[i]
        j = i
        while j > 0 and before(g, key, keys[j - 1]):
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@jit
def sort_racing(g):
    """All keys with G > -inf, first winner first: a stable radix sort on the bits of G, so ties stay in index order."""
    bits = float_bits(g)
    width = 8 * bits.itemsize
    sign = np.uint64(1) << np.uint64(width - 1)
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - width)
    codes = np.empty(g.size, np.uint64)
    keys = np.empty(g.size, np.int32)
    count = 0
    for k in range(g.size):
        if g[k] > -np.inf:
            raw = np.uint64(bits[k]) & mask if g[k] != 0 else np.uint64(0)  # -0.0 and 0.0 are one number
            codes[count] = raw if raw & sign else ~(raw | sign) & mask  # ascending codes = descending G
            keys[count] = k
            count += 1
    digit = 8 if count < 1 << 15 else 11
    bins = np.empty(1 << digit, np.int64)
    other_codes = np.empty(count, np.uint64)
    other_keys = np.empty(count, np.int32)
    low = np.uint64((1 << digit) - 1)
    for shift in range(0, width, digit):
        bins[:] = 0
        for i in range(count):
            bins[np.int64((codes[i] >> np.uint64(shift)) & low)] += 1
        total = 0
        for b in range(bins.size):
            total, bins[b] = total + bins[b], total
        for i in range(count):
            b = np.int64((codes[i] >> np.uint64(shift)) & low)
            other_codes[bins[b]] = codes[i]
            other_keys[bins[b]] = keys[i]
            bins[b] += 1
        codes, other_codes = other_codes, codes
        keys, other_keys = other_keys, keys
    return keys[:count]


@jit
def top_racing(g, k, out):
    """out[:k] = the first k winners in order; returns how many there were. A heap of the k best, its worst on top:
    O(d log k)."""
    if k == 0:
        return 0
    count = 0
    for key in range(g.size):
        if not g[key] > -np.inf:
            continue
        if count < k:
            out[count] = key
            count += 1
            if count == k:
                for top in range(k // 2 - 1, -1, -1):
                    _sink(g, out, top, k)
        elif before(g, key, out[0]):
            out[0] = key
            _sink(g, out, 0, k)
    if count < k:
        insertion_sort(g, out, count)
        return count
    for end in range(k - 1, 0, -1):
        out[0], out[end] = out[end], out[0]
        _sink(g, out, 0, end)
    return count


@jit
def _sink(g, heap, i, count):
    while True:
        child = 2 * i + 1
        if child >= count:
            return
        if child + 1 < count and before(g, heap[child], heap[child + 1]):
            child += 1
        if before(g, heap[child], heap[i]):
            return
        heap[i], heap[child] = heap[child], heap[i]
        i = child
