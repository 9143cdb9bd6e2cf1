"""Workers that do not do what the driver of the fuzzer hopes for."""

import os
import signal
import time

from gumtrace.fuzz.jobs import ROUND, Report
from gumtrace.fuzz.worker import READY


def _serve(pipe, at_two):
    pipe.send(READY)
    while (asked := pipe.recv()) is not None:
        what, index, _ = asked
        if what == "crash":
            pipe.send("print('how it came about')")
            continue
        if index == 2:
            at_two()
        pipe.send(Report(index, ROUND[index % len(ROUND)], items=10))


def dying(pipe, seed, device):
    _serve(pipe, lambda: os.kill(os.getpid(), signal.SIGSEGV))


def hanging(pipe, seed, device):
    _serve(pipe, lambda: time.sleep(1000))


def leaving(pipe, seed, device):
    _serve(pipe, lambda: os._exit(3))
