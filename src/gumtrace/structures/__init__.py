"""One file per structure, all in the same order; `base` holds what they share, `custom` the paper's general algorithm.

The lists below are the only ones: `gumtrace` exports these names; the explorer, the site and the tests go through
`ALL`, where those of graphs given by edges, those under constraints and the one of sharded keys belong to the plain
ones. Beside them are the errors that structures raise, each a ValueError.
"""

from gumtrace.structures.arborescence import Arborescence
from gumtrace.structures.base import Structure as Structure
from gumtrace.structures.batched_spanning_tree import BatchedSpanningTree
from gumtrace.structures.binary_tree import BinaryTree
from gumtrace.structures.checks import NotFinite as NotFinite
from gumtrace.structures.constrained_forest import ConstrainedForest
from gumtrace.structures.custom import Custom
from gumtrace.structures.finite import TooManyTraces as TooManyTraces
from gumtrace.structures.matching import Matching
from gumtrace.structures.permutation import Permutation
from gumtrace.structures.sharded_subset import ShardedSubset
from gumtrace.structures.spanning_tree import SpanningTree
from gumtrace.structures.sparse_spanning_tree import SparseSpanningTree
from gumtrace.structures.subset import Subset

__all__ = [
    "Arborescence",
    "BatchedSpanningTree",
    "BinaryTree",
    "ConstrainedForest",
    "Custom",
    "Matching",
    "Permutation",
    "ShardedSubset",
    "SpanningTree",
    "SparseSpanningTree",
    "Subset",
]

ALL: tuple[type[Structure], ...] = (Subset, Permutation, Matching, SpanningTree, Arborescence, BinaryTree, Custom)
