"""Small problems: one distribution with free logits, one objective, and every estimator that applies."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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

SIZES = {"subset": 50, "permutation": 8, "matching": 8, "tree": 10, "arborescence": 10, "binary": 12}
_MAKE: dict[str, Callable[[Tensor], Structure]] = {
    "subset": lambda x: Subset(x, 5),
    "permutation": lambda x: Permutation(x, matrix=True),
    "matching": Matching,
    "tree": SpanningTree,
    "arborescence": Arborescence,
    "binary": BinaryTree,
}


@dataclass(frozen=True)
class Problem:
    """Minimise E[objective(X)] over the logits."""

    name: str
    logits: Tensor  # where to start
    make: Callable[[Tensor], Structure]
    objective: Callable[[Tensor], Tensor]
    smooth: bool

    @property
    def dist(self) -> Structure:
        return self.make(self.logits)


def problem(name: str, *, size: int | None = None, smooth: bool = True, seed: int = 0) -> Problem:
    """A structure of `SIZES` and a random quadratic objective of its entries, cut into steps unless it is to be smooth.

    >>> p = problem("tree", size=4)
    >>> p.objective(p.dist.sample((3,))).shape
    torch.Size([3])
    """
    if name not in SIZES:
        raise ValueError(f"there is no structure {name!r}; there are {', '.join(SIZES)}")
    size = size or SIZES[name]
    generator = torch.Generator().manual_seed(seed)
    shape = (size,) if name in ("subset", "permutation", "binary") else (size, size)
    logits = 0.5 * torch.randn(*shape, generator=generator)
    event = _MAKE[name](logits).event_shape
    entries = size * (size + 1) if name == "binary" else event.numel()
    target = torch.randn(8, entries, generator=generator)
    aim = torch.randn(8, generator=generator)

    def objective(value: Tensor) -> Tensor:
        if not value.is_floating_point():  # parents: which token hangs below which
            value = torch.nn.functional.one_hot(value + 1, size + 1).to(logits.dtype)
            flat = value.flatten(-2)
        else:
            flat = value.flatten(-len(event))
        loss = (flat @ target.T - aim).square().mean(-1)
        return loss if smooth else (2 * loss).floor() / 2

    return Problem(name, logits, _MAKE[name], objective, smooth)


def applicable(p: Problem, samples: int = 8) -> dict[str, Callable[[], Estimator]]:
    """Estimators of the problem by label, each for about `samples` objective calls an iteration."""
    dist = p.dist
    fitting = [cls for cls in ESTIMATORS.values() if cls.supports(dist) and (p.smooth or not cls.differentiates)]
    return {cls.label: partial(_build, cls, p, samples) for cls in fitting}


def _build(cls: type[Estimator], p: Problem, samples: int) -> Estimator:
    def critic() -> nn.Module:
        return MatrixCritic() if p.logits.dim() == 2 else VectorCritic(len(p.logits))

    def surrogate() -> nn.Module:
        # a binary tree's parents have too many pairs to solve for
        return LinearSurrogate(forget=1.0) if p.name == "binary" else PairwiseSurrogate(forget=1.0)

    settings = {"samples": max(samples // cls.calls_per_sample, 1), "draws": 4, "extra": 512}
    return cls.from_settings(settings, critic=critic, surrogate=surrogate)
