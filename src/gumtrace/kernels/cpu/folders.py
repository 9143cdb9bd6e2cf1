"""The folders of compiled kernels: where they are, which of them are read and which are written.

Compiled kernels are code. A folder is used, and a file in it loaded, if it belongs to root or to the user of this
process, and nobody else can write it; in the folder of the package also if it belongs to the owner of the package,
whose code runs anyway. The folder of each version is made here, with that mode whatever the umask: the one above it may
be /tmp.
"""

import hashlib
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gumtrace

VARIABLE = "GUMTRACE_CACHE_DIR"
HERE = Path(__file__).parent
UNCOMPILED = ("cache.py", "folders.py", "threads.py")
SOURCES = [HERE.parent / "geometry.py", *sorted(path for path in HERE.glob("*.py") if path.name not in UNCOMPILED)]

_refused: set[Path] = set()  # what was reported


def _stamp() -> str:
    """A hash of all that is compiled; of the version, where there are no source files."""
    try:
        sources = b"\0".join(path.read_bytes() for path in SOURCES)
    except OSError:
        sources = gumtrace.__version__.encode()
    return hashlib.sha256(sources).hexdigest()[:16]


NAME = f"gumtrace-{_stamp()}"


def folders() -> list[Path]:
    """Where kernels may be, in the order of preference."""
    given = os.environ.get(VARIABLE)
    return [Path(path) / NAME for path in (given, _packages(), _users()) if path]


def _packages() -> Path:
    return HERE / "__pycache__"


def _users() -> Path | None:
    """The user's cache folder; None if there is no home."""
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    if base:
        return Path(base) / "gumtrace"
    with suppress(RuntimeError):
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "gumtrace"
    return None


def writable_folders() -> Iterator[Path]:
    """Those of `folders` that can be written. One that is not there is made when its turn comes."""
    for folder in folders():
        try:
            _make(folder, for_all=folder.parent != _users())
            if folder.is_dir() and os.access(folder, os.W_OK) and trusted(folder, folder.stat()):
                yield folder
        except OSError:
            continue


def writable_folder() -> Path | None:
    return next(writable_folders(), None)


def _make(folder: Path, for_all: bool) -> None:
    """Nobody else can write what is made here; `for_all`: they can read it, whatever the umask."""
    if folder.is_dir():
        return
    if not folder.parent.exists():
        _make(folder.parent, for_all)
    with suppress(FileExistsError):  # another process has made it just now
        folder.mkdir(0o755)
        if for_all and os.name != "nt":
            with opened(folder) as directory:
                os.fchmod(directory, 0o755)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A folder that is no link, as a descriptor: what is done through it is done there, whoever moves it meanwhile."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def read(folder: Path, name: str) -> bytes | None:
    """A file of compiled code; None if there is none, or if another user may have written it, which is reported."""
    try:
        if os.name == "nt":
            return (folder / name).read_bytes()
        with opened(folder) as directory:
            # A pipe of that name would keep us waiting, and a link is somebody's other file.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=directory), "rb") as file:
                status = os.fstat(file.fileno())
                ours = trusted(folder, os.fstat(directory)) and trusted(folder / name, status)
                return file.read() if ours and stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None


def remove(folder: Path, suffixes: tuple[str, ...]) -> None:
    """Remove the files that end so, and the folder if it is empty then; nothing, if it is a link or another user's."""
    with opened(folder) as directory:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or not trusted(folder, status):
            return
        for name in os.listdir(directory):
            if name.endswith(suffixes):
                os.unlink(name, dir_fd=directory)
    folder.rmdir()


def trusted(path: Path, status: os.stat_result) -> bool:
    """Whether nobody wrote it but this user, root, or who owns the package that it is in. If not, it is reported."""
    if os.name == "nt":  # its modes say nothing of other users
        return True
    owners = {0, os.geteuid()}
    if _packages() in path.parents:
        owners.add(HERE.stat().st_uid)
    if status.st_uid not in owners:
        _report(path, f"it belongs to user {status.st_uid}, who is neither you nor root")
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _report(path, "others can write there; chmod go-w lets it be used")
    else:
        return True
    return False


def _report(path: Path, why: str) -> None:
    """A line on stderr, once for each path, unless warnings are off."""
    if path not in _refused and not silenced():
        _refused.add(path)
        print(f"gumtrace: compiled kernels in {path} are not used: {why}", file=sys.stderr, flush=True)


def silenced() -> bool:
    """Whether the first filter that a warning of ours would meet ignores it."""
    for action, message, category, module, _ in warnings.filters:
        if message is None and module is None and issubclass(UserWarning, category):
            return action == "ignore"
    return False
