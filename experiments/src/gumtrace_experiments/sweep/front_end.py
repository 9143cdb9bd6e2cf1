"""A whole sweep: the command's own process, which works itself or looks after workers in others."""

import time

from optuna.study import Study

from gumtrace_experiments.store.locks import presence
from gumtrace_experiments.sweep.crew import Crew
from gumtrace_experiments.sweep.errors import SweepError
from gumtrace_experiments.sweep.jobs import Jobs
from gumtrace_experiments.sweep.progress import Progress
from gumtrace_experiments.sweep.signals import stoppable
from gumtrace_experiments.sweep.study import DONE, Sweep, claim, count, open_study
from gumtrace_experiments.sweep.worker import POLL, Worker

LEAVE = 60.0  # seconds for workers to leave a study that is done; then they are still waiting for a machine


def run_sweep(sweep: Sweep, jobs: Jobs) -> Study:
    """All of it, with progress; returns the study. Stopped is raised by SIGTERM, when the workers are stopped."""
    claim(sweep)
    study = open_study(sweep)
    with stoppable(), Progress(study, sweep.trials) as progress:
        if jobs.number == 1 and jobs.here:
            Worker(sweep, watch=progress.show, study=study).work()  # one connection: an outage is reported once
        elif not progress.show():
            with presence(sweep.locks) as name:
                _look_after(Crew(sweep, jobs, sweep.locks / name), progress)
        progress.show()
    if count(study, DONE) < sweep.trials:
        raise SweepError(f"no worker is left, after {count(study, DONE)} of {sweep.trials} trials")
    return study


def _look_after(crew: Crew, progress: Progress) -> None:
    enough: float | None = None  # when the study was first seen to be done
    try:
        while crew.tend(progress.done):
            if progress.show() and enough is None:
                enough = time.monotonic()
            if enough is not None and time.monotonic() - enough > LEAVE:
                break
            time.sleep(POLL)
    finally:
        crew.stop()
