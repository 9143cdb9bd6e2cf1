"""A sweep on a real Slurm: the one node of `experiments/one_node_slurm.sh`, where Debian's packages are installed."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from optuna.trial import TrialState
from quadratic import make, order, states
from waiting import until

from gumtrace_experiments.sweep import crew as crews
from gumtrace_experiments.sweep.crew import Crew
from gumtrace_experiments.sweep.errors import SweepError
from gumtrace_experiments.sweep.front_end import run_sweep
from gumtrace_experiments.sweep.jobs import Jobs

SCRIPT = Path(__file__).parents[2] / "one_node_slurm.sh"
pytestmark = [pytest.mark.usefixtures("one_thread", "slurm"), pytest.mark.slow]


@pytest.fixture(scope="module")
def node():
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]} here (Debian: apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of the tests' own has to be started by root")
    with tempfile.TemporaryDirectory(prefix="gumtrace-slurm-") as folder:
        subprocess.run([SCRIPT, "start", folder], check=True, stdout=subprocess.DEVNULL)
        yield Path(folder) / "slurm.conf"
        subprocess.run([SCRIPT, "stop", folder], check=True)


@pytest.fixture
def slurm(node, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(node))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setattr(crews, "ASK_SLURM", 0.5)
    yield
    until(lambda: not queue())  # the last worker may still be on its way out


def queue():
    return subprocess.run(["squeue", "-h", "-o", "%A"], check=True, capture_output=True, text=True).stdout.split()


def test_a_sweep_with_a_worker_that_is_killed(tmp_path, capsys):
    order(tmp_path, "die")
    study = run_sweep(make(tmp_path, 4, prune=False), Jobs(2, "slurm", cpus=1))
    assert sorted(states(study)) == [TrialState.COMPLETE] * 4 + [TrialState.FAIL]
    assert "was killed, and is replaced" in capsys.readouterr().err


def test_a_partition_that_is_not_there(tmp_path):
    with pytest.raises(SweepError, match=r"^sbatch refused a job: .*[Pp]artition"):
        run_sweep(make(tmp_path), Jobs(2, "slurm", partition="nowhere"))
    assert queue() == []


def test_a_second_front_end_adds_no_workers(tmp_path):
    sweep, jobs = make(tmp_path), Jobs(2, "slurm", options={"begin": "now+1hour"})  # they wait, and cost nothing
    Crew(sweep, jobs, tmp_path / "front")
    before = queue()
    assert len(before) == 2
    again = Crew(sweep, jobs, tmp_path / "front")
    assert queue() == before
    again.stop()
    until(lambda: not queue())
