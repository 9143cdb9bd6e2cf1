"""How a sweep is stopped from outside: SIGTERM, or the end of its front end."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any

from gumtrace_experiments.store.locks import alive

AGAIN = 10.0  # seconds after which a worker that was stopped and is still there is stopped again


class Stopped(KeyboardInterrupt):
    """By a signal, which is the argument. As Ctrl-C, it ends a trial, which is then queued again."""


def _stop(number: int, frame: Any) -> None:
    raise Stopped(signal.Signals(number).name)


def _stop_once(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_DFL)  # to stop takes a moment, or long without a database: a second one ends it
    _stop(number, frame)


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless it is ignored (nohup), raise Stopped; a second one ends the process at once, and its
    workers notice."""
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    before = {number: signal.getsignal(number) for number in numbers}
    caught = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    if current_thread() is not main_thread():  # others cannot set handlers
        caught = {}
    for number in caught:
        signal.signal(number, _stop_once)
    try:
        yield
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)


@contextmanager
def not_for_children(number: int) -> Iterator[None]:
    """Processes started meanwhile ignore the signal."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def stop_with(front: Path) -> None:
    """A worker of this machine ends with its front end, however that ends: when nobody holds its lock any more."""
    signal.signal(signal.SIGTERM, _stop)

    def watch() -> None:
        while alive(front):
            time.sleep(1.0)
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(AGAIN)

    Thread(target=watch, daemon=True).start()
