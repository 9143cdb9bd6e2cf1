"""Soft structures: points inside the convex hull of the hard ones, smooth in the noise (stochastic softmax tricks)."""

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.relaxations.transforms import refuse_transforms
from gumtrace.structures.base import Structure
from gumtrace.structures.joint import as_structure, split


def relax(dist: Distribution, noise: Tensor, temperature: float | Tensor, kind: str | None = None) -> Tensor:
    """A soft value of the same shape, inside the polytope, differentiable twice in noise and temperature: by autograd,
    not by torch.func.

    Args:
        dist: a Subset, Permutation with matrix=True, Matching, SpanningTree or Arborescence, or
            `torch.distributions.Independent` of one.
        noise: perturbed logits G, samples + batch + keys, of any floating dtype; half types are computed in float32.
        temperature: positive, one for all or one for each item, (*batch,); towards 0 the value becomes that of the hard
            structure (for a Matching that of the heaviest one and for an Arborescence the heaviest in G, from which the
            greedy and the lightest may differ). Where the quotient would overflow it counts as the largest that does
            not; for trees the temperature counts as 2^-32 at least, on CUDA as 2^-20.
        kind: "expfamily", "euclidean", "categorical" or "binary" for a Subset; "sinkhorn" for a Permutation or
            Matching; "matrix-tree" for trees.

    >>> import gumtrace as gt
    >>> d = gt.Subset(torch.zeros(5), k=2)
    >>> soft = relax(d, d.perturb(), temperature=0.5)
    >>> round(soft.sum().item(), 4)
    2.0
    """
    refuse_transforms("relax")
    kind = _checked_kind(dist, kind)
    dist = as_structure("relax", dist)
    if not torch.is_tensor(noise) or not noise.is_floating_point():
        got = f"a {noise.dtype} tensor" if torch.is_tensor(noise) else type(noise).__name__
        raise TypeError(f"relax: noise must be a floating point tensor, see dist.perturb; got {got}")
    dist._check_noise(noise)
    wide = noise if noise.dtype in (torch.float32, torch.float64) else noise.float()
    temperature = _checked_temperature(dist, temperature)
    scores = _scores(dist, wide, temperature, kind)
    return dist._relax(scores, kind).to(noise.dtype)


# Scores count up to the first and temperatures down to the second: neither a score nor its gradient overflows.
_BOUNDS = {torch.float32: (2.0**120, 2.0**-80), torch.float64: (2.0**900, 2.0**-500)}
_COLDEST = {"matrix-tree": {"cpu": 2.0**-32, "cuda": 2.0**-20}}  # below, log-weights leave the range of its kernels
_NEAR = 2.0**40  # scores up to this depend on the temperature: larger ones are those of a hard structure


def _scores(dist: Structure, noise: Tensor, temperature: float | Tensor, kind: str) -> Tensor:
    """G / temperature, -inf for keys that do not race."""
    most, least = _BOUNDS[noise.dtype]
    least = _COLDEST.get(kind, {}).get(noise.device.type, least)
    if torch.is_tensor(temperature):
        temperature = temperature.clamp(min=least)
        fixed = temperature.detach()
        near = dist.racing & (noise.abs() <= _NEAR * fixed)  # elsewhere -G / t² may be infinite, and 0 · inf nan
        scores = torch.where(near, torch.where(near, noise, 0.0) / temperature, (noise / fixed).clamp(-most, most))
    else:
        scores = (noise / max(temperature, least)).clamp(-most, most)
    return torch.where(dist.log_rates > -torch.inf, scores, -torch.inf)


def has_relaxation(dist: Distribution) -> bool:
    """Whether `relax` takes it."""
    try:
        _checked_kind(dist, None)
    except (NotImplementedError, ValueError):
        return False
    return True


def _checked_temperature(dist: Structure, temperature: float | Tensor) -> float | Tensor:
    """A number, or (*batch, 1...) with a dimension for each of the keys'."""
    if not torch.is_tensor(temperature):
        if not temperature > 0:
            raise ValueError(f"relax: temperature must be positive, got {temperature}")
        return temperature
    if dist._validate_args and not (temperature > 0).all():  # reading a tensor synchronises
        raise ValueError(f"relax: temperature must be positive, got {temperature.min().item()}")
    if temperature.numel() == 1:
        return temperature.reshape(())
    if temperature.shape != dist.batch_shape:
        shapes = f"{tuple(temperature.shape)}, for the batch shape {tuple(dist.batch_shape)}"
        raise ValueError(f"relax: temperature must be one number, or one for each item of the batch; got {shapes}")
    return temperature[(..., *[None] * len(dist.key_shape))]


def _checked_kind(dist: Distribution, kind: str | None) -> str:
    dist, _ = split("relax", dist)
    name, kinds = type(dist).__name__, dist.relaxations
    if not kinds:
        raise NotImplementedError(
            f"relax: {name} has no relaxation; take an estimator without one, TraceREINFORCE or RELAX"
        )
    dist._check_relaxable()
    if kind is not None and kind not in kinds:
        raise ValueError(f"relax: unknown kind {kind!r} for {name}: choose from {', '.join(kinds)}")
    return kind or kinds[0]
