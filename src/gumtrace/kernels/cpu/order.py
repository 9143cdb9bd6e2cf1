"""The order of keys: larger G first, equal ones by index. Every kernel and the literal recursion keep to it."""

import numpy as np

from gumtrace.kernels.cpu.arrays import as_bits, integers
from gumtrace.kernels.cpu.jit import jit

LEAST_ROOM = 256  # of candidates


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
def sort_racing(g, k):
    """The first k keys with G > -inf, first winner first; fewer if there are not so many.

    Candidates are collected in twice the room, or the least there is, and sorted when it is full; the k-th is then what
    later keys have to beat. Few do: the time is that of reading g, and of sorting k keys some ln(d / k) times. With
    k = d nothing is ever full, and all are sorted once. Where G ascends, the least room keeps sorts few.
    """
    bits = as_bits(g)
    width = 8 * bits.itemsize
    sign = np.uint64(1) << np.uint64(width - 1)
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - width)
    room = min(max(2 * k, LEAST_ROOM), g.size)
    codes = np.empty(room, np.uint64)
    keys = np.empty(room, np.int32)
    spare_codes = np.empty(room, np.uint64)
    spare_keys = np.empty(room, np.int32)
    count = 0
    bound = g.dtype.type(-np.inf if k > 0 else np.inf)
    for key in range(g.size):
        if g[key] > bound:  # an equal one comes later, and loses the tie
            if count == room:
                _radix_sort(codes, keys, count, width, spare_codes, spare_keys)
                count = k
                bound = g[keys[k - 1]]
                if not g[key] > bound:
                    continue
            raw = np.uint64(bits[key]) & mask if g[key] != 0 else np.uint64(0)  # -0.0 and 0.0 are one number
            codes[count] = raw if raw & sign else ~(raw | sign) & mask  # ascending codes = descending G
            keys[count] = key
            count += 1
    _radix_sort(codes, keys, count, width, spare_codes, spare_keys)
    return keys[: min(count, k)]


@jit
def _radix_sort(codes, keys, count, width, spare_codes, spare_keys):
    """In place, by ascending codes of so many bits. Stable: ties stay in index order."""
    digit = 8 if count < 1 << 15 else 11
    bins = np.empty(1 << digit, np.int64)
    low = np.uint64((1 << digit) - 1)
    source_codes, source_keys = codes, keys
    for shift in range(0, width, digit):
        bins[:] = 0
        for i in range(count):
            bins[np.int64((source_codes[i] >> np.uint64(shift)) & low)] += 1
        total = 0
        for b in range(bins.size):
            total, bins[b] = total + bins[b], total
        for i in range(count):
            b = np.int64((source_codes[i] >> np.uint64(shift)) & low)
            spare_codes[bins[b]] = source_codes[i]
            spare_keys[bins[b]] = source_keys[i]
            bins[b] += 1
        source_codes, spare_codes = spare_codes, source_codes
        source_keys, spare_keys = spare_keys, source_keys
    if (width + digit - 1) // digit % 2 == 1:  # an odd number of passes: the result is in the spare arrays
        for i in range(count):
            codes[i], keys[i] = source_codes[i], source_keys[i]


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
