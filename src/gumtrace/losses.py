"""Loss functions for supervised structures: what to train logits with where the structure is known, wholly or in part.

Where `log_prob` of the structure is tractable, its negative is a loss too, and so is that of `trace_log_prob` where the
order of choice is known. (The loss of an objective that no target is known for is an estimator's.)
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from gumtrace.estimators.base import checked_count
from gumtrace.estimators.inject import Inject
from gumtrace.relaxations.transforms import refuse_transforms
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.joint import split
from gumtrace.traces.trace import Trace

__all__ = ["FenchelYoung"]


class FenchelYoung(nn.Module):
    """By how much the target falls short of the best structure under noise, E[ max_x <G, x> - <G, x*> ] with perturbed
    logits G: the perturbed Fenchel-Young loss, up to a number that does not depend on the logits.

    It is never negative, convex in the logits if all of the target is known, and its gradient is E[X] - x*: it
    vanishes where structures drawn from the distribution have the entries of the target on average. For structures
    whose algorithm finds the largest sum of G over its keys: `Subset` and `SpanningTree`, forests and graphs given by
    their edges included.

    A target that is known in part is a distribution: the same structures with fewer keys that race (`mask=`), or
    forests under constraints (`SpanningTree.constrained`). Its algorithm runs on the same G, and x* is what it gives:
    the gradient is E[X] - E[X under constraints]. The loss is then never negative, and in general not convex: with
    masks and must-links it is a difference of convex functions.

    With cannot-links, E[X] - E[X under constraints] is an update direction, in general not the gradient of the loss
    that is returned: greedy choices need not have the largest sum, so that at fixed noise the loss jumps where they
    change, which the direction leaves out. Where cannot-links leave more trees than asked for, X is stopped when it has
    as many.

    Args:
        samples: runs for each item.
        exact: take E[X] from `dist.mean`, without noise; the value of the loss is still averaged over samples. For
            subsets of any size, and other structures of which there are few.

    Args of the call:
        dist: a structure, or `torch.distributions.Independent` of one: one loss for all structures of an item.
        target: values (*batch, *event), or a distribution like `dist`. Its logits are not used, only which of its keys
            race, and its constraints.
        generator: where the randomness comes from.

    The loss has the batch shape.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> target = torch.tensor([1.0, 1.0, 0.0, 0.0])
    >>> loss = FenchelYoung(exact=True)(gt.Subset(logits, 2), target)
    >>> loss.sum().backward()
    >>> logits.grad[0]  # half of the keys are chosen, each as often as the others
    tensor([-0.5000, -0.5000,  0.5000,  0.5000])
    """

    def __init__(self, *, samples: int = 8, exact: bool = False):
        super().__init__()
        self.samples, self.exact = checked_count("FenchelYoung", "samples", samples), bool(exact)

    def forward(
        self, dist: Distribution, target: Tensor | Distribution, *, generator: torch.Generator | None = None
    ) -> Tensor:
        base, dims = split("FenchelYoung", dist)
        if not base.maximises_sum:
            raise NotImplementedError(
                f"FenchelYoung: {base} is not the structure with the largest sum of G over its keys, which the loss is "
                "made of; take -log_prob or -trace_log_prob of what is known"
            )
        refuse_transforms("FenchelYoung")
        with torch.no_grad():
            loss, gradient = self._compare(base, _unwrapped(target, dims), generator)
        loss = loss + Inject.apply("FenchelYoung", loss.dim(), 0, loss, base.log_rates, gradient)
        return loss.flatten(-dims).sum(-1) if dims else loss

    def _compare(
        self, dist: Structure, target: Tensor | Structure, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """The loss (*batch,), and E[X] - x* (*batch, *keys)."""
        noise = dist.perturb((self.samples,), generator=generator)
        best = dist.trace(noise)
        if torch.is_tensor(target):
            wanted = mean = _checked_value(dist, target)
        else:
            _check_like(dist, target)
            given = target.trace(noise)
            best, wanted = _first(best, given), given.value
            mean = self._mean(target) if self.exact else wanted.mean(0)
        excess = _of_keys(dist, best.value) - _of_keys(dist, wanted)  # (samples, *batch, *keys)
        gradient = self._mean(dist) - mean if self.exact else excess.mean(0)
        loss = (torch.where(dist.racing, noise, 0.0) * excess).flatten(-len(dist.key_shape)).sum(-1).mean(0)
        return loss, _of_keys(dist, gradient)

    def _mean(self, dist: Structure) -> Tensor:
        """E[X], (*batch, *event)."""
        if dist._decision_counts() is None:
            raise ValueError(
                f"FenchelYoung: the number of edges of {dist} depends on the noise, so that no mean is exact; leave "
                "out exact=True"
            )
        try:
            return dist.mean
        except (NotImplementedError, ValueError) as reason:
            raise type(reason)(f"FenchelYoung: exact=True needs the mean of the structure. ({reason})") from None

    def extra_repr(self) -> str:
        return f"samples={self.samples}, exact={self.exact}"


def _unwrapped(target: Any, dims: int) -> Tensor | Structure:
    """The structure inside of `Independent`, which as many dimensions of the target must be as of the distribution."""
    if torch.is_tensor(target):
        return target
    if isinstance(target, Trace) or not isinstance(target, Distribution):
        raise TypeError(
            f"FenchelYoung: the target must be a value, such as trace.value, or a distribution; got "
            f"{type(target).__name__}"
        )
    base, wrapped = split("FenchelYoung", target)
    if isinstance(target, Independent) and wrapped != dims:
        raise ValueError(f"FenchelYoung: the target is Independent in {wrapped} dimensions, the distribution in {dims}")
    return base


def _checked_value(dist: Structure, value: Tensor) -> Tensor:
    """(*batch, *event), broadcast to the batch."""
    checks.ends_in("FenchelYoung", "a target", value.shape, dist.event_shape)
    shape = value.shape[: value.dim() - len(dist.event_shape)]
    if not checks.broadcasts(shape, dist.batch_shape):
        raise ValueError(f"FenchelYoung: targets {tuple(shape)} do not fit batch shape {tuple(dist.batch_shape)}")
    value = value.to(dist.log_rates.device).expand(dist.batch_shape + dist.event_shape)
    if dist._validate_args:
        wrong = (~cast(Any, dist.support).check(value)).flatten().nonzero()
        if len(wrong) > 0:
            where = checks.item_name(int(wrong[0]), dist.batch_shape)
            raise ValueError(f"FenchelYoung: the target of {where} is not in the support of {dist}")
    return value


def _check_like(dist: Structure, target: Structure) -> None:
    """A distribution over some of the same structures."""
    if target.batch_shape != dist.batch_shape:
        sizes = f"{tuple(target.batch_shape)} does not fit {tuple(dist.batch_shape)}"
        raise ValueError(f"FenchelYoung: the batch of the target {sizes}; see its expand")
    if (problem := dist.mismatch(target.unconstrained)) is not None:
        raise ValueError(f"FenchelYoung: the target must be a distribution like the one that is trained: {problem}")
    if dist._validate_args:
        more = (target.racing & ~dist.racing).flatten(-len(dist.key_shape)).any(-1).flatten().nonzero()
        if len(more) > 0:
            where = checks.item_name(int(more[0]), dist.batch_shape)
            raise ValueError(f"FenchelYoung: in the target of {where} a key races that does not in the distribution")


def _first(best: Trace, given: Trace) -> Trace:
    """As many of the winners as the given trace has."""
    count = (given.winners >= 0).sum(-1, keepdim=True)
    place = torch.arange(best.choices.shape[-1], device=best.device)
    return Trace(best.layout, torch.where(place < count, best.choices, -1), best.links)


def _of_keys(dist: Structure, value: Tensor) -> Tensor:
    """A 0/1 value as numbers for the keys that race; a symmetric one has each edge twice, of which one is a key."""
    return torch.where(dist.racing, value.to(dist.log_rates.dtype), 0.0)
