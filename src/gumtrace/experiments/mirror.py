"""A symmetry that training may break the wrong way: at `mirror_at + mirror_for` a run goes back to where it was at
`mirror_at`, as its mirror image, and is trained to the same iteration again. The better of the two on validation stays.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from gumtrace.experiments.folder import MIRROR, STATE

if TYPE_CHECKING:
    from gumtrace.experiments.run import Run

State = dict[str, Any]


class Mirror:
    """Of one run. While the mirror image is on its way, `first` is the state the run itself has reached."""

    def __init__(self, run: "Run"):
        self.run, self.done = run, run.config.mirror_at == 0
        self.origin: State | None = None
        self.first: State | None = None
        self.start, self.end = run.config.mirror_at, run.config.mirror_at + run.config.mirror_for

    def before_update(self) -> None:
        if self.done or self.first is not None:
            return
        if self.run.iteration == self.start:
            self.origin = copied(self.run.state_dict())
            if self.run.folder is not None:
                self.run.folder.save(MIRROR, self.origin)
        if self.run.iteration == self.end:  # the run is there, and has been checked; now for its image
            assert self.origin is not None
            self.first = copied(self.run.state_dict())
            self.run.load_state_dict(self.origin)
            self.run.experiment.mirror()
            self.run.forget_moments()

    def after_update(self) -> None:
        if self.first is not None and self.run.iteration == self.end:
            self._decide(self.first)

    def _decide(self, first: State) -> None:
        run, better = self.run, self.run.experiment.better
        own, image = first["valid"], run.evaluate("valid")
        run.totals()  # begin anew
        self.first, self.done = None, True
        if image[better] > own[better]:
            run.best, run.valid = first["best"], image
            run.keep_if_best()
        else:
            run.load_state_dict(first)
        if run.folder is not None:
            run.folder.log({"iteration": run.iteration, "split": "mirror", "own": own[better], "image": image[better]})
            run.folder.save(STATE, run.state_dict())


def copied(state: State) -> State:
    return tree_map(lambda x: x.clone() if torch.is_tensor(x) else x, state)
