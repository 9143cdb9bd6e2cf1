"""Laws of small distributions: sampled traces, noise, and noise given the trace, by chi-square tests.

Each test fails by chance with a probability of about ALARM: a night of a million tests, with a probability of 10^-6.
"""

from collections import Counter

import numpy as np
import torch

from gumtrace.fuzz import formula
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.oracles import Outcome
from gumtrace.fuzz.subject import Subject, Wrong, flat
from gumtrace.fuzz.values import every_outcome
from gumtrace.traces.trace import Trace

ALARM = 1e-12
DRAWS = 10_000
SLOW_DRAWS = 500  # of algorithms that run in Python, item by item
BINS, COARSE = 40, 6  # of one number, and of each of two
LEAST = 12.0  # expected in a bin; smaller ones are put together


def laws(case: Case, tally: Counter) -> None:
    """On an unbatched item."""
    draws = SLOW_DRAWS if case.kind.slow else DRAWS
    many = case.change(noise=case.logits.expand(draws, *case.logits.shape).contiguous())
    s = Subject(many, tally)
    alone = Subject(case, tally)
    outcome = every_outcome(case, 0, 2000)
    if outcome is None or s.keys == 0:
        return
    _enumeration(alone, outcome)
    trace = s.d.sample_trace((draws,), generator=case.generator())
    show = (f"trace = d.sample_trace(({draws},), generator=torch.Generator().manual_seed({case.seed}))",)
    _traces(s, outcome, trace, show)
    noise = s.rows(s.d.perturb((draws,), generator=case.generator(1)))
    _gumbels(s, "law of perturb", noise, (f"noise = d.perturb(({draws},))",))
    again = s.rows(s.d.conditional(trace, generator=case.generator(2)))
    _gumbels(s, "law of conditional", again, (*show, "noise = d.conditional(trace)"))
    if s.dtype == torch.float64:
        _given_one_trace(s, trace[torch.zeros(draws, dtype=torch.long)])


def _enumeration(s: Subject, outcome: Outcome) -> None:
    """The library lists the traces that there are, with their chances."""
    listed = s.d.enumerate_traces()
    winners, values = listed.winners.cpu().numpy(), listed.value.cpu().double().numpy()
    chances = s.d.trace_log_prob(listed).detach().cpu().double().exp().numpy()
    ours, expected = _by_name(s, winners, values, chances), _chances(s, outcome)
    show = ("traces = d.enumerate_traces()", "print(traces.winners, d.trace_log_prob(traces).exp())")
    s.tally["enumeration"] += 1
    if ours.keys() != expected.keys():
        raise Wrong("enumeration", f"expected {len(expected)} traces, got {len(ours)}", None, show)
    far = max(abs(ours[name] - expected[name]) for name in ours)
    if not far < 64 * s.eps:
        raise Wrong("enumeration", f"a chance is off by {far:.2g}", None, show)


def _chances(s: Subject, outcome: Outcome) -> Counter:
    x = np.repeat(s.case.x, len(outcome.winners), 0)
    return _by_name(s, outcome.winners, outcome.value, np.exp(formula.log_prob(x, outcome)))


def _by_name(s: Subject, winners: np.ndarray, values: np.ndarray, chances: np.ndarray) -> Counter:
    """Chances of all traces. Those of an arborescence that differ in the cycles alone have one name."""
    expected: Counter = Counter()
    for name, chance in zip(_names(s, winners, values), chances.tolist(), strict=True):
        expected[name] += chance
    return expected


def _traces(s: Subject, outcome: Outcome, trace: Trace, show: tuple[str, ...]) -> None:
    expected = _chances(s, outcome)
    drawn = Counter(_names(s, s.winners(trace), s.rows(trace.value)))
    if strange := set(drawn) - set(expected):
        raise Wrong("law of traces", f"a trace that cannot be: {min(strange)}", None, show)
    counts = np.array([[drawn[name], s.case.items * chance] for name, chance in expected.items()])
    _test(s, "law of traces", counts[:, 0], counts[:, 1], show)


def _names(s: Subject, winners: np.ndarray, value: np.ndarray) -> list[tuple]:
    """Something to know each trace by."""
    winners = winners if s.case.kind.ordered else np.sort(winners, 1)
    values = flat(value.astype(float), len(value)).tolist()
    return [(tuple(k for k in row if k >= 0), tuple(v)) for row, v in zip(winners.tolist(), values, strict=True)]


def _gumbels(s: Subject, check: str, noise: np.ndarray, show: tuple[str, ...]) -> None:
    """Independent for all keys and draws."""
    keys = np.flatnonzero(s.case.racing[0])
    uniform = np.exp(-np.exp(s.case.x[0, keys] - noise[:, keys]))  # (draws, keys)
    _uniform(s, check, uniform, show)
    _independent(s, f"{check}: consecutive draws", uniform[:-1], uniform[1:], show)
    if len(keys) > 1:
        _independent(s, f"{check}: neighbouring keys", uniform[:, :-1], uniform[:, 1:], show)


def _given_one_trace(s: Subject, trace: Trace) -> None:
    """The minima of all decisions and what the losers have left are exponential, and independent."""
    noise = s.d.conditional(trace, generator=s.case.generator(3))
    first = s.case.change(noise=noise[:1].detach().cpu())
    outcome = s.case.kind.outcome(first, np.where(s.racing[:1], s.rows(noise)[:1], -np.inf), trace[:1])
    outcome = outcome.at(np.zeros(s.case.items, np.int64))  # the decisions are those of the one trace
    e = np.exp(-np.where(s.racing, s.rows(noise), 0.0))
    minima = formula.solve_minima(e, outcome)
    totals = np.exp(formula.log_totals(s.x, outcome))
    there = np.flatnonzero(outcome.winners[0] >= 0)
    left = e - np.einsum("ibk,ib->ik", outcome.members, minima)
    losers = np.setdiff1d(np.flatnonzero(s.case.racing[0]), outcome.winners[0])
    fresh = left[:, losers] * np.exp(s.case.x[0, losers])
    uniform = np.exp(-np.concatenate([minima[:, there] * totals[:, there], fresh], 1))
    show = ("trace = d.sample_trace()", f"noise = torch.stack([d.conditional(trace) for _ in range({s.case.items})])")
    _uniform(s, "law given one trace", uniform, show)
    if uniform.shape[1] > 1:
        _independent(s, "law given one trace: independence", uniform[:, :-1], uniform[:, 1:], show)


def _uniform(s: Subject, check: str, u: np.ndarray, show: tuple[str, ...]) -> None:
    """Every column (draws, columns), and all of them together, which shows smaller faults."""
    place = np.clip((u * BINS).astype(int), 0, BINS - 1)
    for part in (*place.T, place.reshape(-1)):
        counts = np.bincount(part, minlength=BINS)
        _test(s, check, counts, np.full(BINS, len(part) / BINS), show)


def _independent(s: Subject, check: str, a: np.ndarray, b: np.ndarray, show: tuple[str, ...]) -> None:
    """All pairs of a and b that stand in the same place."""
    place = [np.clip((u * COARSE).astype(int), 0, COARSE - 1).reshape(-1) for u in (a, b)]
    counts = np.bincount(place[0] * COARSE + place[1], minlength=COARSE**2)
    _test(s, check, counts, np.full(COARSE**2, counts.sum() / COARSE**2), show)


def _test(s: Subject, check: str, counts: np.ndarray, expected: np.ndarray, show: tuple[str, ...]) -> None:
    s.tally[check.partition(":")[0]] += 1
    p = p_value(counts, expected)
    if not p >= ALARM:
        message = f"a chance of {p:.1e} for counts {np.asarray(counts).tolist()[:40]}"
        raise Wrong(check, f"{message}, expected {np.round(expected, 1).tolist()[:40]}", None, show)


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Of Pearson's chi-square, rare bins put together."""
    order = np.argsort(expected)
    counts, expected = np.asarray(counts, float)[order], np.asarray(expected, float)[order]
    rare = int((np.cumsum(expected) < LEAST).sum()) + 1 if len(expected) else 0
    counts = np.concatenate([[counts[:rare].sum()], counts[rare:]])
    expected = np.concatenate([[expected[:rare].sum()], expected[rare:]])
    if expected[0] < LEAST and len(expected) > 1:
        counts, expected = np.append(counts[2:], counts[:2].sum()), np.append(expected[2:], expected[:2].sum())
    if len(counts) < 2:
        return 1.0
    statistic = float(((counts - expected) ** 2 / expected).sum())
    half = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
