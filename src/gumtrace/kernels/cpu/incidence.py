"""The incidence of decisions and keys, in one form for all structures, and the two maps that everything is made of.

Keys that raced in the same decisions are a group. Groups form a forest: a group raced in all its parent's decisions and in one more, its own.

    keys[offsets[g] : offsets[g+1]]   the keys of group g; after the last group come those that race but were never in a decision
    parent[g] < g, decision[g]        the group it extends (-1: none), and the decision it adds

`up` sums keys into decisions (A h), `down` sums decisions into groups (Aᵀ h). Both carry numbers as val · e^ref with ref the largest exponent met,
so that rates from e^-10000 to e^10000 live side by side.
"""

import math

import numpy as np

from gumtrace.kernels import kinds
from gumtrace.kernels.cpu.arborescence import incidence_arborescence
from gumtrace.kernels.cpu.binary_tree import incidence_binary_tree
from gumtrace.kernels.cpu.matching import incidence_matching
from gumtrace.kernels.cpu.spanning_tree import incidence_dense, incidence_sparse
from gumtrace.kernels.cpu.subset import incidence_subset
from gumtrace.kernels.cpu.vectors import exp_row, jit

SUBSET, PERMUTATION, MATCHING = kinds.SUBSET, kinds.PERMUTATION, kinds.MATCHING
SPANNING_TREE, SPARSE_TREE, ARBORESCENCE = kinds.SPANNING_TREE, kinds.SPARSE_TREE, kinds.ARBORESCENCE
BINARY_TREE, EXPLICIT = kinds.BINARY_TREE, kinds.EXPLICIT


@jit
def group_capacity(geometry, links):
    if geometry.kind == ARBORESCENCE:
        return geometry.n * geometry.n
    if geometry.kind == EXPLICIT:
        return (links.shape[1] - geometry.keys) // 2
    return geometry.decisions


@jit
def incidence(geometry, winners, links, keys, offsets, parent, decision):
    """Lists one item's groups; returns their number."""
    kind = geometry.kind
    if kind == ARBORESCENCE:
        return incidence_arborescence(winners, links, geometry.n, geometry.extra, keys, offsets, parent, decision)
    if kind == BINARY_TREE:
        return incidence_binary_tree(links, keys, offsets, parent, decision)
    if kind == EXPLICIT:
        return _incidence_explicit(geometry.keys, links, keys, offsets, parent, decision)
    if kind == MATCHING:
        groups = incidence_matching(winners, geometry.n, geometry.m, keys, offsets)
    elif kind == SPANNING_TREE:
        groups = incidence_dense(winners, geometry.n, geometry.extra, keys, offsets)
    elif kind == SPARSE_TREE:
        groups = incidence_sparse(winners, geometry.edges, geometry.n, keys, offsets)
    else:
        groups = incidence_subset(winners, keys, offsets, geometry.keys)
    for b in range(groups):  # a chain: every decision follows the one before
        parent[b] = b - 1
        decision[b] = b
    return groups


@jit
def _incidence_explicit(count, links, keys, offsets, parent, decision):
    """A user's recursion hands over its forest: the group of each key, then parent and decision of each group."""
    capacity = (links.size - count) // 2
    groups = 0
    while groups < capacity and links[count + capacity + groups] >= 0:
        parent[groups] = links[count + groups]
        decision[groups] = links[count + capacity + groups]
        groups += 1
    offsets[: groups + 2] = 0
    for k in range(count):
        if links[k] >= -1:
            offsets[(links[k] if links[k] >= 0 else groups) + 1] += 1
    for g in range(groups + 1):
        offsets[g + 1] += offsets[g]
    cursor = offsets[: groups + 1].copy()
    for k in range(count):
        if links[k] >= -1:
            g = links[k] if links[k] >= 0 else groups
            keys[cursor[g]] = k
            cursor[g] += 1
    return groups


@jit
def winner_of(geometry, winners, links, b):
    """The key that won decision b, -1 if there was no such decision."""
    if geometry.kind == BINARY_TREE:
        return b if links[b] >= -1 else -1
    return winners[b]


@jit
def add(ref, val, i, r, v):
    """val[i] e^ref[i] += v e^r."""
    if v == 0.0 or r == -np.inf:
        return
    if r <= ref[i]:
        val[i] += v * math.exp(r - ref[i])
    else:
        val[i] = val[i] * math.exp(ref[i] - r) + v
        ref[i] = r


@jit
def gather_row(x, keys, offsets, groups, row, ref, scratch):
    """row = e^(x - ref) over the listed keys, ref the largest x of each group."""
    for g in range(groups):
        top = -np.inf
        for i in range(offsets[g], offsets[g + 1]):
            row[i] = x[keys[i]]
            top = max(top, row[i])
        ref[g] = top
        if top > -np.inf:
            for i in range(offsets[g], offsets[g + 1]):
                row[i] -= row.dtype.type(top)
    exp_row(row, offsets[groups], scratch)


@jit
def up(parent, decision, groups, ref, val, decision_ref, decision_val):
    """Every group's value goes to its own decision and to all before it. Uses ref and val up."""
    decision_ref[:] = -np.inf
    decision_val[:] = 0.0
    for g in range(groups - 1, -1, -1):
        add(decision_ref, decision_val, decision[g], ref[g], val[g])
        if parent[g] >= 0:
            add(ref, val, parent[g], ref[g], val[g])


@jit
def down(parent, decision, groups, decision_ref, decision_val, ref, val):
    """Every group gets the sum over its own decision and all before it."""
    for g in range(groups):
        p = parent[g]
        ref[g] = ref[p] if p >= 0 else -np.inf
        val[g] = val[p] if p >= 0 else 0.0
        add(ref, val, g, decision_ref[decision[g]], decision_val[decision[g]])
