"""Locks that the system gives back when a process ends, however it ends."""

import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for the lock, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def presence(folder: Path) -> Iterator[str]:
    """A name for this worker, whose lock in the folder it holds as long as it lives."""
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    with exclusive(folder / name):
        try:
            yield name
        finally:
            (folder / name).unlink(missing_ok=True)


def alive(path: Path) -> bool:
    """Whether the worker with this lock lives."""
    try:
        with path.open("r+") as file:  # NFS gives exclusive locks only to those who may write
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
