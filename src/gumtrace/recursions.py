"""Two algorithms for `Custom` that are not in the paper, to use and to learn from."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class MaximalIndependentSet:
    """A random maximal independent set: the first node to win enters, its neighbours leave, and so on until no node
    is left.

    Args:
        adjacency: (n, n), nonzero where two nodes are neighbours.

    The keys are the nodes; the value is 0/1, 1 = in the set.

    >>> import gumtrace as gt
    >>> path = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> d = gt.Custom(torch.tensor([0.0, 5.0, 0.0]), MaximalIndependentSet(path))
    >>> d.mode
    tensor([0., 1., 0.])
    """

    def __init__(self, adjacency: Tensor):
        self.neighbours = _neighbours(adjacency)

    def start(self):
        return range(len(self.neighbours)), None

    def stop(self, K, R) -> bool:
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        (winner,) = winners
        return K - self.neighbours[winner] - {winner}, None


class CentreClustering:
    """A random clustering of a graph: in every connected part of what is left one node becomes a centre and takes its
    neighbours with it.

    Args:
        adjacency: (n, n), nonzero where two nodes are close enough to share a cluster.

    The keys are the nodes; the value is the centre of each node's cluster, -1 for nodes that do not race. All parts
    race at once: this is what `split` is for, and decisions in different parts are independent.

    >>> import gumtrace as gt
    >>> path = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
    >>> d = gt.Custom(torch.tensor([0.0, 9.0, 0.0, 0.0]), CentreClustering(path))
    >>> d.mode
    tensor([1, 1, 1, 3])
    """

    def __init__(self, adjacency: Tensor):
        self.neighbours = _neighbours(adjacency)

    def start(self):
        return range(len(self.neighbours)), None

    def stop(self, K, R) -> bool:
        return not K

    def split(self, K, R) -> Sequence[Iterable[int]]:
        parts, left = [], set(K)
        while left:
            part, edge = set(), {min(left)}
            while edge:
                part |= edge
                edge = set().union(*(self.neighbours[v] for v in edge)) & left - part
            parts.append(part)
            left -= part
        return parts

    def map(self, K, R, winners):
        return K - set(winners) - set().union(*(self.neighbours[w] for w in winners)), None

    def combine(self, X, K, R, winners) -> Tensor:
        labels = torch.full((len(self.neighbours),), -1) if X is None else X
        for winner in winners:
            taken = sorted((self.neighbours[winner] | {winner}) & K)
            labels[taken] = winner
        return labels


def _neighbours(adjacency: Tensor) -> list[set[int]]:
    if adjacency.dim() != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise ValueError(f"adjacency must be a square matrix, got shape {tuple(adjacency.shape)}")
    near = (adjacency != 0) | (adjacency != 0).mT
    return [set(row.nonzero().flatten().tolist()) - {v} for v, row in enumerate(near)]
