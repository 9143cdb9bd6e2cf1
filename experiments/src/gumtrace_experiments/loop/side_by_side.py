"""Several runs on one device, each on a stream of its own: while one is evaluated the others continue."""

import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from datetime import timedelta
from functools import partial

from tqdm import tqdm

from gumtrace_experiments.loop.run import Run

EVALUATIONS = 2  # at a time: each takes memory. Runs that are due at once are not any more the next time.


def advance_all(
    runs: list[Run], progress: bool, watch: Callable[[Run], None] | None, finish: Callable[[Run], None]
) -> None:
    """To their ends, with a bar on a terminal or lines elsewhere. `watch` is called after each evaluation of a run, and
    `finish` once in the end, while others continue."""
    total, done = sum(run.updates for run in runs), sum(run.iteration for run in runs)
    log = _Log(runs)
    with (
        tqdm(total=total, initial=done, unit="it", file=sys.stderr, disable=None if progress else True) as bar,
        closing(advance(runs, finish)) as rounds,
    ):
        for updates, evaluated in rounds:
            for run in evaluated:
                if watch is not None:
                    watch(run)
            if progress and bar.disable:
                log.write(updates, evaluated)
            bar.update(updates)
            bar.total = bar.n + sum(run.left for run in runs)  # less than it was, if a run or a start diverged
            bar.set_postfix_str(" ".join(_score(run) for run in runs), refresh=False)


def advance(runs: list[Run], finish: Callable[[Run], None] = lambda run: None) -> Generator[tuple[int, list[Run]]]:
    """All runs to their ends, by turns: yields how many updates were made, and the runs that were evaluated.

    To evaluate, to write a checkpoint and to finish takes the host as long as hundreds of updates. Where an update is a
    recorded graph, a thread does so, and the others get theirs meanwhile; otherwise they wait, for an update needs the
    host.
    """
    busy: dict[Run, Future[bool]] = {}
    ended: set[Run] = set()
    threads = ThreadPoolExecutor(EVALUATIONS, "evaluation")
    try:
        while True:
            free = [run for run in runs if run not in busy and run not in ended]
            if not free and not busy:
                return
            updates, evaluated = 0, []
            for run in free:
                long, turn = run.finished or run.pausing, run.advance
                if run.finished:
                    ended.add(run)
                    turn = partial(_finished, run, finish)
                else:
                    updates += 1
                if len(runs) > 1 and run.recorded and long:
                    busy[run] = threads.submit(turn)
                elif turn():
                    evaluated.append(run)
            if not free:
                wait(busy.values(), return_when=FIRST_COMPLETED)
            for run in [run for run, future in busy.items() if future.done()]:
                if busy.pop(run).result():
                    evaluated.append(run)
            yield updates, evaluated
    finally:
        threads.shutdown(cancel_futures=True)  # what is running ends, what is queued does not start


def _finished(run: Run, finish: Callable[[Run], None]) -> bool:
    finish(run)
    return False  # it was not evaluated on validation


class _Log:
    """Lines in place of a bar, where there is no terminal."""

    def __init__(self, runs: list[Run]):
        self.runs, self.done, self.began = runs, 0, time.perf_counter()
        self.starts = {run: len(run.starts.scores) for run in runs}
        self.diverged: list[Run] = []

    def write(self, updates: int, evaluated: list[Run]) -> None:
        self.done += updates
        for run in self.runs:
            scores = run.starts.scores[self.starts[run] :]  # a thread may be adding one
            for number, score in enumerate(scores, self.starts[run] + 1):
                self._write(
                    run, f"start {number} of {run.config.starts}: {run.experiment.selection_metric} {score:.5g}"
                )
            self.starts[run] += len(scores)
        for run in evaluated:
            metric = run.experiment.selection_metric
            now = f"{run.iteration} of {run.config.iterations}: {metric} {run.valid[metric]:.5g}"
            self._write(run, f"{now}, best {_score(run).removeprefix(metric).strip()}")
        for run in [run for run in self.runs if run.diverged and run not in self.diverged]:
            self.diverged.append(run)
            self._write(run, f"diverged {run.diverged}")

    def _write(self, run: Run, text: str) -> None:
        """At once: whoever reads a log wants to know what is happening."""
        rate = self.done / (time.perf_counter() - self.began)
        left = timedelta(seconds=round(sum(run.left for run in self.runs) / rate))
        print(f"{_name(run, self.runs)}, {text}; {rate:.3g} it/s, {left} left", flush=True)


def _name(run: Run, runs: list[Run]) -> str:
    """Its seed, after the folder of its setting if there are several."""
    folders = {other.folder.path.parent for other in runs if other.folder is not None}
    seed = f"seed {run.config.seed}"
    return f"{run.folder.path.parent.name}: {seed}" if run.folder is not None and len(folders) > 1 else seed


def _score(run: Run) -> str:
    metric = run.experiment.selection_metric
    return f"{metric} {run.best['valid'][metric]:.5g}" if run.best else "–"
