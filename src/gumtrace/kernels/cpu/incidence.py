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

from gumtrace.kernels.cpu.arrays import copy_row, integer_row
from gumtrace.kernels.cpu.hooks import group_capacity, list_groups, list_winners
from gumtrace.kernels.cpu.jit import inlined, jit
from gumtrace.kernels.cpu.order import extent
from gumtrace.kernels.cpu.simd_math import exp64, exp_row, fetch, places

BLOCK = 64  # items listed at once, at most
LISTED = 8192  # and integers: half of a first-level cache
CLOSE = 60.0  # numbers whose logarithms differ by less can share one exponent, in float32 too


class Lists(NamedTuple):
    """The incidence of a block of items. It is listed by code that is compiled for the structure, and read by code that
    is the same for all: a block at a time, as each call hands over a description of every array."""

    groups: np.ndarray  # (block,) how many each item has
    keys: np.ndarray  # (block, keys)
    offsets: np.ndarray  # (block, groups + 2)
    parent: np.ndarray  # (block, groups)
    decision: np.ndarray  # (block, groups)
    won: np.ndarray  # (block, decisions) the key that won, -1 if there was no such decision


@jit
def lists(geometry, links):
    groups = group_capacity(geometry, links)
    block = max(1, min(BLOCK, LISTED // max(geometry.keys + 3 * groups, 1)))
    return Lists(
        np.empty(block, np.int32),
        np.empty((block, geometry.keys), np.int32),
        np.empty((block, groups + 2), np.int32),
        np.empty((block, groups), np.int32),
        np.empty((block, groups), np.int32),
        np.empty((block, geometry.decisions), np.int32),
    )


@jit
def list_items(geometry, winners, links, first, stop, samples, listed):
    """Lists places first..stop, see `item_at`."""
    for q in range(stop - first):
        i = item_at(first + q, samples, winners.shape[0])
        list_winners(geometry, winners[i], links[i], listed.won[q])
        listed.groups[q] = list_groups(
            geometry, winners[i], links[i], listed.keys[q], listed.offsets[q], listed.parent[q], listed.decision[q]
        )


@jit
def item_at(place, samples, items):
    """Which item stands at a place, where those of one row of logits stand side by side; with `samples` 1, in order."""
    return place // samples + (items // samples) * (place % samples)


class Workspace(NamedTuple):
    """One item: its incidence, and room for numbers by key, group and decision."""

    keys: np.ndarray  # (keys,)
    offsets: np.ndarray  # (groups + 2,)
    parent: np.ndarray  # (groups,)
    decision: np.ndarray  # (groups,)
    won: np.ndarray  # (decisions,)
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


class Room(NamedTuple):
    """Numbers by key, group and decision, for one item at a time."""

    groups: np.ndarray  # (6, groups) float64
    bits: np.ndarray  # (2 groups or decisions,) int64
    decisions: np.ndarray  # (2, decisions) float64
    row: np.ndarray  # (keys,) in the dtype of the logits
    scratch: np.ndarray  # (keys,) integers as wide


@jit
def room(listed, like):
    keys, groups, decisions = listed.keys.shape[1], listed.parent.shape[1], listed.won.shape[1]
    return Room(
        np.empty((6, groups)),
        np.empty(max(2 * groups, decisions), np.int64),
        np.empty((2, decisions)),
        np.empty(max(keys, groups), like.dtype),
        integer_row(like, max(keys, groups)),
    )


@inlined
def workspace(listed, q, r):
    """Item q of a block."""
    n = r.groups.shape[1]
    return Workspace(
        listed.keys[q],
        listed.offsets[q],
        listed.parent[q],
        listed.decision[q],
        listed.won[q],
        r.groups[0],
        r.groups[1],
        r.groups[2],
        r.groups[3],
        r.groups[4:].reshape(2 * n),
        r.bits,
        r.decisions[0],
        r.decisions[1],
        r.row,
        r.scratch,
    )


@inlined
def gather(s, x, groups, ref):
    """row = e^(x - ref) over the listed keys. Where x lies close together ref is the largest of all, else that of each
    group."""
    row, keys, offsets, scratch = s.row, s.keys, s.offsets, s.scratch
    listed = offsets[groups]
    if listed == 0:
        ref[:groups] = -np.inf
        return
    scratch[0] = fetch(x)
    for i in range(listed):
        row[i] = x[np.uint32(keys[i])]  # unsigned for speed, see `places`
    low, high = extent(row, listed, scratch)
    if 0.0 <= high - low < CLOSE:
        ref[:groups] = high
        for i in range(listed):
            row[i] -= high
    else:
        for g in range(groups):
            top = row.dtype.type(-np.inf)
            for i in places(offsets[g], offsets[g + 1]):
                top = max(top, row[i])
            ref[g] = top
            if top > -np.inf:
                for i in places(offsets[g], offsets[g + 1]):
                    row[i] -= top
    exp_row(row, listed, scratch)


@inlined
def up(s, groups):
    """Every group's val e^ref goes to its own decision and to all before it: sums in d_val e^d_ref."""
    ref = s.ref
    low, high = np.inf, -np.inf
    for g in range(groups):
        high = max(high, ref[g])
        low = min(low, ref[g] if ref[g] > -np.inf else low)
    if 0.0 <= high - low < CLOSE:
        _up_close(s, groups, high)
    else:
        _up_wide(s, groups)


@inlined
def _up_close(s, groups, high):
    """One exponent will do for all."""
    parent, decision, sums, ref, val, d_ref, d_val = s.parent, s.decision, s.sums, s.ref, s.val, s.d_ref, s.d_val
    for g in range(groups):
        sums[g] = ref[g] - high
    exp64(sums, groups, s.bits)
    for g in range(groups):
        sums[g] *= val[g]
    d_val[:] = 0.0
    for g in range(groups - 1, -1, -1):
        d_val[decision[g]] += sums[g]
        if parent[g] >= 0:
            sums[parent[g]] += sums[g]
    for b in range(d_val.size):
        d_ref[b] = high if d_val[b] != 0.0 else -np.inf


@jit
def _up_wide(s, groups):
    parent, decision, weight, top = s.parent, s.decision, s.weight, s.top
    ref, val, sums, d_ref, d_val = s.ref, s.val, s.sums, s.d_ref, s.d_val
    d_ref[:] = -np.inf
    d_val[:] = 0.0
    copy_row(ref, groups, top)
    for g in range(groups - 1, -1, -1):
        if parent[g] >= 0:
            top[parent[g]] = max(top[parent[g]], top[g])
        d_ref[decision[g]] = max(d_ref[decision[g]], top[g])
    for g in range(groups):
        above = top[parent[g]] if parent[g] >= 0 else top[g]
        weight[2 * g] = ref[g] - top[g] if top[g] > -np.inf else -np.inf
        weight[2 * g + 1] = top[g] - above if top[g] > -np.inf else -np.inf
    exp64(weight, 2 * groups, s.bits)
    sums[:groups] = 0.0
    for g in range(groups - 1, -1, -1):
        total = sums[g] + val[g] * weight[2 * g]
        own = d_ref[decision[g]]
        d_val[decision[g]] += total if own == top[g] else total * math.exp(top[g] - own)  # a decision of many groups
        if parent[g] >= 0:
            sums[parent[g]] += total * weight[2 * g + 1]


@inlined
def down(s, groups):
    """Every group gets the sum of d_val e^d_ref over its own decision and all before it, in val e^ref."""
    parent, decision, weight, ref, val, d_ref, d_val = s.parent, s.decision, s.weight, s.ref, s.val, s.d_ref, s.d_val
    for g in range(groups):
        before = ref[parent[g]] if parent[g] >= 0 else -np.inf
        own = d_ref[decision[g]]
        high = max(before, own)
        ref[g] = high
        weight[2 * g] = own - high if high > -np.inf else -np.inf
        weight[2 * g + 1] = before - high if high > -np.inf else -np.inf
    exp64(weight, 2 * groups, s.bits)
    for g in range(groups):
        total = d_val[decision[g]] * weight[2 * g]
        if parent[g] >= 0:
            total += val[parent[g]] * weight[2 * g + 1]
        val[g] = total
