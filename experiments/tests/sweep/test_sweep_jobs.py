"""Workers of a sweep in other processes: started by submitit here, or on Slurm."""

import os
import sys
from pathlib import Path

import optuna
import pytest
import torch
from optuna.trial import TrialState
from quadratic import make, order, states

from gumtrace_experiments.sweep import jobs as sweep_jobs
from gumtrace_experiments.sweep.jobs import Jobs, run_sweep
from gumtrace_experiments.sweep.study import SweepError

COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # From Python 3.12 on, of a fork where threads run: TensorBoard's, of folders that are closed, may not be gone yet.
    pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def quiet_and_quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # thirty a trial; what is killed is never the system
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.mark.slow
def test_two_workers_started_by_submitit(tmp_path, monkeypatch, capsys):
    """One of the two is killed: the other makes up for it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # they find the model, too
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)  # for the results of one that is killed
    order(tmp_path, "die")
    study = run_sweep(make(tmp_path, 6, prune=False), Jobs(2))
    assert sorted(states(study)) == [COMPLETE] * 6 + [FAIL]
    assert len({t.user_attrs["worker"] for t in study.trials}) == 2
    output = capsys.readouterr().err
    assert "failed: its worker ended" in output
    log = output.split("its log: ")[1].split()[0]
    assert Path(log).exists()


def test_no_worker_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gumtrace_experiments.sweep.jobs.start", lambda sweep, jobs: [])
    with pytest.raises(SweepError, match="no worker is left, after 0 of 6 trials"):
        run_sweep(make(tmp_path), Jobs(2))


def test_slurm_jobs(tmp_path, monkeypatch):
    """What sbatch is asked for: there is no cluster here."""
    with pytest.raises(SweepError, match="slurm"):
        sweep_jobs.start(make(tmp_path), Jobs(2, "slurm"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text("#!/bin/sh\necho Submitted batch job 7\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    jobs = Jobs(1, "slurm", partition="fast", hours=3, cpus=2, options={"account": "me"})
    (job,) = sweep_jobs.start(make(tmp_path, device="cuda"), jobs)
    script = job.paths.submission_file.read_text()
    for line in ("partition=fast", "time=180", "cpus-per-task=2", "gpus-per-node=1", "account=me"):
        assert f"#SBATCH --{line}\n" in script
    worker = job.submission().function
    assert worker == sweep_jobs.Job(make(tmp_path, device="cuda"), 0), "the cluster says which devices it has"
    assert worker.checkpoint().function == worker, "a worker that is preempted is queued again"


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
