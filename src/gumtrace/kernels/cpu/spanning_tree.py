"""Kruskal's algorithm, as trace (Prim or a sorted edge list) and as incidence (who is joined by which merge).

The trace is the tree's edges in order of G. Any minimum spanning tree algorithm gives the same tree, since the order
of keys is total: Prim in O(n²) on a dense matrix, union-find over sorted edges on a sparse one.
"""

import numpy as np

from gumtrace.kernels.cpu.jit import jit
from gumtrace.kernels.cpu.order import insertion_sort, sort_racing


@jit
def edge_key(u, v, n):
    return u * n + v if u < v else v * n + u


@jit
def trace_dense(g, n, nodes, components, winners):
    """Prim over the first `nodes` nodes of the upper triangle of g (n, n); keeps the best nodes - components edges."""
    winners[:] = -1
    if nodes <= components:
        return nodes == components
    best = np.full(n, -1, np.int32)  # best key from the tree to each node outside
    outside = np.arange(1, nodes).astype(np.int32)
    edges = np.empty(nodes, np.int32)
    count = 0
    tree_node = 0
    for left in range(nodes - 1, 0, -1):
        pick = -1
        for i in range(left):
            v = outside[i]
            key = edge_key(tree_node, v, n)
            held = best[v]
            if g[key] > -np.inf and (held < 0 or g[key] > g[held] or (g[key] == g[held] and key < held)):
                best[v] = key
                held = key
            if held >= 0:
                top = best[outside[pick]] if pick >= 0 else -1
                if top < 0 or g[held] > g[top] or (g[held] == g[top] and held < top):
                    pick = i
        if pick < 0:
            pick = 0  # nothing reaches the rest: begin the next part of the forest
        else:
            edges[count] = best[outside[pick]]
            count += 1
        tree_node = outside[pick]
        outside[pick] = outside[left - 1]
    insertion_sort(g, edges, count)
    steps = nodes - components
    if count < steps:
        return False
    winners[:steps] = edges[:steps]
    return True


@jit
def incidence_dense(winners, n, components, keys, offsets):
    """Group b: the pairs of nodes that merge b joins, its winner first; pairs never joined go with the last merge,
    which they outlived."""
    nodes = components  # of this item: one more than that for each merge
    while nodes - components < winners.size and winners[nodes - components] >= 0:
        nodes += 1
    begin = np.arange(nodes).astype(np.int32)
    length = np.ones(nodes, np.int32)
    component = np.arange(nodes).astype(np.int32)
    following = np.full(nodes, -1, np.int32)  # components are linked lists, so a merge costs its pairs and no more
    last = np.arange(nodes).astype(np.int32)
    position = 0
    steps = nodes - components
    for step in range(steps):
        offsets[step] = position
        a, b = component[winners[step] // n], component[winners[step] % n]
        if a == b:
            continue  # no run gives such a trace; it must not loop for ever
        keys[position] = winners[step]
        position += 1
        if length[a] < length[b]:
            a, b = b, a
        v = begin[b]
        while v >= 0:
            u = begin[a]
            while u >= 0:
                key = edge_key(u, v, n)
                if key != winners[step]:
                    keys[position] = key
                    position += 1
                u = following[u]
            v = following[v]
        v = begin[b]
        while v >= 0:
            component[v] = a
            v = following[v]
        following[last[a]] = begin[b]
        last[a] = last[b]
        length[a] += length[b]
    if components > 1:
        for u in range(nodes):
            for v in range(u + 1, nodes):
                if component[u] != component[v]:
                    keys[position] = u * n + v
                    position += 1
    offsets[steps] = position if steps > 0 else 0
    offsets[steps + 1] = position
    return steps


@jit
def trace_sparse(g, edges, nodes, components, winners):
    winners[:] = -1
    steps = nodes - components
    root = np.arange(nodes).astype(np.int32)
    count = 0
    for key in sort_racing(g):
        if count >= steps:
            break
        u, v = _find(root, edges[0, key]), _find(root, edges[1, key])
        if u != v:
            root[u] = v
            winners[count] = key
            count += 1
    return count == steps


@jit
def _find(root, v):
    while root[v] != v:
        root[v] = root[root[v]]
        v = root[v]
    return v


@jit
def incidence_sparse(winners, edges, nodes, keys, offsets):
    """The same for an edge list: union by size without compression keeps the time of each link, and two nodes join at
    the last link between them.

    O(E log n) for the walks, then a counting sort of the edges by the merge that joins them.
    """
    never = winners.size
    above = np.arange(nodes).astype(np.int32)
    time = np.full(nodes, never, np.int32)
    size = np.ones(nodes, np.int32)
    steps = 0
    while steps < winners.size and winners[steps] >= 0:
        u, v = edges[0, winners[steps]], edges[1, winners[steps]]
        while above[u] != u:
            u = above[u]
        while above[v] != v:
            v = above[v]
        if size[u] > size[v]:
            u, v = v, u
        if u != v:
            above[u] = v
            time[u] = steps
            size[v] += size[u]
        steps += 1
    total = edges.shape[1]
    joined = np.empty(total, np.int32)
    counts = np.zeros(steps + 2, np.int32)
    for key in range(total):
        u, v = edges[0, key], edges[1, key]
        if u == v:  # a loop joins nothing and never races
            joined[key] = -1
            continue
        merge = -1
        while u != v and merge < never:
            if time[u] < time[v]:
                merge = time[u]
                u = above[u]
            else:
                merge = time[v]
                v = above[v]
        joined[key] = min(merge, steps - 1) if steps > 0 else 0
        counts[joined[key]] += 1
    position = 0
    for b in range(steps + 1):
        offsets[b] = position
        position += counts[b]
    offsets[steps + 1] = position
    cursor = offsets[: steps + 1].copy()
    for b in range(steps):
        keys[cursor[b]] = winners[b]
        cursor[b] += 1
    for key in range(total):
        b = joined[key]
        if b >= 0 and (steps == 0 or winners[b] != key):
            keys[cursor[b]] = key
            cursor[b] += 1
    return steps
