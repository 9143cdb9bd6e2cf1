"""The one formula over a batch: log Λ and log P(T), G | T, their gradients, and the two bilinear maps behind higher
derivatives.

With W[b, k] = λ_k / Λ_b (the chance that k wins decision b) the gradient of log Λ_b is W[b], and the gradient of log
Σ_{b ∋ k} m_b is the share of each m_b in the sum. Both are A[b, k] e^(α_b + β_k) <= 1 for some α and β: `to_keys` and
`to_decisions` multiply by such a matrix and its transpose. Item i of N = samples x batch reads logits row i mod
batch; gradients are summed over the samples.
"""

import math

import numpy as np

from gumtrace.kernels.cpu.incidence import (
    ARBORESCENCE,
    EXPLICIT,
    down,
    gather,
    incidence,
    up,
    workspace,
)
from gumtrace.kernels.cpu.jit import inlined, jit
from gumtrace.kernels.cpu.sampling import OK, trace_row
from gumtrace.kernels.cpu.vectors import (
    attempt_seed,
    copy_row,
    exp64,
    exp_row,
    integer_row,
    log64,
    log_exponential_row,
    log_row,
    lowest_winner,
    places,
    sum_range,
)

FAR = 2.0**16  # log Λ as one number is too coarse beyond this: what is added to its exponent is rounded away


@inlined
def _log_totals(s, logits, groups, out):
    """out = log Λ; 0 where there is no decision. Its two parts stay in d_ref and d_val."""
    gather(s, logits, groups, s.ref)
    for g in range(groups):
        s.val[g] = sum_range(s.row, s.offsets[g], s.offsets[g + 1])
    up(s, groups)
    for b in range(out.size):
        s.d_val[b] = s.d_val[b] if s.d_val[b] > 0.0 else 1.0
    log64(s.d_val, out.size, s.bits)
    out[:] = 0.0
    for g in range(groups):
        b = s.decision[g]
        out[b] = s.d_ref[b] + s.d_val[b]


@jit
def log_prob(start, stop, geometry, logits, winners, links, out, totals):
    s = workspace(geometry, links, logits)
    for i in range(start, stop):
        x = logits[i % logits.shape[0]]
        groups = incidence(s, geometry, winners[i], links[i])
        _log_totals(s, x, groups, totals[i])
        total = 0.0
        for b in range(geometry.decisions):
            winner = s.won[b]
            if winner >= 0:
                total += _log_share(s, np.float64(x[winner]), b, totals[i, b])
        out[i] = total


@jit
def _log_share(s, x, b, total):
    """log(λ / Λ_b), from the parts of log Λ: large log-rates cancel before anything small is added."""
    if x == -np.inf:
        return x
    return (x - s.d_ref[b]) - s.d_val[b] if s.d_ref[b] > -np.inf else x - total


@inlined
def _add_to_keys(s, x, groups, out):
    """out[k] += e^(x_k + ref_g) val_g."""
    row = s.row
    gather(s, x, groups, s.top)
    for g in range(groups):
        s.weight[g] = s.top[g] + s.ref[g] if s.top[g] > -np.inf else -np.inf  # large numbers that cancel
    exp64(s.weight, groups, s.bits)
    for g in range(groups):
        factor = row.dtype.type(s.weight[g] * s.val[g])
        for i in places(s.offsets[g], s.offsets[g + 1]):
            row[i] *= factor
    for i in range(s.offsets[groups]):
        out[np.uint32(s.keys[i])] += row[i]


@jit
def log_prob_grad(start, stop, geometry, logits, winners, links, totals, grad, out):
    s = workspace(geometry, links, logits)
    batch = logits.shape[0]
    for j in range(start, stop):
        out[j, :] = 0.0
        for i in range(j, winners.shape[0], batch):
            groups = incidence(s, geometry, winners[i], links[i])
            far = False
            for b in range(geometry.decisions):
                far |= abs(totals[i, b]) > FAR
                s.d_ref[b] = -totals[i, b]
                s.d_val[b] = -grad[i]
                winner = s.won[b]
                if winner >= 0:
                    out[j, winner] += grad[i]
            if far:
                _divide_by_totals(s, logits[j], groups, -grad[i])
            down(s, groups)
            _add_to_keys(s, logits[j], groups, out[j])


@jit
def _divide_by_totals(s, x, groups, h):
    """d_val e^d_ref = h / Λ, with what is small in log Λ kept apart from what is large."""
    _log_totals(s, x, groups, np.empty(s.d_ref.size))
    for b in range(s.d_ref.size):
        some = s.d_ref[b] > -np.inf
        s.d_ref[b] = -s.d_ref[b] if some else -np.inf
        s.d_val[b] = h * math.exp(-s.d_val[b]) if some else 0.0


@jit
def to_keys(start, stop, geometry, winners, links, alpha, beta, h, out):
    """out[k] = Σ_b A[b, k] e^(α_b + β_k) h_b."""
    s = workspace(geometry, links, beta)
    for i in range(start, stop):
        groups = incidence(s, geometry, winners[i], links[i])
        copy_row(alpha[i], geometry.decisions, s.d_ref)
        copy_row(h[i], geometry.decisions, s.d_val)
        down(s, groups)
        out[i, :] = 0.0
        _add_to_keys(s, beta[i], groups, out[i])


@jit
def to_decisions(start, stop, geometry, winners, links, alpha, beta, h, out):
    """out[b] = Σ_k A[b, k] e^(α_b + β_k) h_k."""
    s = workspace(geometry, links, beta)
    for i in range(start, stop):
        groups = incidence(s, geometry, winners[i], links[i])
        gather(s, beta[i], groups, s.ref)
        for g in range(groups):
            s.val[g] = 0.0
            if s.ref[g] > -np.inf:
                for j in places(s.offsets[g], s.offsets[g + 1]):
                    s.val[g] += s.row[j] * h[i, s.keys[j]]
        up(s, groups)
        for b in range(geometry.decisions):
            out[i, b] = _scaled(s, b, alpha[i, b])


@jit
def _scaled(s, b, alpha):
    """e^α times what `up` left at decision b."""
    return math.exp(alpha + s.d_ref[b]) * s.d_val[b] if s.d_val[b] != 0.0 else 0.0


@jit
def _log_shared(s, z, groups):
    """ref = log Σ e^z over the decisions of each group."""
    copy_row(z, z.size, s.d_ref)
    s.d_val[:] = 1.0
    down(s, groups)
    for g in range(groups):
        s.row[g] = s.val[g]
    log_row(s.row, groups, s.scratch)
    for g in range(groups):
        s.ref[g] += s.row[g]


@jit
def log_spread(start, stop, geometry, winners, links, z, out):
    """out[k] = log Σ_b A[b, k] e^z_b, -inf for keys in no decision."""
    s = workspace(geometry, links, out)
    for i in range(start, stop):
        groups = incidence(s, geometry, winners[i], links[i])
        _log_shared(s, z[i], groups)
        out[i, :] = -np.inf
        for g in range(groups):
            for j in places(s.offsets[g], s.offsets[g + 1]):
                out[i, s.keys[j]] = s.ref[g]


@jit
def conditional(start, stop, geometry, logits, sizes, winners, links, seed, attempts, g, totals, z, failed):
    """G | T, with the log of every minimum in z. Losers are held strictly below the winner that beat them, winners
    below the one before, after rounding. An arborescence subtracts, so there each draw is run again and one that lost
    its trace is drawn anew, `attempts` times at most."""
    s = workspace(geometry, links, logits)
    spare, more = np.empty(s.row.size, logits.dtype), np.empty(s.row.size, logits.dtype)
    noise = np.empty(geometry.decisions, logits.dtype)
    noise_spare, noise_scratch = np.empty_like(noise), integer_row(noise, noise.size)
    again, again_links = np.empty(winners.shape[1], np.int32), np.empty(links.shape[1], np.int32)
    own_seed = np.empty_like(seed)
    for i in range(start, stop):
        x = logits[i % logits.shape[0]]
        groups = incidence(s, geometry, winners[i], links[i])
        _log_totals(s, x, groups, totals[i])
        for attempt in range(attempts):
            attempt_seed(seed, attempt, own_seed)
            position = winners.shape[0] * geometry.keys + i * geometry.decisions
            log_exponential_row(own_seed, position, noise, noise.size, noise_spare, noise_scratch)
            for b in range(geometry.decisions):
                z[i, b] = noise[b] - totals[i, b]
            _log_shared(s, z[i], groups)
            log_exponential_row(own_seed, i * geometry.keys, s.row, s.offsets[groups + 1], spare, s.scratch)
            _add_fresh(s, x, groups, spare, more)
            g[i, :] = -np.inf
            _place(s, geometry, x, groups, g[i])
            failed[i] = False
            if geometry.kind != ARBORESCENCE:
                break
            status = trace_row(geometry, g[i], sizes[i % sizes.size], again, again_links)
            failed[i] = (
                status != OK or not np.array_equal(again, winners[i]) or not np.array_equal(again_links, links[i])
            )
            if not failed[i]:
                break


@jit
def _add_fresh(s, x, groups, shared, more):
    """row, the log of fresh unit exponentials on entry, becomes G = -log(shared minima + fresh)."""
    row = s.row
    listed = s.offsets[groups + 1]
    for q in range(groups):
        for i in places(s.offsets[q], s.offsets[q + 1]):
            shared[i] = s.ref[q]
    for i in range(s.offsets[groups], listed):
        shared[i] = -np.inf
    for i in range(listed):
        fresh = row[i] - x[s.keys[i]]
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
def _place(s, geometry, x, groups, g):
    """Write G by key. Chains and trees keep their strict order."""
    row = s.row
    below, floor = row.dtype.type(-np.inf), lowest_winner(row)
    ordered = geometry.kind != ARBORESCENCE and geometry.kind != EXPLICIT
    for q in range(groups):
        node = max(row.dtype.type(-s.ref[q]), floor)  # G of the group's winner
        if ordered and s.parent[q] >= 0:
            node = min(node, np.nextafter(row.dtype.type(s.top[s.parent[q]]), below))
        s.top[q] = node
        cap = np.nextafter(node, below) if ordered else row.dtype.type(np.inf)
        winner = s.won[s.decision[q]]
        for i in places(s.offsets[q], s.offsets[q + 1]):
            k = s.keys[i]
            if k == winner:
                g[k] = node
            elif x[k] > -np.inf:
                g[k] = min(row[i], cap)
    for i in places(s.offsets[groups], s.offsets[groups + 1]):
        if x[s.keys[i]] > -np.inf:
            g[s.keys[i]] = row[i]


@jit
def conditional_grad(start, stop, geometry, logits, winners, links, totals, z, g, grad, out):
    """With ω the share of the minima in E: dG = (1 - ω) dx - ω ds, and ds leads through every minimum on the key's
    path to its log Λ."""
    s = workspace(geometry, links, logits)
    row = s.row
    one = row.dtype.type(1.0)
    batch = logits.shape[0]
    for j in range(start, stop):
        out[j, :] = 0.0
        x = logits[j]
        for i in range(j, winners.shape[0], batch):
            groups = incidence(s, geometry, winners[i], links[i])
            _log_shared(s, z[i], groups)
            for q in range(groups):
                for p in places(s.offsets[q], s.offsets[q + 1]):
                    row[p] = min(np.float64(g[i, s.keys[p]]) + s.ref[q], 0.0)
            exp_row(row, s.offsets[groups], s.scratch)
            for q in range(groups):
                winner = s.won[s.decision[q]]
                total = 0.0
                for p in places(s.offsets[q], s.offsets[q + 1]):
                    k = s.keys[p]
                    if x[k] > -np.inf:
                        share = one if k == winner else row[p]
                        out[j, k] += (one - share) * grad[i, k]
                        total += share * grad[i, k]
                s.val[q] = total
                s.ref[q] = -s.ref[q]
            for p in places(s.offsets[groups], s.offsets[groups + 1]):
                if x[s.keys[p]] > -np.inf:
                    out[j, s.keys[p]] += grad[i, s.keys[p]]
            up(s, groups)
            for b in range(geometry.decisions):
                s.d_val[b] = _scaled(s, b, z[i, b])
                s.d_ref[b] = -totals[i, b]
            down(s, groups)
            _add_to_keys(s, x, groups, out[j])
