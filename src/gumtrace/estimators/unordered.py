"""The score of different traces, drawn without replacement: none of them is evaluated twice.

Any of the set S that was drawn may have been the first of them, with a probability that does not depend on the order in
which they came. One sample, the first, gives an unbiased estimate, and the rest of S an unbiased baseline for it; this
is the mean of that estimate over which of S was the first:

    g = Σ_s w_s (1 - p_s) (L_s - Σ_t v_st L_t) ∇ log p_s

    p_s   probability of s               w_s    of s being the first of S
                                         v_st   of t being the second, if s is the first
"""

from itertools import accumulate
from math import comb

import torch
from torch import Tensor

from gumtrace.estimators.base import Objective
from gumtrace.estimators.score import ScoreEstimator
from gumtrace.structures.base import Structure


class UnorderedREINFORCE(ScoreEstimator):
    """T-REINFORCE on different traces: for narrow distributions, whose independent runs are mostly the same.

    Args:
        samples: K, different traces for each item, 12 at most; the rest of the probability is estimated by them. If an
            item has no more than K, its gradient is exact.
        leave_one_out: compare each loss with those of the others; by default whenever K > 1.

    The value of the loss is Σ_s w_s L_s, whose mean is the expected objective: a plain mean over different traces would
    overrate the improbable ones.

    >>> import gumtrace as gt
    >>> logits = torch.tensor([0.0, 3.0, 1.0], requires_grad=True)
    >>> loss = UnorderedREINFORCE(samples=6)(gt.Permutation(logits), lambda x: (x[..., 0] == 0).float())
    >>> torch.allclose(loss, logits.softmax(-1)[0])  # all six: exact
    True
    """

    label = "U-REINFORCE+"
    weighted = True
    on_host = True
    most_samples = 12  # orders of a set are summed over its subsets: 2^12

    def estimate(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        drawn = dist.distinct_traces(self.samples, generator=generator)
        loss = self.evaluate(dist, objective, drawn.traces)
        first, second, others = first_two(drawn.log_prob, drawn.log_rest[-1], drawn.found)
        first, second, others = (x.to(loss.dtype) for x in (first, second, others))
        score = loss.detach()
        if self.leave_one_out:
            score = others * (score - (second * score).sum(1))
        surrogate = (first * score * dist.trace_log_prob(drawn.traces)).sum(0)
        return (first * loss).sum(0) + (surrogate - surrogate.detach())


def first_two(log_prob: Tensor, log_rest: Tensor, found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which of a set of traces came first, given the set but not its order: probabilities (K, *batch); which came
    second after each of them, (K, K, *batch); and the probability 1 - p of all other traces, (K, *batch). float64.

    Args:
        log_prob: of K different traces, (K, *batch).
        log_rest: of all that are not in the set, (*batch,).
        found: bool (K, *batch); the others are not in the set.

    After the traces C have come, s is next with probability p_s / (1 - p(C)), so an order of the set S has the
    probability Π p_s / Π (1 - p(C)) over its beginnings C. Π p_s is the same for all orders. What is left is summed
    over orders from the end on,

        Z(S) = 1,   Z(C) = Σ_{s in S - C} Z(C + s) / (1 - p(C)),   w_s ∝ Z({s}),   v_st ∝ Z({s, t}),

    with 1 - p(C) = p(S - C) + rest, a sum of positive terms.
    """
    count, batch = len(log_prob), log_prob.shape[1:]
    log_prob = torch.where(found, log_prob.double(), -torch.inf)
    left = log_rest.double()[None]  # log(1 - p(C)) for the sets C of the first traces; bit s: whether s is in C
    for row in log_prob:
        left = torch.cat([torch.logaddexp(left, row), left])
    trailing = (..., *[None] * len(batch))
    one = torch.arange(count, device=found.device)
    whole = (found * 2 ** one[trailing]).sum(0)  # S
    sets, starts, place = _by_size(one)
    log_z = {count: torch.where(whole == 2**count - 1, 0.0, -torch.inf).to(left)[None]}  # of the sets of each size
    for size in range(count - 1, 0, -1):
        c = sets[starts[size] : starts[size + 1]]
        absent = (c[:, None] >> one & 1).argsort(dim=1, stable=True)[:, : count - size]
        larger = place[c[:, None] + 2**absent] - starts[size + 1]
        after = log_z[size + 1][larger].logsumexp(1) - left[c].clamp(min=torch.finfo(left.dtype).min)
        log_z[size] = torch.where(whole == c[trailing], 0.0, after)
    pairs = (place[2 ** one[:, None] | 2**one] - starts[2]).clamp(min=0)  # where s = t there is no pair
    second = torch.where((one[:, None] == one)[trailing], -torch.inf, log_z[min(count, 2)][pairs])
    return _normalised(log_z[1], 0), _normalised(second, 1), left[2**one].exp()


def _by_size(one: Tensor) -> tuple[Tensor, list[int], Tensor]:
    """All sets, as bits, by their sizes; where each size begins; and the place of each set. On the device: a list of
    Python numbers would be copied there, which synchronises."""
    every = torch.arange(2 ** len(one), device=one.device)
    sets = (every[:, None] >> one & 1).sum(1).argsort(stable=True)
    return sets, [0, *accumulate(comb(len(one), size) for size in range(len(one) + 1))], sets.argsort()


def _normalised(log_weights: Tensor, dim: int) -> Tensor:
    """Probabilities; all 0 where there is nothing."""
    total = log_weights.logsumexp(dim, keepdim=True)
    return (log_weights - torch.where(total > -torch.inf, total, 0.0)).exp()
