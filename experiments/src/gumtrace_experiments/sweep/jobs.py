"""A worker as a job of submitit's, on this machine or on Slurm."""

import io
import os
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from submitit import AutoExecutor
from submitit.core.utils import FailedJobError
from submitit.helpers import DelayedSubmission

from gumtrace_experiments.sweep.errors import SweepError
from gumtrace_experiments.sweep.signals import stop_with
from gumtrace_experiments.sweep.study import Sweep
from gumtrace_experiments.sweep.worker import Worker

FOREVER = 60 * 24 * 365  # minutes: submitit stops local jobs after two by default
REQUEUES = 100  # of a Slurm job that reached its time limit


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

    @property
    def here(self) -> bool:
        return self.cluster == "local"


@dataclass(frozen=True)
class Job:
    """A worker in a process of its own. On this machine it has `share` - 1 others beside it, and ends when the lock
    `front` is free; a cluster does both."""

    sweep: Sweep
    index: int
    share: int | None = None
    gpus: str = ""
    front: Path | None = None

    def __call__(self) -> None:
        if self.front is not None:
            stop_with(self.front)
        if self.share is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus
        threads = self.sweep.threads or max(torch.get_num_threads() // (self.share or 1), 1)
        torch.set_num_threads(threads)
        Worker(self.sweep, self.index).work()

    def checkpoint(self) -> Any:
        """Called by submitit when the cluster wants its machine back: the same again, when there is another."""
        return DelayedSubmission(self)


class Submission:
    """Submits workers of a sweep, under one name.

    Args:
        front: the lock of the process that they end with, on this machine.
    """

    def __init__(self, sweep: Sweep, jobs: Jobs, name: str, front: Path | None = None):
        self._sweep, self._jobs, self._front, self._started = sweep, jobs, front, 0
        try:
            self._executor = AutoExecutor(sweep.out / "jobs", jobs.cluster, slurm_max_num_timeout=REQUEUES)
        except RuntimeError as error:  # there is no Slurm
            raise SweepError(str(error)) from error
        self._executor.update_parameters(
            name=name,
            timeout_min=FOREVER if jobs.here else 60 * jobs.hours,
            cpus_per_task=jobs.cpus,
            gpus_per_node=1 if sweep.device.startswith("cuda") and not jobs.here else None,
            slurm_partition=jobs.partition or None,
            slurm_additional_parameters=jobs.options or None,
        )

    @property
    def folder(self) -> Path:
        return self._executor.folder

    def another(self, place: int) -> Any:
        """One more worker, in this place among those at work: on this machine, places take turns at the GPUs."""
        index, self._started = self._started, self._started + 1
        job = Job(self._sweep, index)
        if self._jobs.here:
            job = Job(self._sweep, index, self._jobs.number, gpus(self._sweep.device, place), self._front)
        try:
            with redirect_stderr(io.StringIO()):  # where submitit repeats what sbatch says
                return self._executor.submit(job)
        except FailedJobError as error:
            said = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in str(error).splitlines()]
            raise SweepError(f"sbatch refused a job: {'; '.join(said) or 'it did not say why'}") from error


def gpus(device: str, place: int) -> str:
    """CUDA_VISIBLE_DEVICES of a local worker, from which submitit would hide all: they take turns at "cuda"."""
    known = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = [str(i) for i in range(torch.cuda.device_count())] if known is None else known.split(",")
    return every[place % len(every)] if device == "cuda" and every else ",".join(every)
