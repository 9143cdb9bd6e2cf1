"""Which items a batch has while a curriculum leaves some out."""

import inspect
from bisect import bisect_left

import numpy as np
import torch
from torch import Tensor

from gumtrace_experiments.config import derive_seed
from gumtrace_experiments.curriculum import Curriculum
from gumtrace_experiments.experiment import Experiment


class EasyFirst:
    """The items in the order of their difficulty, on the host, and draws of the first few of them."""

    def __init__(self, experiment: Experiment):
        self.config = experiment.config
        self._curriculum = Curriculum.parse(self.config.curriculum)
        self._sorted, self._order = _difficulty(experiment).detach().double().cpu().sort(stable=True)
        if not self._count(0):
            least = f"the least difficulty is {self._sorted[0].item():g}"
            raise ValueError(f"curriculum {self.config.curriculum} has no item to begin with: {least}")

    def draw(self, iteration: int) -> Tensor | None:
        """None if all items may be drawn."""
        if (count := self._count(iteration)) == len(self._order):
            return None
        generator = torch.Generator().manual_seed(derive_seed(self.config.seed, "curriculum", iteration))
        return self._order[torch.randint(count, (self.config.items,), generator=generator)]

    def __str__(self) -> str:
        """From when on it has all items, or how far it comes."""
        name, iterations, items = f"curriculum {self.config.curriculum}", self.config.iterations, len(self._order)
        if (count := self._count(iterations - 1)) == items:
            return f"{name}: all items from iteration {bisect_left(range(iterations), items, key=self._count):,} on"
        hardest = f"up to difficulty {self._sorted[count - 1].item():g} of {self._sorted[-1].item():g}"
        return f"{name}: never all items; in the last of {iterations:,} iterations {count:,} of {items:,}, {hardest}"

    def _count(self, iteration: int) -> int:
        return int(np.searchsorted(self._sorted.numpy(), self._curriculum.bound(iteration), side="right"))


def check_difficulty(experiment: type[Experiment]) -> None:
    """Whether the experiment has one, before its data are made."""
    if experiment.difficulty is Experiment.difficulty:
        raise ValueError(
            f"curriculum: {experiment.name} does not say how difficult an item is: leave out --curriculum, or give the "
            "experiment a method difficulty(data)"
        )
    if not callable(experiment.difficulty):
        kind = type(experiment.difficulty).__name__
        raise ValueError(f"curriculum: difficulty of {experiment.name} must be a method difficulty(data), got a {kind}")


def _difficulty(experiment: Experiment) -> Tensor:
    """(items,), as the experiment says."""
    try:
        inspect.signature(experiment.difficulty).bind(experiment.data)
    except TypeError:
        raise ValueError(
            f"curriculum: difficulty of {experiment.name} must be called with the data alone: make it a static method "
            "difficulty(data), or difficulty(self, data)"
        ) from None
    found, items = experiment.difficulty(experiment.data), experiment.items
    if not isinstance(found, Tensor):
        got = type(found).__name__
    elif found.shape != (items,):
        got = f"one of shape {tuple(found.shape)}"
    elif nans := int(found.isnan().sum()):
        got = f"nan for {nans} of them"
    else:
        return found
    raise ValueError(
        f"curriculum: difficulty of {experiment.name} must return one number for each item of the training set, "
        f"a tensor ({items},), got {got}"
    )
