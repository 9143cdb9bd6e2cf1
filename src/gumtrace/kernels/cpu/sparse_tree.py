"""Kruskal's algorithm on a list of edges: union-find over the sorted edges, as trace and as incidence."""

import numpy as np

from gumtrace.kernels.cpu.arrays import copy_row, counting, integers
from gumtrace.kernels.cpu.chain import chain
from gumtrace.kernels.cpu.hooks import list_groups, perturb_item, races, trace_item
from gumtrace.kernels.cpu.jit import jit
from gumtrace.kernels.cpu.order import sort_racing
from gumtrace.kernels.cpu.simd_math import perturb_row
from gumtrace.kernels.geometry import SparseSpanningTreeGeometry


@races.of(SparseSpanningTreeGeometry)
def _races(geometry, key):
    return geometry.edges[0, key] != geometry.edges[1, key]


@perturb_item.of(SparseSpanningTreeGeometry)
def _perturb_item(geometry, logits, seed, item, g, spare, scratch):
    perturb_row(logits, seed, item * geometry.keys, g, spare, scratch)
    for k in range(geometry.keys):
        if geometry.edges[0, k] == geometry.edges[1, k]:
            g[k] = -np.inf


@trace_item.of(SparseSpanningTreeGeometry)
def _trace(geometry, g, nodes, winners, links):
    return kruskal(geometry.edges, g, nodes, geometry.components, winners)


@jit
def kruskal(edges, g, nodes, components, winners):
    winners[:] = -1
    steps = nodes - components
    root = counting(nodes)
    count = 0
    for key in sort_racing(g, g.size):
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


@list_groups.of(SparseSpanningTreeGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    return list_by_merge(geometry.edges, geometry.keys, geometry.nodes, winners, keys, offsets, parent, decision)


@jit
def list_by_merge(edges, total, nodes, winners, keys, offsets, parent, decision):
    """Lists the groups of the first `total` edges.

    Union by size without compression keeps the time of each link, and two nodes join at the last link between them.
    O(E log n) for the walks, then a counting sort of the edges by the merge that joins them.
    """
    never = winners.size
    above = counting(nodes)
    time = integers(nodes, never)
    size = integers(nodes, 1)
    steps = 0
    while steps < winners.size and 0 <= winners[steps] < total:  # a trace may come from anywhere
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
    joined = integers(total, 0)
    counts = integers(steps + 2, 0)
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
    cursor = integers(steps + 1, 0)
    copy_row(offsets, steps + 1, cursor)
    for b in range(steps):
        if joined[winners[b]] == b:  # else no run gives such a trace, and it must not write out of bounds
            keys[cursor[b]] = winners[b]
            cursor[b] += 1
    for key in range(total):
        b = joined[key]
        if b >= 0 and (steps == 0 or winners[b] != key):
            keys[cursor[b]] = key
            cursor[b] += 1
    return chain(steps, parent, decision)
