"""What a new user meets: programs in fresh processes, with a copy of the library in which nothing is compiled.

They use the public interface alone, and count what Numba compiles, so that any version of the library can be asked.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

import gumtrace as gt

SOURCE = Path(gt.__file__).parents[1]
NOBODY = 65534
# Prints the geometries that functions were compiled for, and how many there were.
PROGRAM = """
import concurrent.futures, fcntl, json, os, sys, tempfile  # what is needed when this user cannot read Python's folders
import torch
from numba import njit
from numba.core import event
sys.path.insert(0, {library!r})
import gumtrace as gt

@njit
def warm(x):
    return x + 1
warm(torch.zeros(2).numpy())  # all that Numba imports when it compiles
if {drop}:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
with event.install_recorder("numba:compile") as seen:
    gt.Subset(torch.zeros(2, 5), 2).sample()
started = [each.data for _, each in seen.buffer if each.is_start]
names = {{kind.instance_class.__name__ for data in started for kind in data["args"] if hasattr(kind, "instance_class")}}
print(json.dumps([sorted(name for name in names if name.endswith("Geometry")), len(started)]))
"""

root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def fresh():
    """A folder that all users can read, with the library in `src` and nothing compiled. pytest's is private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    shutil.copytree(SOURCE / "gumtrace", folder / "src" / "gumtrace", ignore=shutil.ignore_patterns("__pycache__"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place():
    with fresh() as folder:
        yield folder


@pytest.fixture(scope="module")
def after_one():
    """Such a folder after a first sample, and what that sample said."""
    with fresh() as folder:
        yield folder, finish(start(folder))


def start(place: Path, drop=False, **environment) -> subprocess.Popen:
    """A first sample; `drop`: by a user who owns nothing."""
    code = PROGRAM.format(drop=drop, nobody=NOBODY, library=str(place / "src"))
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GUMTRACE_CACHE_DIR")}
    home = {"HOME": str(place / "home"), "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"}
    kept |= {name: value for name, value in (home | environment).items() if value}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=kept, cwd=place)


def finish(process: subprocess.Popen) -> tuple[list[str], int, str]:
    """The geometries that were compiled for, how many functions were, and what was said on stderr."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return *json.loads(out), err


@pytest.mark.slow
def test_a_first_sample_compiles_one_structure_and_says_so(after_one):
    place, (geometries, compiled, said) = after_one
    assert geometries == ["SubsetGeometry"]
    assert 0 < compiled < 40
    line = (
        "gumtrace: compiling the sampling kernels of Subset, about 3 s, once for this dtype and these options (kept in "
    )
    assert said.startswith(line)
    assert finish(start(place)) == ([], 0, "")


@root
@pytest.mark.slow
def test_what_root_compiled_serves_others(after_one):
    """With a home that cannot be written, as in a container."""
    place, (_, compiled, _) = after_one
    assert compiled > 0
    assert finish(start(place, drop=True)) == ([], 0, "")


@root
@pytest.mark.slow
def test_it_is_said_if_nothing_can_be_kept(place):
    for _ in range(2):
        _, compiled, said = finish(start(place, drop=True))
        assert compiled > 0
        assert "not kept: set GUMTRACE_CACHE_DIR to a folder that can be written" in said


@pytest.mark.slow
def test_of_processes_that_start_together_one_compiles(place):
    together = [finish(process) for process in [start(place) for _ in range(4)]]
    assert sum(compiled > 0 for _, compiled, _ in together) == 1
