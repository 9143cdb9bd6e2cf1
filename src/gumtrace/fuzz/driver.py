"""Hands out cases to worker processes, collects what they report, and replaces those that die or hang."""

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import wait

from gumtrace.fuzz.jobs import ROUND, Failure, Report
from gumtrace.fuzz.numbers import SINGLE
from gumtrace.fuzz.worker import READY, work

FIRST = 2 * len(ROUND)  # cases in which most of the code is compiled
STARTS = 120.0  # seconds that a worker may take to start
HANGS, COMPILES = 60.0, 200.0  # seconds that a case may take, shrinking included, and one that may have to compile


@dataclass
class Settings:
    seed: int = 0
    seconds: float | None = 60.0  # counted from when the code is compiled
    items: int | None = None
    cases: int | None = None
    device: str = "cpu"
    workers: int = 2
    only: tuple[str, ...] = ROUND


@dataclass
class Summary:
    """What came of a run."""

    cases: Counter = field(default_factory=Counter)  # by job, as the next two
    items: Counter = field(default_factory=Counter)
    failed: Counter = field(default_factory=Counter)
    checks: Counter = field(default_factory=Counter)  # check -> items
    failures: dict[str, Failure] = field(default_factory=dict)  # the first of each kind
    started: float = field(default_factory=time.monotonic)
    compiled: float | None = None  # when the first cases were done
    interrupted: bool = False  # by Ctrl-C

    @property
    def total(self) -> int:
        return sum(self.items.values())

    def add(self, report: Report) -> list[Failure]:
        """Takes a report in; returns the failures of a kind that was not known."""
        self.cases[report.job] += 1
        self.items[report.job] += report.items
        self.checks += report.tally
        self.failed[report.job] += len(report.failures)
        new = [failure for failure in report.failures if failure.name not in self.failures]
        first = {failure.name: failure for failure in reversed(new)}
        self.failures |= first
        return list(first.values())


class _Worker:
    def __init__(self, settings: Settings, target: Callable = work):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, settings.seed, settings.device), daemon=True)
        self.process.start()
        theirs.close()
        self.index: int | None = None
        self.ready = False
        self.since, self.patience = time.monotonic(), STARTS
        self.done = [0, 0]  # cases of the turns in single precision, and of those after them
        self.how: str | None = None  # how the worker before it ended, while it makes a script of that

    def give(self, what: str, index: int, known: frozenset[str], patience: float) -> None:
        self.index, self.since, self.patience = index, time.monotonic(), patience
        self.pipe.send((what, index, known))

    def knows(self, index: int) -> bool:
        """Whether it has run some cases like this one, so that there is nothing left to compile."""
        return self.done[index >= SINGLE * len(ROUND)] > len(ROUND)

    def receive(self) -> Report | str | None:
        """What it reports, a script, or that it is ready; None if it died."""
        try:
            message = self.pipe.recv() if not self.hangs or self.pipe.poll() else None
        except (EOFError, ConnectionError):
            return None
        if message == READY:
            self.ready, self.since = True, time.monotonic()
        return message

    @property
    def hangs(self) -> bool:
        limit = self.patience if self.ready else STARTS
        return (self.index is not None or not self.ready) and time.monotonic() - self.since > limit

    def end(self) -> str:
        """Stops it, and says how it ended."""
        if self.hangs and self.process.is_alive():
            self.process.kill()
            self.process.join()
            return f"took more than {self.patience:.0f} s"
        self.process.join(5)
        code = self.process.exitcode
        return f"the process died: {signal.Signals(-code).name if code is not None and code < 0 else f'exit {code}'}"

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def fuzz(
    settings: Settings,
    failed: Callable[[Failure], None] = lambda failure: None,
    progress: Callable[[Summary], None] = lambda summary: None,
    target: Callable = work,
) -> Summary:
    """Runs cases until time, items or cases are used up. `failed` is called for each new kind of failure."""
    summary = Summary()
    indices = _indices(settings)
    together = settings.device == "cpu"  # kernels for CUDA would be compiled by every worker: one fills the cache
    workers = [_Worker(settings, target) for _ in range(settings.workers if together else 1)]
    try:
        for reports in _handed_out(settings, summary, workers, indices, target):
            for report in reports:
                for failure in summary.add(report):
                    failed(failure)
                progress(summary)
    except KeyboardInterrupt:
        summary.interrupted = True
    finally:
        for worker in workers:
            worker.stop()
    return summary


def _indices(settings: Settings) -> Iterator[int]:
    return (i for i in count() if ROUND[i % len(ROUND)] in settings.only)


def _handed_out(settings, summary: Summary, workers: list[_Worker], indices, target) -> Iterator[list[Report]]:
    """Reports as they come in; meanwhile every worker has a case."""
    given = 0
    while True:
        if summary.compiled is None and sum(summary.cases.values()) >= FIRST:
            summary.compiled = time.monotonic()
            workers += [_Worker(settings, target) for _ in range(settings.workers - len(workers))]
        for worker in workers:
            if worker.ready and worker.index is None and not _used_up(settings, summary, given):
                index = next(indices)
                patience = HANGS if worker.knows(index) and settings.device == "cpu" else COMPILES
                worker.give("run", index, frozenset(summary.failures), patience)
                given += 1
        busy = [worker for worker in workers if worker.index is not None or not worker.ready]
        if not busy or (all(worker.index is None for worker in busy) and _used_up(settings, summary, given)):
            return
        reports = []
        ready = set(wait([worker.pipe for worker in busy], timeout=1.0))
        for worker in busy:
            if worker.pipe in ready or worker.hangs:
                reports.append(_received(settings, summary, worker, workers, target))
        yield [report for report in reports if report is not None]


def _used_up(settings: Settings, summary: Summary, given: int) -> bool:
    late = (
        settings.seconds is not None
        and summary.compiled is not None
        and time.monotonic() - summary.compiled > settings.seconds
    )
    enough = settings.items is not None and summary.total >= settings.items
    return late or enough or (settings.cases is not None and given >= settings.cases)


def _received(settings: Settings, summary: Summary, worker: _Worker, workers: list[_Worker], target) -> Report | None:
    """What a worker reports. Where it died, another takes its place, and reports that when it has made a script of the
    case."""
    message, index = worker.receive(), worker.index
    if message == READY:
        return None
    if index is None:
        raise RuntimeError(f"a worker cannot start: {worker.end()}")
    name = ROUND[index % len(ROUND)]
    if message is not None:
        worker.index = None
        worker.done[index >= SINGLE * len(ROUND)] += 1
        if isinstance(message, Report):
            if message.last:
                worker.stop()
                workers[workers.index(worker)] = other = _Worker(settings, target)
                other.done = worker.done
            return message
        how, worker.how = str(worker.how), None
        return Report(index, name, failures=[Failure(index, name, how, how, message)])
    how = worker.end() if worker.how is None else worker.how
    worker.stop()
    other = workers[workers.index(worker)] = _Worker(settings, target)
    other.done = worker.done
    if worker.how is None and f"{name}: {how}" not in summary.failures:
        other.how = how  # it makes a script of the case first
        other.give("crash", index, frozenset(), COMPILES)
        return None
    return Report(index, name, failures=[Failure(index, name, how, how, "")])
