"""The workers of a sweep in other processes: as many as were asked for, as long as there is work."""

import math
import os
import signal
import subprocess
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

from submitit import SlurmJob

from gumtrace_experiments.sweep.errors import SweepError
from gumtrace_experiments.sweep.jobs import Jobs, Submission
from gumtrace_experiments.sweep.signals import not_for_children
from gumtrace_experiments.sweep.study import Sweep, say

REPLACED = 3  # times that each worker may be killed without a trial done meanwhile
ASK_SLURM = 10.0  # seconds between questions which jobs there are
END = 5.0  # seconds for workers to give their trials back when they are stopped
SIGNALS = 4  # that a worker gets: one may wait for a database that is away, to give its trial back


class Crew:
    """Starts workers, replaces those that were killed, and stops them. On Slurm those that an earlier call left are
    known by their name, and count.

    Args:
        front: the lock of this process, which local workers end with.
    """

    def __init__(self, sweep: Sweep, jobs: Jobs, front: Path):
        self._here, self._number = jobs.here, jobs.number
        self._name = f"sweep-{sweep.name}-{blake2b(str(sweep.out.resolve()).encode(), digest_size=4).hexdigest()}"
        self._submission = Submission(sweep, jobs, self._name, front)
        self._killed, self._done = 0, 0  # workers, since the number of trials that are done was this
        self._asked = -math.inf  # when Slurm was asked for them
        self._jobs: list[Any] = []
        self._places: dict[str, int] = {}  # of jobs, by their numbers
        if not self._here:
            self._jobs = [SlurmJob(self._submission.folder, number) for number in sorted(self._queue() or ())]
            if self._jobs:
                say(f"{len(self._jobs)} workers of an earlier call are still on the cluster, and count")
        try:
            for place in range(len(self._jobs), self._number):
                self._add(place)
        except BaseException:
            self.stop()
            raise

    def tend(self, done: int) -> bool:
        """Look after the workers, when so many trials are done; says whether there are any."""
        if done > self._done:
            self._done, self._killed = done, 0
        living = self._living()
        ended = [job for job in self._jobs if job not in living]
        self._jobs = living
        for job in ended:
            self._replace(job)
        return bool(self._jobs)

    def stop(self) -> None:
        """All of them; those that are in a trial have the time to give it back."""
        if not self._here:
            numbers = [job.job_id for job in self._living()]
            for command in (["scancel", "--state=RUNNING", "--signal=INT"], ["scancel"]) if numbers else ():
                subprocess.run([*command, *numbers], check=False, capture_output=True)
            return
        for _ in range(SIGNALS):
            for job in self._living():
                os.kill(int(job.job_id), signal.SIGTERM)  # to submitit's process, which passes it on
            until = time.monotonic() + END
            while self._living() and time.monotonic() < until:
                time.sleep(0.1)

    def _add(self, place: int) -> None:
        with not_for_children(signal.SIGINT):  # Ctrl-C is the front end's, which stops its workers
            self._jobs.append(self._submission.another(place))
        self._places[self._jobs[-1].job_id] = place

    def _replace(self, job: Any) -> None:
        """One that left no result was killed. One that raised an error would do so again, and is not replaced."""
        worker = f"worker {job.job_id}"
        if job.paths.result_pickle.exists():
            if job.exception() is not None:
                say(f"{worker} ended early; its log: {job.paths.stderr}")
            return
        self._killed += 1
        if self._killed > REPLACED * self._number:
            say(f"{worker} was killed; no more are started, as none of {self._killed} got to the end of a trial")
            return
        try:
            self._add(self._places.get(job.job_id, 0))
        except SweepError as error:
            say(f"{worker} was killed, and cannot be replaced: {error}")
        else:
            say(f"{worker} was killed, and is replaced; its log: {job.paths.stderr}")

    def _living(self) -> list[Any]:
        if self._here:
            return [job for job in self._jobs if not job.done()]
        queue = self._queue()
        there = [job for job in self._jobs if queue is None or job.job_id in queue]
        return [job for job in there if not job.paths.result_pickle.exists()]

    def _queue(self) -> set[str] | None:
        """Numbers of this sweep's jobs that wait or run. None: it is not known, as Slurm does not answer, say."""
        if time.monotonic() - self._asked < ASK_SLURM:
            return None
        self._asked = time.monotonic()
        command = ["squeue", "--me", "--noheader", f"--name={self._name}", "--format=%A"]
        try:
            return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
        except (OSError, subprocess.CalledProcessError):
            return None
