"""Binary trees over tokens: the Cartesian tree of G, built from left to right with a stack in O(n) and without
recursion."""

import numpy as np

from gumtrace.kernels.cpu.arrays import integers
from gumtrace.kernels.cpu.hooks import clear_trace, list_groups, list_order, list_winners, trace_item
from gumtrace.kernels.cpu.jit import inlined
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


@inlined
def _list_children(parents, left, right, root):
    """Writes the children of each node, and the root to root[0]. How many roots there are: none in an empty tree."""
    count = 0
    for i in range(parents.size):
        above = parents[i]
        if above == -1:
            root[0] = i
            count = 1
        elif 0 <= above < parents.size and i < above:
            left[above] = i
        elif 0 <= above < parents.size:
            right[above] = i
    return count


@list_order.of(BinaryTreeGeometry)
def _list_order(geometry, g, winners, parents, order, end):
    """Depth first: a node, its left tree, its right tree."""
    n = parents.size
    left = integers(n, -1)
    right = integers(n, -1)
    size = integers(n, 1)
    stack = integers(n, 0)
    waiting = _list_children(parents, left, right, stack)
    count = 0
    while waiting > 0:
        waiting -= 1
        node = stack[waiting]
        order[count] = node
        count += 1
        if right[node] >= 0:
            stack[waiting] = right[node]
            waiting += 1
        if left[node] >= 0:
            stack[waiting] = left[node]
            waiting += 1
    for p in range(count - 1, -1, -1):
        end[p] = p + size[order[p]]
        if parents[order[p]] >= 0:
            size[parents[order[p]]] += size[order[p]]
    return count


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
    count = _list_children(parents, left, right, keys)
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
