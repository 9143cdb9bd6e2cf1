"""Locks on files, on this system and as Windows has them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gumtrace_experiments.store import folder, locks

fcntl = pytest.importorskip("fcntl")


def as_on_windows(module: ModuleType) -> ModuleType:
    """The module, once more, where there is no fcntl."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_on_windows", str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Msvcrt(ModuleType):
    """The one call of it that locks need, by flock. Whoever waits for a lock gives up a few times, as Windows does."""

    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2

    def __init__(self):
        super().__init__("msvcrt")
        self.patience = 3

    def locking(self, handle: int, mode: int, size: int) -> None:
        if mode == self.LK_LOCK and self.patience:
            self.patience -= 1
            raise OSError(36, "Resource deadlock avoided")
        fcntl.flock(handle, fcntl.LOCK_UN if mode == self.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt())
    monkeypatch.setitem(sys.modules, "fcntl", None)


@pytest.fixture(params=["here", "on Windows"])
def either(request):
    if request.param == "here":
        return locks
    request.getfixturevalue("windows")
    return as_on_windows(locks)


def test_a_lock_is_one_processs(either, tmp_path):
    file = tmp_path / "new" / "lock"
    with either.exclusive(file):
        assert locks.alive(file)
        assert either.alive(file)
        with pytest.raises(BlockingIOError):
            either.take(file, wait=False)
    assert not either.alive(file)
    either.give_back(either.take(file, wait=False))


def test_presence(either, tmp_path):
    with either.presence(tmp_path) as name:
        assert either.alive(tmp_path / name)
    assert not either.alive(tmp_path / name)
    assert list(tmp_path.iterdir()) == [], "to look makes no file"


@pytest.mark.usefixtures("windows")
def test_folders_need_no_fcntl(tmp_path):
    again = as_on_windows(folder)
    kept = again.RunFolder(tmp_path / "run", {"experiment": "x", "config": {}}, {})
    with pytest.raises(again.RunFolderError, match="in use by another process"):
        again.RunFolder(tmp_path / "run", {"experiment": "x", "config": {}}, {})
    kept.close()
    again.RunFolder(tmp_path / "run", {"experiment": "x", "config": {}}, {}).close()


def test_nothing_else_imports_fcntl():
    sources = Path(locks.__file__).parents[1].rglob("*.py")
    assert [path.name for path in sources if "import fcntl" in path.read_text()] == ["locks.py"]
