"""Workers of a sweep in other processes: started by submitit, replaced when they are killed, stopped with their front
end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import torch
from optuna.trial import TrialState
from quadratic import make, order, states
from waiting import until

from gumtrace_experiments.store.locks import alive, give_back, take
from gumtrace_experiments.sweep import crew as crews
from gumtrace_experiments.sweep import front_end
from gumtrace_experiments.sweep import jobs as sweep_jobs
from gumtrace_experiments.sweep.crew import Crew
from gumtrace_experiments.sweep.errors import SweepError
from gumtrace_experiments.sweep.front_end import run_sweep
from gumtrace_experiments.sweep.jobs import Jobs, Submission
from gumtrace_experiments.sweep.signals import Stopped, stop_with
from gumtrace_experiments.sweep.study import open_study

COMPLETE, RUNNING, FAIL, WAITING = TrialState.COMPLETE, TrialState.RUNNING, TrialState.FAIL, TrialState.WAITING
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # workers find the model, too
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes programs of Slurm that only say something: there are no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make_program(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make_program


@pytest.mark.slow
def test_two_workers_started_by_submitit(tmp_path, capsys):
    """One of the two is killed: another takes its place."""
    order(tmp_path, "die")
    study = run_sweep(make(tmp_path, 6, prune=False), Jobs(2))
    assert sorted(states(study)) == [COMPLETE] * 6 + [FAIL]
    output = capsys.readouterr().err
    assert "failed: its worker ended" in output
    assert output.count("was killed, and is replaced") == 1
    log = output.split("its log: ")[1].split()[0]
    assert Path(log).exists()
    assert "6 of 6 trials, best" in output


def test_no_worker_is_left(tmp_path, monkeypatch):
    none = SimpleNamespace(tend=lambda done: False, stop=lambda: None)
    monkeypatch.setattr(front_end, "Crew", lambda *args: none)
    with pytest.raises(SweepError, match="no worker is left, after 0 of 6 trials"):
        run_sweep(make(tmp_path), Jobs(2))


def test_slurm_jobs(tmp_path, programs):
    """What sbatch is asked for."""
    with pytest.raises(SweepError, match="slurm"):
        Submission(make(tmp_path), Jobs(2, "slurm"), "name")
    for name in ("sbatch", "srun"):
        programs(name, "echo Submitted batch job 7")
    jobs = Jobs(1, "slurm", partition="fast", hours=3, cpus=2, options={"account": "me"})
    job = Submission(make(tmp_path, device="cuda"), jobs, "name").another(0)
    script = job.paths.submission_file.read_text()
    for line in ("job-name=name", "partition=fast", "time=180", "cpus-per-task=2", "gpus-per-node=1", "account=me"):
        assert f"#SBATCH --{line}\n" in script
    worker = job.submission().function
    assert worker == sweep_jobs.Job(make(tmp_path, device="cuda"), 0), "the cluster says which devices it has"
    assert worker.checkpoint().function == worker, "a worker that is preempted is queued again"


def test_a_refused_sbatch_is_one_line(tmp_path, programs, capsys):
    programs("srun", "")
    programs("sbatch", "echo sbatch: error: no such partition >&2; echo sbatch: error: not submitted >&2; exit 1")
    with pytest.raises(SweepError, match=r"^sbatch refused a job: no such partition; not submitted$"):
        run_sweep(make(tmp_path), Jobs(2, "slurm"))
    assert capsys.readouterr() == ("", "")


def test_jobs_of_an_earlier_call_count(tmp_path, programs, capsys):
    for name, script in (("srun", ""), ("squeue", "echo 3; echo 5"), ("sbatch", "echo Submitted batch job 7")):
        programs(name, script)
    programs("scancel", f"echo $* >> {tmp_path}/cancelled")
    crew = Crew(make(tmp_path), Jobs(3, "slurm"), tmp_path / "front")
    assert "2 workers of an earlier call are still on the cluster, and count" in capsys.readouterr().err
    assert sorted(job.job_id for job in crew._jobs) == ["3", "5", "7"]
    crew.stop()
    assert (tmp_path / "cancelled").read_text() == "--state=RUNNING --signal=INT 3 5 7\n3 5 7\n"


class FakeJob:
    """Ended from the beginning: killed, or by an error, or as it should."""

    def __init__(self, folder, outcome):
        self.job_id, self._outcome = "7", outcome
        self.paths = SimpleNamespace(result_pickle=folder / outcome, stderr=folder / "log")
        if outcome != "killed":
            self.paths.result_pickle.touch()

    def done(self):
        return True

    def exception(self):
        return RuntimeError() if self._outcome == "error" else None


@pytest.mark.parametrize(
    ("outcome", "started", "said"),
    [("killed", 2 + 2 * crews.REPLACED, "no more are started"), ("error", 2, "ended early"), ("success", 2, "")],
)
def test_who_is_replaced(tmp_path, monkeypatch, capsys, outcome, started, said):
    """Killed workers, unless all are; not those that raised an error, and would do so again."""
    made = []
    monkeypatch.setattr(Submission, "another", lambda self, _: made.append(FakeJob(tmp_path, outcome)) or made[-1])
    crew = Crew(make(tmp_path), Jobs(2), tmp_path / "front")
    while crew.tend(0):
        pass
    assert len(made) == started
    assert said in capsys.readouterr().err
    assert crew.tend(1) is False


def test_a_replacement_takes_the_place_of_the_killed_one(tmp_path, monkeypatch):
    """And so its GPU."""
    places = []

    def another(self, place):
        job = FakeJob(tmp_path, "killed" if len(places) == 1 else "success")
        job.job_id = str(len(places))
        places.append(place)
        return job

    monkeypatch.setattr(Submission, "another", another)
    Crew(make(tmp_path), Jobs(3), tmp_path / "front").tend(0)
    assert places == [0, 1, 2, 1]


def test_a_second_signal_ends_the_process(tmp_path):
    """The first may wait for a database that is away, to give a trial back."""
    code = """
import os, signal, time
from gumtrace_experiments.sweep.signals import Stopped, stoppable
with stoppable():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except Stopped:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == -signal.SIGTERM


def test_a_trial_that_is_done_resets_the_count(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Submission, "another", lambda self, _: made.append(FakeJob(tmp_path, "killed")) or made[-1])
    crew = Crew(make(tmp_path), Jobs(2), tmp_path / "front")
    assert all(crew.tend(done) for done in range(20))


@pytest.mark.slow
def test_workers_are_stopped_with_their_front_end(tmp_path):
    """Their trials are queued again."""
    sweep = make(tmp_path, 6, config=make(tmp_path).config.replace(pause=1.0))
    words = ["sweep", "quadratic:Quadratic", "--pause", "1", "--trials", "6", "--jobs", "2", "--seed-sampler", "0"]
    words += ["--out", str(sweep.out), "--data", str(sweep.data)]
    command = [sys.executable, "-m", "gumtrace_experiments", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as front:
        until(lambda: sweep.journal.exists() and _in_training(sweep) == 2)  # without values there is nothing to queue
        living = [int(path.name.split("-")[-2]) for path in sweep.locks.glob("*-*-*") if alive(path)]
        assert len(living) == 3, "two workers and their front end"
        front.terminate()
        assert front.wait(60) == 128 + signal.SIGTERM
        said = "stopped by SIGTERM, and its workers with it; the same command resumes it, and their trials"
        assert front.stderr.read() == f"gumtrace sweep: {said}\n"
    for pid in living:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert sorted(states(open_study(sweep))) == [FAIL, FAIL, WAITING, WAITING]


def _in_training(sweep):
    """Trials that run and have their values."""
    running = open_study(sweep).get_trials(deepcopy=False, states=(RUNNING,))
    return sum("folder" in trial.user_attrs for trial in running)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning")  # of a fork, from 3.12 on
def test_a_worker_ends_when_its_front_end_was_killed(tmp_path):
    """Then nobody holds its lock any more."""
    lock = take(tmp_path / "front")
    worker = multiprocessing.get_context("fork").Process(target=_work_for, args=(lock, tmp_path / "front"))
    worker.start()
    worker.join(1.5)
    assert worker.is_alive()
    give_back(lock)
    worker.join(10)
    assert worker.exitcode == 7


def _work_for(inherited, front):
    os.close(inherited)  # the parent's; a fork would hold it, too
    stop_with(front)
    try:
        time.sleep(60)
    except Stopped as stopped:
        os._exit(7 if str(stopped) == "SIGTERM" else 1)


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [("4,7", "cuda", ["4", "7", "4"]), ("4,7", "cuda:1", ["4,7"] * 3), ("4,7", "cpu", ["4,7"] * 3), (None, "cuda", "")],
)
def test_local_workers_take_turns_at_the_gpus(monkeypatch, visible, device, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [sweep_jobs.gpus(device, i) for i in range(3)] == list(expected or [""] * 3)
