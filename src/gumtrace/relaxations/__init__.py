"""Soft structures: points inside the convex hull of the hard ones, smooth in the noise (stochastic softmax tricks)."""

from collections.abc import Callable

import torch
from torch import Tensor

from gumtrace.relaxations.sinkhorn import permutation_matrix, sinkhorn
from gumtrace.relaxations.subset import relax_subset
from gumtrace.relaxations.transforms import refuse_transforms
from gumtrace.relaxations.trees import arborescence_marginals, spanning_tree_marginals
from gumtrace.structures.arborescence import Arborescence
from gumtrace.structures.base import Structure
from gumtrace.structures.matching import Matching
from gumtrace.structures.permutation import Permutation
from gumtrace.structures.spanning_tree import SpanningTree
from gumtrace.structures.subset import Subset

KINDS: dict[type, tuple[str, ...]] = {  # the first is the default
    Subset: ("expfamily", "euclidean", "categorical", "binary"),
    Permutation: ("sinkhorn",),
    Matching: ("sinkhorn",),
    SpanningTree: ("matrix-tree",),
    Arborescence: ("matrix-tree",),
}


def relax(dist: Structure, noise: Tensor, temperature: float | Tensor, kind: str | None = None) -> Tensor:
    """A soft value of the same shape, inside the polytope, differentiable twice in noise and temperature: by autograd,
    not by torch.func.

    Args:
        dist: a Subset, Permutation with matrix=True, Matching, SpanningTree or Arborescence.
        noise: perturbed logits G, samples + batch + keys, of any floating dtype; half types are computed in float32.
        temperature: positive, one for all or one for each item, (*batch,); towards 0 the value becomes that of the hard
            structure (for a Matching that of the heaviest one and for an Arborescence the heaviest in G, from which the
            greedy and the lightest may differ). Below 2^-20 it counts as 2^-20, and noise beyond ±2^60 as ±2^60.
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
    if not torch.is_tensor(noise) or not noise.is_floating_point():
        got = f"a {noise.dtype} tensor" if torch.is_tensor(noise) else type(noise).__name__
        raise TypeError(f"relax: noise must be a floating point tensor, see dist.perturb; got {got}")
    dist._check_noise(noise)
    wide = noise if noise.dtype in (torch.float32, torch.float64) else noise.float()
    temperature = _checked_temperature(dist, temperature)
    if torch.is_tensor(temperature):  # whose gradient must not meet the noise of keys that do not race: 0 · inf
        wide = torch.where(dist.racing, wide, 0.0)
    scores = torch.where(dist.log_rates > -torch.inf, _quotient(wide, temperature), -torch.inf)
    return _MAPS[type(dist)](dist, scores, kind).to(noise.dtype)


# Noise counts up to MOST and temperatures down to LEAST, so that neither G / t nor its derivative G / t² overflows.
# Noise so large has lost all that was random in it, and a structure so cold is as good as hard.
MOST, LEAST = 2.0**60, 2.0**-20


def _quotient(noise: Tensor, temperature: float | Tensor) -> Tensor:
    cold = temperature.clamp(min=LEAST) if torch.is_tensor(temperature) else max(temperature, LEAST)
    return noise.clamp(-MOST, MOST) / cold


def has_relaxation(dist: Structure) -> bool:
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
    if dist._validate_args and not (temperature > 0).all():  # to look at a tensor is to wait for its device
        raise ValueError(f"relax: temperature must be positive, got {temperature.min().item()}")
    if temperature.numel() == 1:
        return temperature.reshape(())
    if temperature.shape != dist.batch_shape:
        shapes = f"{tuple(temperature.shape)}, for the batch shape {tuple(dist.batch_shape)}"
        raise ValueError(f"relax: temperature must be one number, or one for each item of the batch; got {shapes}")
    return temperature[(..., *[None] * len(dist.key_shape))]


def _checked_kind(dist: Structure, kind: str | None) -> str:
    name = type(dist).__name__
    if type(dist) not in KINDS:
        raise NotImplementedError(
            f"relax: {name} has no relaxation; take an estimator without one, TraceREINFORCE or RELAX"
        )
    if isinstance(dist, Permutation) and not dist.matrix:
        raise ValueError("relax: a soft permutation is a matrix; make the distribution with matrix=True")
    if isinstance(dist, SpanningTree) and (dist.components > 1 or dist.is_sparse):
        raise NotImplementedError(
            "relax: there is no relaxation of spanning forests or of sparse graphs, only of dense trees"
        )
    kinds = KINDS[type(dist)]
    if kind is not None and kind not in kinds:
        raise ValueError(f"relax: {name} has the kinds {', '.join(kinds)}, not {kind!r}")
    return kind or kinds[0]


_MAPS: dict[type, Callable[..., Tensor]] = {
    # An int where it was one: to look at a tensor is to wait for its device.
    Subset: lambda dist, scores, kind: relax_subset(scores, dist.k if dist._number is None else dist._number, kind),
    Permutation: lambda dist, scores, kind: permutation_matrix(scores),
    Matching: lambda dist, scores, kind: sinkhorn(scores),
    SpanningTree: lambda dist, scores, kind: spanning_tree_marginals(scores, dist._lengths),
    Arborescence: lambda dist, scores, kind: arborescence_marginals(scores, dist.root, dist._lengths),
}
