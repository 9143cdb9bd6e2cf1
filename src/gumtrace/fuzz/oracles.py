"""The algorithms once more, plainly, for many items at once: a loop over steps, arrays over items.

Nothing here is shared with the kernels. Larger G wins, ties go to the smaller key.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Leave = Callable[[np.ndarray, np.ndarray], np.ndarray]  # keys that race (items, keys), winners (items,) -> that stay


@dataclass(frozen=True)
class Outcome:
    """What an algorithm decided, and the structure that makes."""

    winners: np.ndarray  # (items, decisions): key, -1 for none
    members: np.ndarray  # (items, decisions, keys) bool: who raced
    value: np.ndarray  # (items, *event)
    unsure: np.ndarray  # (items,) bool: rounding decided

    def at(self, index) -> "Outcome":
        """Some of the items."""
        return Outcome(self.winners[index], self.members[index], self.value[index], self.unsure[index])


def greedy(noise: np.ndarray, racing: np.ndarray, steps: np.ndarray, leave: Leave) -> tuple[np.ndarray, np.ndarray]:
    """One race after another, `steps` (items,) of them at most: winners (items, decisions) and who raced (items,
    decisions, keys)."""
    alive, winners, members = racing, [], []
    for step in range(int(steps.max(initial=0))):
        racers = alive & (step < steps)[:, None]
        some = racers.any(1)
        if not some.any():
            break
        first = np.where(racers, noise, -np.inf).argmax(1)  # argmax: the first of the largest
        winners.append(np.where(some, first, -1))
        members.append(racers)
        alive = leave(racers, first)
    if not winners:
        return np.zeros((len(noise), 0), np.int64), np.zeros((len(noise), 0, noise.shape[1]), bool)
    return np.stack(winners, 1), np.stack(members, 1)


def winner_leaves(racers: np.ndarray, first: np.ndarray) -> np.ndarray:
    staying = racers.copy()
    staying[np.arange(len(first)), first] = False
    return staying


def row_and_column_leave(columns: int) -> Leave:
    def leave(racers, first):
        key = np.arange(racers.shape[1])
        row, column = first[:, None] // columns, first[:, None] % columns
        return racers & (key // columns != row) & (key % columns != column)

    return leave


def edges_inside_leave(ends: np.ndarray, nodes: int) -> Leave:
    """Kruskal: ends (2, keys). Every node knows the name of its part."""
    part = None

    def leave(racers, first):
        nonlocal part
        item = np.arange(len(first))
        part = np.tile(np.arange(nodes), (len(first), 1)) if part is None else part
        kept, lost = part[item, ends[0, first]], part[item, ends[1, first]]
        part = np.where(part == lost[:, None], kept[:, None], part)
        return racers & (part[:, ends[0]] != part[:, ends[1]])

    return leave


def cartesian(noise: np.ndarray, racing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Binary trees: token i is above j where i comes before all tokens from i to j. Winners (items, n), members (items,
    n, n) and parents (items, n)."""
    items, n = noise.shape
    order = np.where(racing, -noise, np.inf).argsort(1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(n), order.shape), 1)
    rank = np.where(racing, rank, n)
    members = np.zeros((items, n, n), bool)
    for i in range(n):
        members[:, i, i:] = np.minimum.accumulate(rank[:, i:], 1) == rank[:, i : i + 1]
        members[:, i, i::-1] = np.minimum.accumulate(rank[:, i::-1], 1) == rank[:, i : i + 1]
    members &= racing[:, :, None] & racing[:, None, :]
    above = np.where(members & ~np.eye(n, dtype=bool), rank[:, :, None], -1)  # of all above a token, the last to win
    parents = above.argmax(1) if n else np.zeros((items, 0), np.int64)
    parents = np.where(above.max(1, initial=-1) < 0, -1, parents)
    return np.where(racing, np.arange(n), -1), members, np.where(racing, parents, -2)


def ones(winners: np.ndarray, keys: int) -> np.ndarray:
    """0/1 (items, keys): 1 at the winners."""
    value = np.zeros((len(winners), keys + 1))
    np.put_along_axis(value, np.where(winners < 0, keys, winners), 1, 1)
    return value[:, :keys]


def connected(ends: np.ndarray, racing: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """How many parts the first `nodes` (items,) nodes of a graph fall into by the edges that race: (items,)."""
    parts = []
    for keys, count in zip(racing, nodes, strict=True):
        part = list(range(int(count)))
        for u, v in ends[:, keys].T.tolist():
            part = [part[u] if name == part[v] else name for name in part] if part[u] != part[v] else part
        parts.append(len(set(part)))
    return np.array(parts, np.int64).reshape(len(racing))


def reached(racing: np.ndarray, nodes: np.ndarray, root: int) -> np.ndarray:
    """Whether every one of the first `nodes` nodes can be reached from the root: racing (items, n, n) -> (items,)."""
    answer = []
    for adjacency, count in zip(racing, nodes, strict=True):
        seen, edge = {root}, {root} if len(adjacency) else set()
        while edge:
            edge = {int(v) for u in edge for v in np.flatnonzero(adjacency[u])} - seen
            seen |= edge
        answer.append(count == 0 or seen >= set(range(int(count))))
    return np.array(answer, bool).reshape(len(racing))
