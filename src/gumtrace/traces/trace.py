"""A trace: the decisions of an algorithm, in as few integers as determine them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gumtrace.kernels import ops
from gumtrace.kernels.geometry import geometry_on
from gumtrace.kernels.operators import is_traced


@dataclass(frozen=True)
class Layout:
    """What a structure's traces have in common: the kernels' view of an event, and how a trace becomes a value."""

    structure: type[Any]  # the distribution's class, which describes how its traces are named and drawn
    geometry: Any  # its sizes, one of the classes in `gumtrace.kernels.geometry`
    event_shape: torch.Size  # of the keys: logits and G
    dtype: torch.dtype  # of 0/1 values
    to_value: Callable[["Trace"], Tensor]
    algorithms: tuple[Any, ...] = ()  # of a user's recursion: only their own traces fit it


class _Owner:
    """Identity token: own traces skip validation."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The decisions of runs of an algorithm: integers only, no autograd state. Leading dimensions are sample + batch.

    Distributions make them: `sample_trace`, `trace`, `enumerate_traces`.

    A chain (subsets, permutations, matchings, spanning trees) is its winners in order of choice. A binary tree is the
    parent of each node, an arborescence the winner of each supernode and the cycle it was contracted into.
    """

    layout: Layout
    choices: Tensor  # (*S, winner_slots) int32: key that won each decision, -1 for none
    links: Tensor  # (*S, link_slots) int32
    owner: Any = None  # token of the distribution that made it, which need not validate it
    _versions: Any = field(init=False, repr=False, default=None)  # of the tensors, when it was made

    def __post_init__(self) -> None:
        if self.owner is not None:
            object.__setattr__(self, "_versions", self._current_versions())

    def _current_versions(self) -> list[int] | None:
        """Counts of the in-place writes to its tensors; None where torch keeps none."""
        if is_traced([self.choices, self.links]):
            return None
        return [-1 if x.is_inference() else x._version for x in (self.choices, self.links)]

    def made_by(self, owner: Any) -> bool:
        """Whether the distribution that has this token made it, and nothing was written into it since."""
        return self.owner is owner and self._versions == self._current_versions()

    @property
    def value(self) -> Tensor:
        """The structure X."""
        return self.layout.to_value(self)

    @property
    def winners(self) -> Tensor:
        """(*S, decisions) long: the key that won each decision, -1 where there was none."""
        if self._links_only:
            nodes = torch.arange(self.links.shape[-1], device=self.links.device)
            return torch.where(self.links >= -1, nodes, -1)
        return self.choices.long()

    @property
    def _links_only(self) -> bool:
        """Whether decisions are the keys themselves (a binary tree): winners need no slots, as links determine all."""
        return self.layout.geometry.winner_slots < self.layout.geometry.decisions

    def edges(self) -> Tensor:
        """(*S, 2, E) long: the two ends of each edge of a tree, forest or matching, as graph libraries have them, -1
        where an item has fewer edges.

        In order of choice for spanning trees, forests and matchings (row, column); from parent to child for
        arborescences and binary trees.

        >>> from gumtrace import SpanningTree
        >>> logits = torch.tensor([[0.0, 90.0, 0.0], [0.0, 0.0, 50.0], [0.0, 0.0, 0.0]])
        >>> SpanningTree(logits).sample_trace().edges()
        tensor([[0, 1],
                [1, 2]])
        """
        return self.layout.structure.edges_of(self)

    def labels(self) -> Tensor:
        """(*S, n) long: the tree of a spanning forest that each node is in, 0 for that of node 0 and so on; -1 in
        padding.

        >>> from gumtrace import SpanningTree
        >>> near = torch.tensor([[0.0, 0.0, 90.0, 0.0], [0.0, 0.0, 0.0, 90.0], [0.0] * 4, [0.0] * 4])
        >>> SpanningTree(near, components=2).sample_trace().labels()
        tensor([0, 1, 0, 1])
        """
        return self.layout.structure.labels_of(self)

    def to_networkx(self, names: Any = None) -> Any:
        """One trace as a graph of networkx, which must be installed: directed for arborescences and binary trees.

        Args:
            names: what nodes are called, a pair (rows, columns) for matchings. By default nodes are numbers, and
                columns follow the rows.

        >>> from gumtrace import SpanningTree
        >>> sorted(SpanningTree(torch.zeros(2, 2)).sample_trace().to_networkx(["a", "b"]).edges)
        [('a', 'b')]
        """
        return self.layout.structure.networkx_of(self, names)

    @property
    def shape(self) -> torch.Size:
        """sample + batch."""
        return torch.Size(self.links.shape)[:-1]  # of some subclasses of Tensor, a tuple

    @property
    def device(self) -> torch.device:
        """Where its integers are: that of the logits."""
        return self.links.device

    def rows(self) -> tuple[Tensor, Tensor]:
        """Choices and links with sample + batch flattened, as kernels take them."""
        if self.links.dim() == 2:
            return self.choices, self.links
        items = self.shape.numel()
        return self.choices.reshape(items, self.choices.shape[-1]), self.links.reshape(items, self.links.shape[-1])

    def equals(self, other: "Trace") -> Tensor:
        """(*S) bool: the same decisions. Supernodes of an arborescence are numbered by the decisions alone, so there
        it is the same set."""
        same = _same_rows(self.choices, other.choices)
        if self._links_only:
            same = same & _same_rows(self.links, other.links)
        return same

    def to(self, device: torch.device | str) -> "Trace":
        """The same trace on another device."""
        layout = replace(self.layout, geometry=geometry_on(self.layout.geometry, device))
        return Trace(layout, self.choices.to(device), self.links.to(device))

    def clone(self) -> "Trace":
        """A copy: what is written into it leaves this one as it is."""
        owner = self.owner if self.made_by(self.owner) else None  # whoever wrote into this one has it checked
        return Trace(self.layout, self.choices.clone(), self.links.clone(), owner)

    def __getitem__(self, index) -> "Trace":
        """`trace[i]`: some of the sample and batch dimensions, indexed as a tensor's.

        >>> from gumtrace import Subset
        >>> traces = Subset(torch.zeros(32, 5), k=2).sample_trace((4,))
        >>> len(traces), traces[0].shape, traces[:, 3].shape, traces[0, 3].value.shape
        (4, torch.Size([32]), torch.Size([4]), torch.Size([5]))
        """
        if len(self.shape) == 0:
            raise IndexError("a single trace cannot be indexed: it has neither sample nor batch dimensions")
        index = index if isinstance(index, tuple) else (index,)
        if not any(i is Ellipsis for i in index):
            index = (*index, ...)
        choices, links = (x[(*index, slice(None))] for x in (self.choices, self.links))
        return Trace(self.layout, choices, links)

    def __len__(self) -> int:
        """`len(trace)`: the size of the first sample or batch dimension."""
        if len(self.shape) == 0:
            raise TypeError("a single trace has no length: it has neither sample nor batch dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Trace(shape={tuple(self.shape)}, decisions={self.layout.geometry.decisions})"


def _same_rows(a: Tensor, b: Tensor) -> Tensor:
    """Equal last dimensions; where the lengths differ (a user's recursion has no fixed number of decisions) the rest
    must be -1."""
    width = max(a.shape[-1], b.shape[-1])
    a, b = (torch.nn.functional.pad(x, (0, width - x.shape[-1]), value=-1) for x in (a, b))
    return (a == b).all(-1)


def indicator(trace: Trace) -> Tensor:
    """0/1 over the keys: 1 = winner; symmetric for a dense spanning tree."""
    layout = trace.layout
    rows = ops.indicator(layout.geometry, trace.rows()[0], layout.dtype)
    return rows.reshape(*trace.shape, *layout.event_shape)
