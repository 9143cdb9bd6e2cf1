"""A worker of a sweep: it asks the study for a trial, trains it, reports its score, and asks again.

Workers share the study's storage and nothing else, and may be killed at any time. Each holds a lock for its life and
writes its name into its trials: a running trial whose worker's lock is free is failed and queued again by the next to
ask. Databases have heartbeats besides, as a lock may not be seen on other machines."""

import math
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import optuna
import torch
from optuna.exceptions import ExperimentalWarning, TrialPruned
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from gumtrace_experiments.config import Config
from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.loop.training import train
from gumtrace_experiments.store.errors import RunFolderError
from gumtrace_experiments.store.folder import LOCK, PRUNED, write_json
from gumtrace_experiments.store.locks import alive, exclusive, presence
from gumtrace_experiments.sweep.database import settled
from gumtrace_experiments.sweep.errors import SweepError
from gumtrace_experiments.sweep.study import DONE, Sweep, claim, count, give_up, open_study, repeats, retries_of

POLL = 1.0  # seconds between polls of a study
UNOWNED = 60.0  # seconds that a trial may run without a worker's name in it
PATIENCE = 10  # trials that may fail one after the other


class Unsuitable(Exception):
    """There is no run with these settings."""


class Diverged(TrialPruned):
    """Pruned, not failed: samplers learn nothing from failed trials, and would come back to where the best is near."""


FAILURES = (Unsuitable, RunFolderError, torch.cuda.OutOfMemoryError)


class Worker:
    """A worker of a sweep.

    Args:
        index: its number among the workers.
        watch: called after each evaluation of a run.
        study: the sweep's, if this process has opened it. Otherwise it is opened, when its database answers.
    """

    def __init__(
        self,
        sweep: Sweep,
        index: int = 0,
        watch: Callable[[Run], object] | None = None,
        study: Study | None = None,
    ):
        claim(sweep)
        self.sweep, self._watch = sweep, watch
        self.study = open_study(sweep, index, wait=True) if study is None else study
        self._name, self._place = "", f"{socket.gethostname()}:{sweep.locks.resolve()}"
        self._number: int | None = None  # of the trial under way
        self._failed = 0  # trials, one after the other
        self._unowned: dict[int, float] = {}  # when a trial without a worker's name was first seen

    def work(self) -> None:
        """Until the study has its trials."""
        with presence(self.sweep.locks) as self._name:
            with exclusive(self.sweep.locks / "data"):  # made by the first worker, and not by all at the same time
                self.sweep.experiment.load_data(self.sweep.config, self.sweep.data, torch.device("cpu"))
            while self._step():
                pass

    def _step(self) -> bool:
        """One trial, or a pause while others are at the last ones: should they be killed, there is work again."""
        with ExitStack() as asking:
            asking.enter_context(exclusive(self.sweep.locks / "asking"))
            self._revive()
            if count(self.study, DONE) >= self.sweep.trials:
                return False
            if count(self.study, (*DONE, TrialState.RUNNING)) < self.sweep.trials:
                self._run(asking)
                return True
        time.sleep(POLL)
        return True

    def _revive(self) -> None:
        """Trials of workers that are gone are tried again."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*fail_stale_trials", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)  # by their heartbeats, if the storage has any
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self._lost(trial):
                give_up(self.study, trial.number)

    def _lost(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get("worker")
        if owner is None:  # either it has only just been asked for, or its worker was killed right then
            now = time.monotonic()
            return now - self._unowned.setdefault(trial.number, now) > UNOWNED and settled(self.study)
        if self.sweep.on_database and trial.user_attrs.get("locks") != self._place:
            return False  # of another machine or another folder: heartbeats tell
        return not alive(self.sweep.locks / owner)

    def _run(self, asking: ExitStack) -> None:
        self._number = None
        try:
            # Collecting takes half a second, and is worth it where graphs of old runs hold memory of a device.
            collect = not self.sweep.device.startswith("cpu")
            objective = partial(self._objective, asking)
            self.study.optimize(objective, n_trials=1, catch=FAILURES, gc_after_trial=collect)
        except BaseException as error:
            if self._number is not None:
                if isinstance(error, Exception) and retries_of(self.study, self._number):
                    return  # others heard nothing of this worker, and have given up its trial: it is theirs now
                give_up(self.study, self._number)
            raise  # this worker ends, by no fault of the trial's: interrupted, preempted, a bug
        self._stop_if_all_fail()

    def _objective(self, asking: ExitStack, trial: Trial) -> float:
        self._number = trial.number
        trial.set_user_attr("locks", self._place)
        trial.set_user_attr("worker", self._name)
        try:
            if (first := repeats(self.study, trial)) is not None:
                raise Unsuitable(f"the same as trial {first}")
            config = self._suggested(trial)
            trial.set_user_attr("folder", str(self.sweep.folder(config)))
            asking.close()  # the next worker's sampler knows of these parameters
            return self._train(config, trial)
        except (*FAILURES, Diverged) as error:
            trial.set_user_attr("reason", str(error))
            raise

    def _suggested(self, trial: Trial) -> Config:
        try:
            return self.sweep.experiment.search(self.sweep.config, trial)
        except ValueError as error:  # values that are allowed, but not together
            raise Unsuitable(str(error)) from error

    def _train(self, config: Config, trial: Trial) -> float:
        """To the end, or until it is pruned: then a mark in the folder of the run says that it will not be resumed."""
        run = self.sweep.folder(config) / f"seed-{config.seed}"
        while alive(run / LOCK):  # a worker whose trial was given up hears of it when it reports, and leaves
            time.sleep(POLL)
        mark = run / PRUNED
        mark.unlink(missing_ok=True)  # from a trial of the same values
        try:
            return self._trained(config, trial)
        except TrialPruned as error:
            write_json(mark, {"reason": str(error)})
            raise

    def _trained(self, config: Config, trial: Trial) -> float:
        metric, sweep = self.sweep.experiment.selection_metric, self.sweep

        def watch(run: Run) -> None:
            trial.report(_finite(run.valid[metric], metric), run.iteration)
            if self._watch is not None:
                self._watch(run)
            if not run.finished and trial.should_prune():
                raise TrialPruned(f"{metric} {run.valid[metric]:.5g} at iteration {run.iteration} is below the median")

        (result,) = train(
            sweep.experiment,
            config,
            sweep.folder(config),
            device=sweep.device,
            data=sweep.data,
            compile=sweep.compile,
            graph=sweep.graph,
            progress=False,
            watch=watch,
        )
        if "diverged" in result:  # late, perhaps: what is best may be next to it
            raise Diverged(result["diverged"])
        return result["valid"][metric]

    def _stop_if_all_fail(self) -> None:
        """Failed trials do not count: without this, a sweep in which none can work would never end."""
        last = self.study.get_trials(deepcopy=False)[self._number or 0]
        self._failed = self._failed + 1 if last.state == TrialState.FAIL else 0
        if self._failed == PATIENCE:
            raise SweepError(f"{PATIENCE} trials failed one after the other; the last: {last.user_attrs['reason']}")


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise Diverged(f"{name} is {value}")
    return value
