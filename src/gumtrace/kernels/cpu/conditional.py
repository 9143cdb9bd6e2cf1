"""G | T over a batch, and its gradient."""

import numpy as np

from gumtrace.kernels.cpu.arrays import integer_row
from gumtrace.kernels.cpu.formula import add_to_keys, log_shared, log_totals, scaled
from gumtrace.kernels.cpu.hooks import is_ordered, lost_trace
from gumtrace.kernels.cpu.incidence import down, item_at, list_items, lists, room, up, workspace
from gumtrace.kernels.cpu.jit import jit, kernel
from gumtrace.kernels.cpu.simd_math import (
    attempt_seed,
    exp_row,
    log_exponential_row,
    log_row,
    lowest_winner,
    places,
)


@kernel
def conditional(start, stop, geometry, logits, sizes, winners, links, seed, attempts, g, totals, z, failed):
    """G | T, with the log of every minimum in z. Losers are held strictly below the winner that beat them, winners
    below the one before, after rounding. A draw that lost its trace to rounding is drawn anew, `attempts` times at
    most."""
    listed = lists(geometry, links)
    r = room(listed, logits)
    again, again_links = np.empty(winners.shape[1], np.int32), np.empty(links.shape[1], np.int32)
    for first in range(start, stop, listed.groups.size):
        last = min(first + listed.groups.size, stop)
        list_items(geometry, winners, links, first, last, 1, listed)
        failed[first:last] = True
        for attempt in range(attempts):
            _conditional(first, last, listed, r, logits, seed, attempt, is_ordered(geometry), g, totals, z, failed)
            lost = False
            for i in range(first, last):
                if failed[i]:
                    size = sizes[i % sizes.size]
                    failed[i] = lost_trace(geometry, g[i], size, winners[i], links[i], again, again_links)
                    lost |= failed[i]
            if not lost:
                break


@jit
def _conditional(first, last, listed, r, logits, seed, attempt, ordered, g, totals, z, wanted):
    """Draws for the items of a block that are wanted."""
    spare, more = np.empty_like(r.row), np.empty_like(r.row)
    noise = np.empty(totals.shape[1], logits.dtype)
    noise_spare, noise_scratch = np.empty_like(noise), integer_row(noise, noise.size)
    own_seed = np.empty_like(seed)
    attempt_seed(seed, attempt, own_seed)
    items, keys = g.shape
    for i in range(first, last):
        if not wanted[i]:
            continue
        s, groups = workspace(listed, i - first, r), listed.groups[i - first]
        x = logits[i % logits.shape[0]]
        if attempt == 0:
            log_totals(s, x, groups)
            totals[i, :] = 0.0
            for q in range(groups):
                b = s.decision[q]
                totals[i, b] = s.d_ref[b] + s.d_val[b]
        log_exponential_row(own_seed, items * keys + i * noise.size, noise, noise.size, noise_spare, noise_scratch)
        for b in range(noise.size):
            z[i, b] = noise[b] - totals[i, b]
        log_shared(s, z[i], groups)
        log_exponential_row(own_seed, i * keys, s.row, s.offsets[groups + 1], spare, s.scratch)
        _add_fresh(s, x, groups, spare, more)
        g[i, :] = -np.inf
        _place(s, x, groups, ordered, g[i])


@jit
def _add_fresh(s, x, groups, shared, more):
    """row, the log of fresh unit exponentials on entry, becomes G = -log(shared minima + fresh)."""
    row, keys, offsets, ref = s.row, s.keys, s.offsets, s.ref
    listed = offsets[groups + 1]
    for q in range(groups):
        for i in places(offsets[q], offsets[q + 1]):
            shared[i] = ref[q]
    for i in range(offsets[groups], listed):
        shared[i] = -np.inf
    for i in range(listed):
        fresh = row[i] - x[keys[i]]
        high = max(shared[i], fresh)
        more[i] = min(shared[i], fresh) - high
        row[i] = high
    exp_row(more, listed, s.scratch)
    for i in range(listed):
        more[i] += row.dtype.type(1.0)
    log_row(more, listed, s.scratch)
    for i in range(listed):
        row[i] = -(row[i] + more[i])


@jit
def _place(s, x, groups, ordered, g):
    """Write G by key. Chains and trees keep their strict order."""
    row, keys, offsets, parent, ref, top = s.row, s.keys, s.offsets, s.parent, s.ref, s.top
    below, floor = row.dtype.type(-np.inf), lowest_winner(row)
    for q in range(groups):
        node = max(row.dtype.type(-ref[q]), floor)  # G of the group's winner
        if ordered and parent[q] >= 0:
            node = min(node, np.nextafter(row.dtype.type(top[parent[q]]), below))
        top[q] = node
        cap = np.nextafter(node, below) if ordered else row.dtype.type(np.inf)
        winner = s.won[s.decision[q]]
        for i in places(offsets[q], offsets[q + 1]):
            k = keys[i]
            if k == winner:
                g[k] = node
            elif x[k] > -np.inf:
                g[k] = min(row[i], cap)
    for i in places(offsets[groups], offsets[groups + 1]):
        if x[keys[i]] > -np.inf:
            g[keys[i]] = row[i]


@kernel
def conditional_grad(start, stop, geometry, logits, winners, links, totals, z, g, grad, out):
    """With ω the share of the minima in E: dG = (1 - ω) dx - ω ds, and ds leads through every minimum on the key's
    path to its log Λ."""
    listed = lists(geometry, links)
    r = room(listed, logits)
    samples = winners.shape[0] // logits.shape[0]
    out[start:stop] = 0.0
    for first in range(start * samples, stop * samples, listed.groups.size):
        last = min(first + listed.groups.size, stop * samples)
        list_items(geometry, winners, links, first, last, samples, listed)
        _conditional_grad(first, last, samples, listed, r, logits, totals, z, g, grad, out)


@jit
def _conditional_grad(first, last, samples, listed, r, logits, totals, z, g, grad, out):
    row = r.row
    one = row.dtype.type(1.0)
    for place in range(first, last):
        s, groups = workspace(listed, place - first, r), listed.groups[place - first]
        i, j = item_at(place, samples, grad.shape[0]), place // samples
        x, keys, offsets, decision, won, ref, val = logits[j], s.keys, s.offsets, s.decision, s.won, s.ref, s.val
        log_shared(s, z[i], groups)
        for q in range(groups):
            for p in places(offsets[q], offsets[q + 1]):
                row[p] = min(np.float64(g[i, keys[p]]) + ref[q], 0.0)
        exp_row(row, offsets[groups], s.scratch)
        for q in range(groups):
            winner = won[decision[q]]
            total = 0.0
            for p in places(offsets[q], offsets[q + 1]):
                k = keys[p]
                if x[k] > -np.inf:
                    share = one if k == winner else row[p]
                    out[j, k] += (one - share) * grad[i, k]
                    total += share * grad[i, k]
            val[q] = total
            ref[q] = -ref[q]
        for p in places(offsets[groups], offsets[groups + 1]):
            if x[keys[p]] > -np.inf:
                out[j, keys[p]] += grad[i, keys[p]]
        up(s, groups)
        for b in range(won.size):
            s.d_val[b] = scaled(s, b, z[i, b])
            s.d_ref[b] = -totals[i, b]
        down(s, groups)
        add_to_keys(s, x, groups, out[j])
