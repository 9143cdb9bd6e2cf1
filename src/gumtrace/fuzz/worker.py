"""A process that runs cases for the driver, one at a time."""

import os
import signal
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection

import torch

from gumtrace.fuzz import jobs
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.edits import ROUNDS
from gumtrace.fuzz.shrink import shrunk
from gumtrace.fuzz.subject import Wrong

READY = "ready"  # what it says first: imports take a while
PATIENCE = 5  # seconds for a case that is tried in a process of its own


def work(pipe: Connection, seed: int, device: str) -> None:
    """Answers ("run", index, known failures) and ("crash", index) with a report or a script."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    pipe.send(READY)
    with suppress(EOFError, ConnectionError):  # until the driver is gone
        while True:
            what, index, known = pipe.recv()
            if what == "run":
                report = jobs.run(seed, index, device, known)
                report.last = _broken(device)
                pipe.send(report)
            else:
                pipe.send(crash_script(seed, index, device))


def _broken(device: str) -> bool:
    """After an error of a kernel nothing works on its device any more."""
    if not device.startswith("cuda"):
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def crash_script(seed: int, index: int, device: str) -> str:
    """A script of a case that ends its process: made small by trying each candidate in a fork."""
    work = jobs.job(seed, index, device)
    if not isinstance(work.subject, Case) or device != "cpu":  # a fork cannot use CUDA
        return ""
    case = shrunk(work.subject, lambda case: dies(lambda: work.find(case, Counter())))
    show: tuple[str, ...] = (case.noise_line(), "# d and noise are enough to end the process")
    if work.name == "edits":
        seeds = f"range({case.seed}, {case.seed + ROUNDS})"
        use = f"edit_and_use(d, {case.samples}, seed)"
        show = ("from gumtrace.fuzz.edits import edit_and_use", f"for seed in {seeds}:", f"    {use}")
    return jobs.script(case, Wrong("crash", "the process died", None, show))


def dies(run) -> bool:
    """Whether a function ends its process, or does not end."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        os.close(2)
        try:
            run()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
