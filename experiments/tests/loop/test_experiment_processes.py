"""Runs whose process is killed at any moment resume as if it had not been; those side by side, or in two processes, are
as in one."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import tiny_runs
from tiny_runs import TINY, GraphLayout, Killed, metrics

from gumtrace_experiments.store import checkpoints, files
from gumtrace_experiments.store import folder as folders
from gumtrace_experiments.store.folder import read_metrics

data, run = tiny_runs.data, tiny_runs.run
pytestmark = pytest.mark.usefixtures("one_thread")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def arguments(config):
    """Of the command line."""
    default = GraphLayout.config_type().to_dict()
    return [f"--{name.replace('_', '-')}={x}" for name, x in config.to_dict().items() if x != default[name]]


# --- killed at any moment ---


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.slow
def test_killed_while_writing(after, run, tmp_path, monkeypatch):
    """Before or after each file is put into place, with half of the next line of metrics written."""
    config = TINY.replace(starts=2, start_iterations=4)
    (whole,) = run("whole", config)
    for moment in itertools.count(1):
        folder = tmp_path / f"killed-{moment}" / "seed-0"
        with monkeypatch.context() as patch:
            write = killing(files.write, moment, after)
            for module in (folders, checkpoints):
                patch.setattr(module, "write", write)
            try:
                run(folder.parent.name, config)
                break
            except Killed:
                pass
        assert run(folder.parent.name, config) == [whole]
        assert without_time(folder / "result.json") == without_time(tmp_path / "whole" / "seed-0" / "result.json")
    assert moment > 7  # a config, metrics, three times a state and at least one best, a result


def killing(real, moment, after):
    """`write`, until the process ends in the call that is number `moment`."""
    calls = itertools.count(1)

    def write(path, content):
        if next(calls) != moment:
            return real(path, content)
        if after:
            real(path, content)
        rows = path.parent / "metrics.jsonl"
        if rows.exists():
            with rows.open("a") as file:
                file.write('{"iteration": 1000, "spl')
        raise Killed

    return write


def without_time(path):
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "seconds"}


@pytest.mark.slow
def test_sigkill(run, tmp_path, data):
    """A real process, killed twice, wherever it is."""
    config = TINY.replace(iterations=300, evaluate_every=20)
    command = [sys.executable, "-m", "gumtrace_experiments", "train", "graph-layout", "--out", str(tmp_path / "killed")]
    command += ["--data", str(data), *arguments(config)]
    rows = tmp_path / "killed" / "seed-0" / "metrics.jsonl"
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        before = len(read_metrics(rows))
        while len(read_metrics(rows)) < before + 6 and process.poll() is None:
            time.sleep(0.003)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert run("killed", config) == run("whole", config)


# --- side by side, and in several processes ---


def test_seeds_side_by_side_are_as_alone(run):
    together = run("together", seeds=[0, 1, 2])
    alone = [run(f"alone-{seed}", TINY.replace(seed=seed))[0] for seed in (0, 1, 2)]
    assert together == alone
    assert alone[0] != alone[1]


@pytest.mark.slow
def test_two_processes_are_as_one(run, tmp_path, data):
    config = TINY.replace(shards=2)
    (one,) = run("one", config)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [
        "-m",
        "gumtrace_experiments",
        "train",
        "graph-layout",
        "--out",
        str(tmp_path / "two"),
        "--data",
        str(data),
    ]
    done = subprocess.run([*command, *arguments(config)], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-3000:]
    two = metrics(tmp_path / "two" / "seed-0")
    assert [row["iteration"] for row in two] == [row["iteration"] for row in one]
    for ours, theirs in zip(two, one, strict=True):
        for name, value in ours.items():
            assert value == (
                theirs[name] if isinstance(value, str) else pytest.approx(theirs[name], rel=1e-4, abs=1e-6)
            )
