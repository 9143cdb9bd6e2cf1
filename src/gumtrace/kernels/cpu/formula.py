"""The one formula over a batch: log Λ and log P(T), G | T, their gradients, and the two bilinear maps behind higher
derivatives.

With W[b, k] = λ_k / Λ_b (the chance that k wins decision b) the gradient of log Λ_b is W[b], and the gradient of log
Σ_{b ∋ k} m_b is the share of each m_b in the sum. Both are A[b, k] e^(α_b + β_k) <= 1 for some α and β: `to_keys` and
`to_decisions` multiply by such a matrix and its transpose. Item i of N = samples x batch reads logits row i mod
batch; gradients are summed over the samples.
"""

import math

import numpy as np

from gumtrace.kernels.cpu.arrays import copy_row
from gumtrace.kernels.cpu.incidence import down, gather, item_at, list_items, lists, room, up, workspace
from gumtrace.kernels.cpu.jit import inlined, jit, kernel
from gumtrace.kernels.cpu.simd_math import (
    exp64,
    log64,
    log_row,
    places,
    sum_range,
)

FAR = 2.0**16  # log Λ as one number is too coarse beyond this: what is added to its exponent is rounded away


@inlined
def log_totals(s, logits, groups):
    """log Λ = d_ref + d_val, for the decisions of the groups: two numbers, as the first may be so large that nothing of
    the second would be left in the sum."""
    val, row, offsets, d_val = s.val, s.row, s.offsets, s.d_val
    gather(s, logits, groups, s.ref)
    for g in range(groups):
        val[g] = sum_range(row, offsets[g], offsets[g + 1])
    up(s, groups)
    for b in range(d_val.size):
        d_val[b] = d_val[b] if d_val[b] > 0.0 else 1.0
    log64(d_val, d_val.size, s.bits)


@kernel
def log_prob(start, stop, geometry, logits, winners, links, out, kept):
    """kept[i]: the two parts of log Λ, (2, decisions); 0 where there is no decision."""
    listed = lists(geometry, links)
    r = room(listed, logits)
    for first in range(start, stop, listed.groups.size):
        last = min(first + listed.groups.size, stop)
        list_items(geometry, winners, links, first, last, 1, listed)
        _log_prob(first, last, listed, r, logits, out, kept)


@jit
def _log_prob(first, last, listed, r, logits, out, kept):
    for i in range(first, last):
        s, groups = workspace(listed, i - first, r), listed.groups[i - first]
        x = logits[i % logits.shape[0]]
        log_totals(s, x, groups)
        keep_totals(s, groups, kept[i])
        total = 0.0
        for b in range(s.won.size):
            if s.won[b] >= 0:
                total += log_chance(s, b, x, kept[i])
        out[i] = total


@inlined
def keep_totals(s, groups, kept):
    """The two parts of log Λ of the decisions that the groups add, (2, decisions)."""
    kept[:] = 0.0
    for g in range(groups):
        b = s.decision[g]
        kept[0, b], kept[1, b] = s.d_ref[b], s.d_val[b]


@inlined
def log_chance(s, b, x, kept):
    """log(λ / Λ_b) of the winner from the parts of log Λ: large log-rates cancel before anything small is added."""
    own = np.float64(x[s.won[b]])
    known = own > -np.inf and kept[0, b] > -np.inf
    return (own - kept[0, b]) - kept[1, b] if known else own - (kept[0, b] + kept[1, b])


@inlined
def add_to_keys(s, x, groups, out):
    """out[k] += e^(x_k + ref_g) val_g."""
    row, keys, offsets, weight, top, ref, val = s.row, s.keys, s.offsets, s.weight, s.top, s.ref, s.val
    gather(s, x, groups, top)
    for g in range(groups):
        weight[g] = top[g] + ref[g] if top[g] > -np.inf else -np.inf  # large numbers that cancel
    exp64(weight, groups, s.bits)
    for g in range(groups):
        factor = row.dtype.type(weight[g] * val[g])
        for i in places(offsets[g], offsets[g + 1]):
            row[i] *= factor
    for i in range(offsets[groups]):
        out[np.uint32(keys[i])] += row[i]


@kernel
def log_prob_grad(start, stop, geometry, logits, winners, links, kept, grad, out):
    listed = lists(geometry, links)
    r = room(listed, logits)
    samples = winners.shape[0] // logits.shape[0]
    out[start:stop] = 0.0
    for first in range(start * samples, stop * samples, listed.groups.size):
        last = min(first + listed.groups.size, stop * samples)
        list_items(geometry, winners, links, first, last, samples, listed)
        _log_prob_grad(first, last, samples, listed, r, logits, kept, grad, out)


@jit
def _log_prob_grad(first, last, samples, listed, r, logits, kept, grad, out):
    for place in range(first, last):
        s, groups = workspace(listed, place - first, r), listed.groups[place - first]
        i, j = item_at(place, samples, grad.shape[0]), place // samples
        won, d_val = s.won, s.d_val
        far = against_totals(s, kept[i])
        for b in range(won.size):
            d_val[b] = -grad[i]
            if won[b] >= 0:
                out[j, won[b]] += grad[i]
        if far:
            scale_by_rest(s, kept[i])
        down(s, groups)
        add_to_keys(s, logits[j], groups, out[j])


@inlined
def against_totals(s, kept):
    """d_ref = -log Λ, or the larger part of it alone where one number is too coarse: then True."""
    far = False
    for b in range(s.won.size):
        total = kept[0, b] + kept[1, b]
        far |= abs(total) > FAR
        s.d_ref[b] = -total
    if far:
        for b in range(s.won.size):
            s.d_ref[b] = -kept[0, b] if kept[0, b] > -np.inf else -np.inf
    return far


@inlined
def scale_by_rest(s, kept):
    """d_val divided by what `against_totals` left out of Λ."""
    for b in range(s.won.size):
        s.d_val[b] = s.d_val[b] * math.exp(-kept[1, b]) if kept[0, b] > -np.inf else 0.0


@kernel
def to_keys(start, stop, geometry, winners, links, alpha, beta, h, out):
    """out[k] = Σ_b A[b, k] e^(α_b + β_k) h_b."""
    listed = lists(geometry, links)
    r = room(listed, beta)
    for first in range(start, stop, listed.groups.size):
        last = min(first + listed.groups.size, stop)
        list_items(geometry, winners, links, first, last, 1, listed)
        _to_keys(first, last, listed, r, alpha, beta, h, out)


@jit
def _to_keys(first, last, listed, r, alpha, beta, h, out):
    for i in range(first, last):
        s, groups = workspace(listed, i - first, r), listed.groups[i - first]
        copy_row(alpha[i], s.won.size, s.d_ref)
        copy_row(h[i], s.won.size, s.d_val)
        down(s, groups)
        out[i, :] = 0.0
        add_to_keys(s, beta[i], groups, out[i])


@kernel
def to_decisions(start, stop, geometry, winners, links, alpha, beta, h, out):
    """out[b] = Σ_k A[b, k] e^(α_b + β_k) h_k."""
    listed = lists(geometry, links)
    r = room(listed, beta)
    for first in range(start, stop, listed.groups.size):
        last = min(first + listed.groups.size, stop)
        list_items(geometry, winners, links, first, last, 1, listed)
        _to_decisions(first, last, listed, r, alpha, beta, h, out)


@jit
def _to_decisions(first, last, listed, r, alpha, beta, h, out):
    for i in range(first, last):
        s, groups = workspace(listed, i - first, r), listed.groups[i - first]
        keys, offsets, row, ref, val = s.keys, s.offsets, s.row, s.ref, s.val
        gather(s, beta[i], groups, ref)
        for g in range(groups):
            val[g] = 0.0
            if ref[g] > -np.inf:
                for j in places(offsets[g], offsets[g + 1]):
                    val[g] += row[j] * h[i, keys[j]]
        up(s, groups)
        for b in range(s.won.size):
            out[i, b] = scaled(s, b, alpha[i, b])


@jit
def scaled(s, b, alpha):
    """e^α times what `up` left at decision b."""
    return math.exp(alpha + s.d_ref[b]) * s.d_val[b] if s.d_val[b] != 0.0 else 0.0


@jit
def log_shared(s, z, groups):
    """ref = log Σ e^z over the decisions of each group."""
    row, ref = s.row, s.ref
    copy_row(z, z.size, s.d_ref)
    s.d_val[:] = 1.0
    down(s, groups)
    copy_row(s.val, groups, row)
    log_row(row, groups, s.scratch)
    for g in range(groups):
        ref[g] += row[g]


@kernel
def log_spread(start, stop, geometry, winners, links, z, out):
    """out[k] = log Σ_b A[b, k] e^z_b, -inf for keys in no decision."""
    listed = lists(geometry, links)
    r = room(listed, out)
    for first in range(start, stop, listed.groups.size):
        last = min(first + listed.groups.size, stop)
        list_items(geometry, winners, links, first, last, 1, listed)
        _log_spread(first, last, listed, r, z, out)


@jit
def _log_spread(first, last, listed, r, z, out):
    for i in range(first, last):
        s, groups = workspace(listed, i - first, r), listed.groups[i - first]
        keys, offsets, ref = s.keys, s.offsets, s.ref
        log_shared(s, z[i], groups)
        out[i, :] = -np.inf
        for g in range(groups):
            for j in places(offsets[g], offsets[g + 1]):
                out[i, keys[j]] = ref[g]
