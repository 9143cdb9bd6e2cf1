"""Biased estimators that differentiate the objective at hard structures, and need neither a relaxation nor a
temperature."""

import math

import torch
from torch import Tensor

from gumtrace.estimators.base import Estimator
from gumtrace.estimators.inject import Inject
from gumtrace.structures.base import Structure
from gumtrace.structures.joint import split

TARGET = 1.0  # keys that should differ between the two runs of a structure
FORGET = 0.9  # of their running mean, at each call
PACE = 1.02  # by which the relative step is multiplied or divided, at each call


class IMLE(Estimator):
    """Implicit maximum likelihood: how the structure changes if the noise moves a step down the objective's slope.

    With X(G) the structure of noise G and g = dL/dX there, of each key, the estimate for one sample is the forward
    difference (X(G) - X(G - ε g)) / ε: as a step down lowers the loss, keys that it takes out have a positive gradient.

    Args:
        samples: runs for each item; each makes a second run on the same noise.
        step: ε, if it is not adaptive: the smaller, the less bias and the more samples whose structure does not change.
        adaptive: AIMLE. The moved distance ε |g| is `step` times `factor` times the norm of G, centred; `factor` starts
            at 1 and is tuned until one key differs between the two structures, in the mean over samples and items (and
            over an item's structures, where it has several).

    The factor learns at every call in training mode that is made for its gradient; `eval()` freezes it.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> imle = IMLE(step=0.5)
    >>> imle(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

    label = "I-MLE"
    unbiased = False
    differentiates = True
    factor: Tensor
    changed: Tensor

    def __init__(self, *, samples: int = 1, step: float = 1.0, adaptive: bool = False):
        super().__init__(samples=samples)
        if not (isinstance(step, (int, float)) and 0 < step < math.inf):
            raise ValueError(f"IMLE: step must be a positive number, got {step!r}")
        self.step, self.adaptive = step, bool(adaptive)
        if self.adaptive:
            self.register_buffer("factor", torch.tensor(1.0))
            self.register_buffer("changed", torch.tensor(TARGET))

    @classmethod
    def supports(cls, dist):
        return split(cls.__name__, dist)[0].is_indicator

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        if not self.supports(dist):
            raise NotImplementedError(
                f"IMLE moves the noise of each key by the slope of the objective in it, but a value of {dist} does not "
                "have one entry for each key; take TraceREINFORCE, or StraightThrough if it has a relaxation"
            )
        if not dist.log_rates.requires_grad:  # nobody asks for the estimate
            return self.evaluate(dist, objective, self.drawn(dist, generator)).mean(0)
        with torch.no_grad():
            noise = dist.perturb((self.samples,), generator=generator)
            hard = dist.trace(noise).value  # (samples, *batch, *keys)
        point = hard.requires_grad_()
        loss = self.evaluate_differentiably(dist, objective, point.clone())
        (slope,) = torch.autograd.grad(loss.sum(), point, retain_graph=True)
        with torch.no_grad():
            grad = self._difference(dist, noise, hard, _of_keys(dist, slope)).mean(0)
        batch_dim = len(dist.batch_shape)
        return loss.mean(0) + Inject.apply(type(self).__name__, batch_dim, 0, loss, dist.log_rates, grad)

    def _difference(self, dist: Structure, noise: Tensor, hard: Tensor, slope: Tensor) -> Tensor:
        """(X(G) - X(G - ε g)) / ε, (samples, *batch, *keys); nan for items whose slope is not finite."""
        keys = tuple(range(-len(dist.key_shape), 0))
        finite = slope.isfinite().all(keys, keepdim=True) if keys else slope.isfinite()
        slope = torch.where(finite, slope, 0.0)
        rate = self._inverse_step(dist, noise, slope, keys)  # 1 / ε, 0 where nothing moves
        moved = torch.where(rate > 0, slope / rate, 0.0)
        far = torch.finfo(noise.dtype).max / 4  # no key may get to where it does not race
        other = dist.trace(torch.where(dist.racing, (noise - moved).clamp(-far, far), -torch.inf)).value
        change = torch.where(dist.racing, hard.to(noise.dtype) - other.to(noise.dtype), 0.0)
        if self.adaptive and self.training:
            base, several = split(type(self).__name__, dist)
            changed = (change != 0).flatten(-len(base.key_shape)).sum(-1).to(noise.dtype)
            changed = changed.flatten(-several).mean(-1) if several else changed  # of an item's structures
            self._adapt(changed, finite.reshape(changed.shape))
        return torch.where(finite, change * rate, torch.nan)

    def _inverse_step(self, dist: Structure, noise: Tensor, slope: Tensor, keys: tuple[int, ...]) -> Tensor:
        """(samples, *batch, 1...)"""
        if not self.adaptive:
            return torch.full_like(slope, 1 / self.step)
        racing = dist.racing
        centred = torch.where(racing, noise, 0.0)
        centred = centred - centred.sum(keys, keepdim=True) / racing.sum(keys, keepdim=True).clamp(min=1)
        moved = self.step * self.factor * _norm(torch.where(racing, centred, 0.0), keys)
        rate = torch.where(moved > 0, _norm(slope, keys) / moved, 0.0)
        return rate.clamp(max=torch.finfo(noise.dtype).max).to(noise.dtype)

    def _adapt(self, changed: Tensor, finite: Tensor) -> None:
        """One step of the factor, from how many keys differ (samples, *batch); items without a slope tell nothing."""
        total = finite.sum()
        mean = torch.where(finite, changed, 0.0).sum() / total.clamp(min=1)
        self.changed.copy_(torch.where(total > 0, FORGET * self.changed + (1 - FORGET) * mean, self.changed))
        pace = torch.where(self.changed < TARGET, PACE, 1 / PACE)
        self.factor.mul_(torch.where(total > 0, pace, 1.0)).clamp_(1e-6, 1e6)


class MarginalStraightThrough(Estimator):
    """The objective of the hard structure, differentiated as if it were the mean of all structures, `dist.mean`.

    For subsets these are the exact inclusion probabilities. No noise enters the derivative: all variance is that of the
    objective's slope.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> marginal = MarginalStraightThrough()
    >>> marginal(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

    label = "Marginal ST"
    unbiased = False
    differentiates = True

    @classmethod
    def supports(cls, dist):
        split(cls.__name__, dist)  # an error for what is no structure
        try:
            with torch.no_grad():
                dist.mean  # noqa: B018
        except (NotImplementedError, ValueError):  # ValueError: it is known, but not at this size
            return False
        return True

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        trace = dist.sample_trace((self.samples,), generator=generator)
        try:
            mean = dist.mean.to(trace.layout.dtype)
        except (NotImplementedError, ValueError) as reason:
            others = "take one that does not, StraightThrough, IMLE or TraceREINFORCE"
            message = f"{type(self).__name__} needs the mean of the structure; {others}. ({reason})"
            raise type(reason)(message) from None
        return self.evaluate_differentiably(dist, objective, trace.value + (mean - mean.detach())).mean(0)


def _norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """In float64, in which the squares of float32 do not overflow."""
    return x.double().square().sum(dims, keepdim=True).sqrt()


def _of_keys(dist: Structure, slope: Tensor) -> Tensor:
    """The slope in each key, from that in the entries of a value: an edge (u, v) of a symmetric matrix is two."""
    slope = slope.to(dist.log_rates.dtype)
    slope = slope + slope.mT if dist.symmetric else slope
    return torch.where(dist.racing, slope, 0.0)
