"""The formula decision by decision: the log-probability of each, and the mean gain of the keys that raced in it.

With W[b, k] = λ_k / Λ_b, the chance that k wins decision b, these are log W[b, T_b] and Σ_k W[b, k] gain_k: what an
objective that adds up a gain for each winner would have got at b, whichever key wins.
"""

import math

import numpy as np

from gumtrace.kernels.cpu.arrays import copy_row
from gumtrace.kernels.cpu.formula import against_totals, keep_totals, log_chance, log_totals, scale_by_rest
from gumtrace.kernels.cpu.incidence import down, gather, item_at, list_items, lists, room, up, workspace
from gumtrace.kernels.cpu.jit import inlined, jit, kernel
from gumtrace.kernels.cpu.simd_math import exp64, places


@kernel
def decisions(start, stop, geometry, logits, gains, winners, links, out, kept):
    """out[i]: log P of each decision, and the mean gain Σ_k W[b, k] gains_k of the keys that raced in it, (2,
    decisions); 0 where there is no decision. kept as in `log_prob`."""
    listed = lists(geometry, links)
    r = room(listed, logits)
    for first in range(start, stop, listed.groups.size):
        last = min(first + listed.groups.size, stop)
        list_items(geometry, winners, links, first, last, 1, listed)
        _decisions(first, last, listed, r, logits, gains, out, kept)


@jit
def _decisions(first, last, listed, r, logits, gains, out, kept):
    for i in range(first, last):
        s, groups = workspace(listed, i - first, r), listed.groups[i - first]
        x, gain = logits[i % logits.shape[0]], gains[i % logits.shape[0]]
        keys, offsets, row, val = s.keys, s.offsets, s.row, s.val
        log_totals(s, x, groups)
        keep_totals(s, groups, kept[i])
        out[i, :] = 0.0
        for b in range(s.won.size):
            if s.won[b] >= 0:
                out[i, 0, b] = log_chance(s, b, x, kept[i])
        for g in range(groups):
            val[g] = 0.0
            for j in places(offsets[g], offsets[g + 1]):
                val[g] += row[j] * gain[keys[j]]
        up(s, groups)
        for b in range(s.won.size):
            if s.won[b] >= 0 and s.d_val[b] != 0.0:
                out[i, 1, b] = math.exp((s.d_ref[b] - kept[i, 0, b]) - kept[i, 1, b]) * s.d_val[b]


@kernel
def decisions_grad(start, stop, geometry, logits, gains, winners, links, stats, kept, grad, out):
    """The gradient of Σ grad · stats, where stats are what `decisions` gives: with h = grad[i],

    Σ_b h[0, b] (1[k = T_b] - W[b, k]) + h[1, b] W[b, k] (gains_k - mean_b).
    """
    listed = lists(geometry, links)
    r = room(listed, logits)
    samples = winners.shape[0] // logits.shape[0]
    out[start:stop] = 0.0
    for first in range(start * samples, stop * samples, listed.groups.size):
        last = min(first + listed.groups.size, stop * samples)
        list_items(geometry, winners, links, first, last, samples, listed)
        _decisions_grad(first, last, samples, listed, r, logits, gains, stats, kept, grad, out)


@jit
def _decisions_grad(first, last, samples, listed, r, logits, gains, stats, kept, grad, out):
    for place in range(first, last):
        s, groups = workspace(listed, place - first, r), listed.groups[place - first]
        i, j = item_at(place, samples, grad.shape[0]), place // samples
        won, d_val, sums = s.won, s.d_val, s.sums
        far = against_totals(s, kept[i])
        for b in range(won.size):
            d_val[b] = -grad[i, 0, b] - grad[i, 1, b] * stats[i, 1, b] if won[b] >= 0 else 0.0
            if won[b] >= 0:
                out[j, won[b]] += grad[i, 0, b]
        if far:
            scale_by_rest(s, kept[i])
        down(s, groups)
        copy_row(s.val, groups, sums)
        for b in range(won.size):
            d_val[b] = grad[i, 1, b] if won[b] >= 0 else 0.0
        if far:
            scale_by_rest(s, kept[i])
        down(s, groups)
        add_gains_to_keys(s, logits[j], gains[j], groups, out[j])


@inlined
def add_gains_to_keys(s, x, gain, groups, out):
    """out[k] += e^(x_k + ref_g) (sums_g + val_g gain_k)."""
    row, keys, offsets, weight, top, ref = s.row, s.keys, s.offsets, s.weight, s.top, s.ref
    gather(s, x, groups, top)
    for g in range(groups):
        weight[g] = top[g] + ref[g] if top[g] > -np.inf else -np.inf  # large numbers that cancel
    exp64(weight, groups, s.bits)
    for g in range(groups):
        same, slope = row.dtype.type(weight[g] * s.sums[g]), row.dtype.type(weight[g] * s.val[g])
        for i in places(offsets[g], offsets[g + 1]):
            row[i] *= same + slope * gain[np.uint32(keys[i])]
    for i in range(offsets[groups]):
        out[np.uint32(keys[i])] += row[i]
