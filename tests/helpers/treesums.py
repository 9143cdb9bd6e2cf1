"""What the tests of soft trees compare with: sums over all trees, heaviest trees by networkx, random scores."""

import itertools

import networkx as nx
import torch
from common import seeded

INF = torch.inf


def undirected(n):
    """All spanning trees of n nodes, (n^(n-2), n, n), in the upper triangle."""
    if n < 3:
        return torch.ones(1, n, n, dtype=torch.float64).triu(1)
    codes = itertools.product(range(n), repeat=n - 2)
    edges = [nx.from_prufer_sequence(list(code)).edges for code in codes]
    out = torch.zeros(len(edges), n, n, dtype=torch.float64)
    for tree, pairs in zip(out, edges, strict=True):
        for i, j in pairs:
            tree[min(i, j), max(i, j)] = 1
    return out


def directed(n, root):
    """All arborescences from the root: every spanning tree, turned away from it."""
    out = torch.zeros_like(undirected(n))
    for turned, tree in zip(out, undirected(n), strict=True):
        graph = nx.Graph(tree.numpy())
        for i, j in nx.bfs_edges(graph, root):
            turned[i, j] = 1
    return out


def reference(u, every):
    """Marginals by summing over every tree, in logarithms."""
    scores = torch.where(every > 0, torch.where(u.isneginf(), -1e12, u), 0.0).sum((-2, -1))
    return (scores.softmax(-1)[:, None, None] * every).sum(0)


def symmetric(u, every):
    upper = reference(u, every)
    return upper + upper.mT


def uniform(*shape, span=1.0, seed=0):
    return span * (2 * torch.rand(*shape, generator=seeded(seed), dtype=torch.float64) - 1)


def some_missing(u, seed=0):
    """Without a fifth of the edges; a path from 0 to the last node and back stays."""
    n = u.shape[-1]
    missing = torch.rand(u.shape, generator=seeded(seed)) < 0.2
    i = torch.arange(n - 1)
    missing[..., i, i + 1] = False
    missing[..., i + 1, i] = False
    return torch.where(missing, -INF, u)


def heaviest(u, root=None):
    """The 0/1 matrix of the tree of the largest sum, by networkx."""
    n = len(u)
    out = torch.zeros(n, n, dtype=u.dtype)
    if root is None:
        graph = nx.Graph([(i, j, {"weight": u[i, j].item()}) for i in range(n) for j in range(i + 1, n)])
        for i, j in nx.maximum_spanning_edges(graph, data=False):
            out[i, j] = out[j, i] = 1
        return out
    edges = [(i, j, {"weight": u[i, j].item()}) for i in range(n) for j in range(n) if i != j and j != root]
    for i, j in nx.maximum_spanning_arborescence(nx.DiGraph(edges), preserve_attrs=False).edges:
        out[i, j] = 1
    return out
