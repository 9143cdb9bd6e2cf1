"""Kruskal's algorithm on a batch of graphs, each given by its own edges."""

from gumtrace.kernels.cpu.hooks import list_groups, trace_item
from gumtrace.kernels.cpu.sparse_tree import kruskal, list_by_merge
from gumtrace.kernels.geometry import BatchedSpanningTreeGeometry


@trace_item.of(BatchedSpanningTreeGeometry)
def _trace(geometry, g, graph, winners, links):
    links[0] = graph
    edges = geometry.edges[graph]
    return kruskal(edges, g, edges[0, geometry.keys], geometry.components, winners)


@list_groups.of(BatchedSpanningTreeGeometry)
def _list_groups(geometry, winners, links, keys, offsets, parent, decision):
    last = geometry.edges.shape[0] - 1
    edges = geometry.edges[min(max(links[0], 0), last)]  # anyone may write into a trace, and items without one have -1
    nodes = edges[0, geometry.keys]
    return list_by_merge(edges, geometry.keys, nodes, winners, keys, offsets, parent, decision)
