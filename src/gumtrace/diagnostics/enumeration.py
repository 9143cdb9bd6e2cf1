"""Exact laws of small distributions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace


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


def enumerate_traces(dist: Structure) -> Law:
    """The law of the trace of an unbatched distribution.

    >>> import gumtrace as gt
    >>> law = enumerate_traces(gt.SpanningTree(torch.randn(4, 4)))
    >>> len(law), round(law.total, 4)
    (96, 1.0)
    """
    traces = dist.enumerate_traces()
    return Law(traces, dist.trace_log_prob(traces))


def enumerate_values(dist: Structure) -> Law:
    """The law of the structure: traces that give the same value, added up.

    >>> import gumtrace as gt
    >>> law = enumerate_values(gt.SpanningTree(torch.randn(4, 4)))
    >>> len(law), round(law.total, 4)  # Cayley: 4^2 trees
    (16, 1.0)
    """
    traces = enumerate_traces(dist)
    assert isinstance(traces.outcomes, Trace)
    values = traces.outcomes.value
    flat = values.reshape(len(values), -1)
    _, index = torch.unique(flat, dim=0, return_inverse=True)
    count = int(index.max()) + 1
    first = torch.full((count,), len(values)).scatter_reduce(0, index, torch.arange(len(values)), "amin")
    same = index[first][:, None] == index  # (values, traces)
    return Law(values[first], torch.where(same, traces.log_prob, -torch.inf).logsumexp(-1))
