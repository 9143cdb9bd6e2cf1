"""Which items of the training set an iteration has: a function of the seed and the iteration, the same on every device
and for every process."""

import numpy as np
import torch
from torch import Tensor

from gumtrace_experiments.config import derive_seed
from gumtrace_experiments.curriculum import Curriculum
from gumtrace_experiments.experiment import Experiment


class Batches:
    """Batches of an experiment, on a device. Nothing here synchronises.

    They go through the training set in epochs, each in an order of its own. While a curriculum leaves items out there
    are no epochs: items are drawn independently and uniformly from the others. From the iteration on that has all
    items, batches are those of a run without a curriculum.
    """

    def __init__(self, experiment: Experiment, device: torch.device):
        config = experiment.config
        if config.items > experiment.items:
            raise ValueError(f"a batch has {config.items} items, but the training set has only {experiment.items}")
        self.seed, self.items, self.size, self.device = config.seed, config.items, experiment.items, device
        self._easy_first = _EasyFirst(experiment) if config.curriculum else None
        self._order, self._epoch = torch.empty(0), -1

    def of(self, iteration: int) -> Tensor:
        """(items,) int64."""
        if self._easy_first is not None and (drawn := self._easy_first.draw(iteration)) is not None:
            return self._to_device(drawn)
        epoch, place = divmod(iteration, self.size // self.items)  # the last few items of an epoch are left out
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
            self._order, self._epoch = self._to_device(torch.randperm(self.size, generator=generator)), epoch
        return self._order[place * self.items : (place + 1) * self.items]

    def _to_device(self, x: Tensor) -> Tensor:
        return x if self.device.type == "cpu" else x.pin_memory().to(self.device, non_blocking=True)


class _EasyFirst:
    """The items in the order of their difficulty, on the host, and draws of the first few of them."""

    def __init__(self, experiment: Experiment):
        self.config = experiment.config
        self._curriculum = Curriculum.parse(self.config.curriculum)
        difficulty = experiment.difficulty(experiment.data)
        if difficulty is None:
            raise ValueError(f"curriculum: {experiment.name} does not say how difficult an item is")
        if difficulty.shape != (experiment.items,) or difficulty.isnan().any():
            raise ValueError(f"curriculum: {experiment.name} needs one difficulty for each item, none of them nan")
        self._sorted, self._order = difficulty.detach().double().cpu().sort(stable=True)
        if not self._count(0):
            least = f"the least difficulty is {self._sorted[0].item():g}"
            raise ValueError(f"curriculum {self.config.curriculum} has no item to begin with: {least}")

    def draw(self, iteration: int) -> Tensor | None:
        """None if all items may be drawn."""
        if (count := self._count(iteration)) == len(self._order):
            return None
        generator = torch.Generator().manual_seed(derive_seed(self.config.seed, "curriculum", iteration))
        return self._order[torch.randint(count, (self.config.items,), generator=generator)]

    def _count(self, iteration: int) -> int:
        return int(np.searchsorted(self._sorted.numpy(), self._curriculum.bound(iteration), side="right"))
