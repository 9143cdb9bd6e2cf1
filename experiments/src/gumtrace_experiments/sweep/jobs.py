"""The workers of a sweep: one in this process, or several that submitit starts, here or on a Slurm cluster."""

import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from optuna.study import Study
from optuna.trial import TrialState
from submitit import AutoExecutor
from submitit.helpers import DelayedSubmission
from tqdm import tqdm

from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.sweep.study import DONE, Sweep, SweepError, best, claim, count, open_study
from gumtrace_experiments.sweep.worker import POLL, Worker

FOREVER = 60 * 24 * 365  # minutes: submitit stops local jobs after two by default
REQUEUES = 100  # of a Slurm job that reached its time limit
LOST = "its worker ended"
LEAVE = 60.0  # seconds for workers to leave a study that is done; then they are still waiting for a machine


@dataclass(frozen=True)
class Jobs:
    """How many workers, and where."""

    number: int = 1
    cluster: Literal["local", "slurm"] = "local"
    partition: str = ""
    hours: int = 24
    """Time limit of a Slurm job; a worker that reaches it is queued again."""
    cpus: int = 4
    """CPUs of a Slurm job."""
    options: dict[str, str] = field(default_factory=dict)
    """Further options for sbatch."""

    def __post_init__(self):
        for option, value in (("--jobs", self.number), ("--slurm-hours", self.hours), ("--slurm-cpus", self.cpus)):
            if value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")


@dataclass(frozen=True)
class Job:
    """A worker in a process of its own. On this machine it has `share` - 1 others beside it; a cluster sees to that."""

    sweep: Sweep
    index: int
    share: int | None = None
    gpus: str = ""

    def __call__(self) -> None:
        if self.share is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus
            torch.set_num_threads(max(torch.get_num_threads() // self.share, 1))
        Worker(self.sweep, self.index).work()

    def checkpoint(self) -> Any:
        """Called by submitit when the cluster wants its machine back: the same again, when there is another."""
        return DelayedSubmission(self)


def run_sweep(sweep: Sweep, jobs: Jobs) -> Study:
    """All of it, with a progress bar; returns the study."""
    claim(sweep)
    study = open_study(sweep)
    with Progress(study, sweep.trials) as progress:
        if jobs.number == 1 and jobs.cluster == "local":
            Worker(sweep, watch=progress.show).work()
        else:
            _wait(start(sweep, jobs), progress)
        progress.show()
    if count(study, DONE) < sweep.trials:
        raise SweepError(f"no worker is left, after {count(study, DONE)} of {sweep.trials} trials")
    return study


def start(sweep: Sweep, jobs: Jobs) -> list[Any]:
    """The jobs, under way."""
    try:
        executor = AutoExecutor(sweep.out / "jobs", jobs.cluster, slurm_max_num_timeout=REQUEUES)
    except RuntimeError as error:  # there is no Slurm
        raise SweepError(str(error)) from error
    here = jobs.cluster == "local"
    executor.update_parameters(
        name=f"sweep-{sweep.experiment.name}",
        timeout_min=FOREVER if here else 60 * jobs.hours,
        cpus_per_task=jobs.cpus,
        gpus_per_node=1 if sweep.device.startswith("cuda") and not here else None,
        slurm_partition=jobs.partition or None,
        slurm_additional_parameters=jobs.options or None,
    )
    indices = range(jobs.number)
    workers = [Job(sweep, i, jobs.number, gpus(sweep.device, i)) if here else Job(sweep, i) for i in indices]
    return [executor.submit(worker) for worker in workers]


def gpus(device: str, index: int) -> str:
    """CUDA_VISIBLE_DEVICES of a local worker, from which submitit would hide all: they take turns at "cuda"."""
    known = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = [str(i) for i in range(torch.cuda.device_count())] if known is None else known.split(",")
    return every[index % len(every)] if device == "cuda" and every else ",".join(every)


def _wait(jobs: list[Any], progress: "Progress") -> None:
    enough: float | None = None  # when the study was first seen to be done
    try:
        while not all(job.done() for job in jobs):
            if progress.show() and enough is None:
                enough = time.monotonic()
            if enough is not None and time.monotonic() - enough > LEAVE:
                break
            time.sleep(POLL)
    finally:
        for job in jobs:
            if not job.done():
                job.cancel(check=False)
    for job in jobs:
        if job.done() and job.exception() is not None:
            progress.say(f"worker {job.job_id} ended early; its log: {job.paths.stderr}")


class Progress:
    """A bar of the trials that are done, and lines for those that failed."""

    def __init__(self, study: Study, trials: int):
        self.study, self.trials = study, trials
        self._reported = set(self._failures())
        self._bar = tqdm(total=trials, initial=count(study, DONE), unit="trial", file=sys.stderr, disable=None)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show(self, run: Run | None = None) -> bool:
        """How things are; says whether the study has its trials."""
        for number, reason in self._failures().items():
            if number not in self._reported:
                self._reported.add(number)
                self.say(f"trial {number} failed: {reason}")
        parts = [f"best {trial.value:.5g} (trial {trial.number})" for trial in best(self.study)[:1]]
        if run is not None:
            parts.append(
                f"now {run.valid[run.experiment.selection_metric]:.5g} at {run.iteration} of {run.config.iterations}"
            )
        done = count(self.study, DONE)
        self._bar.update(done - self._bar.n)
        self._bar.set_postfix_str(", ".join(parts))
        return done >= self.trials

    def say(self, text: str) -> None:
        self._bar.write(text, file=sys.stderr)

    def _failures(self) -> dict[int, str]:
        """Why trials failed, or came to no good end."""
        reasons = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.FAIL, TrialState.PRUNED)):
            if reason := trial.user_attrs.get("reason", LOST if trial.state == TrialState.FAIL else ""):
                reasons[trial.number] = reason
        return reasons
