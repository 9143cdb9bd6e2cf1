"""Biased estimators, from relaxed structures: for objectives that are differentiable and defined at relaxed ones."""

import torch
from torch import Tensor

from gumtrace.estimators.base import Estimator, checked_count
from gumtrace.relaxations import relax
from gumtrace.structures.base import Structure


def relaxed(dist: Structure, noise: Tensor, temperature: float | Tensor, kind: str | None) -> Tensor:
    """The relaxed structure in the dtype of the hard one: the objective need not know which of them it gets.

    The relaxation's backward needs it unchanged: an objective, which may write into it, gets a copy.
    """
    return relax(dist, noise, temperature, kind).to(dist._layout.dtype)


def checked_temperature(name: str, temperature: float) -> float:
    if not temperature > 0:
        raise ValueError(f"{name}: temperature must be positive, got {temperature}")
    return temperature


class _Relaxed(Estimator):
    """Args common to all three.

    samples: runs for each item.
    temperature: of the relaxation; a lower one has less bias and more variance.
    kind: which relaxation, see `gumtrace.relax`; None for the structure's default.
    """

    unbiased = False
    differentiates = True

    def __init__(self, *, samples: int = 1, temperature: float = 0.5, kind: str | None = None):
        super().__init__(samples=samples)
        self.temperature, self.kind = checked_temperature(type(self).__name__, temperature), kind


class StochasticSoftmax(_Relaxed):
    """SST: the objective of the relaxed structure, in value and, through the noise, in gradient.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> sst = StochasticSoftmax(temperature=0.5)
    >>> sst(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

    label = "SST"

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        return self.evaluate_differentiably(dist, objective, self.drawn(dist, generator)).mean(0)

    def drawn(self, dist, generator) -> Tensor:
        noise = dist.perturb((self.samples,), generator=generator)
        return relaxed(dist, noise, self.temperature, self.kind).clone()


class StraightThrough(_Relaxed):
    """The objective of the hard structure, differentiated as if it were the relaxed one.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> straight_through = StraightThrough(temperature=0.5)
    >>> straight_through(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

    label = "Straight-through"

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        noise = dist.perturb((self.samples,), generator=generator)
        soft = relaxed(dist, noise, self.temperature, self.kind)
        hard = dist.trace(noise).value
        return self.evaluate_differentiably(dist, objective, hard + (soft - soft.detach())).mean(0)


class GumbelRao(_Relaxed):
    """Straight-through, its gradient averaged over noise that gives the same trace: less variance for the same bias.

    The relaxation is differentiated at fixed noise, as if G̃ = logits + constant, and then averaged over G̃ ~ G | T.
    Differentiating through the conditional sampler instead would have another mean.

    Args:
        samples: runs for each item.
        temperature: of the relaxation; a lower one has less bias and more variance.
        kind: which relaxation, see `gumtrace.relax`; None for the structure's default.
        draws: how many G̃ for each trace.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> gumbel_rao = GumbelRao(temperature=0.5, draws=10)
    >>> gumbel_rao(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

    label = "Gumbel-Rao"

    def __init__(self, *, samples: int = 1, temperature: float = 0.5, kind: str | None = None, draws: int = 10):
        super().__init__(samples=samples, temperature=temperature, kind=kind)
        self.draws = checked_count("GumbelRao", "draws", draws)

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        trace = dist.sample_trace((self.samples,), generator=generator)
        moved = dist.log_rates - dist.log_rates.detach()  # zero, with the derivative of noise that shifts with them
        soft = moved.new_zeros(())
        for _ in range(self.draws):
            with torch.no_grad():
                noise = dist.conditional(trace, generator=generator)
            noise = torch.where(dist.racing, noise + moved, -torch.inf)
            soft = soft + relax(dist, noise, self.temperature, self.kind)
        soft = (soft / self.draws).to(trace.layout.dtype)
        return self.evaluate_differentiably(dist, objective, trace.value + (soft - soft.detach())).mean(0)
