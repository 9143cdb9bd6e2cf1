"""Spanning trees and forests of sparse graphs, given by their edges: Kruskal's algorithm, as in `spanning_tree`."""

from collections.abc import Iterable
from functools import cached_property
from itertools import repeat

import torch
from torch import Tensor
from torch.nn.functional import pad

from gumtrace.kernels import geometry
from gumtrace.kernels.operators import is_traced
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.spanning_tree import SpanningTree, SpanningTreeWords, checked_components
from gumtrace.structures.support import Support, binary, count
from gumtrace.traces.trace import Layout, indicator


class SparseSpanningTree(SpanningTree):
    """A spanning tree of a sparse graph, or a spanning forest; also made by `SpanningTree.from_edges`.

    Args:
        logits: (*B, E), one for each edge; the graph is the same for the whole batch.
        edge_index: (2, E) node numbers. Loops never race, parallel edges are keys of their own.
        num_nodes: how many nodes.
        components: how many trees; c > 1 gives random clusterings.
        lengths: node counts of ragged items: edges of later nodes do not race.
        mask, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is 0/1 over the edges, (*B, E). A sample costs O(E log n), and so does its log-probability.

    >>> edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 3]])
    >>> SparseSpanningTree(torch.tensor([1.0, 2.0, 30.0, 4.0]), edges, num_nodes=4).mode
    tensor([0., 1., 1., 1.])
    """

    has_log_prob = False
    symmetric = False
    relaxations = ()
    story = None

    def __init__(
        self,
        logits: Tensor,
        edge_index: Tensor,
        num_nodes: int,
        components: int = 1,
        *,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        self.components = checked_components("SparseSpanningTree", components)
        self._nodes = checks.integer("SparseSpanningTree", "num_nodes", num_nodes)
        checks.logits("SparseSpanningTree", logits, 1)
        self.logits = logits  # on which, as on validate_args, it depends whether edges may be read
        if validate_args is not None:
            self._validate_args = validate_args
        edges = checked_edges("SparseSpanningTree", edge_index, self._nodes, self._may_sync)
        self._edges = edges.to(logits.device, torch.int32, copy=True)  # users may write into theirs
        if logits.shape[-1] != edge_index.shape[1]:
            raise ValueError(f"SparseSpanningTree: logits {tuple(logits.shape)} do not fit {edge_index.shape[1]} edges")
        Structure.__init__(self, logits, 1, mask, lengths, validate_args)

    def constrained(self, must_link=None, cannot_link=None):
        raise NotImplementedError(
            f"{type(self).__name__}: only dense graphs take must-links and cannot-links; make a SpanningTree of logits "
            "(*B, n, n), with -inf where there is no edge"
        )

    @property
    def support(self):  # type: ignore[override]
        return SparseForestSupport(self.racing, self._edges, self.node_counts, self.components)

    @classmethod
    def words(cls, trace, names=None):
        return SparseSpanningTreeWords(trace, names)

    @classmethod
    def edges_of(cls, trace):
        winners, ends = trace.winners, trace.layout.geometry.edges.to(trace.device).long()
        ends = pad(ends, (0, 1), value=-1)  # the last one is none
        return ends[:, winners].movedim(0, -2)

    def _trace_layout(self, key_shape):
        sizes = geometry.sparse_tree(self._nodes, self.components, self._edges.contiguous())
        return Layout(type(self), sizes, key_shape, self.logits.dtype, indicator), self._lengths

    @property
    def _num_nodes(self) -> int:
        return self._nodes

    def _max_length(self, key_shape):
        return self._nodes

    def _unpadded_mask(self, key_shape):
        if self._lengths is None:
            return None
        return (self._edges < self._lengths[..., None, None]).all(-2)  # both ends

    @property
    def _may_be_infeasible(self) -> bool:
        return True

    @property
    def racing(self) -> Tensor:
        return (self._x.detach() > -torch.inf) & (self._edges[0] != self._edges[1])

    def _ends(self, key):
        u, v = self._edges[:, key].tolist()
        return u, v

    def mismatch(self, other):
        if type(other) is SparseSpanningTree and (
            self._nodes != other._nodes or not torch.equal(self._edges, other._edges.to(self._edges.device))
        ):
            return f"{self} and {other} are not over the same graph"
        return Structure.mismatch(self, other)

    def value_entries(self) -> Tensor | None:
        return None

    def _check_relaxable(self):
        raise NotImplementedError(
            "relax: sparse graphs have no relaxation; use a dense SpanningTree, or an estimator without one"
        )


class SparseSpanningTreeWords(SpanningTreeWords):
    @property
    def nodes(self):
        return self.trace.layout.geometry.nodes

    @property
    def graph(self) -> Tensor:
        """(2, E) of this trace's graph."""
        return self.trace.layout.geometry.edges

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The ends of each edge, read all at once: edges on a GPU would synchronise one by one."""
        u, v = self.graph.tolist()
        return list(zip(u, v, strict=True))

    def ends(self, key):
        return self.pairs[key]

    def edges(self):
        return {key: self.ends(key) for key in range(self.trace.layout.geometry.keys)}


class SparseForestSupport(Support):
    """0/1 vectors over the edges of a graph that are forests with `components` trees, of edges that race."""

    def __init__(self, racing: Tensor, edges: Tensor, nodes: Tensor, components: int):
        self.racing = racing
        self.edges, self.nodes, self.components = edges, nodes, components
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        right = binary(value, self.racing).all(-1) & (count(value) == self.nodes - self.components)
        value = value.expand(*right.shape, value.shape[-1]).reshape(right.numel(), value.shape[-1])
        rows = zip(self.graphs(right.shape), value, strict=True)
        acyclic = [_acyclic(edges[:, row > 0.5].tolist()) for edges, row in rows]
        return right & torch.tensor(acyclic, dtype=torch.bool, device=right.device).reshape(right.shape)

    def graphs(self, shape: torch.Size) -> Iterable[Tensor]:
        """The edges (2, E) of the graph of each value."""
        return repeat(self.edges, shape.numel())


def checked_edges(name: str, edge_index: Tensor, nodes: int, may_sync: bool = True) -> Tensor:
    """(2, E) long. Without reading them, what is outside is clamped: kernels trust them."""
    edge_index = edge_list(name, edge_index, nodes)
    if not may_sync or is_traced([edge_index]):
        return edge_index.clamp(0, max(nodes - 1, 0))
    bad = ((edge_index < 0) | (edge_index >= nodes)).any(0).nonzero()
    if len(bad) > 0:
        raise no_such_node(name, int(bad[0]), edge_index, nodes)
    return edge_index


def edge_list(name: str, edge_index: Tensor, nodes: int) -> Tensor:
    """(2, E) long, of which distributions keep a copy in int32."""
    if not torch.is_tensor(edge_index):
        raise TypeError(f"{name}: edge_index must be a tensor, got {type(edge_index).__name__}")
    integers = not edge_index.is_floating_point() and edge_index.dtype != torch.bool
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or not integers:
        kind = f"{edge_index.dtype} {tuple(edge_index.shape)}"
        raise ValueError(f"{name}: edge_index must be integers (2, E), got {kind}")
    if nodes < 1 and edge_index.shape[1] > 0:
        raise ValueError(f"{name}: {edge_index.shape[1]} edges of a graph with {nodes} nodes")
    if nodes > checks.MOST_KEYS:
        raise ValueError(f"{name}: {nodes} nodes are more than {checks.MOST_KEYS}, the most that edges can name")
    return edge_index.long()


def no_such_node(name: str, edge: int, edges: Tensor, nodes: int) -> ValueError:
    return ValueError(f"{name}: edge {edge} = {edges[:, edge].tolist()} names a node outside 0..{nodes - 1}")


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
