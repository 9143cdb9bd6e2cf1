"""Algorithms for `Custom`: references for built-in structures, and recursions that no built-in structure has.

Hooks look at winners alone. `smaller()` is the same algorithm with one key less, for shrinking a failure.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class First:
    """The first `count` keys: the reference for a subset, or of a permutation where that is all of them."""

    keys: int
    count: int

    def start(self) -> tuple[Iterable[int], Any]:
        return range(self.keys), self.count

    def stop(self, K, R) -> bool:
        return R == 0 or not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        return K - set(winners), R - 1

    def smaller(self):
        return replace(self, keys=self.keys - 1, count=min(self.count, self.keys - 1))


@dataclass(frozen=True)
class Crossing:
    """The reference for a matching: the winner's row and column leave."""

    rows: int
    columns: int

    @property
    def keys(self) -> int:
        return self.rows * self.columns

    def start(self) -> tuple[Iterable[int], Any]:
        return range(self.keys), None

    def stop(self, K, R) -> bool:
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        row, column = divmod(winners[0], self.columns)
        return [k for k in K if k // self.columns != row and k % self.columns != column], None

    def smaller(self):
        return replace(self, rows=self.rows - 1)


@dataclass(frozen=True)
class Merging:
    """The reference for a spanning tree or forest: Kruskal's algorithm on a list of edges."""

    edges: Edges
    nodes: int
    components: int = 1

    @property
    def keys(self) -> int:
        return len(self.edges)

    def start(self) -> tuple[Iterable[int], Any]:
        return [k for k, (u, v) in enumerate(self.edges) if u != v], tuple(range(self.nodes))

    def stop(self, K, R) -> bool:
        return len(set(R)) <= self.components or not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        u, v = self.edges[winners[0]]
        R = tuple(R[u] if part == R[v] else part for part in R)
        return [k for k in K if R[self.edges[k][0]] != R[self.edges[k][1]]], R

    def smaller(self):
        return replace(self, edges=self.edges[:-1])


@dataclass(frozen=True)
class Gaps:
    """The reference for a binary tree: one race in each gap between the tokens placed so far. The value: depths."""

    keys: int

    def start(self) -> tuple[Iterable[int], Any]:
        return range(self.keys), ()

    def stop(self, K, R) -> bool:
        return not K

    def split(self, K, R):
        ends = [-1, *sorted(R), self.keys]
        return [[k for k in K if a < k < b] for a, b in pairwise(ends)]

    def map(self, K, R, winners):
        won = [w for w in winners if w is not None]
        return K - set(won), (*R, *won)

    def combine(self, X, K, R, winners):
        depth = torch.zeros(self.keys, dtype=torch.long) if X is None else X
        for k in K - {w for w in winners if w is not None}:
            depth[k] += 1
        return depth

    def smaller(self):
        return replace(self, keys=self.keys - 1)


@dataclass(frozen=True)
class Apart:
    """A maximal independent set of a graph, one race in each connected part of what is left."""

    edges: Edges
    nodes: int

    @property
    def keys(self) -> int:
        return self.nodes

    def start(self) -> tuple[Iterable[int], Any]:
        return range(self.nodes), None

    def stop(self, K, R) -> bool:
        return not K

    def split(self, K, R):
        part = {k: k for k in K}
        for _ in K:
            for u, v in self.edges:
                if u in part and v in part:
                    part[u] = part[v] = min(part[u], part[v])
        return [[k for k in K if part[k] == name] for name in sorted(set(part.values()))]

    def map(self, K, R, winners):
        gone = set(winners)
        for u, v in self.edges:
            if u in winners:
                gone.add(v)
            if v in winners:
                gone.add(u)
        return K - gone, None

    def smaller(self):
        last = self.nodes - 1
        return replace(self, edges=tuple(e for e in self.edges if last not in e), nodes=last)


@dataclass(frozen=True)
class Scramble:
    """Parts and leavers drawn at random, but always the same for the same keys and winners. Parts split and join
    again, winners may stay for a while: nothing a recursion may do is left out."""

    keys: int
    seed: int

    def _random(self, *what) -> random.Random:
        return random.Random(repr((self.seed, *what)))

    def start(self) -> tuple[Iterable[int], Any]:
        return range(self.keys), 0

    def stop(self, K, R) -> bool:
        return not K or R >= 6

    def split(self, K, R):
        drawn = self._random(sorted(K), R)
        count = drawn.choice([1, 1, 2, 3])
        parts: list[list[int]] = [[] for _ in range(count)]
        for k in sorted(K):
            parts[drawn.randrange(count)].append(k)
        return parts

    def map(self, K, R, winners):
        drawn = self._random(sorted(K), R, winners)
        leaving = {k for k in sorted(K) if drawn.random() < (0.6 if k in winners else 0.2)}
        if not leaving:
            leaving = {drawn.choice(sorted(K))}
        return K - leaving, R + 1

    def combine(self, X, K, R, winners):
        total = 0 if X is None else X.item()
        return torch.tensor(total * 31 % 10007 + sum(w + 1 for w in winners if w is not None))

    def smaller(self):
        return replace(self, keys=self.keys - 1)
