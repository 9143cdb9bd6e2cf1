"""What a kernel must know of a structure: its kind, its sizes, and the edges where the graph is sparse."""

from typing import Any, NamedTuple

SUBSET, PERMUTATION, MATCHING, SPANNING_TREE, SPARSE_TREE, ARBORESCENCE, BINARY_TREE, EXPLICIT = range(8)
OK, STUCK, NOT_A_NUMBER, SOME_IDLE = range(4)  # what the status of an item says
ATTEMPTS = 16  # draws of an arborescence's G | T before the last one is kept as it is; rounding breaks one in 10^5
DEVICE_ATTEMPTS = 5  # the same on a GPU, where each one is three launches for the whole batch, needed or not


class Geometry(NamedTuple):
    """The event of one item, as the kernels see it: `keys` flat keys; n, m and `extra` mean what the kind says they
    mean."""

    kind: int
    keys: int
    decisions: int  # the most decisions an item can have
    winner_slots: int  # integers a trace keeps: the winner of each decision (a binary tree needs none),
    link_slots: int  # and where decisions hang together in more than a chain, how
    n: int  # nodes, rows or tokens; Subset: k
    m: int = 0  # columns
    extra: int = 0  # SpanningTree: components; Arborescence: root
    edges: Any = None  # (2, E) int32 on the CPU, sparse graphs only
