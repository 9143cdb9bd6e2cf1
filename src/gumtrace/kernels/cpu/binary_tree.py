"""Binary trees over tokens: the Cartesian tree of G, built from left to right with a stack in O(n) and without
recursion."""

import numpy as np

from gumtrace.kernels.cpu.arrays import integers
from gumtrace.kernels.cpu.hooks import clear_trace, list_groups, list_winners, trace_item
from gumtrace.kernels.cpu.order import before
from gumtrace.kernels.geometry import BinaryTreeGeometry


@trace_item.of(BinaryTreeGeometry)
def _trace(geometry, g, size, winners, parents):
    """parents[i]: the node above token i, -1 for the root, -2 for tokens that do not race."""
    stack = integers(g.size, 0)  # the right spine of the tree so far
    depth = 0
    for i in range(g.size):
        if not g[i] > -np.inf:
            parents[i] = -2
            continue
        below = -1
        while depth > 0 and before(g, i, stack[depth - 1]):
            depth -= 1
            below = stack[depth]
        if below >= 0:
            parents[below] = i
        parents[i] = stack[depth - 1] if depth > 0 else -1
        stack[depth] = i
        depth += 1
    return True


@clear_trace.of(BinaryTreeGeometry)
def _clear_trace(geometry, winners, parents):
    parents[:] = -2


@list_winners.of(BinaryTreeGeometry)
def _list_winners(geometry, winners, parents, won):
    for i in range(geometry.decisions):
        won[i] = i if -1 <= parents[i] < geometry.keys else -1


@list_groups.of(BinaryTreeGeometry)
def _list_groups(geometry, winners, parents, keys, offsets, parent, decision):
    """Groups are the nodes in breadth-first order, so that a parent comes before its children; group g holds its node
    alone."""
    n = parents.size
    left = integers(n, -1)
    right = integers(n, -1)
    place = integers(n, 0)
    count = 0
    for i in range(n):
        above = parents[i]
        if above == -1:
            keys[0] = i
            count = 1
        elif 0 <= above < n and i < above:
            left[above] = i
        elif 0 <= above < n:
            right[above] = i
    done = 0
    while done < count:
        node = keys[done]
        place[node] = done
        offsets[done] = done
        decision[done] = node
        parent[done] = place[parents[node]] if parents[node] >= 0 else -1
        if left[node] >= 0:
            keys[count] = left[node]
            count += 1
        if right[node] >= 0:
            keys[count] = right[node]
            count += 1
        done += 1
    offsets[count] = count
    offsets[count + 1] = count
    return count
