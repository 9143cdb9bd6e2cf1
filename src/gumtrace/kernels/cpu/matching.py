"""Greedy matchings: take the largest entry, cross out its row and column, go on.

An entry that is the largest of both its row and its column is in the greedy matching whatever happens elsewhere. Such
entries are found by walking: from a row to its best free column, from there to that column's best free row, and so
on; G grows along the walk, so it ends in a pair that prefer each other. They are matched and the walk goes on from
where it stood before them. Every row and column is entered once, each entry costs one scan: O(n m) for the whole
matching, whatever the weights. Ranking the chosen entries then gives the order of the trace.
"""

import numpy as np

from gumtrace.kernels.cpu.arrays import integers
from gumtrace.kernels.cpu.chain import chain
from gumtrace.kernels.cpu.hooks import list_groups, trace_item
from gumtrace.kernels.cpu.order import insertion_sort
from gumtrace.kernels.geometry import MatchingGeometry


@trace_item.of(MatchingGeometry)
def _trace(geometry, g, size, winners, links):
    n, m = geometry.rows, geometry.columns
    winners[:] = -1
    row_free = integers(n, True)
    col_free = integers(m, True)
    walk = integers(n + m, 0)  # keys walked through: the first found along a row, the next along a column, ...
    matched = 0
    for start in range(n):
        depth = 0
        while row_free[start]:
            best = -1
            top = g.dtype.type(-np.inf)
            if depth % 2 == 0:
                row = walk[depth - 1] // m if depth > 0 else start
                for col in range(m):
                    if g[row * m + col] > top and col_free[col]:
                        best = row * m + col
                        top = g[best]
            else:
                col = walk[depth - 1] % m
                for row in range(n):
                    if g[row * m + col] > top and row_free[row]:
                        best = row * m + col
                        top = g[best]
            if best < 0:
                break  # no key left in the row it started from: the matching stays partial
            if depth > 0 and best == walk[depth - 1]:
                row_free[best // m] = False
                col_free[best % m] = False
                winners[matched] = best
                matched += 1
                depth = max(depth - 2, 0)
            else:
                walk[depth] = best
                depth += 1
    insertion_sort(g, winners, matched)
    return True


@list_groups.of(MatchingGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    """Group b: the keys crossed out at step b, its winner first."""
    n, m = geometry.rows, geometry.columns
    row_free = integers(n, True)
    col_free = integers(m, True)
    position = 0
    steps = 0
    while steps < winners.size and 0 <= winners[steps] < n * m:  # a trace may come from anywhere
        offsets[steps] = position
        row, col = winners[steps] // m, winners[steps] % m
        steps += 1
        if not row_free[row] or not col_free[col]:
            continue  # no run gives such a trace; it must not write out of bounds
        row_free[row] = False
        col_free[col] = False
        keys[position] = row * m + col
        position += 1
        for j in range(m):
            if col_free[j]:
                keys[position] = row * m + j
                position += 1
        for i in range(n):
            if row_free[i]:
                keys[position] = i * m + col
                position += 1
    offsets[steps] = position
    offsets[steps + 1] = position
    return chain(steps, parent, decision)
