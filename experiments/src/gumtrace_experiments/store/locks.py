"""Locks on files, which the system gives back when a process ends, however it ends."""

import os
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int, wait: bool) -> None:
        """Lock the first byte, which need not exist."""
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError:  # also of those that wait, after ten seconds
                if not wait:
                    raise BlockingIOError("locked by another process") from None

    def _unlock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # Windows would do so some time after the file is closed

else:
    import fcntl

    def _lock(handle: int, wait: bool) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        """Closing the file is enough."""


def take(path: Path, *, wait: bool = True, create: bool = True) -> int:
    """The lock, to be given back. BlockingIOError: another has it, and we do not wait."""
    # NFS gives exclusive locks only to those who may write.
    handle = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDWR, 0o644)
    try:
        _lock(handle, wait)
    except BaseException:
        os.close(handle)
        raise
    return handle


def give_back(handle: int) -> None:
    _unlock(handle)
    os.close(handle)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for the lock, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = take(path)
    try:
        yield
    finally:
        give_back(handle)


@contextmanager
def presence(folder: Path) -> Iterator[str]:
    """A name for this worker, whose lock in the folder it holds as long as it lives."""
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        with exclusive(folder / name):
            yield name
    finally:
        with suppress(PermissionError):  # of Windows, where another is just looking whether we live
            (folder / name).unlink(missing_ok=True)


def alive(path: Path) -> bool:
    """Whether the worker with this lock lives."""
    try:
        give_back(take(path, wait=False, create=False))
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
