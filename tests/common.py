"""What several test files need."""

import torch
import twins

import gumtrace as gt
from gumtrace.kernels.cpu import ops

FALSE_ALARM = 1e-6  # of every statistical test; seeds are fixed, so a green one stays green


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def incidence(trace):
    """(decisions, keys) 0/1 of one trace: who raced where."""
    geometry = trace.layout.geometry
    eye = torch.eye(geometry.keys, dtype=torch.float64)
    rows = [x.reshape(1, -1).expand(geometry.keys, -1) for x in (trace.choices, trace.links)]
    zeros = torch.zeros(geometry.keys, geometry.decisions, dtype=torch.float64)
    return ops.to_decisions(geometry, *rows, zeros, torch.zeros_like(eye), eye).T


def decisions(trace, dist, ordered):
    """The decisions of one trace as (winner, members) pairs: a list in order, or a set where many race at once."""
    A = incidence(trace) * dist.racing.flatten()  # the kernels may list keys that do not race: their rate is zero
    races = [(w, frozenset(A[b].nonzero().flatten().tolist())) for b, w in enumerate(trace.winners.tolist())]
    pairs = [(w, members) for w, members in races if w >= 0]
    assert all(w in members for w, members in pairs)
    return pairs if ordered else set(pairs)


def edge_list(edge_index):
    return dict(enumerate(zip(*edge_index.tolist(), strict=True)))


def structures(dtype=torch.float64, seed=0, scale=1.0):
    """(name, distribution, its literal twin, ordered), one small item of each kind."""
    g = seeded(seed)

    def randn(*shape):
        return scale * torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    edges = torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 1]])  # the last one is a loop
    return [
        ("subset", gt.Subset(randn(5), 2), twins.Subset(5, 2), True),
        ("subset-empty", gt.Subset(randn(4), 0), twins.Subset(4, 0), True),
        ("permutation", gt.Permutation(randn(4)), twins.Permutation(4), True),
        ("matching", gt.Matching(randn(3, 3)), twins.Matching(3, 3), True),
        ("matching-wide", gt.Matching(randn(2, 4)), twins.Matching(2, 4), True),
        ("tree", gt.SpanningTree(randn(4, 4)), twins.Kruskal.dense(4), True),
        ("forest", gt.SpanningTree(randn(4, 4), components=2), twins.Kruskal.dense(4, components=2), True),
        ("sparse", gt.SpanningTree.from_edges(randn(6), edges, 4), twins.Kruskal(edge_list(edges), 4), True),
        ("arborescence", gt.Arborescence(randn(4, 4)), twins.ChuLiuEdmonds(4), False),
        ("arborescence-root", gt.Arborescence(randn(3, 3), root=2), twins.ChuLiuEdmonds(3, root=2), False),
        ("binary", gt.BinaryTree(randn(4)), twins.BinaryTree(4), False),
    ]


def rebuild(dist, logits, **kwargs):
    """The same kind of distribution with other logits."""
    if isinstance(dist, gt.Subset):
        return gt.Subset(logits, dist.k, **kwargs)
    if isinstance(dist, gt.SpanningTree) and dist._edges is not None:
        return gt.SpanningTree.from_edges(logits, dist._edges, dist._num_nodes, dist.components, **kwargs)
    if isinstance(dist, gt.SpanningTree):
        return gt.SpanningTree(logits, dist.components, **kwargs)
    if isinstance(dist, gt.Arborescence):
        return gt.Arborescence(logits, dist.root, **kwargs)
    return type(dist)(logits, **kwargs)


def name_only(x):
    """Test ids: the name of a case, and nothing for its other parts."""
    return x if isinstance(x, str) else ""
