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
def test_several_processes_compile_side_by_side():
    pairs = [("Subset", "float32"), ("Subset", "float64"), ("Permutation", "float32")]
    assert sorted(warm_up._compile(pairs, jobs=2)) == sorted(pairs)
    with pytest.raises(KeyError, match="Subsets"):  # the error of a child
        list(warm_up._compile([("Subsets", "float32"), *pairs[:1]], jobs=2))


def test_an_unknown_structure_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["warm-up", "Subsets"])
    assert "unknown structure 'Subsets': choose from SpanningTree, Matching" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(folders, "writable_folder", lambda: None)
    assert main(["warm-up", "Subset"]) == 1
    assert "set GUMTRACE_CACHE_DIR" in capsys.readouterr().err
