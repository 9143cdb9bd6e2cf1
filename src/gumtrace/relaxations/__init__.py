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
    if not torch.is_tensor(noise) or not noise.is_floating_point():
        got = f"a {noise.dtype} tensor" if torch.is_tensor(noise) else type(noise).__name__
        raise TypeError(f"relax: noise must be a floating point tensor, see dist.perturb; got {got}")
    dist._check_noise(noise)
    wide = noise if noise.dtype in (torch.float32, torch.float64) else noise.float()
    temperature = _checked_temperature(dist, temperature)
    scores = _scores(dist, wide, temperature)
    return _MAPS[type(dist)](dist, scores, kind).to(noise.dtype)


# Scores count up to the first and temperatures down to the second: neither a score nor its gradient overflows.
_BOUNDS = {torch.float32: (2.0**120, 2.0**-80), torch.float64: (2.0**900, 2.0**-500)}
_COLDEST_TREE = {"cpu": 2.0**-32, "cuda": 2.0**-20}  # colder, log-weights would leave the range of their kernels
_NEAR = 2.0**40  # the temperature has a say in scores up to this: larger ones are those of a hard structure


def _scores(dist: Structure, noise: Tensor, temperature: float | Tensor) -> Tensor:
    """G / temperature, -inf for keys that do not race."""
    most, least = _BOUNDS[noise.dtype]
    if isinstance(dist, (SpanningTree, Arborescence)):
        least = _COLDEST_TREE.get(noise.device.type, least)
    if torch.is_tensor(temperature):
        temperature = temperature.clamp(min=least)
        fixed = temperature.detach()
        near = dist.racing & (noise.abs() <= _NEAR * fixed)  # elsewhere -G / t² may be infinite, and 0 · inf nan
        scores = torch.where(near, torch.where(near, noise, 0.0) / temperature, (noise / fixed).clamp(-most, most))
    else:
        scores = (noise / max(temperature, least)).clamp(-most, most)
    return torch.where(dist.log_rates > -torch.inf, scores, -torch.inf)


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
