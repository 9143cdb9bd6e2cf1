"""What torch.distributions ask of a distribution over finitely many structures: support, entropy and moments, exact
where there are few enough to go through, and otherwise an error that says what to call."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from gumtrace.structures.description import Description
from gumtrace.structures.replay import every_run
from gumtrace.traces.trace import Trace

if TYPE_CHECKING:
    from gumtrace.structures.base import Structure

MOST_RUNS = 50_000  # of an algorithm, for one item: a second or two,
MOST_WORK = 2**22  # and as long for large ones, in runs times decisions times racing keys
MOST_ROWS = 2**19  # structures of all items of a batch together
NO_MEAN = (
    "{}: values are integers, numbers of keys say, of which a mean says nothing; enumerate_support and log_prob give "
    "probabilities, and Permutation(matrix=True) has a mean"
)
MEAN_ADVICE = "estimate it by samples: dist.sample((1000,)).mean(0)"
VARIANCE_ADVICE = "estimate it by samples: dist.sample((1000,)).var(0)"
ENTROPY_ADVICE = (
    "gumtrace.divergences.structure_entropy estimates it where there is a log_prob, and trace_entropy a number that is "
    "not below it"
)


class TooManyTraces(ValueError):
    """A distribution is too large to be enumerated."""


class Finite(Description):
    """Sums over all structures of a distribution, (*batch,): once for the batch if all items have the same keys racing,
    otherwise item by item."""

    has_rsample = False
    has_enumerate_support = True
    _x: Tensor
    _owner: Any

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Every structure once, (structures, *batch, *event); with `expand=False` (structures, 1, ..., *event).

        A `TooManyTraces` where there are too many, a `ValueError` where items have different ones.

        >>> from gumtrace import Subset
        >>> Subset(torch.zeros(3), 2).enumerate_support()
        tensor([[1., 1., 0.],
                [1., 0., 1.],
                [0., 1., 1.]])
        """
        name = f"{type(self).__name__}.enumerate_support"
        if self.batch_shape.numel() == 0:
            return torch.empty(0, *self.batch_shape, *self.event_shape, dtype=self._layout.dtype, device=self._x.device)
        if not self._items_are_alike():
            raise ValueError(
                f"{name}: items of the batch have different structures, as masks, lengths or k differ; ask each one, "
                "dist.item(index).enumerate_support()"
            )
        values = all_values(name, first_item(self), "sample draws some of them")
        values = values.reshape(len(values), *[1] * len(self.batch_shape), *self.event_shape)
        return values.expand(len(values), *self.batch_shape, *self.event_shape) if expand else values

    def entropy(self) -> Tensor:
        """-E log P(X) of the structure, (*batch,), exact by enumeration; differentiable.

        A `TooManyTraces` where there are too many: `gumtrace.divergences.structure_entropy` estimates it, and
        `trace_entropy` a number above it.

        >>> from gumtrace import Permutation
        >>> Permutation(torch.zeros(3)).entropy().exp()
        tensor(6.0000)
        """
        name = f"{type(self).__name__}.entropy"

        def entropy(dist: "Structure") -> Tensor:
            _, log_prob = law(name, dist, ENTROPY_ADVICE)
            return -expectation(log_prob, log_prob)

        return for_each_item(self, entropy, torch.Size())

    @property
    def mean(self) -> Tensor:
        """E X, (*batch, *event): the probability of each entry of a 0/1 value, exact by enumeration; differentiable.

        >>> from gumtrace import SpanningTree
        >>> SpanningTree(torch.zeros(3, 3)).mean  # two of three edges
        tensor([[0.0000, 0.6667, 0.6667],
                [0.6667, 0.0000, 0.6667],
                [0.6667, 0.6667, 0.0000]])
        """
        return self._moment("mean", MEAN_ADVICE, lambda values, mean: mean)

    @property
    def variance(self) -> Tensor:
        """E (X - E X)², (*batch, *event), of each entry, as `mean`."""
        return self._moment("variance", VARIANCE_ADVICE, lambda values, mean: (values - mean).square())

    def _moment(self, what: str, advice: str, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        name = f"{type(self).__name__}.{what}"
        if not self._layout.dtype.is_floating_point:
            raise NotImplementedError(NO_MEAN.format(name))

        def moment(dist: "Structure") -> Tensor:
            values, log_prob = law(name, dist, advice)
            if not values.is_floating_point():
                raise NotImplementedError(NO_MEAN.format(name))
            values = values.to(log_prob.dtype).reshape(len(values), *[1] * len(dist.batch_shape), *dist.event_shape)
            log_prob = log_prob[(..., *[None] * len(dist.event_shape))]
            return expectation(log_prob, of(values, expectation(log_prob, values)))

        return for_each_item(self, moment, self.event_shape)

    def rsample(self, sample_shape=()) -> NoReturn:  # type: ignore[override]
        raise NotImplementedError(
            f"{type(self).__name__}.rsample: a structure is no differentiable function of the noise; estimators give "
            "gradients of E objective(X), and gumtrace.relax(d, d.perturb(), temperature) a soft structure"
        )

    def cdf(self, value: Tensor) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__}.cdf: structures have no order; see log_prob and mean")

    def icdf(self, value: Tensor) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__}.icdf: structures have no order; see sample and mode")

    # Enumeration -----------------------------------------------------------------------------------

    def enumerate_traces(self) -> Trace:
        """Every trace of an unbatched distribution, stacked in the leading dimension. The number grows like a
        factorial."""
        if self.batch_shape:
            raise ValueError(
                f"{type(self).__name__}.enumerate_traces works on one item, this batch is {tuple(self.batch_shape)}"
            )
        runs = list(every_run(self._run_with))
        return self._pack(runs, torch.Size([len(runs)]))

    def _pack(self, runs: list, shape: torch.Size) -> Trace:
        """The trace of runs of `_run_with`, sample + batch of them."""

        def filled(part: int, width: int) -> Tensor:
            rows = [[*run[part], *[-1] * (width - len(run[part]))] for run in runs]
            return torch.tensor(rows, dtype=torch.int32, device=self._x.device).reshape(*shape, width)

        geometry = self._layout.geometry
        return Trace(self._layout, filled(0, geometry.winner_slots), filled(1, geometry.link_slots), self._owner)

    def _pack_runs(self, runs: list, shape: torch.Size) -> Trace:
        """The trace of runs of `_run_on_rates`."""
        return self._pack(runs, shape)

    def _stack_traces(self, traces: Sequence[Trace], batch_shape: torch.Size) -> Trace:
        """Traces (n, ...) of the items of a batch, one after the other, as traces (n, *batch, ...)."""
        rows = zip(*((trace.choices, trace.links) for trace in traces), strict=True)
        choices, links = (torch.stack(x, 1).reshape(len(x[0]), *batch_shape, *x[0].shape[1:]) for x in rows)
        return Trace(traces[0].layout, choices, links, self._owner)


def law(name: str, dist: "Structure", advice: str) -> tuple[Tensor, Tensor]:
    """All structures (structures, *event) of a batch whose items have the same ones, and their log-probabilities
    (structures, *batch), differentiable; by `log_prob` where there is one, else by adding up traces.

    Args:
        name: what begins an error.
        advice: what to do where there are too many.
    """
    item, shape = first_item(dist), dist.batch_shape
    if dist.has_log_prob and item._run_a_value() is not None:
        values = all_values(name, item, advice)
        _check_rows(name, len(values), shape, advice)
        return values, dist.log_prob(values.reshape(len(values), *[1] * len(shape), *dist.event_shape))
    traces = _all_traces(name, item, advice)
    _check_rows(name, len(traces), shape, advice)
    choices, links = (
        x.reshape(len(x), *[1] * len(shape), x.shape[-1]).expand(len(x), *shape, x.shape[-1])
        for x in (traces.choices, traces.links)
    )
    log_prob = dist.trace_log_prob(Trace(traces.layout, choices, links, dist._owner))  # (traces, *batch)
    values = traces.value
    first, index = group_by_value(values)
    to = index.reshape(-1, *[1] * len(shape)).expand_as(log_prob)
    top = log_prob.new_full((len(first), *shape), -torch.inf).scatter_reduce(0, to, log_prob.detach(), "amax")
    top = torch.where(top > -torch.inf, top, 0.0)
    total = torch.zeros_like(top).index_add(0, index, (log_prob - top[index]).exp())
    return values[first], top + total.log()


def all_values(name: str, item: "Structure", advice: str) -> Tensor:
    """Every structure of an unbatched distribution once, (structures, *event)."""
    runs = item._run_a_value()
    if runs is not None:
        found = _at_most(name, item, runs, advice)
        return item._pack(found, torch.Size([len(found)])).value
    values = _all_traces(name, item, advice).value
    return values[group_by_value(values)[0]]


def _all_traces(name: str, item: "Structure", advice: str) -> Trace:
    runs = _at_most(name, item, every_run(item._run_with), advice)
    return item._pack(runs, torch.Size([len(runs)]))


def _at_most(name: str, item: "Structure", runs: Iterable[Any], advice: str) -> list[Any]:
    """The runs, without None for those that led nowhere; an error if there are too many of both."""
    count = item._count_values()
    if count is not None and count > MOST_RUNS:
        number = f"{count:,}" if count < 10**15 else f"about 10^{round(math.log10(count))}"
        raise TooManyTraces(f"{name}: {number} structures are too many to enumerate, at most {MOST_RUNS:,}; {advice}")
    work = item._layout.geometry.decisions * int(item.racing.sum())
    most = min(MOST_RUNS, max(1, MOST_WORK // max(work, 1)))
    found = list(islice(runs, most + 1))
    if len(found) > most:
        raise TooManyTraces(f"{name}: more than {most:,} runs are too many to enumerate; {advice}")
    return [run for run in found if run is not None]


def _check_rows(name: str, structures: int, batch_shape: torch.Size, advice: str) -> None:
    if (rows := structures * batch_shape.numel()) > MOST_ROWS:
        raise TooManyTraces(
            f"{name}: {structures:,} structures or traces for each of {batch_shape.numel():,} items are {rows:,}, at "
            f"most {MOST_ROWS:,}; {advice}, or take a part of the batch, dist.item(index)"
        )


def group_by_value(values: Tensor) -> tuple[Tensor, Tensor]:
    """(traces, *event) -> where each different value is first, (values,), and which one each trace has, (traces,)."""
    rows = values.reshape(len(values), values.shape[1:].numel())
    rows = rows if rows.shape[-1] > 0 else rows.new_zeros(len(rows), 1)  # those without entries are all equal
    different, index = torch.unique(rows, dim=0, return_inverse=True)
    count = len(different)
    place = torch.arange(len(values), device=values.device)
    first = place.new_full((count,), len(values)).scatter_reduce(0, index, place, "amin")
    return first, index


def expectation(log_prob: Tensor, of: Tensor) -> Tensor:
    """Σ e^log_prob · of over the first dimension; what is impossible adds nothing, whatever it would be."""
    possible = log_prob > -torch.inf
    return (torch.where(possible, log_prob, 0.0).exp() * torch.where(possible, of, 0.0) * possible).sum(0)


def for_each_item(dist: Any, function: Callable[["Structure"], Tensor], tail: torch.Size) -> Tensor:
    """A function (*batch) -> (*batch, *tail) of distributions whose items have the same structures, of any other."""
    if dist.batch_shape.numel() == 0:
        return dist.log_rates.new_zeros(dist.batch_shape + tail) + dist.log_rates.sum()  # nothing, in the graph
    if dist._items_are_alike():
        return function(dist)
    each = [function(dist.item(index)) for index in product(*map(range, dist.batch_shape))]
    return torch.stack(each).reshape(dist.batch_shape + tail)


def first_item(dist: Any) -> "Structure":
    return dist.item((0,) * len(dist.batch_shape))
