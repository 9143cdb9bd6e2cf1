"""What several test files need."""

import torch

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


def rebuild(dist, logits, **kwargs):
    """The same kind of distribution with other logits."""
    settings = {name: getattr(dist, name) for name in dist.settings}
    if isinstance(dist, gt.SparseSpanningTree):
        return gt.SpanningTree.from_edges(logits, dist._edges, dist._num_nodes, **settings, **kwargs)
    return type(dist)(logits, **settings, **kwargs)


def name_only(x):
    """Test ids: the name of a case, and nothing for its other parts."""
    return x if isinstance(x, str) else ""
