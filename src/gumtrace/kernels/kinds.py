"""What a kernel must know of a structure: its kind, its sizes, and the edges where the graph is sparse."""

from typing import NamedTuple

import numpy as np

SUBSET, PERMUTATION, MATCHING, SPANNING_TREE, SPARSE_TREE, ARBORESCENCE, BINARY_TREE, EXPLICIT = range(8)
NO_EDGES = np.empty((2, 0), np.int32)


class Geometry(NamedTuple):
    """The event of one item, as the kernels see it: `keys` flat keys; n, m and `extra` mean what the kind says they
    mean."""

    kind: int
    keys: int
    decisions: int  # the most decisions an item can have
    winner_slots: int  # integers a trace keeps: the winner of each decision (a binary tree needs none),
    link_slots: int  # and where decisions hang together in more than a chain, how
    n: int  # nodes, rows or tokens
    m: int  # columns
    extra: int  # SpanningTree: components; Arborescence: root
    edges: np.ndarray  # (2, E) int32, sparse graphs only
