"""Items of thousands of keys, where kernels sort in another way and threads share the work: too long to write down who
raced, so traces and chains of log-probabilities alone."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from gumtrace.fuzz import numbers
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.description import Settings
from gumtrace.fuzz.sizes import Rng
from gumtrace.fuzz.subject import Subject, U, Wrong

LENGTHS = [1000, 5000, 33_000, 40_000]  # radix sorts change at 2^15 keys


def draw(structure: str, rng: Rng, dtype: torch.dtype, device: str = "cpu") -> Case:
    keys = int(rng.choice(LENGTHS))
    logits = torch.from_numpy(rng.normal(size=(2, keys))).to(dtype)
    noise = logits + numbers.gumbel(rng, (2, keys)).to(dtype)
    if rng.random() < 0.5:
        noise = (4 * noise).round() / 4
    return Case(
        structure, logits, noise, LONG[structure].settings(rng, keys), seed=int(rng.integers(2**31)), device=device
    )


def long(case: Case, tally: Counter) -> None:
    """With one thread and with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 + case.seed % 2)
    try:
        _checked(Subject(case, tally))
    finally:
        torch.set_num_threads(before)


def _checked(s: Subject) -> None:
    g = s.rows(s.case.noise)
    order = np.where(s.racing, -g, np.inf).argsort(1, kind="stable")
    LONG[s.case.structure].check(s, g, order)
    _drawn(s)


def _same_winners(s: Subject, winners: np.ndarray) -> None:
    s.same("long trace", s.winners(s.trace), winners, (*s.shown, "print(trace.winners)"))


def _check_chain(s: Subject, g: np.ndarray, order: np.ndarray) -> None:
    """The first keys in order win, and the log-probability is that of a chain."""
    chosen = order[:, : s.winners(s.trace).shape[1]]
    _same_winners(s, chosen)
    x = np.take_along_axis(s.x, order, 1)
    totals = np.logaddexp.accumulate(x[:, ::-1], 1)[:, ::-1]  # log Λ of all that are left
    count = chosen.shape[1]
    expected = (x - totals)[:, :count].sum(1)
    off = s.eps * (4 + s.spread + 2 * np.sqrt(s.keys)) * count + 2 * s.eps * np.abs(expected)
    tolerance = off + U * s.keys * count  # sums are taken one after the other here
    ours = s.each(s.d.trace_log_prob(s.trace))
    s.compare("long log-prob", ours, expected, tolerance, (*s.shown, "print(d.trace_log_prob(trace))"))


def _check_parents(s: Subject, g: np.ndarray, order: np.ndarray) -> None:
    show = (*s.shown, "print(trace.value)")
    s.same("long trace", s.rows(s.trace.value), np.stack([_parents(row) for row in g]), show)


def _check_kruskal(s: Subject, g: np.ndarray, order: np.ndarray) -> None:
    _same_winners(s, np.stack([_kruskal(s.case, row) for row in order]))


def _drawn(s: Subject) -> None:
    trace = s.d.sample_trace(generator=s.case.generator())
    again = s.d.trace(s.d.perturb(generator=s.case.generator()).detach())
    given = s.d.trace(s.d.conditional(trace, generator=s.case.generator(1)).detach())
    for name, other in (("perturb", again), ("conditional", given)):
        s.tally[f"long {name}"] += s.case.items
        if not other.equals(trace).all():
            raise Wrong(f"long {name}", "another trace than that of sample_trace", None, ("trace = d.sample_trace()",))


def _parents(g: np.ndarray) -> np.ndarray:
    """Cartesian tree from left to right: the tokens that wait for a larger one on their right are a stack."""
    parents, waiting = np.full(len(g), -1.0), []
    for i, value in enumerate(g.tolist()):
        below = -1
        while waiting and g[waiting[-1]] < value:
            below = waiting.pop()
        if below >= 0:
            parents[below] = i
        if waiting:
            parents[i] = waiting[-1]
        waiting.append(i)
    return parents


def _kruskal(case: Case, order: np.ndarray) -> np.ndarray:
    nodes = case.settings["num_nodes"]
    above, chosen = list(range(nodes)), []

    def top(v: int) -> int:
        while above[v] != v:
            above[v] = above[above[v]]
            v = above[v]
        return v

    ends = case.settings["edge_index"].T.tolist()
    for key in order.tolist():
        u, v = (top(end) for end in ends[key])
        if u != v:
            above[u] = v
            chosen.append(key)
    return np.array(chosen)


def _no_settings(rng: Rng, keys: int) -> Settings:
    return {}


def _size(rng: Rng, keys: int) -> Settings:
    return {"k": int(rng.choice([3, 64, 65, keys // 2, keys]))}


def _graph(rng: Rng, keys: int) -> Settings:
    """A tree, and random edges."""
    nodes = keys // 3
    ends = np.stack([np.arange(1, nodes), rng.integers(0, np.arange(1, nodes))])
    ends = np.concatenate([ends, rng.integers(0, nodes, (2, keys - nodes + 1))], 1)
    return {"edge_index": torch.from_numpy(ends), "num_nodes": nodes}


class Long(NamedTuple):
    """A structure that can have thousands of keys: settings for so many, and the check of a subject, its G and its keys
    in order."""

    settings: Callable[[Rng, int], Settings]
    check: Callable[[Subject, np.ndarray, np.ndarray], None]


LONG = {
    "permutation": Long(_no_settings, _check_chain),
    "subset": Long(_size, _check_chain),
    "binary-tree": Long(_no_settings, _check_parents),
    "sparse-tree": Long(_graph, _check_kruskal),
}
STRUCTURES = tuple(LONG)
