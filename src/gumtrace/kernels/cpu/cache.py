"""Compiled kernels on disk.

    <folder>/gumtrace-<hash of all sources>/<kernel>-<hash of argument types, processor and versions>.kernel

They are read from the first folder that has them, and written to the first that can be written: GUMTRACE_CACHE_DIR if
it is set, the folder of this package (so that what was compiled while an image was built serves every user of it), the
user's cache folder. `folders.py` says which of them are trusted. Of several processes that need a kernel at once, one
compiles it and the others wait.

Numba's own cache keeps a function until its own file changes, although it contains code of the functions it calls:
after an upgrade of the package it would run a mixture of old and new.
"""

import hashlib
import os
import pickle
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from gumtrace.kernels.cpu.folders import VARIABLE, folders, read, remove, silenced, writable_folder, writable_folders

try:
    import fcntl
except ImportError:  # Windows: each process compiles for itself
    fcntl = None

VERSIONS = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, getattr(sys, "abiflags", ""))
KEPT = 3  # of compiled versions of the package in one folder, this one included
DIGEST = 32
PATIENCE = 180.0  # seconds to wait for another process, which may have been stopped
HEAD_START = 0.5  # seconds in which a process that has compiled other kernels comes to this one
RECENT = 10.0  # seconds after which such a process is taken to need no more of them
COMPILER = "compiler.lock"  # held by the first process that compiles, for as long as it lives
# About how long the kernels of a module take, all that a call needs together. Others belong to relaxations.
KINDS = {
    "sampling": ("sampling", 3),
    "formula": ("log-probability", 6),
    "conditional": ("conditional noise", 6),
    "distinct": ("distinct", 5),
    "inclusion": ("mean", 3),
    "racing_keys": ("step", 3),
}
RELAXED = "relaxation", 5

_announced: set[tuple[str, str]] = set()
_compiler: dict[Path, int] = {}  # folders in which this process is the first to compile, each with its open lock


class KernelCache:
    """The compiled versions of one kernel, in the form that Numba's dispatcher asks for."""

    def __init__(self, function: Callable):
        code = function.__code__
        self.module = function.__module__.rpartition(".")[2]
        self.name = f"{self.module}.{function.__name__.strip('<>')}"
        self.identity = (function.__module__, function.__qualname__, code.co_firstlineno, code.co_code)
        self._lock: int | None = None  # an open file

    def file_name(self, signature: Any, processor: tuple) -> str:
        key = repr((signature, processor, VERSIONS, self.identity))
        return f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.kernel"

    def load_overload(self, signature: Any, target_context: Any) -> CompileResult | None:
        """Called before a kernel is compiled. If there is none, the caller compiles it, and others wait until then."""
        target_context.refresh()
        name = self.file_name(signature, target_context.codegen().magic_tuple())
        found = _load(name, target_context)
        if found is None and self._wait_for_others(name, signature):
            found = _load(name, target_context)
        if found is None:
            self._announce("compiling", signature)
        return found

    def save_overload(self, signature: Any, result: CompileResult) -> None:
        """Called with what was compiled."""
        data = dumps(result._reduce())
        name = self.file_name(signature, result.target_context.codegen().magic_tuple())
        for folder in writable_folders():
            if _write(folder / name, hashlib.sha256(data).digest() + data):
                _remove_old(folder)
                return

    def release(self) -> None:
        """Let other processes have the kernel, or compile it if this one could not."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _wait_for_others(self, name: str, signature: Any) -> bool:
        """Lock the kernel; whether another process had it locked before, and may have compiled it."""
        folder = writable_folder()
        if fcntl is None or folder is None:
            return False
        self._lock = _open_lock(folder / f"{name}.lock")
        if self._lock is None:
            return False
        if not _compiles_first(folder):
            _wait_for(folder / name, HEAD_START)
        waited, end = False, time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True  # waited or not: the other may have been done just now
            except BlockingIOError:
                if not waited:
                    self._announce("waiting for another process that compiles", signature)
                waited = True
                time.sleep(0.05)
            except OSError:  # a file system without locks: each compiles
                return False
        return False

    def _announce(self, doing: str, signature: Any) -> None:
        """A line on stderr, once for each structure and module, unless warnings are off."""
        geometries = [kind.instance_class.__name__ for kind in signature if hasattr(kind, "instance_class")]
        what = f" of {geometries[0].removesuffix('Geometry')}" if geometries else ""
        part, seconds = KINDS.get(self.module, RELAXED)
        if (what, part) in _announced or silenced():
            return
        _announced.add((what, part))
        folder = writable_folder()
        kept = f"kept in {folder.parent}" if folder else f"not kept: set {VARIABLE} to a folder that can be written"
        once = f"about {seconds} s, once for this dtype and these options ({kept})"
        print(f"gumtrace: {doing} the {part} kernels{what}, {once}", file=sys.stderr, flush=True)

    # The rest of what a dispatcher may ask of its cache.

    @property
    def cache_path(self) -> str:
        return str(writable_folder() or "")

    def enable(self) -> None:
        pass

    def disable(self) -> None:
        pass

    def flush(self) -> None:
        pass


def _compiles_first(folder: Path) -> bool:
    """Whether no other process is the one that compiles here: from then on, this one is. Processes that need the same
    kernels, one after another, leave all to one of them: it has already compiled the parts that kernels share."""
    if folder in _compiler:
        os.utime(_compiler[folder])
        return True
    lock = _open_lock(folder / COMPILER)
    if fcntl is None or lock is None:
        return True
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        recent = time.time() - os.fstat(lock).st_mtime < RECENT
        os.close(lock)
        return not (isinstance(error, BlockingIOError) and recent)  # others: a file system without locks
    os.utime(lock)
    _compiler[folder] = lock
    return True


def _open_lock(path: Path) -> int | None:
    """The open file; None if it is another user's."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _wait_for(path: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not path.exists():
        time.sleep(0.02)


def _load(name: str, target_context: Any) -> CompileResult | None:
    for folder in folders():
        data = read(folder, name)
        if data is None:
            continue
        if hashlib.sha256(data[DIGEST:]).digest() == data[:DIGEST]:  # else damaged: compile it again
            with suppress(OSError):
                os.utime(folder)  # in use, see `_remove_old`
            return CompileResult._rebuild(target_context, *pickle.loads(data[DIGEST:]))
    return None


def _write(path: Path, data: bytes) -> bool:
    """A file that is there whole or not at all; False if it cannot be written, as the disk is full."""
    part = None
    try:
        descriptor, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with open(descriptor, "wb") as file:
            file.write(data)
        os.chmod(part, 0o644)
        os.replace(part, path)
    except OSError:
        if part is not None:
            with suppress(OSError):
                os.unlink(part)
        return False
    return True


def _remove_old(folder: Path) -> None:
    """Remove the kernels of all versions of the package but those used last."""
    if os.name == "nt":  # which has no descriptors of folders
        return
    with suppress(OSError):  # another process may do the same
        others = [path for path in folder.parent.iterdir() if re.fullmatch("gumtrace-[0-9a-f]{16}", path.name)]
        others = sorted((path for path in others if path != folder), key=lambda path: -path.lstat().st_mtime)
        for path in others[KEPT - 1 :]:
            with suppress(OSError):  # it is a link, or holds something else
                remove(path, (".kernel", ".lock", ".part"))
