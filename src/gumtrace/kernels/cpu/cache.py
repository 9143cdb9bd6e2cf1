"""Compiled kernels on disk.

    <folder>/gumtrace-<hash of all sources>/<kernel>-<hash of argument types, processor and versions>.kernel

They are read from the first folder that has them, and written to the first that can be written: GUMTRACE_CACHE_DIR if
it is set, the folder of this package (so that what was compiled while an image was built serves every user of it), the
user's cache folder. Of several processes that need a kernel at once, one compiles it and the others wait.

Numba's own cache keeps a function until its own file changes, although it contains code of the functions it calls:
after an upgrade of the package it would run a mixture of old and new.
"""

import hashlib
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

try:
    import fcntl
except ImportError:  # Windows: each process compiles for itself
    fcntl = None

VARIABLE = "GUMTRACE_CACHE_DIR"
HERE = Path(__file__).parent
UNCOMPILED = ("cache.py", "threads.py")
SOURCES = [HERE.parent / "geometry.py", *sorted(path for path in HERE.glob("*.py") if path.name not in UNCOMPILED)]
STAMP = hashlib.sha256(b"\0".join(path.read_bytes() for path in SOURCES)).hexdigest()
NAME = f"gumtrace-{STAMP[:16]}"
VERSIONS = (numba.__version__, llvmlite.__version__, sys.version_info[:2])
KEPT = 3  # of compiled versions of the package in one folder, this one included
DIGEST = 32

_announced: set[str] = set()


def folders() -> list[Path]:
    """Where kernels may be, in the order of preference."""
    own = os.environ.get(VARIABLE)
    return [Path(path) / NAME for path in (own, HERE / "__pycache__", _users()) if path]


def _users() -> Path | None:
    """The user's cache folder; None if there is no home."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    else:
        base = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path.home()
    except RuntimeError:
        return Path(base) / "gumtrace" if base else None
    return (Path(base) if base else home / ("Library/Caches" if sys.platform == "darwin" else ".cache")) / "gumtrace"


def writable_folder() -> Path | None:
    """The first of `folders` that can be written, made if it is not there."""
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


class KernelCache:
    """The compiled versions of one kernel, in the form that Numba's dispatcher asks for."""

    def __init__(self, function: Callable):
        code = function.__code__
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__.strip('<>')}"
        self.identity = (function.__module__, function.__qualname__, code.co_firstlineno, code.co_code)
        self._part: tuple[int, Path] | None = None  # the file that is being written, which is locked

    def file_name(self, signature: Any, processor: tuple) -> str:
        key = repr((signature, processor, VERSIONS, self.identity))
        return f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.kernel"

    def load_overload(self, signature: Any, target_context: Any) -> CompileResult | None:
        """Called before a kernel is compiled. If there is none, the caller compiles it, and others wait until then."""
        target_context.refresh()
        name = self.file_name(signature, target_context.codegen().magic_tuple())
        found = _load(name, target_context)
        if found is None and self._lock(name, signature):
            found = _load(name, target_context)  # another process may have compiled it meanwhile
        if found is None:
            self._announce("compiling kernels for", signature)
        return found

    def save_overload(self, signature: Any, result: CompileResult) -> None:
        """Called with what was compiled."""
        if self._part is None:
            return
        descriptor, part = self._part
        data = dumps(result._reduce())
        try:
            os.ftruncate(descriptor, 0)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(part, part.with_suffix(""))
        except OSError:  # a full disk: the next process compiles it again
            pass

    def release(self) -> None:
        """Let other processes have the kernel, or compile it if this one could not."""
        if self._part is not None:
            os.close(self._part[0])
            self._part = None

    def _lock(self, name: str, signature: Any) -> bool:
        """Whether a file was opened that can be written, after all that had it open before are done with it."""
        folder = writable_folder()
        if folder is None or fcntl is None:
            return False
        _remove_old(folder)
        part = folder / f"{name}.part"
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError:
            return False
        self._part = descriptor, part
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._announce("waiting for another process to compile kernels for", signature)
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: each compiles, and the last to finish is kept
            pass
        return True

    def _announce(self, doing: str, signature: Any) -> None:
        """A line on stderr, once for each structure, unless warnings are off."""
        geometries = [kind.instance_class.__name__ for kind in signature if hasattr(kind, "instance_class")]
        what = geometries[0].removesuffix("Geometry") if geometries else "relaxations"
        if what in _announced or _silenced():
            return
        _announced.add(what)
        folder = writable_folder()
        kept = f"kept in {folder.parent}" if folder else f"not kept: set {VARIABLE} to a folder that can be written"
        print(f"gumtrace: {doing} {what}, a few seconds at first use ({kept})", file=sys.stderr, flush=True)

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


def _load(name: str, target_context: Any) -> CompileResult | None:
    for folder in folders():
        try:
            data = (folder / name).read_bytes()
        except OSError:
            continue
        if hashlib.sha256(data[DIGEST:]).digest() == data[:DIGEST]:  # else damaged: compile it again
            return CompileResult._rebuild(target_context, *pickle.loads(data[DIGEST:]))
    return None


def _remove_old(folder: Path) -> None:
    """Remove the kernels of all but the newest versions of the package."""
    others = [path for path in folder.parent.glob("gumtrace-*") if path != folder]
    others.sort(key=lambda path: path.stat().st_mtime if path.exists() else 0.0, reverse=True)
    for path in others[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _silenced() -> bool:
    """Whether the first filter that a warning of ours would meet ignores it."""
    for action, message, category, module, _ in warnings.filters:
        if message is None and module is None and issubclass(UserWarning, category):
            return action == "ignore"
    return False
