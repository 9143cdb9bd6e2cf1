"""Kruskal's algorithm on a dense matrix, as trace (Prim) and as incidence (who is joined by which merge).

The trace is the tree's edges in order of G. Any minimum spanning tree algorithm gives the same tree, since the order
of keys is total: Prim takes O(n²).
"""

import numpy as np

from gumtrace.kernels.cpu.arrays import copy_row, counting, integer_row, integers
from gumtrace.kernels.cpu.chain import chain
from gumtrace.kernels.cpu.hooks import list_groups, mirrored, perturb_item, races, trace_item
from gumtrace.kernels.cpu.jit import inlined, jit
from gumtrace.kernels.cpu.order import end_codes, order_codes, rank_sort
from gumtrace.kernels.cpu.simd_math import log_exponential_row, places
from gumtrace.kernels.geometry import SYMMETRIC, SpanningTreeGeometry


@races.of(*SYMMETRIC)
def _races(geometry, key):
    return key // geometry.nodes < key % geometry.nodes


@mirrored.of(*SYMMETRIC)
def _mirrored(geometry, key):
    return key % geometry.nodes * geometry.nodes + key // geometry.nodes


@perturb_item.of(*SYMMETRIC)
def _perturb_item(geometry, logits, seed, item, g, spare, scratch):
    """Only the upper triangle is drawn, in one go: its rows alone are too short to be fast."""
    n = geometry.nodes
    pairs = n * (n - 1) // 2
    log_exponential_row(seed, item * geometry.keys, spare[:pairs], pairs, spare[pairs:], scratch)
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
def edge_key(u, v, n):
    return min(u, v) * n + max(u, v)


@trace_item.of(SpanningTreeGeometry)
def _trace(geometry, g, nodes, winners, links):
    """Prim over the first `nodes` nodes of the upper triangle of g (n, n); keeps the best nodes - components edges."""
    n, components = geometry.nodes, geometry.components
    winners[:] = -1
    if nodes <= components:
        return nodes == components
    codes = _symmetric_codes(g, n, nodes)
    idle, joined = end_codes(g)  # no edge is at +inf, so its code is free
    best, heights = integer_row(g, nodes), integer_row(g, nodes)
    best[:] = idle  # the best edge from the tree to each node outside; `joined` for the others
    held, edges = integers(nodes, 0), integers(nodes, 0)  # its key
    count = 0
    node, unseen = 0, 1
    for _ in range(nodes - 1):
        top = _reach(codes[node, :nodes], best, held, np.int32(node), np.int32(n), idle, joined)
        if top > idle:
            key = _first_held(best, held, top)
            edges[count], heights[count] = key, top
            count += 1
            u = key // n
            v = key - u * n
            node = v if best[u] == joined else u
        else:  # nothing reaches the rest: begin the next part of the forest
            while best[unseen] == joined:
                unseen += 1
            node = unseen
    steps = nodes - components
    if count < steps:
        return False
    order = integers(count, 0)
    rank_sort(heights, edges, count, order)
    copy_row(order, steps, winners)
    return True


@jit
def _symmetric_codes(g, n, nodes):
    """The upper triangle on both sides, (n, n), so that a node's edges are one row."""
    codes = integer_row(g, n * n)
    order_codes(g, codes)
    codes = codes.reshape((n, n))
    for u in range(nodes):
        for v in range(u):
            codes[u, v] = codes[v, u]
    return codes


@inlined
def _reach(row, best, held, node, n, idle, joined):
    """A node joins the tree and offers its edges to the nodes outside; returns the code of the best edge there is."""
    top = idle
    for v in range(row.size):
        other = np.int32(v)
        key = np.int32(edge_key(node, other, n))
        old, key_held = best[v], held[v]
        better = (row[v] > old) | ((row[v] == old) & (key < key_held))
        held[v] = key if better else key_held
        new = max(row[v], old) if other != node else joined
        best[v] = new
        top = max(top, new if new != joined else idle)
    return top


@inlined
def _first_held(best, held, top):
    """The first of the keys that reach the top."""
    none = np.int32(2**31 - 1)
    first = none
    for v in range(best.size):
        first = min(first, held[v] if best[v] == top else none)
    return first


@list_groups.of(SpanningTreeGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    """Group b: the pairs of nodes that merge b joins; pairs never joined go with the last merge, which they outlived.

    In the order of leaves every part is an interval when it merges, so the pairs of a merge are a rectangle.
    """
    n, components = geometry.nodes, geometry.components
    steps = 0
    while steps < winners.size and 0 <= winners[steps] < n * n:  # a trace may come from anywhere
        steps += 1
    begin, middle, end = integers(steps, 0), integers(steps, 0), integers(steps, 0)
    part, order = _leaf_order(winners[:steps], n, begin, middle, end)
    position = 0
    for step in range(steps):
        offsets[step] = position
        for i in range(begin[step], middle[step]):
            ahead = np.uint64(position) - np.uint64(middle[step])  # may wrap around, and so will the sum below
            for j in places(middle[step], end[step]):
                keys[ahead + j] = edge_key(order[i], order[j], np.int32(n))
            position += end[step] - middle[step]
    if components > 1:
        nodes = steps + components
        for u in range(nodes):
            for v in range(u + 1, nodes):
                if part[u] != part[v]:
                    keys[position] = u * n + v
                    position += 1
    offsets[steps] = position if steps > 0 else 0
    offsets[steps + 1] = position
    return chain(steps, parent, decision)


@jit
def _leaf_order(winners, n, begin, middle, end):
    """The part each node ends in, and an order of all nodes in which merge b joins places begin..middle to
    middle..end. The smaller part comes first, so that rectangles are few long rows."""
    part = counting(n)  # named by one of its nodes
    size = integers(n, 1)
    smaller, larger = integers(winners.size, 0), integers(winners.size, 0)
    for step in range(winners.size):
        a, b = part[winners[step] // n], part[winners[step] % n]
        if size[a] > size[b]:
            a, b = b, a
        smaller[step], larger[step] = a, b
        middle[step], end[step] = size[a], size[a] + size[b]  # of an interval that begins at 0
        if a != b:  # else no run gives such a trace, and it must do no harm
            size[b] += size[a]
            for v in range(n):
                part[v] = b if part[v] == a else part[v]
    place = integers(n, 0)
    count = 0
    for v in range(n):
        if part[v] == v:
            place[v] = count
            count += size[v]
    for step in range(winners.size - 1, -1, -1):  # back in time: an interval falls into the two it was made of
        a, b = smaller[step], larger[step]
        begin[step] = place[b]
        place[a] = place[b]
        if a == b:
            middle[step] = end[step] = 0
        middle[step] += begin[step]
        end[step] += begin[step]
        place[b] = middle[step]
    order = integers(n, 0)
    for v in range(n):
        order[place[v]] = v
    return part, order
