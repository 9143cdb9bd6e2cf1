"""The one formula over a batch: log Λ and log P(T), G | T, their gradients, and the two bilinear maps behind higher derivatives.

With W[b, k] = λ_k / Λ_b (the chance that k wins decision b) the gradient of log Λ_b is W[b], and the gradient of log Σ_{b ∋ k} m_b is the share
of each m_b in the sum. Both are A[b, k] e^(α_b + β_k) <= 1 for some α and β: `to_keys` and `to_decisions` multiply by such a matrix and its transpose.
Item i of N = samples x batch reads logits row i mod batch; gradients are summed over the samples.
"""

import math

import numpy as np

from gumtrace.kernels.cpu.incidence import (
    ARBORESCENCE,
    EXPLICIT,
    down,
    gather_row,
    group_capacity,
    incidence,
    up,
    winner_of,
)
from gumtrace.kernels.cpu.sampling import OK, trace_row
from gumtrace.kernels.cpu.vectors import exp_row, jit, log_exponential_row, log_row


@jit
def _workspace(geometry, links):
    """Everything one thread needs: listed keys and groups, then three pairs of scaled numbers by group, decision, decision."""
    capacity = group_capacity(geometry, links)
    keys = np.empty(geometry.keys, np.int32)
    offsets = np.empty(capacity + 2, np.int32)
    parent = np.empty(capacity, np.int32)
    decision = np.empty(capacity, np.int32)
    return keys, offsets, parent, decision


@jit
def _log_totals_row(logits, keys, offsets, parent, decision, groups, row, scratch, ref, val, d_ref, d_val, out):
    """out = log Λ; 0 where there is no decision."""
    gather_row(logits, keys, offsets, groups, row, ref, scratch)
    for g in range(groups):
        total = 0.0
        for i in range(offsets[g], offsets[g + 1]):
            total += row[i]
        val[g] = total if ref[g] > -np.inf else 0.0
    up(parent, decision, groups, ref, val, d_ref, d_val)
    out[:] = 0.0
    for g in range(groups):
        b = decision[g]
        out[b] = d_ref[b] + math.log(d_val[b]) if d_val[b] > 0.0 else -np.inf


@jit
def log_prob(start, stop, geometry, logits, winners, links, out, totals):
    keys, offsets, parent, decision = _workspace(geometry, links)
    row, scratch = np.empty(geometry.keys, logits.dtype), np.empty(geometry.keys, np.int32)
    ref, val = np.empty(parent.size), np.empty(parent.size)
    d_ref, d_val = np.empty(geometry.decisions), np.empty(geometry.decisions)
    for i in range(start, stop):
        x = logits[i % logits.shape[0]]
        groups = incidence(geometry, winners[i], links[i], keys, offsets, parent, decision)
        _log_totals_row(x, keys, offsets, parent, decision, groups, row, scratch, ref, val, d_ref, d_val, totals[i])
        total = 0.0
        for b in range(geometry.decisions):
            winner = winner_of(geometry, winners[i], links[i], b)
            if winner >= 0:
                total += np.float64(x[winner]) - totals[i, b] if x[winner] > -np.inf else -np.inf
        out[i] = total


@jit
def _to_keys_row(x, keys, offsets, groups, ref, val, row, scratch, out):
    """out[k] += e^(x_k + ref_g) val_g."""
    for g in range(groups):
        for i in range(offsets[g], offsets[g + 1]):
            row[i] = x[keys[i]] + row.dtype.type(ref[g]) if val[g] != 0.0 else -np.inf
    exp_row(row, offsets[groups], scratch)
    for g in range(groups):
        scale = row.dtype.type(val[g])
        for i in range(offsets[g], offsets[g + 1]):
            out[keys[i]] += row[i] * scale


@jit
def log_prob_grad(start, stop, geometry, logits, winners, links, totals, grad, out):
    keys, offsets, parent, decision = _workspace(geometry, links)
    row, scratch = np.empty(geometry.keys, logits.dtype), np.empty(geometry.keys, np.int32)
    ref, val = np.empty(parent.size), np.empty(parent.size)
    d_ref, d_val = np.empty(geometry.decisions), np.empty(geometry.decisions)
    batch = logits.shape[0]
    for j in range(start, stop):
        for i in range(j, winners.shape[0], batch):
            groups = incidence(geometry, winners[i], links[i], keys, offsets, parent, decision)
            for b in range(geometry.decisions):
                d_ref[b] = -totals[i, b]
                d_val[b] = -grad[i]
                winner = winner_of(geometry, winners[i], links[i], b)
                if winner >= 0:
                    out[j, winner] += grad[i]
            down(parent, decision, groups, d_ref, d_val, ref, val)
            _to_keys_row(logits[j], keys, offsets, groups, ref, val, row, scratch, out[j])


@jit
def to_keys(start, stop, geometry, winners, links, alpha, beta, h, out):
    """out[k] = Σ_b A[b, k] e^(α_b + β_k) h_b; rows of out start at zero."""
    keys, offsets, parent, decision = _workspace(geometry, links)
    row, scratch = np.empty(geometry.keys, beta.dtype), np.empty(geometry.keys, np.int32)
    ref, val = np.empty(parent.size), np.empty(parent.size)
    for i in range(start, stop):
        groups = incidence(geometry, winners[i], links[i], keys, offsets, parent, decision)
        down(parent, decision, groups, alpha[i], h[i], ref, val)
        _to_keys_row(beta[i], keys, offsets, groups, ref, val, row, scratch, out[i])


@jit
def to_decisions(start, stop, geometry, winners, links, alpha, beta, h, out):
    """out[b] = Σ_k A[b, k] e^(α_b + β_k) h_k."""
    keys, offsets, parent, decision = _workspace(geometry, links)
    row, scratch = np.empty(geometry.keys, beta.dtype), np.empty(geometry.keys, np.int32)
    ref, val = np.empty(parent.size), np.empty(parent.size)
    d_ref, d_val = np.empty(geometry.decisions), np.empty(geometry.decisions)
    for i in range(start, stop):
        groups = incidence(geometry, winners[i], links[i], keys, offsets, parent, decision)
        gather_row(beta[i], keys, offsets, groups, row, ref, scratch)
        for g in range(groups):
            val[g] = 0.0
            if ref[g] > -np.inf:
                for j in range(offsets[g], offsets[g + 1]):
                    val[g] += row[j] * h[i, keys[j]]
        up(parent, decision, groups, ref, val, d_ref, d_val)
        for b in range(geometry.decisions):
            out[i, b] = math.exp(alpha[i, b] + d_ref[b]) * d_val[b] if d_val[b] != 0.0 else 0.0


@jit
def log_spread(start, stop, geometry, winners, links, z, out):
    """out[k] = log Σ_b A[b, k] e^z_b; rows of out start at -inf."""
    keys, offsets, parent, decision = _workspace(geometry, links)
    ref, val = np.empty(parent.size), np.empty(parent.size)
    ones = np.ones(geometry.decisions)
    for i in range(start, stop):
        groups = incidence(geometry, winners[i], links[i], keys, offsets, parent, decision)
        down(parent, decision, groups, z[i], ones, ref, val)
        for g in range(groups):
            for j in range(offsets[g], offsets[g + 1]):
                out[i, keys[j]] = ref[g] + math.log(val[g])


@jit
def conditional(start, stop, geometry, logits, sizes, winners, links, seed, attempts, g, totals, z, failed):
    """G | T, with the log of every minimum in z. Losers are held strictly below the winner that beat them, winners below the one before, after
    rounding. An arborescence subtracts, so there each draw is run again and one that lost its trace is drawn anew, `attempts` times at most."""
    keys, offsets, parent, decision = _workspace(geometry, links)
    row, scratch = np.empty(geometry.keys, logits.dtype), np.empty(geometry.keys, np.int32)
    spare, more = np.empty(geometry.keys, logits.dtype), np.empty(geometry.keys, logits.dtype)
    ref, val, node = np.empty(parent.size), np.empty(parent.size), np.empty(parent.size, logits.dtype)
    d_ref, d_val, ones = np.empty(geometry.decisions), np.empty(geometry.decisions), np.ones(geometry.decisions)
    noise = np.empty(max(geometry.decisions, 1), logits.dtype)
    spare_d, scratch_d = np.empty_like(noise), np.empty(noise.size, np.int32)
    again, again_links = np.empty(winners.shape[1], np.int32), np.empty(links.shape[1], np.int32)
    own_seed = seed.copy()
    for i in range(start, stop):
        x = logits[i % logits.shape[0]]
        size = sizes[i % sizes.size]
        groups = incidence(geometry, winners[i], links[i], keys, offsets, parent, decision)
        _log_totals_row(x, keys, offsets, parent, decision, groups, row, scratch, ref, val, d_ref, d_val, totals[i])
        listed = offsets[groups + 1]
        failed[i] = True
        for attempt in range(attempts):
            own_seed[1] = seed[1] + np.uint64(attempt)
            log_exponential_row(own_seed, winners.shape[0] * geometry.keys + i * geometry.decisions, noise, geometry.decisions, spare_d, scratch_d)
            for b in range(geometry.decisions):
                z[i, b] = noise[b] - totals[i, b]
            down(parent, decision, groups, z[i], ones, ref, val)
            log_exponential_row(own_seed, i * geometry.keys, row, listed, spare, scratch)
            _shared_and_fresh(x, keys, offsets, groups, ref, val, node, row, spare, more, scratch)
            g[i, :] = -np.inf
            _place(geometry, x, keys, offsets, parent, decision, groups, winners[i], links[i], node, row, g[i])
            if geometry.kind != ARBORESCENCE:
                failed[i] = False
                break
            if trace_row(geometry, g[i], size, again, again_links) == OK and np.array_equal(again, winners[i]) and np.array_equal(again_links, links[i]):
                failed[i] = False
                break


@jit
def _shared_and_fresh(x, keys, offsets, groups, ref, val, node, row, shared, more, scratch):
    """row, the log of fresh unit exponentials on entry, becomes G = -log(shared minima + fresh); node is -log of the shared part of a group."""
    listed = offsets[groups + 1]
    for g in range(groups):
        node[g] = -(ref[g] + math.log(val[g]))
        for i in range(offsets[g], offsets[g + 1]):
            shared[i] = -node[g]
    for i in range(offsets[groups], listed):
        shared[i] = -np.inf
    for i in range(listed):
        fresh = row[i] - x[keys[i]]
        high = max(shared[i], fresh)
        more[i] = min(shared[i], fresh) - high
        row[i] = high
    exp_row(more, listed, scratch)
    for i in range(listed):
        more[i] += row.dtype.type(1.0)
    log_row(more, listed, scratch)
    for i in range(listed):
        row[i] = -(row[i] + more[i])


@jit
def _place(geometry, x, keys, offsets, parent, decision, groups, winners, links, node, row, g):
    """Write G by key; chains and trees keep their strict order."""
    below = node.dtype.type(-np.inf)
    ordered = geometry.kind != ARBORESCENCE and geometry.kind != EXPLICIT
    for q in range(groups):
        if ordered and parent[q] >= 0:
            node[q] = min(node[q], np.nextafter(node[parent[q]], below))
        cap = np.nextafter(node[q], below)
        for i in range(offsets[q], offsets[q + 1]):
            if x[keys[i]] > -np.inf:
                g[keys[i]] = min(row[i], cap) if ordered else row[i]
    for i in range(offsets[groups], offsets[groups + 1]):
        if x[keys[i]] > -np.inf:
            g[keys[i]] = row[i]
    for q in range(groups):
        winner = winner_of(geometry, winners, links, decision[q])
        for i in range(offsets[q], offsets[q + 1]):
            if keys[i] == winner:
                g[winner] = node[q]
                break  # in a chain or a tree the winner comes first


@jit
def conditional_grad(start, stop, geometry, logits, winners, links, totals, z, g, grad, out):
    """With ω the share of the minima in E: dG = -(ω ds - (1 - ω) dx), and ds leads through every minimum on the key's path to its log Λ."""
    keys, offsets, parent, decision = _workspace(geometry, links)
    row, scratch = np.empty(geometry.keys, logits.dtype), np.empty(geometry.keys, np.int32)
    ref, val = np.empty(parent.size), np.empty(parent.size)
    d_ref, d_val, ones = np.empty(geometry.decisions), np.empty(geometry.decisions), np.ones(geometry.decisions)
    batch = logits.shape[0]
    for j in range(start, stop):
        x = logits[j]
        for i in range(j, winners.shape[0], batch):
            groups = incidence(geometry, winners[i], links[i], keys, offsets, parent, decision)
            down(parent, decision, groups, z[i], ones, ref, val)
            for q in range(groups):
                ref[q] = -(ref[q] + math.log(val[q]))
                for p in range(offsets[q], offsets[q + 1]):
                    row[p] = min(g[i, keys[p]] - row.dtype.type(ref[q]), row.dtype.type(0.0))
            exp_row(row, offsets[groups], scratch)
            for q in range(groups):
                val[q] = 0.0
                winner = winner_of(geometry, winners[i], links[i], decision[q])
                for p in range(offsets[q], offsets[q + 1]):
                    k = keys[p]
                    if x[k] > -np.inf:
                        share = row.dtype.type(1.0) if k == winner else row[p]
                        out[j, k] += (row.dtype.type(1.0) - share) * grad[i, k]
                        val[q] += share * grad[i, k]
            for p in range(offsets[groups], offsets[groups + 1]):
                if x[keys[p]] > -np.inf:
                    out[j, keys[p]] += grad[i, keys[p]]
            up(parent, decision, groups, ref, val, d_ref, d_val)
            for b in range(geometry.decisions):
                d_val[b] = math.exp(z[i, b] + d_ref[b]) * d_val[b] if d_val[b] != 0.0 else 0.0
                d_ref[b] = -totals[i, b]
            down(parent, decision, groups, d_ref, d_val, ref, val)
            _to_keys_row(x, keys, offsets, groups, ref, val, row, scratch, out[j])
