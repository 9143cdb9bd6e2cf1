"""Whose compiled kernels are loaded, and who can read those that are made here."""

import hashlib
import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytest

from gumtrace.kernels.cpu import cache, folders, order
from gumtrace.kernels.cpu.jit import kernel

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes of files say nothing of other users there")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """The folder of kernels under GUMTRACE_CACHE_DIR; the user's own is beside it, and the package is read-only."""
    monkeypatch.setenv(folders.VARIABLE, str(tmp_path / "given"))
    monkeypatch.setattr(folders, "HERE", tmp_path / "package")
    monkeypatch.setattr(folders, "_users", lambda: tmp_path / "users")
    monkeypatch.setattr(folders, "_refused", set())
    monkeypatch.setattr(cache, "_announced", set())
    (tmp_path / "package").write_text("no folder can be made in a file")
    return tmp_path / "given" / folders.NAME


@pytest.fixture
def give_away(monkeypatch):
    """Let the path belong to somebody else: by root in truth, else this process is taken for another's."""

    def give(*paths):
        for path in paths if os.geteuid() == 0 else ():
            os.chown(path, 12345, -1)
        if os.geteuid() != 0:
            monkeypatch.setattr(folders.os, "geteuid", lambda: 12345)

    return give


def misses():
    """How often a kernel that is new to this process had to be compiled."""
    compiled = kernel(order.sort_racing.py_func)
    assert compiled(np.array([1, 3, 2], np.float32), 3).tolist() == [1, 2, 0]
    return sum(compiled.stats.cache_misses.values())


def kernels(folder: Path) -> list[Path]:
    return list(folder.glob("*.kernel"))


class Evil:
    """What another user would leave: loading it makes a folder."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def left_by_another(path: Path, mark: Path) -> None:
    data = pickle.dumps(Evil(mark))
    path.write_bytes(hashlib.sha256(data).digest() + data)


def test_code_that_another_user_left_is_not_run(given, give_away, tmp_path, capfd):
    assert misses() == 1
    (path,) = kernels(given)
    left_by_another(path, tmp_path / "mark")
    with pytest.raises(Exception):  # noqa: B017, PT011 - as long as it is ours, it is loaded
        misses()
    assert (tmp_path / "mark").exists()
    (tmp_path / "mark").rmdir()
    capfd.readouterr()
    give_away(path)
    assert misses() == 1
    assert not (tmp_path / "mark").exists()
    assert "are not used: it belongs to user" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777], ids=oct)
def test_a_folder_that_others_can_write_is_neither_read_nor_written(given, tmp_path, mode, capfd):
    assert misses() == 1
    before = kernels(given)
    capfd.readouterr()
    given.chmod(mode)
    assert misses() == 1
    said = capfd.readouterr().err
    assert f"gumtrace: compiled kernels in {given} are not used: others can write there; chmod go-w" in said
    assert said.count("are not used") == 1
    assert kernels(given) == before
    assert len(kernels(tmp_path / "users" / folders.NAME)) == 1  # the next folder has it
    assert misses() == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o664, 0o646], ids=oct)
def test_a_file_that_others_can_write_is_not_loaded(given, mode, capfd):
    assert misses() == 1
    (path,) = kernels(given)
    path.chmod(mode)
    capfd.readouterr()
    assert misses() == 1
    assert f"compiled kernels in {path} are not used: others can write" in capfd.readouterr().err
    assert misses() == 0  # it was replaced
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_folder_that_another_user_made_is_left_alone(given, give_away, tmp_path, capfd):
    """In /tmp, say, where anybody can make it first."""
    given.mkdir(parents=True)
    given.parent.chmod(0o1777)
    give_away(given)
    if os.geteuid() == 0:
        assert misses() == 1
        assert kernels(given) == []
        assert len(kernels(tmp_path / "users" / folders.NAME)) == 1
    else:
        assert folders.writable_folder() is None  # all of them are taken for another's
    assert f"{given} are not used: it belongs to user" in capfd.readouterr().err


def test_a_folder_of_ours_where_anybody_can_write(given):
    given.parent.mkdir()
    given.parent.chmod(0o1777)
    assert [misses(), misses()] == [1, 0]
    assert stat.S_IMODE(given.stat().st_mode) == 0o755


def test_roots_kernels_are_everybodys(given, monkeypatch):
    """Its owner and nobody else is asked for: root here is who runs the tests."""
    assert misses() == 1
    monkeypatch.setattr(folders.os, "geteuid", lambda: 12345)
    status = list(given.stat())
    status[stat.ST_UID] = 0
    assert folders.trusted(given, os.stat_result(status))
    status[stat.ST_UID] = 54321
    assert not folders.trusted(given, os.stat_result(status))


def test_kernels_of_the_packages_owner_are_loaded(given, give_away, tmp_path, monkeypatch, capfd):
    """Python runs the package's own files, and may have compiled them into the same folder."""
    monkeypatch.delenv(folders.VARIABLE)
    (tmp_path / "package").unlink()
    assert misses() == 1
    inside = tmp_path / "package" / "__pycache__" / folders.NAME
    give_away(tmp_path / "package", inside, *kernels(inside))
    capfd.readouterr()
    assert misses() == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022, 0], ids=oct)
def test_all_can_read_and_nobody_else_can_write(given, mask):
    """Whatever the umask: root's may be 077, and 002 lets a group write."""
    before = os.umask(mask)
    try:
        assert [misses(), misses()] == [1, 0]
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (given.parent, given, *kernels(given))]
    assert modes == [0o755, 0o755, 0o644]


def test_the_users_own_folder_keeps_to_the_umask(given, tmp_path, monkeypatch):
    monkeypatch.delenv(folders.VARIABLE)
    before = os.umask(0o077)
    try:
        assert [misses(), misses()] == [1, 0]
    finally:
        os.umask(before)
    for path in (tmp_path / "users", tmp_path / "users" / folders.NAME):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_pipe_or_a_link_is_no_kernel(given):
    """A pipe would keep the process waiting for ever, and a link would load a file of another folder."""
    given.mkdir(parents=True)
    (given.parent / "elsewhere").write_bytes(b"code")
    os.mkfifo(given / "pipe")
    (given / "link").symlink_to(given.parent / "elsewhere")
    (given / "file").write_bytes(b"code")
    assert [folders.read(given, name) for name in ("pipe", "link", "file")] == [None, None, b"code"]
    (given.parent / "other").symlink_to(given)
    assert folders.read(given.parent / "other", "file") is None
    assert folders.read(given.parent / "missing", "file") is None


def test_old_versions_are_not_removed_through_links(given, tmp_path):
    """In /tmp anybody can make a link that is called as the folder of an old version is."""
    target = tmp_path / "somebody's project"
    target.mkdir()
    (target / "uv.lock").touch()
    given.mkdir(parents=True)
    for number in range(cache.KEPT + 2):
        (given.parent / f"gumtrace-{number:016x}").symlink_to(target)
    old = given.parent / f"gumtrace-{99:016x}"
    old.mkdir()
    (old / "a.kernel").touch()
    os.utime(old, (0, 0))
    cache._remove_old(given)
    assert (target / "uv.lock").exists()
    assert not old.exists()


def test_old_versions_of_others_are_kept(given, give_away):
    others = [given.parent / f"gumtrace-{number:016x}" for number in range(cache.KEPT + 1)]
    for folder in (given, *others):
        folder.mkdir(parents=True)
        (folder / "a.kernel").touch()
    give_away(*others)
    cache._remove_old(given)
    assert all((folder / "a.kernel").exists() for folder in others)
