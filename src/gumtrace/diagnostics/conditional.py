"""The distribution of G | T. Averaged over T it is that of G: one Gumbel for each key, independent of the others."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.diagnostics.p_values import smallest, two_sided
from gumtrace.structures.joint import as_structure

EULER = 0.5772156649015329
SPREAD = torch.pi**2 / 6  # variance of a Gumbel


@dataclass(frozen=True)
class ConditionalReport:
    """p-values are the smallest over all keys, corrected for their number: below 1e-6 something is wrong."""

    samples: int
    broken: int  # draws of G | T that did not give T back
    ks_p_value: float  # Kolmogorov-Smirnov, each key against its Gumbel
    mean_p_value: float  # of each key
    correlation_p_value: float  # of e^-E between pairs of keys: they are independent

    @property
    def p_value(self) -> float:
        return min(1.0, 3 * min(self.ks_p_value, self.mean_p_value, self.correlation_p_value))


def check_conditional(
    dist: Distribution, samples: int = 100_000, *, generator: torch.Generator | None = None
) -> ConditionalReport:
    """Draws T, then G | T, of an unbatched distribution: runs the algorithm again, and tests the distribution of G.

    That the trace is kept is not enough: a sampler with the wrong scale keeps it too. Estimators need the distribution.

    >>> import gumtrace as gt
    >>> tree = gt.SpanningTree(torch.zeros(4, 4))
    >>> report = check_conditional(tree, 10_000, generator=torch.Generator().manual_seed(0))
    >>> report.broken, report.p_value > 1e-6
    (0, True)
    """
    dist = as_structure("check_conditional", dist)
    if dist.batch_shape:
        raise ValueError(f"check_conditional works on one item, this batch has shape {tuple(dist.batch_shape)}")
    trace = dist.sample_trace((samples,), generator=generator)
    with torch.no_grad():
        noise = dist.conditional(trace, generator=generator)
    kept = dist.trace(noise).equals(trace).reshape(samples, -1).all(-1)
    broken = samples - int(kept.sum())
    racing = dist.racing
    gumbel = (noise[:, racing] - dist.log_rates.detach()[racing]).double()  # (samples, keys), standard if all is right
    keys = max(gumbel.shape[1], 1)
    ks = _kolmogorov(gumbel)
    mean = two_sided((gumbel.mean(0) - EULER) / (SPREAD / samples) ** 0.5)
    uniform = (-(-gumbel).exp()).exp()
    centred = (uniform - 0.5) * 12**0.5
    correlation = (centred.mT @ centred / samples * samples**0.5).triu(1)
    pairs = max(keys * (keys - 1) // 2, 1)
    pair_p = two_sided(correlation[torch.ones_like(correlation, dtype=torch.bool).triu(1)])
    return ConditionalReport(samples, broken, smallest(ks, keys), smallest(mean, keys), smallest(pair_p, pairs))


def _kolmogorov(gumbel: Tensor) -> Tensor:
    """p-value of each column against the standard Gumbel, by the asymptotic distribution of the largest deviation."""
    n = len(gumbel)
    cdf = (-(-gumbel.sort(0).values).exp()).exp()
    step = torch.arange(n, dtype=torch.float64, device=gumbel.device)[:, None]
    deviation = torch.maximum((step + 1) / n - cdf, cdf - step / n).amax(0)
    scaled = deviation * (n**0.5 + 0.12 + 0.11 / n**0.5)
    term = torch.arange(1, 101, dtype=torch.float64, device=gumbel.device)[:, None]
    return (2 * (-1) ** (term - 1) * (-2 * term**2 * scaled**2).exp()).sum(0).clamp(0, 1)
