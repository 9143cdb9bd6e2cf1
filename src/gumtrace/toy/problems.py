"""Small problems: one distribution with free logits, one objective, and every estimator that applies."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gumtrace import estimators
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


def applicable(p: Problem, samples: int = 8) -> dict[str, Callable[[], estimators.Estimator]]:
    """Estimators of the problem by name, each for about `samples` objective calls an iteration."""
    dist = p.dist
    size = dist.key_shape[0]

    def critic():
        return estimators.MatrixCritic() if len(dist.key_shape) == 2 else estimators.VectorCritic(size)

    found: dict[str, Callable[[], estimators.Estimator]] = {
        "E-REINFORCE+": lambda: estimators.NoiseREINFORCE(samples),
        "T-REINFORCE+": lambda: estimators.TraceREINFORCE(samples),
    }
    if p.name not in ("arborescence",):
        found["X-REINFORCE+"] = lambda: estimators.StructureREINFORCE(samples)
    found["RELAX"] = lambda: estimators.RELAX(critic(), samples)
    # a binary tree's parents have too many pairs to solve for
    surrogate = estimators.LinearSurrogate if p.name == "binary" else estimators.PairwiseSurrogate
    found["Surrogate"] = lambda: estimators.SurrogateREINFORCE(surrogate(forget=1.0), samples, extra=512)
    if p.name != "binary" and p.smooth:
        third = max(samples // 3, 1)  # REBAR evaluates the objective three times a sample
        found["REBAR"] = lambda: estimators.REBAR(samples=third)
        found["SST"] = lambda: estimators.StochasticSoftmax(0.5, samples)
        found["Straight-through"] = lambda: estimators.StraightThrough(0.5, samples)
        found["Gumbel-Rao"] = lambda: estimators.GumbelRao(0.5, samples, draws=4)
    return found
