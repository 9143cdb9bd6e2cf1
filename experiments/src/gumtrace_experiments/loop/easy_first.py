"""Which items a batch has while a curriculum leaves some out."""

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
