"""The incidence of decisions and keys, in one form for all structures, and the two maps that everything is made of.

Keys that raced in the same decisions are a group. Groups form a forest: a group raced in all its parent's decisions
and in one more, its own.

    keys[offsets[g] : offsets[g + 1]]   the keys of group g; behind the last group, those that race in no decision
    parent[g] < g                       the group it extends, -1 for none
    decision[g]                         the decision it adds

`up` sums keys into decisions (A h), `down` sums decisions into groups (Aᵀ h). Both carry numbers as val · e^ref with
ref the largest exponent met, so that rates from e^-10000 to e^10000 live side by side.
"""

import math
from typing import NamedTuple

import numpy as np

from gumtrace.kernels import kinds
from gumtrace.kernels.cpu.arborescence import incidence_arborescence
from gumtrace.kernels.cpu.binary_tree import incidence_binary_tree
from gumtrace.kernels.cpu.jit import inlined, jit
from gumtrace.kernels.cpu.matching import incidence_matching
from gumtrace.kernels.cpu.order import extent
from gumtrace.kernels.cpu.spanning_tree import incidence_dense, incidence_sparse
from gumtrace.kernels.cpu.subset import incidence_subset
from gumtrace.kernels.cpu.vectors import copy_row, exp64, exp_row, fetch, integer_row, places

SUBSET, PERMUTATION, MATCHING = kinds.SUBSET, kinds.PERMUTATION, kinds.MATCHING
SPANNING_TREE, SPARSE_TREE, ARBORESCENCE = kinds.SPANNING_TREE, kinds.SPARSE_TREE, kinds.ARBORESCENCE
BINARY_TREE, EXPLICIT = kinds.BINARY_TREE, kinds.EXPLICIT
CLOSE = 60.0  # numbers whose logarithms differ by less can share one exponent, in float32 too


@jit
def incidence(s, geometry, winners, links):
    """Lists one item's groups and winners; returns the number of groups. Winners are listed once, because a function
    of the geometry called for each of them would count references to its arrays, which takes longer than their sums."""
    for b in range(geometry.decisions):
        if geometry.kind == BINARY_TREE:
            s.won[b] = b if -1 <= links[b] < geometry.n else -1
        else:
            s.won[b] = winners[b] if winners[b] < geometry.keys else -1
    return _list_groups(s, geometry, winners, links)


@jit
def _list_groups(s, geometry, winners, links):
    kind = geometry.kind
    keys, offsets, parent, decision = s.keys, s.offsets, s.parent, s.decision
    if kind == ARBORESCENCE:
        return incidence_arborescence(winners, links, geometry.n, geometry.extra, keys, offsets, parent, decision)
    if kind == BINARY_TREE:
        return incidence_binary_tree(links, keys, offsets, parent, decision)
    if kind == EXPLICIT:
        return _incidence_explicit(geometry.keys, geometry.decisions, links, keys, offsets, parent, decision)
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
def _incidence_explicit(count, decisions, links, keys, offsets, parent, decision):
    """A user's recursion hands over its forest: the group of each key, then parent and decision of each group. Anyone
    can write into a trace, so numbers that are no group or decision count as none: nothing is indexed by them."""
    capacity = (links.size - count) // 2
    groups = 0
    while groups < capacity and 0 <= links[count + capacity + groups] < decisions:
        parent[groups] = links[count + groups] if -1 <= links[count + groups] < groups else -1
        decision[groups] = links[count + capacity + groups]
        groups += 1
    offsets[: groups + 2] = 0
    for k in range(count):
        if -1 <= links[k] < groups:
            offsets[(links[k] if links[k] >= 0 else groups) + 1] += 1
    for g in range(groups + 1):
        offsets[g + 1] += offsets[g]
    cursor = offsets[: groups + 1].copy()
    for k in range(count):
        if -1 <= links[k] < groups:
            g = links[k] if links[k] >= 0 else groups
            keys[cursor[g]] = k
            cursor[g] += 1
    return groups


class Workspace(NamedTuple):
    """What one thread needs to work on an item: its incidence, and numbers by key, group and decision."""

    keys: np.ndarray  # (keys,)
    offsets: np.ndarray  # (groups + 2,)
    parent: np.ndarray  # (groups,)
    decision: np.ndarray  # (groups,)
    won: np.ndarray  # (decisions,) the key that won, -1 if there was no such decision
    ref: np.ndarray  # (groups,) float64, with val: val e^ref
    val: np.ndarray
    top: np.ndarray  # (groups,) float64: the largest exponent so far on the way through the forest
    sums: np.ndarray  # (groups,) float64
    weight: np.ndarray  # (2 groups,) float64: factors e^(ref - top), made in one sweep
    bits: np.ndarray  # (2 groups or decisions,) int64
    d_ref: np.ndarray  # (decisions,) float64
    d_val: np.ndarray
    row: np.ndarray  # (keys,) in the dtype of the logits
    scratch: np.ndarray  # (keys,) integers as wide


@jit
def workspace(geometry, links, like):
    groups = _group_capacity(geometry, links)
    return Workspace(
        np.empty(geometry.keys, np.int32),
        np.empty(groups + 2, np.int32),
        np.empty(groups, np.int32),
        np.empty(groups, np.int32),
        np.empty(geometry.decisions, np.int32),
        np.empty(groups),
        np.empty(groups),
        np.empty(groups),
        np.empty(groups),
        np.empty(2 * groups),
        np.empty(max(2 * groups, geometry.decisions), np.int64),
        np.empty(geometry.decisions),
        np.empty(geometry.decisions),
        np.empty(max(geometry.keys, groups), like.dtype),
        integer_row(like, max(geometry.keys, groups)),
    )


@jit
def _group_capacity(geometry, links):
    if geometry.kind == ARBORESCENCE:
        return geometry.n * geometry.n
    if geometry.kind == EXPLICIT:
        return (links.shape[1] - geometry.keys) // 2
    return geometry.decisions


@inlined
def gather(s, x, groups, ref):
    """row = e^(x - ref) over the listed keys. Where x lies close together ref is the largest of all, else that of each
    group."""
    row, listed = s.row, s.offsets[groups]
    if listed == 0:
        ref[:groups] = -np.inf
        return
    s.scratch[0] = fetch(x)
    for i in range(listed):
        row[i] = x[np.uint32(s.keys[i])]  # unsigned for speed, see `places`
    low, high = extent(row, listed, s.scratch)
    if 0.0 <= high - low < CLOSE:
        ref[:groups] = high
        for i in range(listed):
            row[i] -= high
    else:
        for g in range(groups):
            top = row.dtype.type(-np.inf)
            for i in places(s.offsets[g], s.offsets[g + 1]):
                top = max(top, row[i])
            ref[g] = top
            if top > -np.inf:
                for i in places(s.offsets[g], s.offsets[g + 1]):
                    row[i] -= top
    exp_row(row, listed, s.scratch)


@inlined
def up(s, groups):
    """Every group's val e^ref goes to its own decision and to all before it: sums in d_val e^d_ref."""
    low, high = np.inf, -np.inf
    for g in range(groups):
        high = max(high, s.ref[g])
        low = min(low, s.ref[g] if s.ref[g] > -np.inf else low)
    if 0.0 <= high - low < CLOSE:
        _up_close(s, groups, high)
    else:
        _up_wide(s, groups)


@inlined
def _up_close(s, groups, high):
    """One exponent will do for all."""
    parent, decision, sums = s.parent, s.decision, s.sums
    for g in range(groups):
        sums[g] = s.ref[g] - high
    exp64(sums, groups, s.bits)
    for g in range(groups):
        sums[g] *= s.val[g]
    s.d_val[:] = 0.0
    for g in range(groups - 1, -1, -1):
        s.d_val[decision[g]] += sums[g]
        if parent[g] >= 0:
            sums[parent[g]] += sums[g]
    for b in range(s.d_val.size):
        s.d_ref[b] = high if s.d_val[b] != 0.0 else -np.inf


@jit
def _up_wide(s, groups):
    parent, decision, weight, top = s.parent, s.decision, s.weight, s.top
    s.d_ref[:] = -np.inf
    s.d_val[:] = 0.0
    copy_row(s.ref, groups, top)
    for g in range(groups - 1, -1, -1):
        if parent[g] >= 0:
            top[parent[g]] = max(top[parent[g]], top[g])
        s.d_ref[decision[g]] = max(s.d_ref[decision[g]], top[g])
    for g in range(groups):
        above = top[parent[g]] if parent[g] >= 0 else top[g]
        weight[2 * g] = s.ref[g] - top[g] if top[g] > -np.inf else -np.inf
        weight[2 * g + 1] = top[g] - above if top[g] > -np.inf else -np.inf
    exp64(weight, 2 * groups, s.bits)
    s.sums[:groups] = 0.0
    for g in range(groups - 1, -1, -1):
        total = s.sums[g] + s.val[g] * weight[2 * g]
        own = s.d_ref[decision[g]]
        s.d_val[decision[g]] += total if own == top[g] else total * math.exp(top[g] - own)  # a decision of many groups
        if parent[g] >= 0:
            s.sums[parent[g]] += total * weight[2 * g + 1]


@inlined
def down(s, groups):
    """Every group gets the sum of d_val e^d_ref over its own decision and all before it, in val e^ref."""
    parent, weight = s.parent, s.weight
    for g in range(groups):
        before = s.ref[parent[g]] if parent[g] >= 0 else -np.inf
        own = s.d_ref[s.decision[g]]
        s.ref[g] = max(before, own)
        alive = s.ref[g] > -np.inf
        weight[2 * g] = own - s.ref[g] if alive else -np.inf
        weight[2 * g + 1] = before - s.ref[g] if alive else -np.inf
    exp64(weight, 2 * groups, s.bits)
    for g in range(groups):
        s.val[g] = s.d_val[s.decision[g]] * weight[2 * g]
        if parent[g] >= 0:
            s.val[g] += s.val[parent[g]] * weight[2 * g + 1]
