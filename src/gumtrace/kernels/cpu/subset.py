"""Subsets and permutations: the first k, or all, of the keys in order.

Group b of the incidence holds the keys that leave after decision b, its winner first: each winner alone, and with the
last one all that were not chosen.
"""

import numpy as np

from gumtrace.kernels.cpu.arrays import copy_row
from gumtrace.kernels.cpu.chain import chain
from gumtrace.kernels.cpu.hooks import list_groups, list_order, trace_item
from gumtrace.kernels.cpu.jit import jit
from gumtrace.kernels.cpu.order import sort_racing, top_racing
from gumtrace.kernels.geometry import PermutationGeometry, SubsetGeometry

DEEP, LONG = 16, 4096  # of a heap and a row; beyond one of them candidates are faster


@trace_item.of(SubsetGeometry)
def _trace_subset(geometry, g, k, winners, links):
    return first_racing(g, k, winners) == k


@jit
def first_racing(g, k, winners):
    """The first k winners in order and then -1; returns how many there were."""
    winners[:] = -1
    if k > DEEP or g.size > LONG:
        order = sort_racing(g, k)
        count = order.size
        copy_row(order, count, winners)
        return count
    return top_racing(g, k, winners)


@trace_item.of(PermutationGeometry)
def _trace_permutation(geometry, g, size, winners, links):
    order = sort_racing(g, g.size)
    copy_row(order, order.size, winners)
    winners[order.size :] = -1
    return True


@list_order.of(SubsetGeometry, PermutationGeometry)
def _list_order(geometry, g, winners, links, order, end):
    """The winners, and behind them those that were not chosen."""
    chosen = np.zeros(g.size, np.bool_)
    decisions = 0
    while decisions < winners.size and winners[decisions] >= 0:
        order[decisions] = winners[decisions]
        chosen[winners[decisions]] = True
        decisions += 1
    racing = decisions
    for k in range(g.size):
        if g[k] > -np.inf and not chosen[k]:
            order[racing] = k
            racing += 1
    for p in range(racing):
        end[p] = racing
    return decisions


@list_groups.of(SubsetGeometry, PermutationGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    """Keys that race in no decision (k = 0) come after the last group."""
    size = geometry.keys
    steps = 0
    while steps < winners.size and 0 <= winners[steps] < size:  # a trace may come from anywhere
        steps += 1
    chosen = np.zeros(size, np.bool_)
    for b in range(steps):
        keys[b] = winners[b]
        offsets[b] = b
        chosen[winners[b]] = True
    return list_unchosen(chosen, steps, steps, keys, offsets, parent, decision)


@jit
def list_unchosen(chosen, steps, position, keys, offsets, parent, decision):
    """Behind the winners that are listed, all others: in the group of the last decision. Returns how many groups."""
    size = chosen.size
    for k in range(size):
        if not chosen[k] and position < size:  # a made-up trace may name a key twice
            keys[position] = k
            position += 1
    offsets[steps] = position if steps > 0 else 0
    offsets[steps + 1] = position
    return chain(steps, parent, decision)
