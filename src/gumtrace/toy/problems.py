"""Small problems: one distribution with free logits, one objective, and every estimator that applies."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gumtrace.estimators import (
    ESTIMATORS,
    Estimator,
    LinearSurrogate,
    MatrixCritic,
    PairwiseSurrogate,
    VectorCritic,
)
from gumtrace.structures.arborescence import Arborescence
from gumtrace.structures.base import Structure
from gumtrace.structures.binary_tree import BinaryTree
from gumtrace.structures.matching import Matching
from gumtrace.structures.permutation import Permutation
from gumtrace.structures.spanning_tree import SpanningTree
from gumtrace.structures.subset import Subset

Make = Callable[[Tensor], Structure]


class _Recipe(NamedTuple):
    size: int  # unless another one is asked for
    key_dim: int  # logits are (size,) or (size, size)
    make: Make


_RECIPES = {
    "subset": _Recipe(50, 1, lambda x: Subset(x, 5)),
    "permutation": _Recipe(8, 1, lambda x: Permutation(x, matrix=True)),
    "matching": _Recipe(8, 2, Matching),
    "spanning-tree": _Recipe(10, 2, SpanningTree),
    "arborescence": _Recipe(10, 2, Arborescence),
    "binary-tree": _Recipe(12, 1, BinaryTree),
}
SIZES = {name: recipe.size for name, recipe in _RECIPES.items()}
_PAIRWISE = 100  # entries of a value; more of them have too many pairs to solve for at every iteration


@dataclass(frozen=True)
class Problem:
    """Minimise E[objective(X)] over the logits."""

    name: str
    logits: Tensor  # where to start
    make: Make
    objective: Callable[[Tensor], Tensor]
    smooth: bool
    entries: int  # of a value, as the objective sees it

    @property
    def dist(self) -> Structure:
        return self.make(self.logits)


def problem(name: str, *, size: int | None = None, smooth: bool = True, seed: int = 0) -> Problem:
    """A structure of `SIZES` and a random quadratic objective of its entries, cut into steps unless it is to be smooth.

    >>> p = problem("spanning-tree", size=4)
    >>> p.objective(p.dist.sample((3,))).shape
    torch.Size([3])
    """
    if name not in SIZES:
        raise ValueError(f"unknown structure {name!r}: choose from {', '.join(SIZES)}")
    recipe = _RECIPES[name]
    size = size or recipe.size
    generator = torch.Generator().manual_seed(seed)
    logits = 0.5 * torch.randn(*[size] * recipe.key_dim, generator=generator)
    dist = recipe.make(logits)

    def flat(value: Tensor) -> Tensor:
        if not value.is_floating_point():  # parents: which token hangs below which
            value = torch.nn.functional.one_hot(value + 1, size + 1).to(logits.dtype)
            return value.flatten(-2)
        return value.flatten(-len(dist.event_shape))

    entries = len(flat(dist.mode))
    target = torch.randn(8, entries, generator=generator)
    aim = torch.randn(8, generator=generator)

    def objective(value: Tensor) -> Tensor:
        loss = (flat(value) @ target.T - aim).square().mean(-1)
        return loss if smooth else (2 * loss).floor() / 2

    return Problem(name, logits, recipe.make, objective, smooth, entries)


def applicable(p: Problem, samples: int = 8) -> dict[str, Callable[[], Estimator]]:
    """Estimators of the problem by label, each for about `samples` objective calls per iteration; without those of
    `left_out`. Where that is one sample, there is none to leave out, and labels have no "+"."""
    few = left_out(p, samples)
    fitting = [cls for cls in _fitting(p) if cls.label not in few]
    return {
        cls.label if _runs(cls, samples) > 1 else cls.label.removesuffix("+"): partial(_build, cls, p, samples)
        for cls in fitting
    }


def left_out(p: Problem, samples: int) -> dict[str, int]:
    """Estimators that would apply, but do not take as many samples: the most that they take, by label."""
    most = [(cls, cls.most_samples) for cls in _fitting(p)]
    return {cls.label: number for cls, number in most if number is not None and _runs(cls, samples) > number}


def _fitting(p: Problem) -> list[type[Estimator]]:
    return [cls for cls in ESTIMATORS.values() if cls.supports(p.dist) and (p.smooth or not cls.differentiates)]


def _runs(cls: type[Estimator], samples: int) -> int:
    return max(samples // cls.calls_per_sample, 1)


def _build(cls: type[Estimator], p: Problem, samples: int) -> Estimator:
    def critic() -> nn.Module:
        return MatrixCritic() if p.logits.dim() == 2 else VectorCritic(len(p.logits))

    def surrogate() -> nn.Module:
        return (PairwiseSurrogate if p.entries <= _PAIRWISE else LinearSurrogate)(forget=1.0)

    runs = _runs(cls, samples)
    settings = {"samples": runs, "leave_one_out": runs > 1, "draws": 4, "extra": 512}
    return cls.from_settings(settings, critic=critic, surrogate=surrogate)
