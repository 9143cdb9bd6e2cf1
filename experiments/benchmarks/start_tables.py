"""Which optimum the runs of an experiment start in, and which one they end in, counted in recorded runs."""

from collections.abc import Callable
from pathlib import Path

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments.report.names import family, place
from gumtrace_experiments.report.records import collect

RUNS = Path(__file__).parents[1] / "results"
POOR = {"teacher-forced": 600, "unrolled": 300}  # nats that a start of graph layout is behind the best one of its row
FOUND = 0.8  # edge precision of graph layout: no run in a poor optimum has it
# Without a parse, the first operator of ListOps applied to all digits gives 52.0 % of the answers on validation.
UNPARSED, LOW = 0.53, 0.6
PARSED, PARTLY = 0.7, 0.5  # edge recall of ListOps


def items(config: dict) -> int:
    """Of a batch."""
    return config["calls"] // (config["samples"] * ESTIMATORS[config["estimator"]].calls_per_sample)


def table(head: list[str], words: int, rows: list[list]) -> str:
    """Columns after the first so many are numbers."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * words + "---:|" * (len(head) - words), *lines[1:]]) + "\n"


def _rows(name: str, key: Callable[[dict], tuple]) -> dict[tuple, list[tuple[dict, dict]]]:
    """Configs and results of an experiment's finished runs by row, in the order of rows."""
    found: dict[tuple, list[tuple[dict, dict]]] = {}
    for run in collect([RUNS / name]):
        if run.result:
            found.setdefault(key(run.config), []).append((run.config, run.result))
    return {where: found[where] for where in sorted(found)}


def graph_layout() -> str:
    """How many of the starts were poor; of all settings with more than two."""

    def key(config: dict) -> tuple:
        batch = items(config), config["samples"]
        row = config["training"], config["frames"], place(config["estimator"]), *batch
        return *row, config["start_iterations"], config["starts"]

    rows = []
    for (training, frames, (_, estimator), *batch, iterations, several), same in _rows("graph-layout", key).items():
        if several <= 2:
            continue
        scores = [score for _, result in same for score in result["starts"]]
        limit = max(scores) - POOR[training]
        poor = sum(score < limit for score in scores)
        risen = sum(max(end["starts"]) < limit and end["test"]["precision"] > FOUND for _, end in same)
        known = f"at most {poor - risen}" if risen else poor
        about = [family(estimator), training, frames, f"{batch[0]} × {batch[1]}", f"{iterations:,}"]
        rows.append([*about, len(scores), poor, known])
    head = ["estimator", "training", "T", "items × structures", "after iterations", "starts", "far behind", "poor"]
    return table(head, 2, rows)


def listops_setting(config: dict) -> str:
    """What a run of ListOps differs in from others."""
    name = f"{family(config['estimator'])}, {items(config)} × {config['samples']}"
    easy_first = ", short expressions first" if config["curriculum"] else ""
    relabel = f", relabel {config['relabel']}" if config["relabel"] else ""
    several = f", best of {config['starts']} starts" if config["starts"] > 1 else ""
    return name + easy_first + relabel + several


def listops_key(config: dict) -> tuple:
    """To sort settings by."""
    changes = bool(config["curriculum"]), config["relabel"]
    return *changes, place(config["estimator"]), items(config), config["starts"], listops_setting(config)


def listops() -> str:
    """How many of the starts answer no more than one does without a parse, and how much of it runs end with."""
    rows = []
    for (*_, setting), same in _rows("listops", listops_key).items():
        scores = [score for config, result in same if config["starts"] > 1 for score in result["starts"]]
        early = [len(scores), *(sum(score < limit for score in scores) for limit in (UNPARSED, LOW))]
        recall = [result["test"]["recall"] for _, result in same]
        ends = [sum(low <= x < high for x in recall) for low, high in ((PARSED, 2), (PARTLY, PARSED), (0, PARTLY))]
        rows.append([setting, *(early if scores else ["–"] * 3), len(same), *ends])
    head = ["setting", "starts", f"below {UNPARSED:.0%}", f"below {LOW:.0%}", "runs"]
    head += [f"{PARSED:.0%} or more", f"{PARTLY:.0%} to {PARSED:.0%}", f"below {PARTLY:.0%}"]
    return table([name.replace("%", " %") for name in head], 1, rows)


TABLES = {"graph-layout-starts": graph_layout, "listops-starts": listops}
