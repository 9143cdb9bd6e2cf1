"""Noise and traces for a batch: item i of N = samples x batch reads logits row i mod batch.

Each kernel does items start..stop, so that threads can share a batch. Noise depends on the seed and the position
alone, never on the split.
"""

import numpy as np

from gumtrace.kernels import kinds
from gumtrace.kernels.cpu.arborescence import heads, trace_arborescence
from gumtrace.kernels.cpu.binary_tree import trace_binary_tree
from gumtrace.kernels.cpu.jit import jit
from gumtrace.kernels.cpu.matching import trace_matching
from gumtrace.kernels.cpu.spanning_tree import trace_dense, trace_sparse
from gumtrace.kernels.cpu.subset import trace_permutation, trace_subset
from gumtrace.kernels.cpu.vectors import integer_row, log_exponential_row

SUBSET, PERMUTATION, MATCHING = kinds.SUBSET, kinds.PERMUTATION, kinds.MATCHING
SPANNING_TREE, SPARSE_TREE, ARBORESCENCE = kinds.SPANNING_TREE, kinds.SPARSE_TREE, kinds.ARBORESCENCE
BINARY_TREE = kinds.BINARY_TREE
OK, STUCK, NOT_A_NUMBER, SOME_IDLE = kinds.OK, kinds.STUCK, kinds.NOT_A_NUMBER, kinds.SOME_IDLE


@jit
def races(geometry, k):
    """Whether the structure lets key k race: not on the diagonal, below a triangle, into a root, or as a loop."""
    if geometry.kind == SPANNING_TREE:
        return k // geometry.n < k % geometry.n
    if geometry.kind == ARBORESCENCE:
        return k // geometry.n != k % geometry.n and k % geometry.n != geometry.extra
    if geometry.kind == SPARSE_TREE:
        return geometry.edges[0, k] != geometry.edges[1, k]
    return True


@jit
def check_row(geometry, x):
    """NOT_A_NUMBER for a nan or +inf among the keys that race, else SOME_IDLE where one is -inf."""
    wrong = 0
    idle = 0
    for k in range(geometry.keys):
        wrong += not x[k] < np.inf
        idle += x[k] == -np.inf
    if wrong > 0:
        for k in range(geometry.keys):
            if not x[k] < np.inf and races(geometry, k):
                return NOT_A_NUMBER
    return SOME_IDLE if idle > 0 else OK


@jit
def perturb_row(geometry, logits, seed, item, g, spare, scratch):
    """g = logits + Gumbel noise, -inf for keys that do not race."""
    keys = geometry.keys
    base = item * keys
    if geometry.kind == SPANNING_TREE:
        _perturb_triangle(geometry.n, logits, seed, base, g, spare, scratch)
        return
    log_exponential_row(seed, base, g, keys, spare, scratch)
    for k in range(keys):
        g[k] = logits[k] - g[k]
    if geometry.kind == ARBORESCENCE:
        n = geometry.n
        for u in range(n):
            g[u * n + u] = -np.inf
            g[u * n + geometry.extra] = -np.inf
    elif geometry.kind == SPARSE_TREE:
        for k in range(keys):
            if geometry.edges[0, k] == geometry.edges[1, k]:
                g[k] = -np.inf


@jit
def _perturb_triangle(n, logits, seed, base, g, spare, scratch):
    """Only the upper triangle is drawn, in one go: its rows alone are too short to be fast."""
    pairs = n * (n - 1) // 2
    log_exponential_row(seed, base, spare[:pairs], pairs, spare[pairs:], scratch)
    drawn = 0
    for u in range(n):
        upper = u * n + u + 1
        count = n - u - 1
        g[u * n : upper] = -np.inf
        row, x, noise = g[upper : upper + count], logits[upper : upper + count], spare[drawn : drawn + count]
        for i in range(count):
            row[i] = x[i] - noise[i]
        drawn += count


@jit
def trace_row(geometry, g, size, winners, links):
    """Writes every winner and link: where there is no trace, that there are none. Kernels index memory by them."""
    kind = geometry.kind
    if check_row(geometry, g) == NOT_A_NUMBER:
        winners[:] = -1
        links[:] = -2 if kind == BINARY_TREE else -1
        return NOT_A_NUMBER
    if kind == SUBSET:
        done = trace_subset(g, size, winners)
    elif kind == PERMUTATION:
        done = trace_permutation(g, winners)
    elif kind == MATCHING:
        done = trace_matching(g, geometry.n, geometry.m, winners)
    elif kind == SPANNING_TREE:
        done = trace_dense(g, geometry.n, size, geometry.extra, winners)
    elif kind == SPARSE_TREE:
        done = trace_sparse(g, geometry.edges, size, geometry.extra, winners)
    elif kind == ARBORESCENCE:
        done = trace_arborescence(g, geometry.n, size, geometry.extra, winners, links)
    else:
        done = trace_binary_tree(g, links)
    return OK if done else STUCK


@jit
def perturb(start, stop, geometry, logits, seed, g):
    spare = np.empty(geometry.keys, g.dtype)
    scratch = integer_row(spare, geometry.keys)
    for i in range(start, stop):
        perturb_row(geometry, logits[i % logits.shape[0]], seed, i, g[i], spare, scratch)


@jit
def trace(start, stop, geometry, g, sizes, winners, links, status):
    for i in range(start, stop):
        status[i] = trace_row(geometry, g[i], sizes[i % sizes.size], winners[i], links[i])


@jit
def sample(start, stop, geometry, logits, sizes, seed, winners, links, status):
    """`perturb` and `trace` in one: the noise never leaves the cache."""
    g = np.empty(geometry.keys, logits.dtype)
    spare = np.empty(geometry.keys, logits.dtype)
    scratch = integer_row(spare, geometry.keys)
    for i in range(start, stop):
        perturb_row(geometry, logits[i % logits.shape[0]], seed, i, g, spare, scratch)
        status[i] = trace_row(geometry, g, sizes[i % sizes.size], winners[i], links[i])


@jit
def arborescence_heads(start, stop, geometry, winners, links, head):
    for i in range(start, stop):
        heads(winners[i], links[i], geometry.n, head[i])


@jit
def indicator(start, stop, geometry, winners, out):
    """0/1 over the keys: 1 = winner; symmetric for a spanning tree."""
    n = geometry.n
    for i in range(start, stop):
        out[i, :] = 0
        for k in winners[i]:
            if 0 <= k < geometry.keys:
                out[i, k] = 1
                if geometry.kind == SPANNING_TREE:
                    out[i, k % n * n + k // n] = 1


@jit
def check_logits(start, stop, geometry, logits, status):
    for i in range(start, stop):
        status[i] = check_row(geometry, logits[i])
