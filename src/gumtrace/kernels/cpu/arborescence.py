"""Chu-Liu-Edmonds on a dense matrix in O(n²), by Gabow's way of growing a path.

Decisions are supernodes: slot v < n is the node v, later slots are contracted cycles in order of contraction. `links`
points from a supernode to the cycle it became part of, -1 at the top. The path grows backwards from any node along
best in-edges; meeting itself it contracts the cycle, meeting the root or finished ground it is done. Which supernodes
arise does not depend on where it starts, and where it goes depends on winners alone: so equal sets of decisions get
equal numbers.

This is the one algorithm that subtracts, so it needs E = e^-G itself. An item whose G span less than e^±650 is
shifted to its middle and run in float64; a wider one runs on log E. Equal reduced weights are decided by G, then by
key, here as in the literal recursion.
"""

import math

import numpy as np

from gumtrace.kernels.cpu.arrays import counting, integer_row, integers
from gumtrace.kernels.cpu.hooks import (
    group_capacity,
    is_ordered,
    list_groups,
    lost_trace,
    perturb_item,
    races,
    trace_item,
)
from gumtrace.kernels.cpu.jit import jit, kernel
from gumtrace.kernels.cpu.order import before
from gumtrace.kernels.cpu.sampling import trace_row
from gumtrace.kernels.cpu.simd_math import exp64, perturb_row
from gumtrace.kernels.geometry import OK, ArborescenceGeometry

WIDEST = 1300.0


@races.of(ArborescenceGeometry)
def _races(geometry, key):
    return key // geometry.nodes != key % geometry.nodes and key % geometry.nodes != geometry.root


@perturb_item.of(ArborescenceGeometry)
def _perturb_item(geometry, logits, seed, item, g, spare, scratch):
    perturb_row(logits, seed, item * geometry.keys, g, spare, scratch)
    n = geometry.nodes
    for u in range(n):
        g[u * n + u] = -np.inf
        g[u * n + geometry.root] = -np.inf


@jit
def _exponentials(g, e):
    """e = E up to a common factor, or log E where that overflows (returns True); +inf for keys that do not race."""
    low, high = np.inf, -np.inf
    for k in range(g.size):
        e[k] = g[k]
        if e[k] > -np.inf:
            low = min(low, e[k])
            high = max(high, e[k])
    if high - low > WIDEST:
        for k in range(g.size):
            e[k] = -e[k]
        return True
    middle = 0.5 * low + 0.5 * high if low <= high else 0.0
    for k in range(g.size):
        e[k] = middle - e[k] if e[k] > -np.inf else 709.0
    exp64(e, e.size, integer_row(e, e.size))
    for k in range(g.size):
        if not g[k] > -np.inf:
            e[k] = np.inf
    return False


@jit
def _subtract(e, minimum, wide):
    """E - min in the item's own scale, for E >= min."""
    if not wide:
        return e - minimum
    if e <= minimum:
        return -np.inf
    below = minimum - e  # 1 - e^below, without loss at either end
    return e + (math.log(-math.expm1(below)) if below > -0.5 else math.log1p(-math.exp(below)))


@trace_item.of(ArborescenceGeometry)
def _trace_item(geometry, g, nodes, winners, links):
    return _trace(g, geometry.nodes, nodes, geometry.root, winners, links)


@jit
def _trace(g, n, nodes, root, winners, links):
    winners[:] = -1
    links[:] = -1
    if nodes <= 1:
        return True
    weight, wide = _in_weights(g, n, nodes, root)  # (slots, n): best weight from source u into a supernode
    target = np.empty((winners.size, n), np.int32)  # and the node of the supernode it enters at
    for v in range(nodes):
        target[v, :] = v
    minimum = np.empty(winners.size)
    top = counting(nodes)  # supernode that a node is in now
    state = integers(winners.size, 0)  # 0 untouched, 1 on the path, 2 leads to the root
    state[root] = 2
    path = integers(nodes, 0)
    slots = n
    for start in range(nodes):
        depth = 0
        here = top[start]
        while state[here] != 2:
            if state[here] == 0:
                state[here] = 1
                path[depth] = here
                depth += 1
                if not _decide(g, n, nodes, weight[here], target[here], winners, minimum, here):
                    return False
            source = top[winners[here] // n]
            if state[source] == 2:
                for i in range(depth):
                    state[path[i]] = 2
            elif state[source] == 0:
                here = source
            else:
                first = depth - 1
                while path[first] != source:
                    first -= 1
                _contract(g, n, nodes, weight, target, minimum, wide, path[first:depth], slots, top, links)
                here = slots
                slots += 1
                depth = first
    return True


@jit
def _in_weights(g, n, nodes, root):
    racing, e = np.empty(nodes * nodes), np.empty(nodes * nodes)
    for u in range(nodes):
        for v in range(nodes):
            racing[u * nodes + v] = g[u * n + v] if u != v and v != root else -np.inf
    wide = _exponentials(racing, e)
    weight = np.empty((max(2 * n - 2, n), n))
    for v in range(nodes):
        for u in range(nodes):
            weight[v, u] = e[u * nodes + v]
    return weight, wide


@jit
def _decide(g, n, nodes, weight, target, winners, minimum, here):
    best = -1
    least = np.inf
    for u in range(nodes):
        e = weight[u]
        if e < least or (e == least and best >= 0 and before(g, u * n + target[u], best * n + target[best])):
            best = u
            least = e
    if best < 0:
        return False
    winners[here] = best * n + target[best]
    minimum[here] = least
    return True


@jit
def _contract(g, n, nodes, weight, target, minimum, wide, cycle, slot, top, links):
    """Supernode `slot` gets, from every source, the best reduced weight into any member of the cycle; sources inside
    drop out."""
    for u in range(nodes):
        weight[slot, u] = np.inf
        target[slot, u] = 0
    for member in cycle:
        links[member] = slot
        for u in range(nodes):
            e = _subtract(weight[member, u], minimum[member], wide)
            held = weight[slot, u]
            if e < held or (e == held and e < np.inf and before(g, u * n + target[member, u], u * n + target[slot, u])):
                weight[slot, u] = e
                target[slot, u] = target[member, u]
    for u in range(nodes):
        if links[top[u]] == slot:
            top[u] = slot
            weight[slot, u] = np.inf


@jit
def _around(links, n, s):
    """The cycle that a supernode became part of, -1 for none. It has a later number: nothing else is believed."""
    return links[s] if max(s + 1, n) <= links[s] < links.size else -1


@group_capacity.of(ArborescenceGeometry)
def _group_capacity(geometry, links):
    return geometry.keys


@is_ordered.of(ArborescenceGeometry)
def _is_ordered(geometry):
    return False


@lost_trace.of(ArborescenceGeometry)
def _lost_trace(geometry, g, nodes, winners, links, again, again_links):
    status = trace_row(geometry, g, nodes, again, again_links)
    lost = status != OK
    for s in range(winners.size):
        lost |= again[s] != winners[s] or again_links[s] != links[s]
    return lost


@list_groups.of(ArborescenceGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    """For each node v a run of groups, one for each supernode around it from the inside out: the edges into v that
    start outside that supernode and inside the next. An edge races in its own group's decision and in those of the
    groups before it in the run."""
    n, root = geometry.nodes, geometry.root
    slots = winners.size
    nodes = n  # padding has no winner
    while nodes > root + 1 and winners[nodes - 1] < 0:
        nodes -= 1
    some = False
    for s in range(slots):
        some |= winners[s] >= 0
    if not some:
        nodes = 0
    size = integers(slots, 0)
    for v in range(nodes):
        size[v] = 1
    for s in range(slots):
        outer = _around(links, n, s)
        if outer >= 0:
            size[outer] += size[s]
    begin = integers(slots, 0)  # nodes in an order in which every supernode is an interval
    cursor, node_at = integers(slots, 0), integers(nodes, 0)
    free = 0
    for s in range(slots - 1, -1, -1):
        if size[s] == 0:
            continue
        outer = _around(links, n, s)
        if outer >= 0:
            begin[s] = cursor[outer]
            cursor[outer] += size[s]
        else:
            begin[s] = free
            free += size[s]
        cursor[s] = begin[s]
        if s < n:
            node_at[begin[s]] = s
    position = 0
    groups = 0
    for v in range(nodes):
        if v == root:
            continue
        inner = v
        first = True
        while inner >= 0:
            outer = _around(links, n, inner)
            low = begin[outer] if outer >= 0 else 0
            high = begin[outer] + size[outer] if outer >= 0 else nodes
            offsets[groups] = position
            parent[groups] = -1 if first else groups - 1
            decision[groups] = inner
            for i in range(low, begin[inner]):
                keys[position] = node_at[i] * n + v
                position += 1
            for i in range(begin[inner] + size[inner], high):
                keys[position] = node_at[i] * n + v
                position += 1
            groups += 1
            first = False
            inner = outer
    offsets[groups] = position
    offsets[groups + 1] = position
    return groups


@jit
def _entering(winners, links, n, entering):
    """entering[v]: the edge into v once all cycles are opened again, -1 for the root and for padding.

    From the outside in: the edge that enters a cycle replaces the winner of the member it enters.
    """
    edge = integers(winners.size, -1)
    for s in range(winners.size):
        edge[s] = winners[s] if winners[s] < n * n else -1
    for s in range(winners.size - 1, n - 1, -1):
        if edge[s] >= 0:
            inner = edge[s] % n
            while inner >= 0 and links[inner] != s:
                inner = _around(links, n, inner)
            if inner >= 0:
                edge[inner] = edge[s]
    for v in range(n):
        entering[v] = max(edge[v], -1)


@kernel
def entering(start, stop, geometry, winners, links, edges):
    for i in range(start, stop):
        _entering(winners[i], links[i], geometry.nodes, edges[i])
