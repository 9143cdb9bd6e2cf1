"""Noise and traces for a batch: item i of N = samples x batch reads logits row i mod batch.

Each kernel does items start..stop, so that threads can share a batch. Noise depends on the seed and the position
alone, never on the split.
"""

import numpy as np

from gumtrace.kernels.cpu.arrays import integer_row
from gumtrace.kernels.cpu.hooks import clear_trace, mirrored, perturb_item, races, trace_item
from gumtrace.kernels.cpu.jit import jit, kernel
from gumtrace.kernels.geometry import NOT_A_NUMBER, OK, SOME_IDLE, STUCK


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
def trace_row(geometry, g, size, winners, links):
    """Writes every winner and link: where there is no trace, that there are none. Kernels index memory by them."""
    if check_row(geometry, g) == NOT_A_NUMBER:
        clear_trace(geometry, winners, links)
        return NOT_A_NUMBER
    return OK if trace_item(geometry, g, size, winners, links) else STUCK


@kernel
def perturb(start, stop, geometry, logits, seed, g):
    spare = np.empty(geometry.keys, g.dtype)
    scratch = integer_row(spare, geometry.keys)
    for i in range(start, stop):
        perturb_item(geometry, logits[i % logits.shape[0]], seed, i, g[i], spare, scratch)


@kernel
def trace(start, stop, geometry, g, sizes, winners, links, status):
    for i in range(start, stop):
        status[i] = trace_row(geometry, g[i], sizes[i % sizes.size], winners[i], links[i])


@kernel
def sample(start, stop, geometry, logits, sizes, seed, winners, links, status):
    """`perturb` and `trace` in one: the noise never leaves the cache."""
    g = np.empty(geometry.keys, logits.dtype)
    spare = np.empty(geometry.keys, logits.dtype)
    scratch = integer_row(spare, geometry.keys)
    for i in range(start, stop):
        perturb_item(geometry, logits[i % logits.shape[0]], seed, i, g, spare, scratch)
        status[i] = trace_row(geometry, g, sizes[i % sizes.size], winners[i], links[i])


@kernel
def indicator(start, stop, geometry, winners, out):
    """0/1 over the keys: 1 = winner; symmetric for a spanning tree."""
    for i in range(start, stop):
        out[i, :] = 0
        for k in winners[i]:
            if 0 <= k < geometry.keys:
                out[i, k] = 1
                out[i, mirrored(geometry, k)] = 1


@kernel
def check_logits(start, stop, geometry, logits, status):
    for i in range(start, stop):
        status[i] = check_row(geometry, logits[i])
