"""Kruskal's algorithm under constraints, on a dense matrix: edges inside of must-linked groups first, then all others,
without those that would join parts of which it is known that they are apart.

Parts that may not be joined never can be later, so that one walk through the sorted edges is enough for each of the
two: O(n² log n) for the sort, and O(n) for each edge that is taken.
"""

from gumtrace.kernels.cpu.arrays import copy_row, counting, integers
from gumtrace.kernels.cpu.chain import chain
from gumtrace.kernels.cpu.hooks import list_groups, trace_item
from gumtrace.kernels.cpu.jit import jit
from gumtrace.kernels.cpu.order import sort_racing
from gumtrace.kernels.cpu.spanning_tree import edge_key  # which registers what they share
from gumtrace.kernels.geometry import ConstrainedForestGeometry


@trace_item.of(ConstrainedForestGeometry)
def _trace(geometry, g, item, winners, links):
    n, constraints = geometry.nodes, geometry.constraints[item]
    group, nodes = constraints[n * n : n * n + n], constraints[n * n + n]
    winners[:] = -1
    links[0] = item
    inside, steps = nodes - _count_groups(group, nodes), nodes - geometry.components
    if inside > steps:
        return False
    order = sort_racing(g, g.size)
    part, apart = counting(n), integers(n * n, 0)
    copy_row(constraints, n * n, apart)
    count = _join(order, n, nodes, group, True, part, apart, inside, winners, 0)
    if count < inside:
        return False
    count = _join(order, n, nodes, group, False, part, apart, steps, winners, count)
    return count == steps or _reaches(order, n, nodes, steps)


@jit
def _count_groups(group, nodes):
    """A group is named by its first node."""
    groups = 0
    for v in range(nodes):
        groups += group[v] == v
    return groups


@jit
def _join(order, n, nodes, group, inside, part, apart, steps, winners, count):
    """Take edges in order, those inside of groups or the others, until there are `steps`; returns how many there are.
    `apart` has the parts that may not be joined, by their names."""
    for key in order:
        if count >= steps:
            break
        u, v = key // n, key % n
        if u >= v or v >= nodes or (group[u] == group[v]) != inside:
            continue
        a, b = part[u], part[v]
        if a == b or apart[a * n + b]:
            continue
        _merge(n, a, b, part, apart)
        winners[count] = key
        count += 1
    return count


@jit
def _merge(n, a, b, part, apart):
    """Part a becomes part of b, and what is apart from one of them is apart from both."""
    for v in range(n):
        part[v] = b if part[v] == a else part[v]
        apart[b * n + v] |= apart[a * n + v]
        apart[v * n + b] |= apart[v * n + a]


@jit
def _reaches(order, n, nodes, steps):
    """Whether there are enough edges where nothing is apart: else it is they that are missing."""
    nothing = integers(n * n, 0)
    return _join(order, n, nodes, nothing, True, counting(n), nothing, steps, integers(n, 0), 0) == steps


@list_groups.of(ConstrainedForestGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    """Two chains: edges inside of must-linked groups race first, among themselves, and leave when they are joined; then
    all others race, and leave when their parts are joined or become apart."""
    n, last = geometry.nodes, geometry.constraints.shape[0] - 1
    constraints = geometry.constraints[min(max(links[0], 0), last)]  # anyone may write into a trace
    group, nodes = constraints[n * n : n * n + n], constraints[n * n + n]
    steps = 0
    while steps < winners.size and 0 <= winners[steps] < n * n:
        steps += 1
    first = min(nodes - _count_groups(group, nodes), steps)  # decision of the second chain
    removal = _removals(winners[:steps], constraints, n, nodes, steps)
    counts = integers(steps + 1, 0)
    for u in range(nodes):
        for v in range(u + 1, nodes):
            key = u * n + v
            if removal[key] == steps and group[u] != group[v] and not constraints[key] and first < steps:
                removal[key] = steps - 1  # it raced to the end; the others that are left race in no decision
            counts[removal[key]] += 1
    position = 0
    for b in range(steps + 1):
        offsets[b] = position
        position += counts[b]
        counts[b] = offsets[b]
    offsets[steps + 1] = position
    for u in range(nodes):
        for v in range(u + 1, nodes):
            b = removal[u * n + v]
            keys[counts[b]] = u * n + v
            counts[b] += 1
    chain(steps, parent, decision)
    if first < steps:
        parent[first] = -1
    return steps


@jit
def _removals(winners, constraints, n, nodes, never):
    """The decision after which each pair of nodes is in one part, or in two that are apart. Each leaves once: O(n²)."""
    removal = integers(n * n, never)
    part, apart = counting(n), integers(n * n, 0)
    copy_row(constraints, n * n, apart)
    ring = counting(n)  # the next node of the same part
    for step in range(winners.size):
        a, b = part[winners[step] // n], part[winners[step] % n]
        if a == b:  # no run gives such a trace, and it must do no harm
            continue
        _leave(n, a, b, ring, step, never, removal)
        for q in range(nodes):
            if part[q] == q and apart[a * n + q] != apart[b * n + q]:
                _leave(n, b if apart[a * n + q] else a, q, ring, step, never, removal)
        _merge(n, a, b, part, apart)
        ring[a], ring[b] = ring[b], ring[a]
    return removal


@jit
def _leave(n, a, b, ring, step, never, removal):
    """All pairs of a node of part a and one of part b."""
    u = a
    while True:
        v = b
        while True:
            key = edge_key(u, v, n)
            if removal[key] == never:
                removal[key] = step
            v = ring[v]
            if v == b:
                break
        u = ring[u]
        if u == a:
            break
