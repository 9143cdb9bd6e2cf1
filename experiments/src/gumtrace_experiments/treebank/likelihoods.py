"""How probable the true tree of a sentence is, and which tree is best, given a distribution of arborescences."""

import torch
from torch import Tensor

from gumtrace.relaxations.partition import arborescence_log_partition
from gumtrace.structures.arborescence import Arborescence
from gumtrace.traces.trace import Trace


def target(dist: Arborescence, gold: Tensor) -> Trace:
    """The trace of the noise-free run on the true edges, (B, n, n): at every word its true head wins.

    Nothing has to be contracted, for true edges have no circle. Other traces lead to the same tree, by way of circles
    that are contracted and opened again.
    """
    return dist.trace(gold.to(dist.log_rates.dtype))


def trace_log_likelihood(dist: Arborescence, gold: Tensor) -> Tensor:
    """(B,) log P(target): the sum over words of log softmax θ at their true heads.

    At most the log-probability of the tree, which is the sum over all its traces.
    """
    return dist.trace_log_prob(target(dist, gold))


def crf_log_likelihood(dist: Arborescence, gold: Tensor) -> Tensor:
    """(B,) log P(tree) where P ∝ e^(Σ θ over its edges): a conditional random field, the baseline.

    It is another distribution over the same trees: the one that relaxed arborescences are the marginals of.
    """
    score = torch.where(gold, dist.log_rates, 0.0).sum((-1, -2))
    return score - arborescence_log_partition(dist.log_rates, dist.root, dist.node_counts)


def heaviest(dist: Arborescence) -> Tensor:
    """(B, n, n): the tree of the largest Σ θ. It is the most probable one of the random field, and of all traces
    without a contraction it has the most probable.

    The mode of the distribution is the tree of the least Σ e^-θ. So the algorithm is run on -log of costs: θ, turned
    around and moved to be positive, by another number for each word. That changes no order: every tree has one edge
    into each word.
    """
    rates = torch.where(dist.racing, dist.log_rates.detach(), -torch.inf)
    cost = 1 + rates.amax(-2, keepdim=True) - rates
    return dist.trace(-cost.log()).value
