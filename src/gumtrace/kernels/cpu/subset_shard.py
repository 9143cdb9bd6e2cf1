"""Some of the keys of a subset, where the others are elsewhere: the noise of their places, their first k with the G of
each, and their part of the incidence.

Group b holds the winner of decision b if its key is here, the last one also all keys here that were not chosen: so
totals are this shard's part of Λ, of every decision.
"""

import numpy as np

from gumtrace.kernels.cpu.arrays import as_bits
from gumtrace.kernels.cpu.hooks import list_groups, perturb_item, trace_item
from gumtrace.kernels.cpu.simd_math import perturb_row
from gumtrace.kernels.cpu.subset import first_racing, list_unchosen
from gumtrace.kernels.geometry import SubsetShardGeometry


@perturb_item.of(SubsetShardGeometry)
def _perturb(geometry, logits, seed, item, g, spare, scratch):
    perturb_row(logits, seed, item * geometry.total + geometry.first, g, spare, scratch)


@trace_item.of(SubsetShardGeometry)
def _trace(geometry, g, k, winners, links):
    """Fewer than k keys are no failure: the others may be elsewhere."""
    count = first_racing(g, k, winners)
    best = np.full(winners.size, -np.inf)
    for b in range(count):
        best[b] = g[winners[b]]
    bits = as_bits(best)
    for b in range(winners.size):
        links[2 * b] = np.int32(bits[b] & np.int64(0xFFFFFFFF))
        links[2 * b + 1] = np.int32(bits[b] >> np.int64(32))
    return True


@list_groups.of(SubsetShardGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    chosen = np.zeros(geometry.keys, np.bool_)
    steps = position = 0
    while steps < winners.size and winners[steps] >= 0:
        offsets[steps] = position
        if winners[steps] < geometry.keys and position < geometry.keys:  # a made-up trace may name a key twice
            keys[position] = winners[steps]
            chosen[winners[steps]] = True
            position += 1
        steps += 1
    return list_unchosen(chosen, steps, position, keys, offsets, parent, decision)
