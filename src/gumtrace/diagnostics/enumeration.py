"""Exact distributions of the traces and values of small structures."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, product

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.estimators.objectives import Objective, losses, objective_on
from gumtrace.structures.base import Structure
from gumtrace.structures.finite import TooManyTraces, group_by_value
from gumtrace.structures.joint import as_structure
from gumtrace.structures.replay import every_run
from gumtrace.traces.trace import Trace

MOST_TRACES = 50_000  # of a batch, where losses are enumerated: some seconds


@dataclass(frozen=True)
class Law:
    """All outcomes with their probabilities; outcomes are stacked in the leading dimension."""

    outcomes: Trace | Tensor
    log_prob: Tensor  # (outcomes,), differentiable to the logits

    @property
    def total(self) -> float:
        """The sum of the probabilities: 1, if all is right."""
        return float(self.log_prob.detach().double().exp().sum())

    def __len__(self) -> int:
        return len(self.log_prob)


def enumerate_traces(dist: Distribution) -> Law:
    """The exact distribution of the trace of one item.

    >>> import gumtrace as gt
    >>> law = enumerate_traces(gt.SpanningTree(torch.randn(4, 4)))
    >>> len(law), round(law.total, 4)
    (96, 1.0)
    """
    dist = as_structure("enumerate_traces", dist)
    traces = dist.enumerate_traces()
    return Law(traces, dist.trace_log_prob(traces))


def enumerate_values(dist: Distribution) -> Law:
    """The exact distribution of the structure: traces that give the same value, added up.

    >>> import gumtrace as gt
    >>> law = enumerate_values(gt.SpanningTree(torch.randn(4, 4)))
    >>> len(law), round(law.total, 4)  # Cayley: 4^2 trees
    (16, 1.0)
    """
    traces = enumerate_traces(dist)
    assert isinstance(traces.outcomes, Trace)
    values = traces.outcomes.value
    first, index = group_by_value(values)
    same = index[first][:, None] == index  # (values, traces)
    return Law(values[first], torch.where(same, traces.log_prob, -torch.inf).logsumexp(-1))


def enumerate_losses(
    name: str, dist: Structure, objective: Objective, on: str = "value"
) -> list[tuple[Structure, Trace, Tensor]]:
    """For each item of a batch: the item alone, all its traces, and the loss of each, (traces,) float64.

    The objective sees the whole batch at once, as it does when training: it may treat items differently. Its values
    have the shape traces + batch + event, its traces the shape traces + batch.
    """
    items = [dist.item(index) for index in product(*map(range, dist.batch_shape))]
    _check_countable(name, items)
    traces = [item.enumerate_traces() for item in items]
    most = max(len(trace) for trace in traces)
    filled = [trace[[min(i, len(trace) - 1) for i in range(most)]] for trace in traces]  # the last one once more
    together = dist._stack_traces(filled, dist.batch_shape)  # (most, *batch)
    loss = losses(name, dist, objective_on(on, objective), together).detach().double().reshape(most, -1)
    return [(item, trace, loss[: len(trace), i]) for i, (item, trace) in enumerate(zip(items, traces, strict=True))]


def _check_countable(name: str, items: Iterable[Structure]) -> None:
    """Counts the traces before any is written down: their number grows like a factorial."""
    runs = (run for item in items for run in every_run(item._run_with))
    if sum(1 for _ in islice(runs, MOST_TRACES + 1)) > MOST_TRACES:
        raise TooManyTraces(f"{name}: the distribution has more than {MOST_TRACES:,} traces, too many to enumerate")
