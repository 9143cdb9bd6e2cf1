"""Arborescences: trees directed away from a root, by the Chu-Liu-Edmonds algorithm.

stop:  the best in-edges of all supernodes form a tree   split:  one race at each supernode, of the edges that enter it
map:   a cycle becomes a supernode, its inner edges leave combine:  open the cycle again, drop the edge that enters
twice
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gumtrace.kernels import geometry, ops
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.edges import count_trees
from gumtrace.structures.replay import Choose
from gumtrace.structures.support import Support, binary, closure
from gumtrace.structures.words import EdgeWords
from gumtrace.traces.trace import Layout, Trace


class Arborescence(Structure):
    """A spanning tree directed away from a root: the minimum arborescence under exponential weights.

    Args:
        logits: (*B, n, n), logits[..., u, v] of the edge u -> v; the diagonal and the column of the root are not read.
        root: the node it grows from.
        mask, lengths, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is 0/1, (*B, n, n), value[..., u, v] = 1 for the edge u -> v. Its decisions are the winners at the n - 1
    nodes and at every contracted cycle. A sample costs O(n²), its log-probability as much.

    >>> d = Arborescence(torch.tensor([[0.0, 1.0, 9.0], [0.0, 0.0, 0.0], [0.0, 9.0, 0.0]]))
    >>> d.mode
    tensor([[0., 0., 1.],
            [0., 0., 0.],
            [0., 1., 0.]])
    """

    settings = ("root",)
    directed = True
    relaxations = ("matrix-tree",)
    drawing = "gumtrace.plotting.graphs:arborescence"
    panel = "gumtrace.plotting.panels:arrows"
    story = "gumtrace.explore.graphs:ArborescenceStory"

    def __init__(
        self,
        logits: Tensor,
        root: int = 0,
        *,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        self.root = checks.integer("Arborescence", "root", root)
        super().__init__(logits, 2, mask, lengths, validate_args)

    @property
    def support(self):  # type: ignore[override]
        return ArborescenceSupport(self.racing, self.node_counts, self.root)

    @classmethod
    def words(cls, trace, names=None):
        return ArborescenceWords(trace, names)

    @classmethod
    def edges_of(cls, trace):
        n, root = trace.layout.event_shape[-1], trace.layout.geometry.root
        child = torch.arange(n - 1, device=trace.device) if n else torch.arange(0, device=trace.device)
        child = child + (child >= root)
        parent = (_entering(trace).long() // max(n, 1)).reshape(*trace.shape, n)[..., child]
        return torch.stack([parent, torch.where(parent >= 0, child, -1)], -2)

    def _trace_layout(self, key_shape):
        n, m = key_shape
        if n != m:
            raise ValueError(f"Arborescence: logits must be square, got {n} x {m}")
        if not 0 <= self.root < max(n, 1):
            raise ValueError(f"Arborescence: root {self.root} is not one of the {n} nodes")
        if self._lengths is not None and self._may_sync:
            short = ((self._lengths <= self.root) & (self._lengths > 0)).nonzero()
            if len(short) > 0:
                item = tuple(short[0].tolist())
                raise ValueError(
                    f"Arborescence: root {self.root} is not one of the {self._lengths[item]} nodes of item {item}"
                )
        sizes = geometry.arborescence(n, self.root)
        return Layout(type(self), sizes, key_shape, self.logits.dtype, _adjacency), self._lengths

    @property
    def node_counts(self) -> Tensor:
        """How many nodes each item has, (*B,) or ()."""
        if self._lengths is not None:
            return self._lengths
        return torch.full((), self.logits.shape[-1], device=self.logits.device)

    @property
    def racing(self) -> Tensor:
        racing = self._x.detach() > -torch.inf  # torch.compile does not trace super().racing
        racing.diagonal(dim1=-2, dim2=-1).fill_(False)
        racing[..., self.root : self.root + 1] = False  # a slice: a graph without nodes has no such column
        return racing

    def loss_to_go(self, trace: Trace, terms: Tensor) -> Tensor:
        """Of each decision: its term and those of the supernodes around it, in jumps of 1, 2, 4, … of them."""
        around = trace.links.long()
        for _ in range(terms.shape[-1].bit_length()):
            inside, at = around >= 0, around.clamp(min=0)
            terms = terms + torch.where(inside, terms.gather(-1, at), 0.0)
            around = torch.where(inside, around.gather(-1, at), -1)
        return terms

    def _decision_counts(self) -> Tensor:
        return (self.node_counts - 1).clamp(min=0)

    def _count_decisions(self, trace: Trace) -> Tensor:
        return (trace.choices[..., : self.key_shape[0]] >= 0).sum(-1)  # at the nodes; cycles are as many as there are

    def _run_with(self, choose: Choose):
        """The path-growing run of the kernel, on sets."""
        n, nodes = self.key_shape[0], int(self.node_counts)
        winners, links = [-1] * self._layout.geometry.winner_slots, [-1] * self._layout.geometry.link_slots
        edges = [divmod(key, n) for key in self.racing.flatten().nonzero().flatten().tolist()]
        members = {v: {v} for v in range(nodes)}
        done = {self.root} if nodes else set()
        for start in range(nodes):
            path: list[int] = []
            here = _around(start, links)
            while here not in done:
                if here not in path:
                    path.append(here)
                    winners[here] = choose(
                        [u * n + v for u, v in edges if v in members[here] and u not in members[here]]
                    )
                source = _around(winners[here] // n, links)
                if source in done:
                    done.update(path)
                elif source not in path:
                    here = source
                else:
                    cycle = path[path.index(source) :]
                    here = max(n, max(members) + 1)
                    members[here] = set().union(*(members[s] for s in cycle))
                    for s in cycle:
                        links[s] = here
                    path = path[: -len(cycle)]
        return winners, links

    def _count_values(self):
        n = int(self.node_counts)
        return count_trees(self.racing[:n, :n], self.root)

    def _infeasible_message(self) -> str:
        return "has a node that cannot be reached from the root"

    def _valid_links(self, trace: Trace) -> bool:
        """Cycles come after the nodes and after their members."""
        slots = trace.layout.geometry.link_slots
        earliest = torch.arange(slots, device=trace.device).clamp(min=self.key_shape[0] - 1)
        return checks.within(trace.links, -1, slots) and bool(((trace.links == -1) | (trace.links > earliest)).all())

    def value_entries(self):
        """The n - 1 edges into each node but the root."""
        n, device = self.key_shape[0], self.logits.device
        never = torch.eye(n, dtype=torch.bool, device=device)
        never[:, self.root : self.root + 1] = True
        return never.flatten().byte().argsort(stable=True)[: max(n - 1, 0) ** 2]

    def _relax(self, scores, kind):
        from gumtrace.relaxations.trees import arborescence_marginals

        return arborescence_marginals(scores, self.root, self._lengths)


class ArborescenceWords(EdgeWords):
    line = " -> "

    @property
    def root(self) -> int:
        return self.trace.layout.geometry.root

    def graph_nodes(self):
        """Without the padding of a matrix."""
        return self._called({self.root, *self.trace.edges().flatten().tolist()} - {-1})

    def race(self, decision, keys):
        if decision < self.nodes:
            return f"edges into {self.name(decision)}"
        links = self.trace.links.tolist()
        inside = [v for v in range(self.nodes) if decision in supernodes(v, links)]
        return f"edges into {{{' '.join(map(self.name, inside))}}}"


class ArborescenceSupport(Support):
    """0/1 matrices of trees directed away from the root over the first `nodes` nodes, of edges that race."""

    def __init__(self, racing: Tensor, nodes: Tensor, root: int):
        self.racing, self.nodes, self.root = racing, nodes, root
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        node = torch.arange(value.shape[-1], device=value.device)
        wants_edge = (node < self.nodes[..., None]) & (node != self.root)
        reached = closure(value)[..., self.root : self.root + 1, :].any(-2) | (node >= self.nodes[..., None])
        return binary(value, self.racing).flatten(-2).all(-1) & (value.sum(-2) == wants_edge).all(-1) & reached.all(-1)


def supernodes(v: int, links: Sequence[int]) -> list[int]:
    """The supernodes that hold one, from the inside out."""
    chain = []
    while links[v] >= 0:
        v = links[v]
        chain.append(v)
    return chain


def _around(node: int, links: list[int]) -> int:
    while links[node] >= 0:
        node = links[node]
    return node


def _entering(trace: Trace) -> Tensor:
    """(items, n) int32: the edge that enters each node, by its key; -1 for none."""
    return ops.arborescence_edges(trace.layout.geometry, *trace.rows())


def _adjacency(trace: Trace) -> Tensor:
    layout = trace.layout
    rows = ops.indicator(layout.geometry, _entering(trace), layout.dtype)
    return rows.reshape(*trace.shape, *layout.event_shape)
