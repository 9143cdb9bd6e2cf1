"""Biased estimators, from relaxed structures: for objectives that are differentiable and defined between structures."""

import torch
from torch import Tensor

from gumtrace.estimators.base import Estimator, checked_count
from gumtrace.relaxations import relax
from gumtrace.structures.base import Structure


def relaxed(dist: Structure, noise: Tensor, temperature: float | Tensor, kind: str | None) -> Tensor:
    """The soft structure in the dtype of the hard one: the objective need not know which of them it gets.

    The relaxation's backward needs these very numbers: an objective, which may write into them, gets a copy.
    """
    return relax(dist, noise, temperature, kind).to(dist._layout.dtype)


class _Relaxed(Estimator):
    """Args common to all three.

    temperature: lower is less biased, and noisier.
    samples: runs for each item.
    kind: which relaxation, see `gumtrace.relax`.
    """

    def __init__(self, temperature: float = 0.5, samples: int = 1, kind: str | None = None):
        super().__init__(samples)
        if not temperature > 0:
            raise ValueError(f"{type(self).__name__}: temperature must be positive, got {temperature}")
        self.temperature, self.kind = temperature, kind

    def extra_repr(self) -> str:
        return f"samples={self.samples}, temperature={self.temperature}, kind={self.kind}"


class StochasticSoftmax(_Relaxed):
    """SST: the objective of the relaxed structure, in value and, through the noise, in gradient.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> StochasticSoftmax(0.5)(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        return self.evaluate_differentiably(dist, objective, self.values(dist, generator)).mean(0)

    def values(self, dist, generator):
        noise = dist.perturb((self.samples,), generator=generator)
        return relaxed(dist, noise, self.temperature, self.kind).clone()


class StraightThrough(_Relaxed):
    """The objective of the hard structure, differentiated as if it were the relaxed one.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> StraightThrough(0.5)(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

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
        draws: how many G̃ for each trace.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> GumbelRao(0.5, draws=10)(gt.Subset(logits, 2), lambda x: x[..., 0].square()).mean().backward()
    """

    def __init__(self, temperature: float = 0.5, samples: int = 1, kind: str | None = None, *, draws: int = 10):
        super().__init__(temperature, samples, kind)
        self.draws = checked_count("GumbelRao", "draws", draws)

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        trace = dist.sample_trace((self.samples,), generator=generator)
        moved = dist.log_rates - dist.log_rates.detach()  # by nothing: the noise is to follow the log-rates as they are
        soft = torch.zeros(())
        for _ in range(self.draws):
            with torch.no_grad():
                noise = dist.conditional(trace, generator=generator)
            noise = torch.where(dist.racing, noise + moved, -torch.inf)
            soft = soft + relax(dist, noise, self.temperature, self.kind)
        soft = (soft / self.draws).to(trace.layout.dtype)
        return self.evaluate_differentiably(dist, objective, trace.value + (soft - soft.detach())).mean(0)
