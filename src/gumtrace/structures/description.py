"""The description of a structure: its own file overrides what differs, and no other module checks its type."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.structures import checks
from gumtrace.structures.edges import networkx_graph
from gumtrace.structures.replay import Choose
from gumtrace.structures.words import Names, Words
from gumtrace.traces.trace import Layout, Trace


class Description(Distribution):
    """The attributes and hooks in which structures differ, each with what holds for most of them.

    What is imported only when used is named as "module:object": the modules are of higher layers, and some need an
    extra.
    """

    settings: ClassVar[Sequence[str]] = ()  # attributes, besides lengths, that make it another distribution
    has_log_prob: bool = False  # whether `log_prob` of a structure is known
    has_distinct_kernel: ClassVar[bool] = False  # whether a kernel draws its distinct traces
    directed: ClassVar[bool] = False  # whether its edges have a direction
    is_indicator: bool = True  # a value is 0/1 over the keys: 1 for those that are chosen
    symmetric: bool = False  # keys (u, v) and (v, u) are one edge: values and critics' noise are symmetric matrices
    maximises_sum: ClassVar[bool] = False  # its first m winners have the largest sum of G of m keys that it can choose
    decisions_are_keys: ClassVar[bool] = False  # decision b is the one that key b won: the winner says which it is
    is_sharded: bool = False  # its keys are on several ranks, and values, noise and logits are the pieces of this one
    one_to_one: bool = False  # a value has one trace, which says no more than the value
    relaxations: ClassVar[Sequence[str]] = ()  # kinds that `gumtrace.relax` takes, the default first
    drawing: ClassVar[str] = "gumtrace.plotting.rows:decisions"  # of a trace: (axes, words, chances of keys)
    panel: ClassVar[str] = "gumtrace.plotting.panels:keys"  # of a decision: (axes, panel, caption)
    story: ClassVar[str | None] = None  # its `Story` in the explorer
    _per_item: ClassVar[Sequence[str]] = ("_sizes", "_lengths")  # attributes that are one for all items, (), or (*B,)

    logits: Tensor
    _lengths: Tensor | None
    _layout: Layout

    # Shapes ----------------------------------------------------------------------------------------

    @property
    def key_shape(self) -> torch.Size:
        """Of the keys: what logits and noise have behind the batch shape."""
        return self._layout.event_shape

    def _value_shape(self, key_shape: torch.Size) -> torch.Size:
        return key_shape

    def _max_length(self, key_shape: torch.Size) -> int:
        """The greatest length an item can have."""
        return min(key_shape) if len(key_shape) > 0 else 0  # `default=` is not traced by torch.compile

    def _unpadded_mask(self, key_shape: torch.Size) -> Tensor | None:
        """Keys none of whose indices lies in the padding."""
        if self._lengths is None:
            return None
        keep = torch.ones((), dtype=torch.bool, device=self.logits.device)
        for axis, size in enumerate(key_shape):
            index = torch.arange(size, device=self.logits.device).view(-1, *[1] * (len(key_shape) - axis - 1))
            keep = keep & (index < self._lengths[(..., *[None] * len(key_shape))])
        return keep

    def _trace_layout(self, key_shape: torch.Size) -> tuple[Layout, Tensor | None]:
        """The layout of traces, and the size of each item that its kernel needs (k, or a number of nodes), (*B,); None
        where all items have the layout's."""
        raise NotImplementedError

    @classmethod
    def words(cls, trace: Trace, names: Names | None = None) -> Words:
        """Names for the keys and races of one trace."""
        return Words(trace, names)

    @classmethod
    def edges_of(cls, trace: Trace) -> Tensor:
        """`trace.edges()`, where keys are edges."""
        raise NotImplementedError(f"{cls.__name__}: its keys are no edges; trace.winners has their numbers")

    @classmethod
    def labels_of(cls, trace: Trace) -> Tensor:
        """`trace.labels()`, where there are clusters."""
        raise NotImplementedError(f"{cls.__name__}: it has no clusters; forests of SpanningTree(components=...) do")

    @classmethod
    def networkx_of(cls, trace: Trace, names: Any) -> Any:
        """`trace.to_networkx(names)`."""
        return networkx_graph(trace, names)

    def value_entries(self) -> Tensor | None:
        """Indices into a flattened 0/1 value of the entries that are neither always 0 nor copies of another; None for
        all of them. The same whatever is masked, and found without synchronising, as `nonzero` of a mask would."""
        return None

    # The algorithm ---------------------------------------------------------------------------------

    def _run_with(self, choose: Choose) -> Any:
        """Run the algorithm of an unbatched item with `choose` in place of the argmin; returns winners and links, or
        what its own `_pack` takes. For enumeration."""
        raise NotImplementedError

    def _run_on_rates(self, choose: Callable[[Sequence[int], Sequence[float]], int]) -> Any:
        """`_run_with`, where `choose` gets the log-rates of all keys, too."""
        log_rates = cast(Any, self).log_rates.detach().double().flatten().tolist()
        return self._run_with(lambda keys: choose(keys, log_rates))

    def _run_a_value(self) -> Iterator[Any] | None:
        """Runs of an unbatched item that give each structure once, and None for those that led nowhere; None in place
        of all of them if only the list of all runs is known."""
        return None

    def _count_values(self) -> int | None:
        """How many structures an unbatched item has, where that is easily said."""
        return None

    def _items_are_alike(self) -> bool:
        """Whether all items of the batch have the same structures: the same keys race, and all else is equal."""
        racing = cast(Any, self).racing.reshape(self.batch_shape.numel(), -1)
        sizes = [x.flatten() for name in self._per_item if (x := getattr(self, name)) is not None and x.dim() > 0]
        return all(bool((x == x[:1]).all()) for x in (racing, *sizes))

    @property
    def _may_be_infeasible(self) -> bool:
        """Whether the algorithm may fail though all keys race."""
        return False

    def _infeasible_message(self) -> str:
        """What it means that the algorithm of an item cannot be completed. Most can always be."""
        return "cannot be completed"

    def _decision_counts(self) -> Tensor | None:
        """How many decisions each item has, (*B,) or (); None where that depends on the run."""
        return None

    def _count_decisions(self, trace: Trace) -> Tensor:
        return (trace.winners >= 0).sum(-1)

    def _is_complete(self, trace: Trace) -> Tensor:
        """(*S) bool: whether runs made with other keys racing leave nothing to decide here."""
        counts = self._decision_counts()
        if counts is None:
            return cast(Any, self.support).check(trace.value)
        return self._count_decisions(trace) == counts

    def _makes(self, trace: Trace) -> Tensor | bool:
        """(*S) bool: whether the algorithm can make these traces of one like it. Those of `mismatch` cannot differ."""
        return True

    def _valid_links(self, trace: Trace) -> bool:
        """Whether its links are numbers that the kernels can follow. A chain has none."""
        return True

    def _value_log_prob(self, value: Tensor) -> Tensor:
        """log P(X) of values sample + batch + event, where `has_log_prob`; -inf for those that cannot be."""
        raise NotImplementedError

    def loss_to_go(self, trace: Trace, terms: Tensor) -> Tensor:
        """Of each decision: its own term and those of the decisions after it, sample + batch + decisions."""
        return terms.flip(-1).cumsum(-1).flip(-1)

    def _check_losses(self, name: str, loss: Tensor) -> None:
        """Raises where losses cannot be right though each is a number."""

    # Comparisons -----------------------------------------------------------------------------------

    def mismatch(self, other: "Description") -> str | None:
        """Why this and another distribution are not over the same traces, None if they are: one algorithm on keys that
        mean the same. Which keys race, and how fast, may differ."""
        if type(self) is not type(other) or self.key_shape != other.key_shape:
            return f"{self} and {other} are not of one kind and size"
        compared = {"lengths": (self._item_lengths(), other._item_lengths())}
        compared |= {name: (getattr(self, name), getattr(other, name)) for name in self.settings}
        for name, (a, b) in compared.items():
            if not checks.agree(a, b):
                return f"both must have the same {name}, got {a} and {b}"
        if list(map(type, self._layout.algorithms)) != list(map(type, other._layout.algorithms)):
            return f"{self} and {other} run different algorithms"
        return None

    @property
    def unconstrained(self) -> "Description":
        """The same distribution without constraints; itself where it has none."""
        return self

    def _item_lengths(self) -> Tensor | int:
        return self._max_length(self.key_shape) if self._lengths is None else self._lengths

    # Relaxations -----------------------------------------------------------------------------------

    def _check_relaxable(self) -> None:
        """Raises where this one distribution has no relaxation though others of the structure do."""

    def _relax(self, scores: Tensor, kind: str) -> Tensor:
        """The soft value for scores G / temperature, -inf at keys that do not race; `kind` is one of `relaxations`."""
        raise NotImplementedError


def load(name: str) -> Any:
    """What a description names as "module:object"."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
