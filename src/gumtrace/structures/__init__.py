"""One file a structure, all in the same order; `base` holds what they share, `custom` the paper's general algorithm.

`ALL` is the one list of them: the explorer, the fuzzer and the tests go through it.
"""

from gumtrace.structures.arborescence import Arborescence
from gumtrace.structures.base import Structure
from gumtrace.structures.binary_tree import BinaryTree
from gumtrace.structures.custom import Custom
from gumtrace.structures.matching import Matching
from gumtrace.structures.permutation import Permutation
from gumtrace.structures.spanning_tree import SpanningTree
from gumtrace.structures.subset import Subset

ALL: tuple[type[Structure], ...] = (
    Subset,
    Permutation,
    Matching,
    SpanningTree,
    Arborescence,
    BinaryTree,
    Custom,
)
