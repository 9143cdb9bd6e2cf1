"""Where to start from. Some problems have a symmetry that the first few hundred iterations break one way or the other,
and one of the ways ends badly: so several initial models are trained for a while, and the one that is best on
validation is trained on from where it is."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

State = dict[str, Any]


class Starts:
    """The scores of the initial models that were tried so far, and the state that the best of them reached."""

    def __init__(self, count: int):
        self.count = count
        self.scores: list[float] = []
        self.done = count == 1
        self._best: State | None = None

    @property
    def left(self) -> int:
        """To be tried after the current one."""
        return 0 if self.done else self.count - 1 - len(self.scores)

    def add(self, score: float, state: Callable[[], State]) -> bool:
        """The score of the current one, -inf if it diverged. `state` is called if it is the best so far. Returns
        whether there is another one to try."""
        if score > max(self.scores, default=-math.inf):
            self._best = tree_map(lambda x: x.clone() if torch.is_tensor(x) else x, state())
        self.scores.append(score)
        return len(self.scores) < self.count

    def choose(self) -> State | None:
        """The state of the best; None if all diverged. There is nothing more to try then."""
        chosen, self._best, self.done = self._best, None, True
        return chosen

    def state_dict(self) -> State | None:
        """None when one has been chosen."""
        return None if self.done else {"scores": self.scores, "best": self._best}

    def load_state_dict(self, state: State | None) -> None:
        self.done = state is None
        if state is not None:
            self.scores, self._best = state["scores"], state["best"]
