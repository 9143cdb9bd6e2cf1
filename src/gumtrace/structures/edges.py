"""What graphs have in common: the ends of their edges, the components of forests, and networkx."""

import math
from typing import Any

import torch
from torch import Tensor

from gumtrace.extras import require
from gumtrace.traces.trace import Trace


def matrix_edges(trace: Trace) -> Tensor:
    """(*S, 2, decisions) long: row and column of each winner, -1 where there is none."""
    winners, columns = trace.winners, max(trace.layout.event_shape[-1], 1)
    ends = torch.stack([winners // columns, winners % columns], -2)
    return torch.where(winners[..., None, :] >= 0, ends, -1)


def component_labels(edges: Tensor, nodes: int) -> Tensor:
    """(*S, nodes) long: the number of each node's tree in a forest of edges (*S, 2, E), where -1 is none. Trees are
    numbered by their first nodes.

    In each round every tree takes its first edge to another one, so that at least half of them are gone: log(nodes)
    rounds, each of which follows pointers in log(nodes) steps. Nothing is read on the way.
    """
    shape = edges.shape[:-2]
    self = torch.arange(nodes, device=edges.device).expand(*shape, nodes)
    count, rounds = edges.shape[-1], max(nodes - 1, 0).bit_length()
    top = self
    if count > 0:
        number = torch.arange(count, device=edges.device).expand(*shape, count)
        some, (u, v) = (edges[..., 0, :] >= 0), edges.clamp(min=0).unbind(-2)
        for _ in range(rounds):
            a, b = top.gather(-1, u), top.gather(-1, v)  # the trees that an edge joins
            offered = torch.where(some & (a != b), number, count)
            first = self.new_full(self.shape, count)
            first = first.scatter_reduce(-1, a, offered, "amin").scatter_reduce(-1, b, offered, "amin")
            taken = first.clamp(max=count - 1)
            other = torch.where(first < count, a.gather(-1, taken) + b.gather(-1, taken) - self, self)
            both = other.gather(-1, other) == self  # two that took the same edge: the smaller one stays
            pointer = torch.where(both & (self < other), self, other)
            for _ in range(rounds):
                pointer = pointer.gather(-1, pointer)
            top = pointer.gather(-1, top)
    earliest = self.new_full(self.shape, nodes).scatter_reduce(-1, top, self, "amin").gather(-1, top)
    return ((earliest == self).cumsum(-1) - 1).gather(-1, earliest)


def count_trees(adjacency: Tensor, root: int = 0) -> int:
    """How many spanning trees directed away from the root a graph has, (n, n) numbers of edges u -> v; for a symmetric
    matrix, how many spanning trees. By the matrix-tree theorem, in floating point."""
    edges = adjacency.cpu().double()
    edges.fill_diagonal_(0.0)
    others = [v for v in range(len(edges)) if v != root]
    log_count = (edges.sum(0).diag() - edges)[others][:, others].logdet().item()
    return round(math.exp(min(log_count, 700.0)))


def networkx_graph(trace: Trace, names: Any = None) -> Any:
    """One trace as a graph of networkx; see `Trace.to_networkx`."""
    networkx = require("networkx", "test")
    if trace.shape:
        raise ValueError(f"to_networkx takes one trace, this is a batch of shape {tuple(trace.shape)}: index it first")
    structure = trace.layout.structure
    sources, targets = structure.words(trace, names).graph_nodes()
    graph = networkx.DiGraph() if structure.directed else networkx.Graph()
    graph.add_nodes_from(sources.values())
    graph.add_nodes_from(targets.values())
    graph.add_edges_from((sources[u], targets[v]) for u, v in trace.edges().mT.tolist() if u >= 0)
    return graph
