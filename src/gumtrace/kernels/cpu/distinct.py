"""Different traces of one item, without replacement, for algorithms that only compare: chains and binary trees.

Traces race as keys do, each at the rate of its probability, and the first to arrive are drawn. Those that are left lie
in branches, which do not overlap:

    branch (s, b)   the traces that make the first b decisions of run s, in the order of `list_order`, and decide b
                    otherwise than the runs drawn so far that came as far

The next trace is in a branch with the branch's share of the probability that is left, and there it is a run like any
other, given its first b winners and that no key that runs took at b wins there. Noise has no memory: the winners are
put in front of all keys, and the keys taken arrive as long after the new winner of b as they would have after nothing.
Sums of probabilities only grow by positive terms, so the last 1e-300 of them is as good as the first half.
"""

import math
from typing import NamedTuple

import numpy as np

from gumtrace.kernels.cpu.arrays import copy_row, integer_row
from gumtrace.kernels.cpu.hooks import clear_trace, list_order, trace_item
from gumtrace.kernels.cpu.jit import jit, kernel
from gumtrace.kernels.cpu.order import before
from gumtrace.kernels.cpu.sampling import check_row
from gumtrace.kernels.cpu.simd_math import exp64, log64, log_exponential_row, perturb_row, random_bits
from gumtrace.kernels.geometry import NOT_A_NUMBER, OK, STUCK

CLOSE = 600.0  # log-rates within this distance are summed as they are: float64 has the range
ABOVE = 64.0  # more than any noise: E is at least 5e-20
WAITS, PICKS = 1 << 62, 3 << 61  # positions of random numbers that are not noise of keys
RUNS = 1 << 24  # the most runs of a row: each has positions of its own


class Runs(NamedTuple):
    """The runs drawn of one row."""

    order: np.ndarray  # (runs, keys) int32: the keys that race, decisions first, see `list_order`
    end: np.ndarray  # (runs, keys) int32
    base: np.ndarray  # (runs, keys) log P(first b decisions) - log Λ_b
    mass: np.ndarray  # (runs, keys) log P(branch), -inf where there is none
    total: np.ndarray  # (runs,) log of the sum of a run's branches
    parent: np.ndarray  # (runs,) int32: the branch that a run was drawn from
    place: np.ndarray
    decisions: np.ndarray  # (runs,) int32


class Rates(NamedTuple):
    """The keys of one row, relative to the fastest."""

    shift: np.ndarray  # (keys,) log-rates in the dtype of the logits
    log: np.ndarray  # (keys,) the same in float64
    rate: np.ndarray  # (keys,) float64, if they lie close together
    gone: np.ndarray  # (keys,) bool: taken at a branch
    total: np.ndarray  # (keys or runs,) float64: log Λ of each decision, or terms of a sum
    bits: np.ndarray  # (keys or runs,) int64


@kernel
def distinct(start, stop, geometry, logits, sizes, seed, winners, links, log_prob, perturbed, log_rest, status):
    """`perturbed`: -log of the arrival times; `log_rest`: log of the probability that is left after each run. Where no
    trace is left the status is STUCK, and the trace that of the first run."""
    rows, keys = logits.shape
    count = winners.shape[0] // rows
    runs, rates = _new_runs(count, keys), _new_rates(count, logits)
    g = np.empty(keys, logits.dtype)
    spare = np.empty(keys, logits.dtype)
    scratch = integer_row(spare, keys)
    wait = np.empty(count)
    for i in range(start, stop):
        bad = check_row(geometry, logits[i]) == NOT_A_NUMBER
        racing, close = (0, True) if bad else _relative(logits[i], rates)
        log_exponential_row(seed, WAITS + i * RUNS, wait, count, rates.total, rates.bits)
        arrival, rest = -np.inf, 0.0
        for s in range(count):
            item = s * rows + i
            if bad or rest == -np.inf:
                clear_trace(geometry, winners[item], links[item])
                if not bad:
                    copy_row(winners[i], winners.shape[1], winners[item])
                    copy_row(links[i], links.shape[1], links[item])
                log_prob[item] = perturbed[item] = log_rest[item] = -np.inf
                status[item] = NOT_A_NUMBER if bad else STUCK
                continue
            q, b = _choose_branch(runs, s, rates, seed, PICKS + (i * RUNS + s) * 2)
            perturb_row(rates.shift, seed, item * keys, g, spare, scratch)
            if s > 0:
                _mark(runs, rates, q, b, s, True)
                _hold_to_branch(runs, rates, q, b, racing, g)
            trace_item(geometry, g, sizes[i % sizes.size], winners[item], links[item])
            runs.parent[s], runs.place[s] = q, b
            runs.decisions[s] = list_order(geometry, g, winners[item], links[item], runs.order[s], runs.end[s])
            log_prob[item] = _open_branches(runs, rates, s, racing, close)
            if s > 0:
                _narrow_branch(runs, rates, q, b, s, close)
            runs.total[s] = _log_sum(runs.mass[s], runs.decisions[s], rates)
            arrival = _log_add(arrival, wait[s] - rest)
            rest = _log_sum(runs.total, s + 1, rates)
            perturbed[item], log_rest[item], status[item] = -arrival, rest, OK


@jit
def _new_runs(count, keys):
    return Runs(
        np.empty((count, keys), np.int32),
        np.empty((count, keys), np.int32),
        np.empty((count, keys)),
        np.empty((count, keys)),
        np.empty(count),
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(count, np.int32),
    )


@jit
def _new_rates(count, logits):
    keys = logits.shape[1]
    return Rates(
        np.empty(keys, logits.dtype),
        np.empty(keys),
        np.empty(keys),
        np.zeros(keys, np.bool_),
        np.empty(max(keys, count)),
        np.empty(max(keys, count), np.int64),
    )


@jit
def _relative(x, rates):
    """Log-rates less the largest; returns how many keys race, and whether their rates lie close together."""
    top, low, racing = -np.inf, np.inf, 0
    for k in range(x.size):
        if x[k] > -np.inf:
            top, low = max(top, np.float64(x[k])), min(low, np.float64(x[k]))
            racing += 1
    for k in range(x.size):
        rates.log[k] = np.float64(x[k]) - top if x[k] > -np.inf else -np.inf
        rates.shift[k] = rates.log[k]
        rates.rate[k] = rates.log[k]
    exp64(rates.rate, x.size, rates.bits)
    return racing, not top - low >= CLOSE


@jit
def _choose_branch(runs, s, rates, seed, position):
    """Of the run that has it, and there: each with its share of what is left. (0, 0) for the first run."""
    if s == 0:
        return 0, 0
    q = _share(runs.total, s, rates, seed, position)
    return q, _share(runs.mass[q], runs.decisions[q], rates, seed, position + 1)


@jit
def _share(log_mass, n, rates, seed, position):
    _, total = _exponentials(log_mass, n, rates)
    left = total * np.float64(random_bits(seed, position) >> np.uint64(11)) * 2.0**-53
    last = 0
    for i in range(n):
        if rates.total[i] > 0.0:
            last = i
            left -= rates.total[i]
            if left < 0.0:
                break
    return last  # the last one that there is, if rounding left something over


@jit
def _mark(runs, rates, q, b, count, taken):
    """The keys that the first `count` runs took at a branch."""
    rates.gone[runs.order[q, b]] = taken
    for r in range(q + 1, count):
        if runs.parent[r] == q and runs.place[r] == b:
            rates.gone[runs.order[r, b]] = taken


@jit
def _hold_to_branch(runs, rates, q, b, racing, g):
    """Noise of a run in a branch: its first winners in front, and keys that are taken behind the winner of b."""
    order = runs.order[q]
    winner = -1
    for p in range(b, runs.end[q, b]):
        key = order[p]
        if not rates.gone[key] and (winner < 0 or before(g, key, winner)):
            winner = key
    behind = np.nextafter(g[winner], g.dtype.type(-np.inf))
    for p in range(b, runs.end[q, b]):
        key = order[p]
        if rates.gone[key]:
            late = -_log_add(-np.float64(g[key]), -np.float64(g[winner]))
            g[key] = min(g.dtype.type(late), behind)
    for p in range(b):
        g[order[p]] = ABOVE + racing - p


@jit
def _narrow_branch(runs, rates, q, b, s, close):
    """Run s was drawn from a branch, which keeps the traces that decide b otherwise."""
    runs.mass[s, : b + 1] = -np.inf  # they are branches of the runs before
    rates.gone[runs.order[s, b]] = True
    runs.mass[q, b] = runs.base[q, b] + _log_left(runs, rates, q, b, close)
    runs.total[q] = _log_sum(runs.mass[q], runs.decisions[q], rates)
    _mark(runs, rates, q, b, s + 1, False)


@jit
def _open_branches(runs, rates, s, racing, close):
    """The branches of a new run, and its log-probability."""
    order, end, total = runs.order[s], runs.end[s], rates.total
    _log_totals(order, end, racing, rates, close)
    log_prob = 0.0
    for b in range(runs.decisions[s]):
        others = total[b + 1] if b + 1 < end[b] else -np.inf
        if b + 1 < end[b] and end[b + 1] < end[b]:
            others = _log_add(others, total[end[b + 1]])
        runs.base[s, b] = log_prob - total[b]
        runs.mass[s, b] = runs.base[s, b] + others
        log_prob += rates.log[order[b]] - total[b]
    return log_prob


@jit
def _log_totals(order, end, racing, rates, close):
    """total[p] = log of the rates at p, ..., end[p] - 1: of the key there, and of the stretches that follow it."""
    total, rate, log = rates.total, rates.rate, rates.log
    for p in range(racing - 1, -1, -1):
        one = p + 1
        two = end[one] if one < end[p] else one
        if close:
            total[p] = rate[order[p]]
            total[p] += total[one] if one < end[p] else 0.0
            total[p] += total[two] if two < end[p] else 0.0
        else:
            total[p] = log[order[p]]
            total[p] = _log_add(total[p], total[one]) if one < end[p] else total[p]
            total[p] = _log_add(total[p], total[two]) if two < end[p] else total[p]
    if close:
        log64(total, racing, rates.bits)


@jit
def _log_left(runs, rates, q, b, close):
    """log of the rates of all keys that are left to win at a branch."""
    order, total = runs.order[q], 0.0 if close else -np.inf
    for p in range(b, runs.end[q, b]):
        key = order[p]
        if not rates.gone[key]:
            total = total + rates.rate[key] if close else _log_add(total, rates.log[key])
    return (math.log(total) if total > 0.0 else -np.inf) if close else total


@jit
def _log_sum(x, n, rates):
    top, total = _exponentials(x, n, rates)
    return top + math.log(total) if total > 0.0 else -np.inf


@jit
def _exponentials(x, n, rates):
    """rates.total[:n] = e^(x - top); returns the largest, top, and the sum."""
    each, top = rates.total, -np.inf
    for i in range(n):
        top = max(top, x[i])
    if top == -np.inf:
        return top, 0.0
    for i in range(n):
        each[i] = x[i] - top
    exp64(each, n, rates.bits)
    total = 0.0
    for i in range(n):
        total += each[i]
    return top, total


@jit
def _log_add(a, b):
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high)) if low > -np.inf else high
