"""Several runs on one device, each on a stream of its own: while one is evaluated the others continue."""

from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from gumtrace_experiments.loop.run import Run

EVALUATIONS = 2  # at a time: each takes memory. Runs that are due at once are not any more the next time.


def advance(runs: list[Run]) -> Generator[tuple[int, list[Run]]]:
    """All runs to their ends, by turns: yields how many updates were made, and the runs that were evaluated.

    To evaluate, and to write a checkpoint, takes the host as long as hundreds of updates. Where an update is a recorded
    graph, a thread does so, and the others get theirs meanwhile; otherwise they wait, for an update needs the host.
    """
    busy: dict[Run, Future[bool]] = {}
    threads = ThreadPoolExecutor(EVALUATIONS, "evaluation")
    try:
        while True:
            free = [run for run in runs if run not in busy and not run.finished]
            if not free and not busy:
                return
            evaluated = []
            for run in free:
                if len(runs) > 1 and run.recorded and run.pausing:
                    busy[run] = threads.submit(run.advance)
                elif run.advance():
                    evaluated.append(run)
            if not free:
                wait(busy.values(), return_when=FIRST_COMPLETED)
            for run in [run for run, future in busy.items() if future.done()]:
                if busy.pop(run).result():
                    evaluated.append(run)
            yield len(free), evaluated
    finally:
        threads.shutdown(cancel_futures=True)  # what is running ends, what is queued does not start
