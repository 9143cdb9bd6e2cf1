"""The order of keys: larger G first, equal ones by index. Every kernel and the literal recursion keep to it."""

import numpy as np

from gumtrace.kernels.cpu.arrays import as_bits, integers
from gumtrace.kernels.cpu.jit import jit


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
def order_codes(g, out):
    """out = integers in the order of g, of the same width: loops over integers become SIMD code where a maximum of
    floats does not. -0.0 and 0.0 are one number. Codes read as floats have the bits of g as codes."""
    bits = as_bits(g)
    lowest = bits.dtype.type(1 << (8 * bits.itemsize - 1))  # the bits of -0.0
    for i in range(out.size):
        out[i] = bits[i] if bits[i] >= 0 else bits.dtype.type(lowest - bits[i])


@jit
def end_codes(g):
    """The codes of -inf and inf."""
    ends = np.empty(2, g.dtype)
    ends[0], ends[1] = -np.inf, np.inf
    codes = as_bits(ends)
    order_codes(ends, codes)
    return codes[0], codes[1]


@jit
def extent(g, n, codes):
    """The least of g[:n] that is not -inf, and the largest; (inf, -inf) if there is none. `codes` is scratch."""
    order_codes(g, codes[:n])
    idle, infinite = end_codes(g)
    low, high = infinite, idle
    for i in range(n):
        low = min(low, codes[i] if codes[i] != idle else infinite)
        high = max(high, codes[i])
    ends = np.empty(2, g.dtype)
    bits = as_bits(ends)
    bits[0], bits[1] = low, high
    order_codes(ends, bits)  # back to numbers
    return ends[0], ends[1]


@jit
def rank_sort(codes, keys, count, out):
    """out[:count] = keys in order, keys[i] having G of codes[i]. Each counts those it beats: O(count²), but SIMD."""
    rank = integers(count, 0)
    for i in range(count):
        code, key = codes[i], keys[i]
        for j in range(count):
            rank[j] += np.int32((code > codes[j]) | ((code == codes[j]) & (key < keys[j])))
    for i in range(count):
        out[rank[i]] = keys[i]


@jit
def sort_racing(g):
    """All keys with G > -inf, first winner first: a stable radix sort on the bits of G, so ties stay in index order."""
    bits = as_bits(g)
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


@jit
def kth_largest(x, n, k):
    """The k-th largest of x[:n] and the one after it, for 1 <= k < n; x is put into another order. Numba compiles
    `np.partition` for four seconds."""
    first, last, place = 0, n - 1, k - 1
    while first < last:  # what belongs to `place` in descending order is between first and last
        pivot = x[(first + last) // 2]
        i, j = first, last
        while i <= j:
            while x[i] > pivot:
                i += 1
            while x[j] < pivot:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i += 1
                j -= 1
        if place <= j:
            last = j
        elif place >= i:
            first = i
        else:
            break
    below = x[k]
    for i in range(k + 1, n):
        below = max(below, x[i])
    return x[place], below
