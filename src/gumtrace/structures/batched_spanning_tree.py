"""Spanning trees and forests of several sparse graphs, each given by its own edges: Kruskal's algorithm, as in
`spanning_tree`."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gumtrace.kernels import geometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.spanning_tree import checked_components
from gumtrace.structures.sparse_spanning_tree import (
    SparseForestSupport,
    SparseSpanningTree,
    SparseSpanningTreeWords,
    checked_edges,
    edge_list,
    no_such_node,
)
from gumtrace.traces.trace import Layout, indicator


class Graphs(NamedTuple):
    """Several graphs, with their edges in one list."""

    edges: Tensor  # (2, E) long, nodes as numbered within their graph
    graph: Tensor  # (E,) long, of each edge
    nodes: Tensor  # (graphs,) long, how many
    counts: Tensor  # (graphs,) long, of edges
    most_nodes: int  # of a graph
    most_edges: int


class BatchedSpanningTree(SparseSpanningTree):
    """Spanning trees, or forests, of several sparse graphs at once; also made by `SpanningTree.from_edges`.

    Args:
        logits: (*B, E), one for each edge of all graphs; or a list with those of each graph.
        edge_index: (2, E) node numbers, with `batch`; or a list with the edges (2, E_i) of each graph, whose nodes are
            numbered from 0 in each.
        num_nodes: how many nodes there are in all; or a list with the number of each graph.
        components: how many trees in each graph; c > 1 gives random clusterings.
        batch: (num_nodes,), the graph that each node belongs to, as PyTorch Geometric has it.
        mask: (*B, E) bool, or a list: edges that may race.
        validate_args: as of all structures, see `gumtrace.structures.Structure`.

    Graphs are the last dimension of the batch, (*B, graphs), so that each has its own loss and log-probability. Values
    are 0/1 over the edges of each graph in their order, padded to those of the largest: (*B, graphs, most edges).
    `flat` has them as one list of edges again, and `padded` is the way back. A sample costs O(E log n) of the
    padded edges, and so does its log-probability. Making the distribution synchronises with a GPU, which reads how
    large the graphs are; `d.with_log_rates(d.padded(x))` is the same one for other logits x, and reads nothing.

    >>> edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 0, 4, 3]])  # a triangle, and two parallel edges
    >>> d = BatchedSpanningTree(torch.tensor([9.0, 0.0, 8.0, 1.0, 2.0]), edges, 5, batch=torch.tensor([0, 0, 0, 1, 1]))
    >>> d.mode
    tensor([[1., 0., 1.],
            [0., 1., 0.]])
    >>> d.flat(d.mode)
    tensor([1., 0., 1., 0., 1.])
    >>> d.trace_log_prob(d.sample_trace()).shape
    torch.Size([2])
    """

    def __init__(
        self,
        logits: Tensor | Sequence[Tensor],
        edge_index: Tensor | Sequence[Tensor],
        num_nodes: int | Sequence[int],
        components: int = 1,
        *,
        batch: Tensor | None = None,
        mask: Tensor | Sequence[Tensor] | None = None,
        validate_args: bool | None = None,
    ):
        self.components = checked_components("BatchedSpanningTree", components)
        # On logits, as on validate_args, it depends whether edges may be read.
        first: Any = next(iter(logits), torch.zeros(0)) if isinstance(logits, (list, tuple)) else logits
        checks.logits("BatchedSpanningTree", first, 1)
        self.logits = first
        if validate_args is not None:
            self._validate_args = validate_args
        together = torch.is_tensor(edge_index)
        make: Any = _split if together else _join
        graphs: Graphs = make(edge_index, num_nodes, batch, self._may_sync)
        counts = graphs.counts if together else [each.shape[1] for each in edge_index]
        of_edges, allowed = _joined("logits", logits, counts), _joined("mask", mask, counts)
        total = graphs.edges.shape[1]
        for name, given in (("logits", of_edges), ("mask", allowed)):
            if given is not None and given.shape[-1:] != (total,):
                raise ValueError(f"BatchedSpanningTree: {name} of shape {tuple(given.shape)} do not fit {total} edges")
        self._shape, self._nodes = torch.Size([len(graphs.nodes), graphs.most_edges]), graphs.most_nodes
        place = graphs.graph * graphs.most_edges + _rank(graphs.graph, graphs.counts)
        self._place = place.to(of_edges.device)  # (E,), of each edge in `padded`
        self._graph_nodes = graphs.nodes.to(of_edges.device)  # (graphs,)
        self._graph_ends = self.padded(graphs.edges.to(of_edges.device)).movedim(0, 1)  # (graphs, 2, most edges)
        allowed = None if allowed is None else self.padded(allowed)
        Structure.__init__(self, self.padded(of_edges), 1, allowed, self._graph_nodes, validate_args)

    def padded(self, x: Tensor) -> Tensor:
        """(*S, E) over the list of all edges -> (*S, graphs, most edges), 0 where a graph has fewer."""
        if x.shape[-1:] != self._place.shape:
            wanted = f"numbers for {len(self._place)} edges in the last dimension"
            raise ValueError(f"BatchedSpanningTree.padded: expected {wanted}, got shape {tuple(x.shape)}")
        empty = x.new_zeros(*x.shape[:-1], self._shape.numel())
        return empty.index_copy(-1, self._place.to(x.device), x).unflatten(-1, self._shape)

    def flat(self, x: Tensor) -> Tensor:
        """(*S, graphs, most edges) -> (*S, E) over the list of all edges, in the order in which they were given."""
        if x.shape[-2:] != self._shape:
            wanted = f"numbers by graph and edge, shape (..., {self._shape[0]}, {self._shape[1]})"
            raise ValueError(f"BatchedSpanningTree.flat: expected {wanted}, got shape {tuple(x.shape)}")
        return x.flatten(-2).index_select(-1, self._place.to(x.device))

    @property
    def support(self):  # type: ignore[override]
        return GraphsForestSupport(self.racing, self._graph_ends, self._graph, self.node_counts, self.components)

    @classmethod
    def words(cls, trace, names=None):
        return BatchedSpanningTreeWords(trace, names)

    @classmethod
    def edges_of(cls, trace):
        winners = trace.winners[..., None, :]  # (*S, 1, decisions)
        ends = trace.layout.geometry.edges.to(trace.device).long()
        graph = trace.links[..., 0].long().clamp(0, len(ends) - 1)  # a trace may come from anywhere
        ends = ends[graph]  # (*S, 2, E + 1)
        ends = ends.gather(-1, winners.clamp(min=0).expand(*trace.shape, 2, -1))
        return torch.where(winners >= 0, ends, -1)

    def _trace_layout(self, key_shape):
        nodes = self._graph_nodes[:, None, None].expand(-1, 2, 1)  # behind the edges
        edges = torch.cat([self._graph_ends, nodes], -1).int()
        sizes = geometry.graph_batch(self._nodes, self.components, edges)
        graph = torch.arange(len(edges), device=self.logits.device).expand(self.batch_shape)
        return Layout(type(self), sizes, key_shape, self.logits.dtype, indicator), graph

    @property
    def _graph(self) -> Tensor:
        """(*B,), the number of each item's graph."""
        return cast(Tensor, self._sizes)

    def _unpadded_mask(self, key_shape):
        return self._graph_ends[:, 0] != self._graph_ends[:, 1]  # loops never race, nor does padding

    @property
    def racing(self) -> Tensor:
        return self._x.detach() > -torch.inf

    def _run_with(self, choose):
        winners, _ = super()._run_with(choose)
        return winners, [int(self._graph)]

    def _ends(self, key):
        u, v = self._graph_ends[int(self._graph), :, key].tolist()
        return u, v

    def _valid_links(self, trace):
        """The number of the graph."""
        return bool((trace.links[..., 0] == self._graph).all())

    def mismatch(self, other):
        if type(other) is BatchedSpanningTree and not torch.equal(
            self._layout.geometry.edges, other._layout.geometry.edges.to(self._x.device)
        ):
            return f"{self} and {other} are not over the same graphs"
        return Structure.mismatch(self, other)


class BatchedSpanningTreeWords(SparseSpanningTreeWords):
    @property
    def graph(self) -> Tensor:
        """(2, E + 1) of this trace's graph, with the number of nodes behind."""
        return self.trace.layout.geometry.edges[int(self.trace.links)]

    @property
    def nodes(self):
        return self.pairs[-1][0]

    def edges(self):
        return {key: (u, v) for key, (u, v) in super().edges().items() if u != v}


class GraphsForestSupport(SparseForestSupport):
    """0/1 vectors over the edges of each graph that are forests with `components` trees, of edges that race."""

    def __init__(self, racing: Tensor, edges: Tensor, graph: Tensor, nodes: Tensor, components: int):
        super().__init__(racing, edges, nodes, components)
        self.graph = graph  # (*B,), which of the edges (graphs, 2, E) are an item's

    def graphs(self, shape: torch.Size) -> Iterable[Tensor]:
        return (self.edges[graph] for graph in self.graph.expand(shape).flatten().tolist())


def _split(edge_index: Tensor, num_nodes: Any, batch: Any, may_sync: bool) -> Graphs:
    """Graphs whose nodes are numbered together, with a vector that says which graph each node is in."""
    if batch is None:
        raise TypeError("BatchedSpanningTree: edges of all graphs in one tensor need batch=, the graph of each node")
    total = checks.integer("BatchedSpanningTree", "num_nodes", num_nodes)
    edges = checked_edges("BatchedSpanningTree", edge_index, total, may_sync)
    batch = torch.as_tensor(batch, device=edges.device)
    if batch.is_floating_point() or batch.dtype == torch.bool or batch.shape != (total,):
        got = f"{batch.dtype} {tuple(batch.shape)}"
        raise ValueError(
            f"BatchedSpanningTree: batch must have the graph of each of the {total} nodes, integers; got {got}"
        )
    batch = batch.long()
    if may_sync:
        _check_split(edges, batch)
    nodes = batch.bincount()
    graph = batch[edges[0]]
    counts = graph.bincount(minlength=len(nodes))
    most = torch.stack([nodes.max(), counts.max()]).tolist() if len(nodes) else (0, 0)  # read at once
    return Graphs(_rank(batch, nodes)[edges], graph, nodes, counts, *most)


def _check_split(edges: Tensor, batch: Tensor) -> None:
    if len(batch) and batch.min() < 0:
        raise ValueError(f"BatchedSpanningTree: batch has the graph {int(batch.min())} for node {int(batch.argmin())}")
    graph, other = batch[edges]
    apart = (graph != other).nonzero()
    if len(apart) > 0:
        edge = int(apart[0])
        ends = f"{edges[:, edge].tolist()} joins graphs {int(graph[edge])} and {int(other[edge])}"
        raise ValueError(f"BatchedSpanningTree: edge {edge} = {ends}")


def _join(edge_index: Sequence[Tensor], num_nodes: Any, batch: Any, may_sync: bool) -> Graphs:
    """Graphs whose nodes are numbered from 0 in each."""
    if batch is not None:
        raise TypeError("BatchedSpanningTree: batch= goes with edges in one tensor, not with a list of edges")
    if strange := [type(each).__name__ for each in edge_index if not torch.is_tensor(each)]:
        raise TypeError(
            "BatchedSpanningTree: edge_index must be a tensor, or a list of one for each graph; got a list with "
            f"{strange[0]}"
        )
    if isinstance(num_nodes, int) or len(num_nodes) != len(edge_index):
        raise ValueError(
            f"BatchedSpanningTree: {len(edge_index)} graphs need a list with the number of nodes of each, got "
            f"{num_nodes!r}"
        )
    of_nodes = [checks.integer("BatchedSpanningTree", "num_nodes", n) for n in num_nodes]
    lists = [edge_list("BatchedSpanningTree", each, n) for each, n in zip(edge_index, of_nodes, strict=True)]
    of_edges = [each.shape[1] for each in lists]
    empty = torch.zeros(2, 0, dtype=torch.long, device=lists[0].device if lists else None)
    edges = torch.cat([empty, *lists], -1)
    nodes, counts = torch.tensor([of_nodes, of_edges], dtype=torch.long, device=empty.device).reshape(2, len(lists))
    graph = torch.arange(len(lists), device=empty.device).repeat_interleave(counts, output_size=edges.shape[1])
    limit = nodes[graph]
    if not may_sync:
        edges = edges.clamp(min=0).minimum(limit - 1)  # kernels trust them
    elif (bad := ((edges < 0) | (edges >= limit)).any(0).nonzero()).numel() > 0:
        where = int(graph[bad[0]])
        raise no_such_node("BatchedSpanningTree", int(bad[0]) - sum(of_edges[:where]), lists[where], of_nodes[where])
    return Graphs(edges, graph, nodes, counts, max(of_nodes, default=0), max(of_edges, default=0))


def _joined(name: str, x: Any, counts: Tensor | list[int]) -> Any:
    """One tensor over the edges of all graphs, where a list has one for each, of as many edges as it has."""
    if not isinstance(x, (list, tuple)):
        return x
    if len(x) != len(counts):
        raise ValueError(f"BatchedSpanningTree: {len(x)} {name} in a list do not fit {len(counts)} graphs")
    expected = counts.tolist() if isinstance(counts, Tensor) else counts
    for graph, (each, count) in enumerate(zip(x, expected, strict=True)):
        if each.shape[-1:] != (count,):
            raise ValueError(
                f"BatchedSpanningTree: {name} of shape {tuple(each.shape)} do not fit graph {graph} of {count} edges"
            )
    return torch.cat(list(x), -1) if x else torch.zeros(0)


def _rank(group: Tensor, counts: Tensor) -> Tensor:
    """The place of each entry among those of its group."""
    order = group.argsort(stable=True)
    first = counts.cumsum(0) - counts
    place = torch.arange(len(group), device=group.device) - first[group[order]]
    return torch.empty_like(group).index_copy(0, order, place)
