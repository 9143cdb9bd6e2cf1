"""Spanning trees and forests: Kruskal's algorithm.

stop:  `components` parts are left                          split:  one race of all edges left
map:   the winner joins two parts, edges inside them leave  combine:  the set of winners
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gumtrace.kernels import geometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.edges import component_labels, count_trees, matrix_edges
from gumtrace.structures.exact import spanning_tree_log_prob
from gumtrace.structures.replay import Choose, every_set
from gumtrace.structures.support import Support, binary, count, part_count
from gumtrace.structures.words import EdgeWords
from gumtrace.traces.trace import Layout, indicator


class SpanningTree(Structure):
    """A spanning tree of an undirected graph, or a spanning forest: Kruskal's algorithm stopped when `components`
    trees are left.

    Args:
        logits: (*B, n, n), of which the upper triangle u < v is read.
        components: how many trees; c > 1 gives random clusterings.
        mask, lengths, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is symmetric 0/1, (*B, n, n). A sample costs O(n²), its log-probability as much; `log_prob` sums over
    the orders of choice by a dynamic programme, for up to 20 edges. `from_edges` takes a sparse graph.

    >>> d = SpanningTree(torch.tensor([[0.0, 9.0, -9.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]))
    >>> d.mode
    tensor([[0., 1., 0.],
            [1., 0., 1.],
            [0., 1., 0.]])
    >>> SpanningTree(torch.zeros(4, 4), components=2).sample().sum().item() / 2
    2.0
    """

    settings = ("components",)
    has_log_prob = True
    symmetric = True
    maximises_sum = True
    relaxations = ("matrix-tree",)
    drawing = "gumtrace.plotting.graphs:spanning_tree"
    panel = "gumtrace.plotting.panels:edges"
    story = "gumtrace.explore.graphs:SpanningTreeStory"

    def __init__(
        self,
        logits: Tensor,
        components: int = 1,
        *,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        self.components = checked_components("SpanningTree", components)
        super().__init__(logits, 2, mask, lengths, validate_args)

    @classmethod
    def from_edges(
        cls,
        logits: Tensor | Sequence[Tensor],
        edge_index: Tensor | Sequence[Tensor],
        num_nodes: int | Sequence[int],
        components: int = 1,
        *,
        batch: Tensor | None = None,
        mask: Tensor | Sequence[Tensor] | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ) -> "SpanningTree":
        """The spanning trees of a sparse graph, a `SparseSpanningTree`; or of several graphs, a
        `BatchedSpanningTree`, if there is `batch` or a list of edges."""
        one, several = cls._given_by_edges()
        if batch is not None or isinstance(edge_index, (list, tuple)):
            if lengths is not None:
                raise ValueError("SpanningTree: graphs of a batch have their own numbers of nodes, and no lengths")
            return several(
                logits, edge_index, num_nodes, components, batch=batch, mask=mask, validate_args=validate_args
            )
        return one(logits, edge_index, num_nodes, components, mask=mask, lengths=lengths, validate_args=validate_args)

    @classmethod
    def _given_by_edges(cls) -> tuple[type[Any], type[Any]]:
        """The classes for one graph that is given by its edges, and for several."""
        from gumtrace.structures.batched_spanning_tree import BatchedSpanningTree
        from gumtrace.structures.sparse_spanning_tree import SparseSpanningTree

        return SparseSpanningTree, BatchedSpanningTree

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        logits: Tensor | str,
        components: int = 1,
        *,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> "SpanningTree":
        """The spanning trees of an undirected graph of networkx. Nodes are numbered as `list(graph)` has them, which
        are the names that `trace.to_networkx` takes.

        Args:
            logits: (*B, E) in the order of `graph.edges`, or the name of the edges' attribute that holds them.

        >>> import networkx
        >>> graph = networkx.Graph()
        >>> graph.add_weighted_edges_from([("a", "b", 0.0), ("b", "c", 90.0), ("c", "a", 50.0)])
        >>> trace = SpanningTree.from_networkx(graph, "weight").sample_trace()
        >>> sorted(trace.to_networkx(list(graph)).edges)
        [('a', 'c'), ('b', 'c')]
        """
        if graph.is_directed():
            raise ValueError("SpanningTree: the graph is directed; take graph.to_undirected(), or an Arborescence")
        number = {node: i for i, node in enumerate(graph)}
        ends = [(number[u], number[v]) for u, v, *_ in graph.edges]  # of a multigraph, with a key behind
        if isinstance(logits, str):
            given = list(graph.edges(data=logits))
            without = [(u, v) for u, v, logit in given if logit is None]
            if without:
                raise ValueError(f"SpanningTree: the edge {without[0]} of the graph has no attribute {logits!r}")
            logits = torch.tensor([float(logit) for *_, logit in given])
        edge_index = torch.tensor(ends, dtype=torch.long, device=logits.device).reshape(-1, 2).T
        return cls.from_edges(logits, edge_index, len(number), components, mask=mask, validate_args=validate_args)

    def constrained(self, must_link: Tensor | None = None, cannot_link: Tensor | None = None) -> "SpanningTree":
        """The same forests under constraints, a `ConstrainedForest`: bool (..., n, n), pairs of nodes that must be in
        one tree, and pairs that cannot be.

        >>> far = torch.tensor([[False, True], [False, False]])
        >>> SpanningTree(torch.zeros(2, 2), components=2).constrained(cannot_link=far).sample()
        tensor([[0., 0.],
                [0., 0.]])
        """
        from gumtrace.structures.constrained_forest import ConstrainedForest

        return ConstrainedForest(
            self.logits,
            self.components,
            must_link=must_link,
            cannot_link=cannot_link,
            mask=~self._x.detach().isneginf(),
            lengths=self._lengths,
            validate_args=self._validate_args,
        )

    @property
    def support(self):  # type: ignore[override]
        return ForestSupport(self.racing, self.node_counts, self.components)

    @classmethod
    def words(cls, trace, names=None):
        return SpanningTreeWords(trace, names)

    @classmethod
    def edges_of(cls, trace):
        return matrix_edges(trace)

    @classmethod
    def labels_of(cls, trace):
        sizes = trace.layout.geometry
        labels = component_labels(trace.edges(), sizes.nodes)
        nodes = (trace.winners >= 0).sum(-1, keepdim=True) + sizes.components
        return torch.where(torch.arange(sizes.nodes, device=labels.device) < nodes, labels, -1)

    def _trace_layout(self, key_shape):
        n, m = key_shape
        if n != m:
            raise ValueError(f"SpanningTree: logits must be square, got {n} x {m}")
        sizes = geometry.spanning_tree(n, self.components)
        return Layout(type(self), sizes, key_shape, self.logits.dtype, indicator), self._lengths

    @property
    def node_counts(self) -> Tensor:
        """How many nodes each item has, (*B,) or ()."""
        if self._lengths is not None:
            return self._lengths
        return torch.full((), self._num_nodes, device=self.logits.device)

    @property
    def _num_nodes(self) -> int:
        return self.logits.shape[-1]

    @property
    def _may_be_infeasible(self) -> bool:
        return self.components > 1 or self._num_nodes == 0

    @property
    def racing(self) -> Tensor:
        racing = self._x.detach() > -torch.inf  # torch.compile does not trace super().racing
        return racing.triu(1)

    def _value_log_prob(self, value: Tensor) -> Tensor:
        """log P(X), summed over all orders in which its edges can be chosen: 2^edges states."""
        log_prob = spanning_tree_log_prob(*torch.broadcast_tensors(self._x, value))
        whole = (value.triu(1) > 0.5).flatten(-2).sum(-1) == self.node_counts - self.components
        return torch.where(whole, log_prob, -torch.inf)

    def _decision_counts(self) -> Tensor | None:
        return self.node_counts - self.components

    def _run_with(self, choose: Choose):
        n = int(self.node_counts)
        racing = self.racing.flatten().nonzero().flatten().tolist()
        ends = {key: self._ends(key) for key in racing}
        part = list(range(n))
        winners: list[int] = []
        while len(winners) < n - self.components:
            winners.append(choose(racing))
            u, v = (part[node] for node in ends[winners[-1]])
            part = [u if p == v else p for p in part]
            racing = [key for key in racing if part[ends[key][0]] != part[ends[key][1]]]
        return winners, []

    def _run_a_value(self) -> Iterator[Any] | None:
        return every_set(self._run_with)

    def _count_values(self):
        if self.components > 1:
            return None
        n = int(self.node_counts)
        adjacency = torch.zeros(n, n, device="cpu")
        keys = self.racing.flatten().nonzero().flatten().tolist()
        u, v = torch.tensor([self._ends(key) for key in keys], dtype=torch.long, device="cpu").reshape(-1, 2).T
        adjacency.index_put_((u, v), adjacency.new_ones(len(keys)), accumulate=True)  # edges may be parallel
        return count_trees(adjacency + adjacency.T)

    def _ends(self, key: int) -> tuple[int, int]:
        return divmod(key, self.key_shape[0])

    def _infeasible_message(self) -> str:
        if self.components > 1:
            c = self.components
            parts = f"fewer than {c} nodes, or more than {c} parts without a path of racing edges between them"
            return f"cannot be split into {c} trees: it has {parts}"
        return "is not connected: some nodes have no path of racing edges between them (or there is no node at all)"

    def value_entries(self) -> Tensor | None:
        """The upper triangle."""
        n = self.key_shape[0]
        i, j = torch.triu_indices(n, n, 1, device=self.logits.device)
        return i * n + j

    def _check_relaxable(self):
        if self.components > 1:
            raise NotImplementedError(
                "relax: spanning forests have no relaxation; use components=1, or an estimator without one"
            )

    def _relax(self, scores, kind):
        from gumtrace.relaxations.trees import spanning_tree_marginals

        return spanning_tree_marginals(scores, self._lengths)


class SpanningTreeWords(EdgeWords):
    @property
    def nodes(self):
        """Without the padding of a matrix."""
        return len(self.order()) + self.trace.layout.geometry.components

    def edges(self) -> dict[int, tuple[int, int]]:
        """The keys that are edges of the graph, with their ends."""
        ends = {key: self.ends(key) for key in range(self.trace.layout.geometry.keys)}
        return {key: (u, v) for key, (u, v) in ends.items() if u < v < self.nodes}

    def race(self, decision, keys):
        return f"edges between {len(self.order()) + self.trace.layout.geometry.components - decision} parts"


class ForestSupport(Support):
    """Symmetric 0/1 matrices of forests with `components` trees over the first `nodes` nodes, of edges that race."""

    def __init__(self, racing: Tensor, nodes: Tensor, components: int):
        self.racing = racing | racing.mT
        self.nodes, self.components = nodes, components
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        symmetric = (value == value.mT).flatten(-2).all(-1) & (value.diagonal(dim1=-2, dim2=-1) == 0).all(-1)
        parts = part_count(value) - (value.shape[-1] - self.nodes)  # padding counts as parts of its own
        return (
            binary(value, self.racing).flatten(-2).all(-1)
            & symmetric
            & (count(value.flatten(-2)) == 2 * (self.nodes - self.components))
            & (parts == self.components)
        )


def checked_components(name: str, components: int) -> int:
    if checks.integer(name, "components", components) < 1:
        raise ValueError(f"{name}: components must be at least 1, got {components}")
    return int(components)
