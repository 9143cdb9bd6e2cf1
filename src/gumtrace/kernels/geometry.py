"""What kernels must know of a structure: one class of sizes for each, whose type chooses the code that is compiled.

The first four fields are the same everywhere:

    keys            flat keys of an item
    decisions       the most decisions an item can have
    winner_slots    integers a trace keeps: the winner of each decision (a binary tree needs none),
    link_slots      and, where decisions depend on each other in more than a chain, how

`code` is its number for operators of torch, and `module` the file of its kernel in each backend.
`sizes` of a batch are k for subsets, numbers of nodes for trees, and the number of its graph where each item has one;
`default_size` is that of items without one.
"""

from typing import Any, NamedTuple

from torch import Tensor

OK, STUCK, NOT_A_NUMBER, SOME_IDLE = range(4)  # the status of an item; idle: some key does not race
ATTEMPTS = 16  # draws of an arborescence's G | T before the last one is kept as it is; rounding breaks one in 10^5
DEVICE_ATTEMPTS = 5  # the same on a GPU, where each one is three launches for the whole batch, needed or not


class SubsetGeometry(NamedTuple):
    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    k: int  # the largest of the batch
    code = 0
    module = "subset"

    @property
    def default_size(self) -> int:
        return self.k


class PermutationGeometry(NamedTuple):
    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    code = 1
    module = "subset"
    default_size = 0


class MatchingGeometry(NamedTuple):
    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    rows: int
    columns: int
    code = 2
    module = "matching"
    default_size = 0


class SpanningTreeGeometry(NamedTuple):
    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    nodes: int
    components: int
    code = 3
    module = "spanning_tree"

    @property
    def default_size(self) -> int:
        return self.nodes


class SparseSpanningTreeGeometry(NamedTuple):
    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    nodes: int
    components: int
    edges: Any  # (2, E) int32, on the device of the logits
    code = 4
    module = "sparse_tree"

    @property
    def default_size(self) -> int:
        return self.nodes


class ArborescenceGeometry(NamedTuple):
    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    nodes: int
    root: int
    code = 5
    module = "arborescence"

    @property
    def default_size(self) -> int:
        return self.nodes


class BinaryTreeGeometry(NamedTuple):
    """Decision i is the one that token i wins, and links[i] is its parent: -1 for the root, -2 for none."""

    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    code = 6
    module = "binary_tree"
    default_size = 0


class CustomGeometry(NamedTuple):
    """A user's recursion: links hold the forest of groups, see `cpu.recursion`."""

    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    code = 7
    module = "recursion"
    default_size = 0


class BatchedSpanningTreeGeometry(NamedTuple):
    """Graphs of at most so many edges. An item's size is the number of its graph, which its trace has as the link.

    A row of edges: those of the graph, then loops as padding up to as many as the largest graph has; the last column is
    how many nodes it has.
    """

    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    nodes: int  # the most of them
    components: int
    edges: Any  # (graphs, 2, E + 1) int32, on the device of the logits
    code = 8
    module = "graph_batch"
    default_size = 0


class ConstrainedForestGeometry(NamedTuple):
    """Forests under constraints. An item's size is the number of its constraints, which its trace has as the link.

    A row of constraints: who may not be joined (n n), the must-linked group of each node (n), how many nodes.
    """

    keys: int
    decisions: int
    winner_slots: int
    link_slots: int
    nodes: int
    components: int
    constraints: Any  # (items, n n + n + 1) int32 on the CPU
    code = 9
    module = "constrained_forest"
    default_size = 0


class SubsetShardGeometry(NamedTuple):
    """Some consecutive keys of a subset whose other keys are elsewhere. `winners` of a whole trace have the number of
    keys here where the winner is elsewhere; those found here alone, -1 behind the last. Links are the bits of the
    winners' G in float64: they have yet to race against those of the others."""

    keys: int  # here
    decisions: int
    winner_slots: int
    link_slots: int
    k: int
    first: int  # the place of the first key here among all,
    total: int  # and how many there are: noise is drawn for the place
    code = 10
    module = "subset_shard"

    @property
    def default_size(self) -> int:
        return self.k


Geometry = (
    SubsetGeometry
    | PermutationGeometry
    | MatchingGeometry
    | SpanningTreeGeometry
    | SparseSpanningTreeGeometry
    | ArborescenceGeometry
    | BinaryTreeGeometry
    | CustomGeometry
    | BatchedSpanningTreeGeometry
    | ConstrainedForestGeometry
    | SubsetShardGeometry
)
_CLASSES = Geometry.__args__  # in the order of their codes
SYMMETRIC = SpanningTreeGeometry, ConstrainedForestGeometry  # keys (u, v), u < v, race: values have (v, u) as well
# Whose last field is a tensor. No union: torch.compile of torch 2.5 knows none.
WithTensor = SparseSpanningTreeGeometry, BatchedSpanningTreeGeometry, ConstrainedForestGeometry


def subset(d: int, k: int) -> SubsetGeometry:
    return SubsetGeometry(d, k, k, 0, k)


def subset_shard(keys: int, k: int, first: int, total: int) -> SubsetShardGeometry:
    return SubsetShardGeometry(keys, k, k, 2 * k, k, first, total)


def permutation(d: int) -> PermutationGeometry:
    return PermutationGeometry(d, d, d, 0)


def matching(rows: int, columns: int) -> MatchingGeometry:
    return MatchingGeometry(rows * columns, rows, rows, 0, rows, columns)


def spanning_tree(nodes: int, components: int = 1) -> SpanningTreeGeometry:
    steps = max(nodes - components, 0)
    return SpanningTreeGeometry(nodes * nodes, steps, steps, 0, nodes, components)


def sparse_tree(nodes: int, components: int, edges: Tensor) -> SparseSpanningTreeGeometry:
    steps = max(nodes - components, 0)
    return SparseSpanningTreeGeometry(edges.shape[1], steps, steps, 0, nodes, components, edges)


def graph_batch(nodes: int, components: int, edges: Tensor) -> BatchedSpanningTreeGeometry:
    steps = max(nodes - components, 0)
    return BatchedSpanningTreeGeometry(edges.shape[2] - 1, steps, steps, 1, nodes, components, edges)


def constrained_forest(nodes: int, components: int, constraints: Tensor) -> ConstrainedForestGeometry:
    steps = max(nodes - components, 0)
    return ConstrainedForestGeometry(nodes * nodes, steps, steps, 1, nodes, components, constraints)


def arborescence(nodes: int, root: int = 0) -> ArborescenceGeometry:
    """A slot for each node and each cycle that can be contracted."""
    slots = max(nodes, 2 * nodes - 2)
    return ArborescenceGeometry(nodes * nodes, slots, slots, slots, nodes, root)


def binary_tree(tokens: int) -> BinaryTreeGeometry:
    return BinaryTreeGeometry(tokens, tokens, 0, tokens)


def recursion(keys: int, decisions: int = 0, groups: int = 0) -> CustomGeometry:
    """For traces of at most so many decisions and groups; the last link is the number of the algorithm."""
    return CustomGeometry(keys, decisions, decisions, keys + 2 * groups + 1)


def flatten_geometry(geometry: Geometry) -> tuple[list[int], Tensor | None]:
    """Numbers, and edges or constraints, as operators of torch take them."""
    if isinstance(geometry, WithTensor):
        return [geometry.code, *geometry[:-1]], geometry[-1]
    return [geometry.code, *geometry], None


def geometry_on(geometry: Any, device: Any) -> Any:
    """With the edges of sparse graphs on a device, as their kernels read them there; constraints stay on the CPU."""
    if isinstance(geometry, (SparseSpanningTreeGeometry, BatchedSpanningTreeGeometry)):
        return geometry._replace(edges=geometry.edges.to(device))
    return geometry


def unflatten_geometry(numbers: list[int], edges: Tensor | None = None) -> Geometry:
    of = _CLASSES[numbers[0]]
    return of(*numbers[1:]) if edges is None else of(*numbers[1:], edges)
