"""Spanning trees and forests: Kruskal's algorithm.

stop:  `components` parts are left                          split:  one race of all edges left
map:   the winner joins two parts, edges inside them leave  combine:  the set of winners
"""

import torch
from torch import Tensor

from gumtrace.kernels import ops
from gumtrace.kernels.kinds import SPANNING_TREE, SPARSE_TREE, Geometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.exact import spanning_tree_log_prob
from gumtrace.structures.replay import Choose
from gumtrace.structures.support import Support, binary, count, part_count
from gumtrace.structures.words import EdgeWords
from gumtrace.traces.trace import Layout, indicator


class SpanningTree(Structure):
    """A spanning tree of an undirected graph, or a spanning forest: Kruskal's algorithm stopped when `components`
    trees are left.

    Args:
        logits: (*B, n, n), of which the upper triangle u < v is read.
        components: how many trees; c > 1 gives random clusterings.

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
    relaxations = ("matrix-tree",)
    drawing = "gumtrace.plotting.graphs:spanning_tree"
    panel = "gumtrace.plotting.panels:edges"
    story = "gumtrace.explore.graphs:SpanningTreeStory"

    def __init__(
        self, logits: Tensor, components: int = 1, *, mask=None, lengths=None, validate_args: bool | None = None
    ):
        self.components = _checked_components(components)
        self._edges: Tensor | None = None
        self._num_nodes = 0  # of a sparse graph
        super().__init__(logits, 2, mask, lengths, validate_args)

    @classmethod
    def from_edges(
        cls,
        logits: Tensor,
        edge_index: Tensor,
        num_nodes: int,
        components: int = 1,
        *,
        mask=None,
        lengths=None,
        validate_args: bool | None = None,
    ) -> "SpanningTree":
        """The spanning trees of a sparse graph.

        Args:
            logits: (*B, E), one for each edge; the graph is the same for the whole batch.
            edge_index: (2, E) node numbers. Loops never race, parallel edges are keys of their own.
            num_nodes: how many nodes.
            lengths: node counts of ragged items: edges of later nodes do not race.

        The value is 0/1 over the edges, (*B, E). A sample costs O(E log n), and so does its log-probability.

        >>> edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 3]])
        >>> SpanningTree.from_edges(torch.tensor([1.0, 2.0, 30.0, 4.0]), edges, num_nodes=4).mode
        tensor([0., 1., 1., 1.])
        """
        self = cls.__new__(cls)
        self.has_log_prob = self.symmetric = False
        self.components = _checked_components(components)
        self._num_nodes = checks.integer("SpanningTree", "num_nodes", num_nodes)
        self._edges = _checked_edges(edge_index, self._num_nodes)
        checks.logits("SpanningTree", logits, 1)
        if logits.shape[-1] != edge_index.shape[1]:
            raise ValueError(f"SpanningTree: logits {tuple(logits.shape)} do not fit {edge_index.shape[1]} edges")
        Structure.__init__(self, logits, 1, mask, lengths, validate_args)
        return self

    @property
    def support(self):  # type: ignore[override]
        if self._edges is not None:
            return SparseForestSupport(self.racing, self._edges, self.node_counts, self.components)
        return ForestSupport(self.racing, self.node_counts, self.components)

    @classmethod
    def words(cls, trace, names=None):
        return SpanningTreeWords(trace, names)

    def _trace_layout(self, key_shape):
        c = self.components
        if self._edges is not None:
            n = self._num_nodes
            steps = max(n - c, 0)
            edges = self._edges.to("cpu", torch.int32).contiguous()
            geometry = Geometry(SPARSE_TREE, key_shape[0], steps, steps, 0, n, 0, c, edges)
            return Layout(type(self), geometry, key_shape, self.logits.dtype, indicator), self._lengths
        n, m = key_shape
        if n != m:
            raise ValueError(f"SpanningTree: logits must be square, got {n} x {m}")
        steps = max(n - c, 0)
        geometry = Geometry(SPANNING_TREE, n * n, steps, steps, 0, n, 0, c)
        return Layout(type(self), geometry, key_shape, self.logits.dtype, indicator), self._lengths

    @property
    def node_counts(self) -> Tensor:
        """How many nodes each item has, (*B,) or ()."""
        if self._lengths is not None:
            return self._lengths
        nodes = self._num_nodes if self.is_sparse else self.logits.shape[-1]
        return torch.full((), nodes, device=self.logits.device)

    def _max_length(self, key_shape):
        return self._num_nodes if self.is_sparse else min(key_shape)

    def _unpadded_mask(self, key_shape):
        if self._lengths is None or self._edges is None:
            return super()._unpadded_mask(key_shape)
        return (self._edges < self._lengths[..., None, None]).all(-2)  # both ends

    @property
    def _may_be_infeasible(self) -> bool:
        return self.is_sparse or self.components > 1 or self.logits.shape[-1] == 0

    @property
    def is_sparse(self) -> bool:
        """Whether it was made by `from_edges`."""
        return self._edges is not None

    @property
    def racing(self) -> Tensor:
        racing = self._x.detach() > -torch.inf  # torch.compile does not trace super().racing
        if self._edges is not None:
            return racing & (self._edges[0] != self._edges[1])
        return racing.triu(1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log P(X), summed over all orders in which its edges can be chosen: 2^edges states. Dense graphs only."""
        if self._edges is not None:
            return super().log_prob(value)
        self._check_value(value)
        log_prob = spanning_tree_log_prob(*torch.broadcast_tensors(self._x, value))
        whole = (value.triu(1) > 0.5).flatten(-2).sum(-1) == self.node_counts - self.components
        return torch.where(whole, log_prob, -torch.inf)

    def _decision_counts(self) -> Tensor:
        return self.node_counts - self.components

    def _run_with(self, choose: Choose):
        n = int(self.node_counts)
        racing = self.racing.flatten().nonzero().flatten().tolist()
        ends = {
            key: self._edges[:, key].tolist() if self._edges is not None else divmod(key, self.key_shape[0])
            for key in racing
        }
        part = list(range(n))
        winners: list[int] = []
        while len(winners) < n - self.components:
            winners.append(choose(racing))
            u, v = (part[node] for node in ends[winners[-1]])
            part = [u if p == v else p for p in part]
            racing = [key for key in racing if part[ends[key][0]] != part[ends[key][1]]]
        return winners, []

    def _infeasible_message(self) -> str:
        if self.components > 1:
            return f"is not a graph of at least {self.components} nodes in at most {self.components} connected parts"
        return "is not connected: some nodes have no path of racing edges between them (or there is no node at all)"

    def mismatch(self, other):
        if isinstance(other, SpanningTree) and self.is_sparse and other.is_sparse:
            ours, theirs = self._layout.geometry, other._layout.geometry
            if ours.n != theirs.n or not torch.equal(ours.edges, theirs.edges):
                return f"{self} and {other} are not over the same graph"
        return super().mismatch(other)

    def value_entries(self):
        """The upper triangle."""
        if self.is_sparse:
            return None
        n = self.key_shape[0]
        i, j = torch.triu_indices(n, n, 1, device=self.logits.device)
        return i * n + j

    def _check_relaxable(self):
        if self.components > 1 or self.is_sparse:
            raise NotImplementedError(
                "relax: there is no relaxation of spanning forests or of sparse graphs, only of dense trees"
            )

    def _relax(self, scores, kind):
        from gumtrace.relaxations.trees import spanning_tree_marginals

        return spanning_tree_marginals(scores, self._lengths)


class SpanningTreeWords(EdgeWords):
    @property
    def nodes(self):
        """Without the padding of a matrix."""
        geometry = self.trace.layout.geometry
        return geometry.n if geometry.edges is not None else len(self.order()) + geometry.extra

    def ends(self, key):
        edges = self.trace.layout.geometry.edges
        return super().ends(key) if edges is None else tuple(edges[:, key].tolist())

    def edges(self) -> dict[int, tuple[int, int]]:
        """The keys that are edges of the graph, with their ends."""
        n, listed = self.nodes, self.trace.layout.geometry.edges is not None
        ends = {key: self.ends(key) for key in range(self.trace.layout.geometry.keys)}
        return {key: (u, v) for key, (u, v) in ends.items() if listed or u < v < n}

    def race(self, decision, keys):
        return f"edges between {len(self.order()) + self.trace.layout.geometry.extra - decision} parts"


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


class SparseForestSupport(Support):
    """0/1 vectors over the edges of a graph that are forests with `components` trees, of edges that race."""

    def __init__(self, racing: Tensor, edges: Tensor, nodes: Tensor, components: int):
        self.racing = racing
        self.edges, self.nodes, self.components = edges, nodes, components
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        right = binary(value, self.racing).all(-1) & (count(value) == self.nodes - self.components)
        flat = value.reshape(right.numel(), value.shape[-1])
        acyclic = torch.tensor([_acyclic(self.edges[:, row > 0.5].tolist()) for row in flat], dtype=torch.bool)
        return right & acyclic.reshape(right.shape).to(right.device)


def _checked_components(components: int) -> int:
    if checks.integer("SpanningTree", "components", components) < 1:
        raise ValueError(f"SpanningTree: components must be at least 1, got {components}")
    return int(components)


def _checked_edges(edge_index: Tensor, nodes: int) -> Tensor:
    if not torch.is_tensor(edge_index):
        raise TypeError(f"SpanningTree: edge_index must be a tensor, got {type(edge_index).__name__}")
    integers = not edge_index.is_floating_point() and edge_index.dtype != torch.bool
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or not integers:
        kind = f"{edge_index.dtype} {tuple(edge_index.shape)}"
        raise ValueError(f"SpanningTree: edge_index must be integers (2, E), got {kind}")
    edge_index = edge_index.long()  # of which the kernels get a copy in int32
    if ops.is_traced([edge_index]) and nodes > 0:
        return edge_index.clamp(0, nodes - 1)  # kernels trust them, and values cannot be read now
    bad = ((edge_index < 0) | (edge_index >= nodes)).any(0).nonzero()
    if len(bad) > 0:
        edge = int(bad[0])
        ends = edge_index[:, edge].tolist()
        raise ValueError(f"SpanningTree: edge {edge} = {ends} names a node outside 0..{nodes - 1}")
    return edge_index


def _acyclic(edges: list[list[int]]) -> bool:
    root = {node: node for ends in edges for node in ends}

    def find(v: int) -> int:
        while root[v] != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    for u, v in zip(*edges, strict=True):
        if find(u) == find(v):
            return False
        root[find(u)] = find(v)
    return True
