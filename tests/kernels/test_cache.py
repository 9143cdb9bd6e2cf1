"""Compiled kernels on disk: found again, shared, never stale, and not compiled twice at once."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gumtrace.kernels.cpu import cache, folders, formula, order
from gumtrace.kernels.cpu.jit import kernel

SORT = """
import numpy as np
from gumtrace.kernels.cpu import order
from gumtrace.kernels.cpu.jit import kernel
sort = kernel(order.sort_racing.py_func)
assert sort(np.array([1, 3, 2], np.float32), 3).tolist() == [1, 2, 0]
print(sum(sort.stats.cache_misses.values()))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(folders.VARIABLE, str(tmp_path))
    monkeypatch.setattr(folders, "HERE", tmp_path / "package")
    monkeypatch.setattr(cache, "_announced", set())
    return tmp_path / folders.NAME


def sort(misses):
    """Sort with a kernel that is new to this process; `misses`: whether it has to be compiled."""
    compiled = kernel(order.sort_racing.py_func)
    assert compiled(np.array([1, 3, 2], np.float32), 3).tolist() == [1, 2, 0]
    assert sum(compiled.stats.cache_misses.values()) == misses


def start(code, folder, *options, stdin=False, **environment):
    """A process that looks for kernels in this folder alone: others may have those of earlier runs."""
    alone = "from gumtrace.kernels.cpu import folders; folders.HERE /= 'none'; folders._users = lambda: None\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), folders.VARIABLE: str(folder), **environment}
    pipe = subprocess.PIPE
    command = [sys.executable, *options, "-c", alone + code]
    return subprocess.Popen(
        command, stdin=pipe if stdin else None, stdout=pipe, stderr=pipe, text=True, env=environment
    )


def test_a_kernel_is_compiled_once(folder, capfd):
    sort(misses=1)
    assert len(list(folder.glob("order.sort_racing-*.kernel"))) == 1
    assert not list(folder.glob("*.part"))
    sort(misses=0)
    line = "gumtrace: compiling the relaxation kernels, about 5 s, once for this dtype and these options (kept in %s)\n"
    assert capfd.readouterr().err == line % folder.parent


@pytest.mark.slow
def test_of_several_processes_one_compiles(tmp_path):
    processes = [start(SORT, tmp_path) for _ in range(3)]
    answers = [process.communicate() for process in processes]
    assert sorted(int(out) for out, _ in answers) == [0, 0, 1]
    assert sum("gumtrace: compiling" in err for _, err in answers) == 1


TWO = (
    SORT
    + """
print("ready", flush=True)
input()
back = kernel(order.extent.py_func)
back(np.array([1, 3, 2], np.float32), 3, np.zeros(3, np.int32))
print(sum(back.stats.cache_misses.values()))
"""
)


@pytest.mark.slow
def test_the_process_that_compiled_compiles_the_next_kernel_too(tmp_path):
    """It has compiled the parts already; the other comes first to the next kernel, and leaves it to the first."""
    first = start(TWO, tmp_path, stdin=True)
    assert [first.stdout.readline() for _ in range(2)] == ["1\n", "ready\n"]
    patient = "from gumtrace.kernels.cpu import cache\ncache.HEAD_START = 60.0\n"  # on a busy machine
    second = start(patient + TWO, tmp_path, stdin=True)
    assert [second.stdout.readline() for _ in range(2)] == ["0\n", "ready\n"]
    second.stdin.write("\n")
    second.stdin.flush()
    time.sleep(0.1)
    assert [process.communicate("\n")[0] for process in (first, second)] == ["1\n", "0\n"]


@pytest.mark.slow
def test_a_process_does_not_wait_for_one_that_compiles_no_more(tmp_path):
    first = start(TWO, tmp_path, stdin=True)
    assert [first.stdout.readline() for _ in range(2)] == ["1\n", "ready\n"]
    second = start(TWO, tmp_path, stdin=True)
    assert second.communicate("\n")[0] == "0\nready\n1\n"
    (lock,) = tmp_path.glob(f"*/{cache.COMPILER}")
    os.utime(lock, (0, 0))  # it has been idle for long: nobody waits for it at all
    for path in tmp_path.glob("*/order.extent*"):
        path.unlink()
    patient = "from gumtrace.kernels.cpu import cache\ncache.HEAD_START = 600.0\n"
    assert start(patient + TWO, tmp_path, stdin=True).communicate("\n")[0] == "0\nready\n1\n"
    first.communicate("\n")


@pytest.mark.slow
def test_silent_if_warnings_are_off(tmp_path):
    out, err = start(SORT, tmp_path, "-W", "ignore").communicate()
    assert (out, err) == ("1\n", "")


def test_a_cache_that_cannot_be_written_is_read(folder, monkeypatch, capfd):
    """As another user's: root's, from when an image was built."""
    sort(misses=1)
    capfd.readouterr()
    monkeypatch.setattr(folders.os, "access", lambda path, mode: False)
    sort(misses=0)
    assert capfd.readouterr().err == ""


def test_where_nothing_can_be_written_it_is_said(folder, monkeypatch, capfd):
    monkeypatch.setattr(folders.os, "access", lambda path, mode: False)
    sort(misses=1)
    assert f"not kept: set {folders.VARIABLE} to a folder that can be written" in capfd.readouterr().err
    assert not list(folder.glob("*"))


def test_folders_in_order(folder, monkeypatch):
    monkeypatch.setattr(folders, "_users", lambda: Path("users"))
    assert [path.parent for path in folders.folders()] == [
        folder.parent,
        folders.HERE / "__pycache__",
        Path("users"),
    ]
    monkeypatch.delenv(folders.VARIABLE)
    assert folders.folders()[0].parent == folders.HERE / "__pycache__"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:99] + b"?" + data[100:], lambda data: b""]
)
def test_a_damaged_file_is_compiled_again(folder, damage):
    sort(misses=1)
    (path,) = folder.glob("*.kernel")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    sort(misses=1)
    sort(misses=0)


def test_a_link_is_not_written_through(folder, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    sort(misses=1)
    (path,) = folder.glob("*.kernel")
    path.unlink()
    for place in (path, path.with_name(f"{path.name}.lock")):
        place.unlink(missing_ok=True)
        place.symlink_to(precious)
    sort(misses=1)
    assert precious.read_text() == "kept"
    assert not path.is_symlink()


def test_a_lock_of_another_user_is_no_obstacle(folder, monkeypatch):
    """The kernel is compiled without waiting, and kept."""
    opened = os.open

    def refuse(path, flags, *mode, **more):
        if str(path).endswith(".lock"):
            raise PermissionError(path)
        return opened(path, flags, *mode, **more)

    monkeypatch.setattr(cache.os, "open", refuse)
    sort(misses=1)
    sort(misses=0)


def test_without_locks_kernels_are_kept(folder, monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(cache, "fcntl", None)
    sort(misses=1)
    sort(misses=0)


def test_waiting_has_an_end(tmp_path, monkeypatch):
    """A process that was stopped holds its lock for good."""
    hold = SORT.replace("assert sort", "sort._cache.release = lambda: None\nassert sort")
    holder = start(f"{hold}\nimport time; time.sleep(60)", tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/*.kernel")) and time.monotonic() < deadline:
            time.sleep(0.1)
        for path in tmp_path.glob("*/*.kernel"):
            path.unlink()
        monkeypatch.setenv(folders.VARIABLE, str(tmp_path))
        monkeypatch.setattr(folders, "HERE", tmp_path / "package")
        monkeypatch.setattr(cache, "PATIENCE", 0.5)
        sort(misses=1)
    finally:
        holder.kill()
        holder.communicate()


def test_kernels_of_old_versions_are_removed_and_nothing_else(folder):
    old = [f"gumtrace-{digit * 16}" for digit in "abc"]
    for age, name in enumerate([*old, "gumtrace-runs"]):
        path = folder.parent / name
        path.mkdir()
        (path / "a.kernel").write_text("")
        if name == old[2]:
            (path / "precious").write_text("kept")
        os.utime(path, (1e9 - age, 1e9 - age))
    sort(misses=1)
    left = {path.name for path in folder.parent.iterdir()}
    assert left == {*old, "gumtrace-runs", folder.name}  # the last has something that is not ours
    assert [path.name for path in (folder.parent / old[2]).iterdir()] == ["precious"]
    (folder.parent / old[2] / "precious").unlink()
    os.utime(folder.parent / old[2], (1e8, 1e8))
    cache._remove_old(folder)
    assert not (folder.parent / old[2]).exists()


def test_compiled_code_is_named_by_all_sources():
    """Numba alone would keep a function compiled with an old version of what it calls."""
    names = {path.name for path in folders.SOURCES}
    assert {"geometry.py", "jit.py", "subset.py", "formula.py", "simd_math.py", "arrays.py"} <= names
    assert isinstance(formula.log_prob._cache, cache.KernelCache)
    assert re.fullmatch("gumtrace-[0-9a-f]{16}", folders.NAME)


def test_a_part_of_kernels_cannot_be_called_from_python():
    """It is an error, not a crash: there is no machine code to run."""
    with pytest.raises(TypeError, match="not callable"):
        order.sort_racing(np.zeros(3), 3)
