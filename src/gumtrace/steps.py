"""A trace in words, decision by decision: who raced, who won, and how likely that was."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from gumtrace.kernels.backends import backend
from gumtrace.structures.base import Structure
from gumtrace.structures.words import Names
from gumtrace.traces.trace import Trace


@dataclass(frozen=True)
class Step:
    """One decision: the argmin over a set of racing keys."""

    decision: int  # its place in `trace.winners`
    race: str  # who raced, in words
    racing: tuple[int, ...]  # the keys that raced, winner included
    winner: int  # the key that won
    label: str  # the winner, in words
    log_prob: float  # of this decision: log λ_winner - log Λ
    running: float  # of all decisions so far

    @property
    def probability(self) -> float:
        return math.exp(self.log_prob)


def steps(dist: Structure, trace: Trace, names: Names | None = None) -> list[Step]:
    """The decisions of one trace of an unbatched distribution, in the order in which they are taken.

    Args:
        names: what keys, nodes or tokens are called; a pair for rows and columns of a matching. Default: their numbers.

    Binary trees come breadth first; arborescences with the nodes first, then every cycle after what it contracts.

    >>> from gumtrace import SpanningTree
    >>> d = SpanningTree(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]))
    >>> for step in steps(d, d.trace(d.logits)):
    ...     print(f"{step.race}, {len(step.racing)} racing: {step.label} with probability {step.probability:.2f}")
    edges between 3 parts, 3 racing: 1 - 2 with probability 0.98
    edges between 2 parts, 2 racing: 0 - 1 with probability 0.73
    """
    if dist.batch_shape or trace.shape:
        raise ValueError(
            f"steps describes one trace of one item: this distribution has batch shape {tuple(dist.batch_shape)}, "
            f"the trace has shape {tuple(trace.shape)}; index them first"
        )
    racing = dist.racing.flatten().cpu()
    logits = dist.logits.detach().flatten().cpu().double().masked_fill(~racing, -torch.inf)
    totals = dist.decision_log_totals(trace).detach().cpu().double()  # (decisions,)
    winners = trace.winners.tolist()
    raced = [keys[racing.numpy()[keys]].tolist() for keys in racing_keys(trace)]
    words = trace.layout.structure.words(trace, names)
    found, running = [], 0.0
    for b in words.order():
        winner, keys = winners[b], tuple(raced[b])
        log_prob = float(logits[winner] - totals[b])
        running += log_prob
        found.append(Step(b, words.race(b, keys), keys, winner, words.key(winner), log_prob, running))
    return found


def racing_keys(trace: Trace) -> list[np.ndarray]:
    """The keys of each decision of one trace. A mask is not in the trace, so masked keys are among them."""
    return backend("cpu").racing_keys(trace.layout.geometry, trace.choices, trace.links)
