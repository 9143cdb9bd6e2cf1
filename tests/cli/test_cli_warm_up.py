"""`gumtrace warm-up`: after it, nothing is left to compile."""

import json
import os
import subprocess
import sys

import asked_kernels
import pytest
import torch

from gumtrace import structures
from gumtrace.cli import main, warm_up
from gumtrace.kernels.cpu import folders


def test_every_structure_can_be_named():
    made = {type(warm_up.make(name, torch.float32)).__name__ for name in warm_up.NAMES}
    assert made == {name for name in structures.__all__ if not getattr(structures, name).is_sharded}  # needs ranks
    assert len(set(warm_up.NAMES)) == len(warm_up.NAMES)


def python(*words, **environment):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, env=environment)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each answer comes from a forked process")
def test_nothing_that_a_user_needs_is_forgotten():
    """Whether it is compiled or loaded here does not matter: which kernels are asked for does. On a fresh machine all
    structures take minutes: `make test-full` has them, and here are those with most kinds of kernels."""
    chosen = list(warm_up.NAMES) if "GUMTRACE_DRAWS" in os.environ else ["Subset", "SpanningTree"]
    lines = python(asked_kernels.__file__, *chosen).stdout.splitlines()
    answers = {name: (set(ahead), set(used)) for name, ahead, used in map(json.loads, lines)}
    assert list(answers) == chosen
    for name, (ahead, used) in answers.items():
        assert len(used) >= 5, name
        assert used <= ahead, f"{name}: warm-up forgets {sorted(used - ahead)}"


@pytest.mark.slow
def test_the_next_process_compiles_nothing(tmp_path):
    """Both begin with nothing in the package's folder, and look for nothing in the user's."""
    alone = "from gumtrace.kernels.cpu import folders; folders.HERE /= 'none'; folders._users = lambda: None;"
    ahead = "from gumtrace.cli import main; main(['warm-up', 'BinaryTree', '--dtype', 'float32'])"
    later = "import asked_kernels; asked_kernels.use('BinaryTree')"
    first = python("-c", alone + ahead, GUMTRACE_CACHE_DIR=str(tmp_path))
    assert "[1/1] BinaryTree float32" in first.stdout
    assert "compiling the sampling kernels of BinaryTree" in first.stderr
    before = sorted(tmp_path.rglob("*.kernel"))
    assert python("-c", alone + later, GUMTRACE_CACHE_DIR=str(tmp_path)).stderr == ""
    assert sorted(tmp_path.rglob("*.kernel")) == before


@pytest.mark.slow
def test_several_processes_compile_side_by_side(capfd):
    assert main(["warm-up", "Subset", "Permutation", "--dtype", "float32", "--jobs", "2"]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[:2] == ["[1/2] Subset float32", "[2/2] Permutation float32"]
    assert "the kernels are in" in out[2]


NAMES = ["Subset", "Permutation", "Matching"]


@pytest.fixture
def children(monkeypatch):
    """Programs in place of those that compile; returns the processes that were started."""
    started = []

    def start(programs):
        monkeypatch.setattr(warm_up, "_command", lambda name, _: [sys.executable, "-c", programs[name]])
        return started

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            started.append(self)

    monkeypatch.setattr(warm_up.subprocess, "Popen", Recorded)
    return start


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(3)", "compiled Subset float32 failed (exit status 3)"),
        ("import os; os.kill(os.getpid(), 9)", "Subset float32 was killed, perhaps for lack of memory; --jobs 1"),
    ],
)
def test_a_process_that_fails_ends_the_others(program, message, children, capfd):
    started = children({"Subset": program, "Permutation": "import time; time.sleep(600)"})
    assert main(["warm-up", *NAMES, "--dtype", "float32", "--jobs", "2"]) == 1
    assert message in capfd.readouterr().err
    assert [process.wait(10) != 0 for process in started] == [True, True]  # the third is not begun


def test_interrupting_it_ends_all_processes(children, monkeypatch, capfd):
    started = children(dict.fromkeys(NAMES, "import time; time.sleep(600)"))

    def interrupted(running, most):
        if len(running) > most:
            raise KeyboardInterrupt

    monkeypatch.setattr(warm_up, "_wait", interrupted)
    assert main(["warm-up", *NAMES, "--dtype", "float32", "--jobs", "2"]) == 130
    assert "gumtrace: interrupted" in capfd.readouterr().err
    assert [process.wait(10) != 0 for process in started] == [True, True]


def test_what_is_named_twice_is_compiled_once(children):
    started = children({"Subset": "", "Matching": ""})
    named = ["Subset", "Matching", "Subset"]
    assert main(["warm-up", *named, "--dtype", "float32", "float32", "--jobs", "2"]) == 0
    assert len(started) == 2


def test_no_more_processes_than_asked_for(children, monkeypatch):
    started, alive, wait = children(dict.fromkeys(NAMES, "import time; time.sleep(1)")), [], warm_up._wait

    def counted(running, most):
        alive.append(sum(process.poll() is None for process in started))
        return wait(running, most)

    monkeypatch.setattr(warm_up, "_wait", counted)
    assert main(["warm-up", *NAMES, "--dtype", "float32", "--jobs", "2"]) == 0
    assert max(alive) == 2
    assert len(started) == 3


def test_an_unknown_structure_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["warm-up", "Subsets"])
    assert "unknown structure 'Subsets': choose from SpanningTree, Matching" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(folders, "writable_folder", lambda: None)
    assert main(["warm-up", "Subset"]) == 1
    assert "set GUMTRACE_CACHE_DIR" in capsys.readouterr().err
