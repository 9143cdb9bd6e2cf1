"""A trace told decision by decision: who raced, who won, and how likely that was."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gumtrace.kernels import kinds
from gumtrace.kernels.cpu.members import members
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

Names = Sequence[Any]  # of keys, nodes or tokens


@dataclass(frozen=True)
class Step:
    """One decision: the argmin over a set of racing keys."""

    decision: int  # its place in `trace.winners`
    race: str  # who raced, in words
    members: tuple[int, ...]  # the keys that raced, winner included
    winner: int  # the key that won
    label: str  # the winner, in words
    log_prob: float  # of this decision: log λ_winner - log Λ
    running: float  # of all decisions so far

    @property
    def probability(self) -> float:
        return math.exp(self.log_prob)


def steps(dist: Structure, trace: Trace, names: Names | None = None) -> list[Step]:
    """The decisions of one trace of an unbatched distribution, in the order in which they are taken.

    Args:
        names: what keys, nodes or tokens are called; a pair for rows and columns of a matching. Default: their numbers.

    Binary trees come breadth first; arborescences with the nodes first, then every cycle after what it contracts.

    >>> from gumtrace import SpanningTree
    >>> d = SpanningTree(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]))
    >>> for step in steps(d, d.trace(d.logits)):
    ...     print(f"{step.race}, {len(step.members)} racing: {step.label} with probability {step.probability:.2f}")
    edges between 3 parts, 3 racing: 1 - 2 with probability 0.98
    edges between 2 parts, 2 racing: 0 - 1 with probability 0.73
    """
    if dist.batch_shape or trace.shape:
        raise ValueError(
            f"steps tells one trace of one item: this distribution has batch shape {tuple(dist.batch_shape)}, "
            f"the trace has shape {tuple(trace.shape)}; index them first"
        )
    racing = dist.racing.flatten().cpu()
    logits = dist.logits.detach().flatten().cpu().double().masked_fill(~racing, -torch.inf)
    totals = dist.decision_log_totals(trace).detach().cpu().double()  # (decisions,)
    winners = trace.winners.tolist()
    raced = [keys[racing.numpy()[keys]].tolist() for keys in member_keys(trace)]
    words = _Words(trace, names)
    told, running = [], 0.0
    for b in _order(trace):
        winner, keys = winners[b], tuple(raced[b])
        log_prob = float(logits[winner] - totals[b])
        running += log_prob
        told.append(Step(b, words.race(b, keys), keys, winner, words.key(winner), log_prob, running))
    return told


def member_keys(trace: Trace) -> list[np.ndarray]:
    """The keys of each decision of one trace, as far as the structure alone tells: a mask is not in the trace."""
    return members(
        trace.layout.geometry, trace.choices.cpu().contiguous().numpy(), trace.links.cpu().contiguous().numpy()
    )


def depth(node: int, parents: Sequence[int]) -> int:
    """How far a node is from the root; the root's parent is -1."""
    steps_up = 0
    while parents[node] >= 0:
        node = parents[node]
        steps_up += 1
        if steps_up > len(parents):
            raise ValueError("the parents are no tree: they go round in a cycle")
    return steps_up


def _order(trace: Trace) -> list[int]:
    taken = [b for b, winner in enumerate(trace.winners.tolist()) if winner >= 0]
    if trace.layout.geometry.kind == kinds.BINARY_TREE:
        parents = trace.links.tolist()
        taken.sort(key=lambda b: (depth(b, parents), b))
    return taken  # chains, supernodes and recursions are numbered in their order already


class _Words:
    """Names for keys and races."""

    def __init__(self, trace: Trace, names: Names | None):
        self.geometry = trace.layout.geometry
        self.shape = trace.layout.event_shape
        self.winners = trace.winners.tolist()
        self.links = trace.links.tolist()
        if self.geometry.kind == kinds.MATCHING:
            rows, columns = names if names is not None else (None, None)
            self.name, self.column = _namer(rows, "row "), _namer(columns, "column ")
        else:
            self.name = _namer(names, "")

    def key(self, k: int) -> str:
        kind, g = self.geometry.kind, self.geometry
        if kind == kinds.MATCHING:
            return f"{self.name(k // g.m)}, {self.column(k % g.m)}"
        if kind == kinds.SPANNING_TREE:
            return f"{self.name(k // g.n)} - {self.name(k % g.n)}"
        if kind == kinds.SPARSE_TREE:
            return f"{self.name(int(g.edges[0, k]))} - {self.name(int(g.edges[1, k]))}"
        if kind == kinds.ARBORESCENCE:
            return f"{self.name(k // g.n)} -> {self.name(k % g.n)}"
        if kind == kinds.EXPLICIT and len(self.shape) > 1:
            place = []
            for size in reversed(self.shape):
                k, i = divmod(k, size)
                place.append(self.name(i))
            return f"({', '.join(reversed(place))})"
        return self.name(k)

    def race(self, b: int, keys: Sequence[int]) -> str:
        kind, g = self.geometry.kind, self.geometry
        if kind == kinds.MATCHING:
            return f"{_count({k // g.m for k in keys}, 'row')}, {_count({k % g.m for k in keys}, 'column')}"
        if kind in (kinds.SPANNING_TREE, kinds.SPARSE_TREE):
            return f"edges between {sum(w >= 0 for w in self.winners) + g.extra - b} parts"
        if kind == kinds.ARBORESCENCE:
            inside = [v for v in range(g.n) if self._holds(b, v)]
            return f"edges into {self.name(b)}" if b < g.n else f"edges into {{{self._list(inside)}}}"
        return self._list(keys) if kind != kinds.EXPLICIT else ", ".join(self.key(k) for k in keys)

    def _holds(self, supernode: int, node: int) -> bool:
        while node >= 0 and node != supernode:
            node = self.links[node]
        return node == supernode

    def _list(self, indices: Sequence[int]) -> str:
        return " ".join(self.name(i) for i in indices)


def _count(things: set[int], name: str) -> str:
    return f"{len(things)} {name}" + "s" * (len(things) != 1)


def _namer(names: Names | None, before: str) -> Callable[[int], str]:
    return (lambda i: f"{before}{i}") if names is None else (lambda i: str(names[i]))
