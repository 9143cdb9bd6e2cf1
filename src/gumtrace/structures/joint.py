"""Several structures for one loss: `torch.distributions.Independent` of a structure, as estimators take it."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from gumtrace.structures.base import Structure
from gumtrace.structures.distinct import Distinct, distinct_traces
from gumtrace.structures.replay import Choose, every_run
from gumtrace.traces.trace import Trace


def as_structure(name: str, dist: Distribution) -> Structure:
    """A structure as it is, and `Independent` of one as a distribution with the methods of a structure, whose items
    are all that `Independent` makes one event of; an error that `name` begins for anything else.

    >>> from gumtrace import Subset
    >>> d = as_structure("example", Independent(Subset(torch.zeros(5, 3, 4), 2), 1))
    >>> d.batch_shape, d.event_shape, d.trace_log_prob(d.sample_trace()).shape
    (torch.Size([5]), torch.Size([3, 4]), torch.Size([5]))
    """
    base, dims = split(name, dist)
    return cast(Structure, Joint(base, dims, validate_args=base._validate_args)) if dims else base


def split(name: str, dist: Distribution) -> tuple[Structure, int]:
    """The structure that is inside of `Independent`, which may be nested, and how many batch dimensions became event
    dimensions."""
    base: Any = dist
    dims = 0
    while isinstance(base, Independent):
        base, dims = base.base_dist, dims + base.reinterpreted_batch_ndims
    if not isinstance(base, Structure):
        what = type(base).__name__ if base is dist else f"Independent of {type(base).__name__}"
        raise TypeError(f"{name}: needs a structure, or torch.distributions.Independent of one; got {what}")
    return base, dims


class Joint(Independent):
    """The structures of an item as one event: probabilities are products over them, all else is that of each.

    Values, noise and keys have the dimensions of an item's structures in front, and so have traces.
    """

    base_dist: Structure

    @property
    def _structures(self) -> torch.Size:
        """How many structures an item has, in each of the dimensions."""
        return self.event_shape[: self.reinterpreted_batch_ndims]

    def _of(self, base: Structure) -> "Joint":
        return Joint(base, self.reinterpreted_batch_ndims, validate_args=base._validate_args)

    def _sum(self, of_each: Tensor) -> Tensor:
        return of_each.flatten(-self.reinterpreted_batch_ndims).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._sum(self.base_dist.log_prob(value))

    # An item's structures together -----------------------------------------------------------------

    @property
    def key_shape(self) -> torch.Size:
        return self._structures + self.base_dist.key_shape

    def trace_log_prob(self, trace: Trace) -> Tensor:
        return self._sum(self.base_dist.trace_log_prob(trace))

    def noise_log_prob(self, noise: Tensor) -> Tensor:
        return self._sum(self.base_dist.noise_log_prob(noise))

    def with_log_rates(self, x: Tensor) -> "Joint":
        return self._of(self.base_dist.with_log_rates(x))

    def item(self, index: tuple[int, ...]) -> "Joint":
        return self._of(self.base_dist.item(index))

    def value_entries(self) -> Tensor | None:
        entries = self.base_dist.value_entries()
        if entries is None:
            return None
        first = torch.arange(self._structures.numel(), device=entries.device) * self.base_dist.event_shape.numel()
        return (first[:, None] + entries).flatten()

    def enumerate_traces(self) -> Trace:
        """Every combination of traces of one item."""
        runs = list(every_run(self._run_with))
        return self._pack_runs(runs, torch.Size([len(runs)]))

    def _pack_runs(self, runs: list, shape: torch.Size) -> Trace:
        return self.base_dist._pack([one for run in runs for one in run], shape + self._structures)

    def distinct_traces(self, count: int, *, generator: torch.Generator | None = None) -> Distinct:
        """Of an item's structures together: one of them at least differs."""
        return distinct_traces(cast(Structure, self), count, generator)

    def _run_on_rates(self, choose: Callable[[Sequence[int], Sequence[float]], int]) -> tuple:
        return tuple(structure._run_on_rates(choose) for structure in self._each)

    def _run_with(self, choose: Choose) -> tuple:
        """The run of each structure, one after the other."""
        return tuple(structure._run_with(choose) for structure in self._each)

    @cached_property
    def _each(self) -> list[Structure]:
        """The structures of one item."""
        return [self.base_dist.item(index) for index in product(*map(range, self._structures))]

    # What each of them has for itself --------------------------------------------------------------

    @property
    def log_rates(self) -> Tensor:
        return self.base_dist.log_rates

    @property
    def racing(self) -> Tensor:
        return self.base_dist.racing

    @property
    def is_indicator(self) -> bool:
        return self.base_dist.is_indicator

    @property
    def has_distinct_kernel(self) -> bool:
        return False  # one structure at a time

    @property
    def one_to_one(self) -> bool:
        return self.base_dist.one_to_one

    @property
    def is_sharded(self) -> bool:
        return self.base_dist.is_sharded

    def _check_losses(self, name: str, loss: Tensor) -> None:
        self.base_dist._check_losses(name, loss)

    @property
    def symmetric(self) -> bool:
        return self.base_dist.symmetric

    @property
    def _layout(self):
        return self.base_dist._layout

    def perturb(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Tensor:
        return self.base_dist.perturb(sample_shape, generator=generator)

    def trace(self, noise: Tensor) -> Trace:
        return self.base_dist.trace(noise)

    def sample_trace(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Trace:
        return self.base_dist.sample_trace(sample_shape, generator=generator)

    def sample(self, sample_shape=(), *, generator: torch.Generator | None = None) -> Tensor:  # type: ignore[override]
        return self.base_dist.sample(sample_shape, generator=generator)

    def conditional(self, trace: Trace, *, generator: torch.Generator | None = None) -> Tensor:
        return self.base_dist.conditional(trace, generator=generator)

    def _stack_traces(self, traces: Sequence[Trace], batch_shape: torch.Size) -> Trace:
        return self.base_dist._stack_traces(traces, batch_shape)

    def decision_log_totals(self, trace: Trace) -> Tensor:
        return self.base_dist.decision_log_totals(trace)

    def _check_noise(self, noise: Tensor) -> torch.Size:
        return self.base_dist._check_noise(noise)

    def _relax(self, scores: Tensor, kind: str) -> Tensor:
        return self.base_dist._relax(scores, kind)
