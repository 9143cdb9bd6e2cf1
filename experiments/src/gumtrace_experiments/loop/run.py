"""One model in training: a config, a seed, a folder. `advance` is one iteration; a run that was cut off resumes exactly
as it would have continued."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from gumtrace.diagnostics.gradients import frozen
from gumtrace.structures.checks import NotFinite
from gumtrace_experiments.config import derive_seed
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.evaluation import evaluate_split
from gumtrace_experiments.loop.update import Updater
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.store.folder import RunFolder

State = dict[str, Any]


class Run:
    """`folder` is None for ranks other than 0."""

    def __init__(self, experiment: Experiment, folder: RunFolder | None, workers: Workers, *, graph: bool = False):
        self.experiment, self.folder, self.workers = experiment, folder, workers
        self.config, self.device = experiment.config, workers.device
        experiment.scratch = None if folder is None else folder.path
        self.updater = Updater(experiment, workers, graph=graph)
        self.iteration, self.seconds, self._clock = 0, 0.0, time.perf_counter()
        self.best: dict[str, Any] | None = None
        self.valid: dict[str, float] = {}  # the latest
        self.diverged = ""  # where and why it ended early, if so
        self.starts = Starts(self.config.starts)

    @property
    def finished(self) -> bool:
        return bool(self.diverged) or self.iteration >= self.config.iterations

    @property
    def updates(self) -> int:
        """In all, with those of starts that are given up, from the one that it is at."""
        return self.config.iterations + self.starts.left * self.config.start_iterations

    @property
    def left(self) -> int:
        """Updates to be made."""
        return 0 if self.finished else self.updates - self.iteration

    @property
    def recorded(self) -> bool:
        """As a CUDA graph."""
        return self.updater.recorded

    @property
    def due(self) -> bool:
        """Whether an evaluation comes after the next update."""
        after = self.iteration + 1
        return self.starts.done and (after % self.config.evaluate_every == 0 or after >= self.config.iterations)

    @property
    def pausing(self) -> bool:
        """Whether the next `advance` is more than an update, and so synchronises."""
        return self.due or self.iteration == 0 or self.iteration + 1 == self.config.start_iterations

    def advance(self) -> bool:
        """One update, and an evaluation with a checkpoint when it is due. Returns whether it was."""
        due = self.due
        with self.updater.on_stream():
            try:
                self._advance(due)
            except NotFinite as error:
                if self.workers.world > 1:  # where others wait for this one, all have to end
                    raise
                self._give_up(error)
                return False
        return due

    def _advance(self, due: bool) -> None:
        if self.iteration == 0 and not self.starts.scores:
            self._log_gradient("beginning")
        self.update()
        if due:
            self.check()
        if not self.starts.done and self.iteration >= self.config.start_iterations:
            self._end_start(self._start_score())

    def _give_up(self, error: NotFinite) -> None:
        """This start if there are others, or the run: seeds beside it continue."""
        if self.starts.done:
            self.diverged = f"at iteration {self.iteration}: {error}"
        else:
            self._end_start(-math.inf)

    def update(self) -> None:
        self.updater.update(self.iteration)
        self.iteration += 1

    # Several initial models --------------------------------------------------------------------------

    def _start_score(self) -> float:
        """The score of rank 0, for all ranks: they must choose alike."""
        score = self.evaluate("valid")[self.experiment.selection_metric] if self.workers.is_main else 0.0
        shared = torch.tensor(score, dtype=torch.float64, device=self.device)
        self.workers.sum([shared])
        return -math.inf if shared.isnan() else shared.item()

    def _end_start(self, score: float) -> None:
        """Try the next initial model, or continue with the best."""
        self.updater.totals()  # the next one starts at zero
        if self.starts.add(score, self.state_dict):
            self._restart(len(self.starts.scores))
        else:
            if (chosen := self.starts.choose()) is not None:
                self.load_state_dict(chosen)
            if self.folder is not None:
                scores = {f"start {number}": score for number, score in enumerate(self.starts.scores)}
                self.folder.log({"iteration": self.iteration, "split": "starts", **scores})
        if self.folder is not None:
            self.folder.save_state({**self.state_dict(), "starts": self.starts.state_dict()})

    def _restart(self, start: int) -> None:
        """As another initial model."""
        model = type(self.experiment).build(self.config, self.experiment.data, self.device, start)
        self.updater.load_model(model.state_dict())
        self.updater.reset_moments()
        self.iteration = 0

    # Evaluation --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Evaluate, keep the best, write a checkpoint."""
        since = (self.iteration - 1) % self.config.evaluate_every + 1
        averages = {name: total / since for name, total in self.updater.totals().items()}
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        if not torch.stack([p.isfinite().all() for p in self.experiment.parameters()]).all():
            raise NotFinite("a parameter is nan or infinite")  # an update does not synchronise, and cannot check
        if self.folder is None:
            return
        self.valid = self.evaluate("valid")
        self.folder.log({"iteration": self.iteration, "split": "train", **averages})
        self.folder.log({"iteration": self.iteration, "split": "valid", **self.valid})
        if self.finished or 0 <= self.iteration - self.config.iterations // 2 < self.config.evaluate_every:
            self._log_gradient("end" if self.finished else "half-way")
        self._keep_if_best(self.folder)
        self.folder.save_state(self.state_dict())  # last: what came before is repeated if this is missing

    def _keep_if_best(self, folder: RunFolder) -> None:
        score = self.valid[self.experiment.selection_metric]
        if math.isfinite(score) and (self.best is None or score > self.best["valid"][self.experiment.selection_metric]):
            self.best = {"iteration": self.iteration, "valid": self.valid}
            folder.stage_best({**self.best, "model": self.experiment.state_dict()})

    def _log_gradient(self, moment: str) -> None:
        """Log the standard deviation of the gradient on the next batch. The estimator must not learn from it."""
        if self.folder is None:
            return
        self.updater.prepare(self.iteration)
        generator = torch.Generator(self.device).manual_seed(derive_seed(self.config.seed, "gradient", self.iteration))
        buffers = [(b, b.clone()) for b in self.experiment.buffers()]
        with frozen(self.experiment.estimator), self.config.autocast(self.device), self.experiment.eager():
            std = self.experiment.gradient_std(self.updater.index, generator)
        for b, before in buffers:  # running statistics
            b.copy_(before)
        if std is not None:
            self.folder.log({"iteration": self.iteration, "split": "gradient", "moment": moment, "std": std})

    def evaluate(self, split: str) -> dict[str, float]:
        with self.updater.on_shared_stream():
            return evaluate_split(self.experiment, split, self.device)

    # State -------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        return {
            "iteration": self.iteration,
            "rows": 0 if self.folder is None else self.folder.rows,
            "seconds": self.seconds,
            "best": self.best,
            "model": self.experiment.state_dict(),
            "optimiser": self.updater.optimiser.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.iteration, self.seconds = state["iteration"], max(self.seconds, state["seconds"])
        self.best = state["best"]
        self.starts.load_state_dict(state.get("starts"))
        self.updater.load_model(state["model"])
        self.updater.load_moments(state["optimiser"])


class Starts:
    """The scores of the initial models that were tried so far, and the state that the best of them reached.

    Some problems have a symmetry that the first few hundred iterations break one way or the other, and one of the ways
    ends badly: so several initial models are trained for a while, and the one that is best on validation is trained on
    from where it is.
    """

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
