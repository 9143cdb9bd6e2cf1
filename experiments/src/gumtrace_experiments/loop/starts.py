"""Where to start from. Some problems have a symmetry that the first few hundred iterations break one way or the other,
and one of the ways ends badly: so several initial models are trained for a while, and the one that is best on
validation goes on from where it is."""

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from gumtrace_experiments.loop.run import Run


class Starts:
    """Of one run, which is trained from each of them in turn. One cut off meanwhile goes on with the one it was at."""

    def __init__(self, run: "Run"):
        self.run = run
        self.scores: list[float] = []
        self.best: dict[str, Any] | None = None  # the state that the best start has reached
        self.done = run.config.starts == 1

    def after_update(self) -> None:
        if self.done or self.run.iteration < self.run.config.start_iterations:
            return
        self._end(self._score())

    def give_up(self) -> None:
        """The one that it is at, which diverged."""
        self._end(-torch.inf)

    def _end(self, score: float) -> None:
        self.run.totals()  # the next one begins anew
        if score > max(self.scores, default=-torch.inf):
            self.best = tree_map(lambda x: x.clone() if torch.is_tensor(x) else x, self.run.state_dict())
        self.scores.append(score)
        if len(self.scores) < self.run.config.starts:
            self.run.restart(len(self.scores))
            self._save({"scores": self.scores, "best": self.best})
        else:
            self._finish()

    def go_on(self, state: dict[str, Any] | None) -> None:
        """From what was saved: nothing, if one had been chosen."""
        self.done = state is None
        if state is not None:
            self.scores, self.best = state["scores"], state["best"]

    def _score(self) -> float:
        """Of one process, for all: they must choose alike."""
        run = self.run
        score = run.evaluate("valid")[run.experiment.better] if run.workers.first else 0.0
        shared = torch.tensor(score, dtype=torch.float64, device=run.device)
        run.workers.sum([shared])
        return -torch.inf if shared.isnan() else shared.item()

    def _finish(self) -> None:
        run, self.done = self.run, True
        if self.best is not None:  # there is none if all diverged
            run.load_state_dict(self.best)
            self.best = None
        if run.folder is not None:
            scores = {f"start {number}": score for number, score in enumerate(self.scores)}
            run.folder.log({"iteration": run.iteration, "split": "starts", **scores})
        self._save(None)

    def _save(self, starts: dict[str, Any] | None) -> None:
        if self.run.folder is not None:
            self.run.folder.save_state({**self.run.state_dict(), "starts": starts})
