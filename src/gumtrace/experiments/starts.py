"""Where to start from: train several initial models for a while, and see which is best on validation. A run then starts
afresh from that one, so that it is a run like any other."""

from collections.abc import Callable
from pathlib import Path

from gumtrace.experiments.config import Config
from gumtrace.experiments.folder import START, RunFolder, read_json, write_json
from gumtrace.experiments.parallel import Workers
from gumtrace.experiments.run import Run


def choose_starts(
    configs: list[Config],
    paths: list[Path],
    make: Callable[[Config, int, RunFolder | None], Run],
    workers: Workers,
) -> list[int]:
    """The number of the best start for each config. What was found once is kept in the run's folder."""
    known = [read_json(path / START) for path in paths]
    open_ = [i for i, found in enumerate(known) if found is None and configs[i].starts > 1]
    runs = {(i, start): make(configs[i], start, None) for i in open_ for start in range(configs[i].starts)}
    for _ in range(max((configs[i].start_iterations for i in open_), default=0)):
        for (i, _), run in runs.items():
            if run.iteration < configs[i].start_iterations:
                run.step()
    for i in open_:
        better = runs[i, 0].experiment.better
        scores = [runs[i, start].evaluate("valid")[better] for start in range(configs[i].starts)]
        found = {"start": max(range(len(scores)), key=scores.__getitem__), better: scores}
        if workers.first:
            write_json(paths[i] / START, found)
        known[i] = found
    return [0 if found is None else found["start"] for found in known]
