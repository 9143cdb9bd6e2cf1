"""The two algorithms that are recursions, and every run of any algorithm: plain Python on sets, with the argmin passed
in as `choose(members) -> winner`."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

Choose = Callable[[Collection[int]], int]


class Run(NamedTuple):
    decisions: list[tuple[int, tuple[int, ...]]]  # winner and members of each
    value: Any


def interpret(algorithm: Any, racing: Collection[int], choose: Choose) -> Run:
    """A user's recursion: races in all parts, then the keys that stay. A key that won before is at zero and wins again
    without a decision. The value is what `combine` builds, from the last call back to the first."""
    K, R = algorithm.start()
    K = frozenset(K) & frozenset(racing)
    decisions: list[tuple[int, tuple[int, ...]]] = []
    calls = []
    at_zero: set[int] = set()
    while not algorithm.stop(K, R):
        winners: list[int | None] = []
        for part in algorithm.split(K, R):
            members = tuple(sorted(part))
            zero = [k for k in members if k in at_zero]
            if zero or not members:
                winners.append(zero[0] if zero else None)
                continue
            winner = choose(members)
            at_zero.add(winner)
            decisions.append((winner, members))
            winners.append(winner)
        calls.append((K, R, winners))
        kept, R = algorithm.map(K, R, list(winners))
        K = frozenset(kept)
    if not hasattr(algorithm, "combine"):
        return Run(decisions, None)
    value = None
    for call in reversed(calls or [(K, R, [])]):
        value = algorithm.combine(value, *call)
    return Run(decisions, value)


def edmonds(keys: Collection[int], n: int, nodes: int, root: int, choose: Choose) -> Run:
    """Chu-Liu-Edmonds on the keys u n + v of edges u -> v. The value: the key that enters each node of the tree."""
    into = {v: tuple(k for k in sorted(keys) if k % n == v) for v in range(nodes) if v != root}
    decisions: list[tuple[int, tuple[int, ...]]] = []
    inside = {v: v for v in range(nodes)}  # node -> supernode
    return Run(decisions, _solve(into, {}, inside, n, choose, decisions))


def _solve(into, best, inside, n: int, choose: Choose, decisions) -> dict[int, int]:
    """The tree on the supernodes of `inside`, as supernode -> key: every one takes its best edge; a cycle becomes one
    supernode, the smaller problem is solved, and the cycle opens where that solution enters it."""
    for s in into:
        if s not in best:
            best[s] = choose(into[s])
            decisions.append((best[s], into[s]))
    cycle = _cycle(best, inside, n)
    if not cycle:
        return dict(best)
    name = max(inside.values()) + n  # of no node, and of no supernode before
    smaller = {v: name if s in cycle else s for v, s in inside.items()}
    entering = tuple(k for s in cycle for k in into[s] if smaller[k // n] != name)
    tree = _solve(
        {s: keys for s, keys in into.items() if s not in cycle} | {name: entering},
        {s: key for s, key in best.items() if s not in cycle},
        smaller,
        n,
        choose,
        decisions,
    )
    entry = tree.pop(name)
    return tree | {s: best[s] for s in cycle} | {inside[entry % n]: entry}


def _cycle(best: dict[int, int], inside: dict[int, int], n: int) -> list[int]:
    for start in best:
        path: list[int] = []
        here = start
        while here in best and here not in path:
            path.append(here)
            here = inside[best[here] // n]
        if here in path:
            return path[path.index(here) :]
    return []


def every_run(play: Callable[[Choose], Run], most: int) -> Iterator[Run]:
    """All runs, one for each way to choose the winners, `most` of them and no more."""
    pending: list[list[int]] = [[]]
    found = 0
    while pending and found < most:
        script = pending.pop()
        made: list[int] = []

        def choose(members: Collection[int], script=script, made=made) -> int:
            options = sorted(members)
            if len(made) < len(script):
                pick = script[len(made)]
            else:
                pick = 0
                pending.extend([*made, other] for other in range(1, len(options)))
            made.append(pick)
            return options[pick]

        yield play(choose)
        found += 1
