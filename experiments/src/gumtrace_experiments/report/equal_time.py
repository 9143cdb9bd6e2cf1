"""Estimators at equal time: each with the setting that serves it best by then, whatever its calls are.

A setting counts if its update was clocked (times.py). The time is the longest for which every estimator has a run: of
the longest of each estimator, the shortest. What a run had found by then is its best checkpoint on validation.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gumtrace_experiments.columns import Column, Report
from gumtrace_experiments.report.groups import Choice, Group, choices, spread
from gumtrace_experiments.report.names import batch
from gumtrace_experiments.report.records import ITERATION, Record
from gumtrace_experiments.report.tables import Cell, Table, number, ranges, top
from gumtrace_experiments.report.times import Time, Times


@dataclass(frozen=True)
class Entry:
    """What is shown of an estimator in a block, and how long an update of it takes."""

    choice: Choice
    time: Time
    budget: float
    """Seconds, the same for all estimators of a block."""

    @property
    def until(self) -> int:
        """The iteration that it has reached by then. Runs that were made to be as long differ by an update or so: one
        that ends a thousandth later counts as a whole."""
        whole = self.choice.group.setting["iterations"]
        return whole if self.time.iterations(1.001 * self.budget) >= whole else self.time.iterations(self.budget)

    def values(self, column: Column, metric: str) -> list[float]:
        return [
            column.scale * found_until(run, metric, column.metric, self.until) for run in self.choice.group.finished
        ]


def found_until(run: Record, metric: str, shown: str, until: int) -> float:
    """What the checkpoint that is best on validation by an iteration has of another metric; nan if there is none."""
    rows = zip(run.curve[ITERATION], run.curve.get(metric, []), run.curve.get(shown, []), strict=False)
    early = [(score, value) for iteration, score, value in rows if iteration <= until and score is not None]
    found = max(early, key=lambda row: row[0], default=(None, None))[1]
    return math.nan if found is None else found


def entries(records: Iterable[Record], report: Report, metric: str, times: Times) -> list[Entry]:
    """In the order of tables. Where only one estimator of a block was clocked there is nothing to compare."""
    report = replace(report, block=report.timed or report.block)
    found = []
    for _, same in groupby(choices(records, report, metric), lambda choice: choice.block.key):
        clocked = [(choice, several) for choice in same if (several := _clocked(choice, times))]
        if len(clocked) > 1:
            budget = min(max(_whole(*one) for one in several) for _, several in clocked)
            found += [_best(choice, several, budget, metric) for choice, several in clocked]
    return found


def _clocked(choice: Choice, times: Times) -> list[tuple[Group, Time]]:
    """Settings with a time, of those with at least half as many seeds as the one with most."""
    done = [group for group in choice.tried if group.finished]
    pairs = [(group, _time(group, times)) for group in done]
    known = [(group, time) for group, time in pairs if time is not None]
    most = max((len(group.finished) for group, _ in known), default=0)
    return [(group, time) for group, time in known if 2 * len(group.finished) >= most]


def _time(group: Group, times: Times) -> Time | None:
    run = group.finished[0]
    return times.of(run.experiment, group.setting, run.machine.get("device", ""))


def _whole(group: Group, time: Time) -> float:
    return time.seconds(group.setting["iterations"])


def _best(choice: Choice, several: list[tuple[Group, Time]], budget: float, metric: str) -> Entry:
    made = [Entry(replace(choice, group=group), time, budget) for group, time in several]
    return max(made, key=lambda entry: _score(entry, metric))


def _score(entry: Entry, metric: str) -> float:
    """The mean over seeds; without a checkpoint of some seed, the worst."""
    mean = spread(entry.values(Column(metric, metric), metric)).mean
    return -math.inf if math.isnan(mean) else mean


def tables(records: Iterable[Record], report: Report, metric: str, times: Times) -> list[Table]:
    """One for each block."""
    found = entries(records, report, metric, times)
    return [_table(list(same), report, metric) for _, same in groupby(found, lambda e: e.choice.block.key)]


def _table(same: list[Entry], report: Report, metric: str) -> Table:
    head = ["estimator", "items × structures", "ms an update", *(column.name for column in report.columns)]
    rows = [[Cell(e.choice.title), Cell(_product(e.choice.group.setting)), Cell(f"{e.time.ms:#.3g}")] for e in same]
    for column in report.columns:
        spreads = [spread(entry.values(column, metric), larger=column.larger) for entry in same]
        best = top([one.mean for one in spreads], column)
        for row, one in zip(rows, spreads, strict=True):
            deviation = "" if one.std is None or math.isnan(one.mean) else f" ± {number(one.std, column.digits)}"
            row.append(Cell(number(one.mean, column.digits) + deviation, one.mean == best))
    for row, entry in zip(rows, same, strict=True):
        row += [Cell(f"{entry.until:,}"), Cell(str(len(entry.choice.group.finished)))]
    return Table(
        f"After {_rounded(same[0].budget)} seconds of updates, {same[0].choice.block.title}",
        (*head, "iterations then", "seeds"),
        tuple(map(tuple, rows)),
        tuple(_notes(same, metric, report)),
    )


def _rounded(seconds: float) -> str:
    """
    >>> _rounded(103.52), _rounded(5.0)
    ('103.5', '5')
    """
    return f"{seconds:.1f}".removesuffix(".0")


def _product(setting: dict[str, Any]) -> str:
    return "{} × {}".format(*batch(setting))


def _notes(same: Sequence[Entry], metric: str, report: Report) -> Iterable[str]:
    decides = next((column.name for column in report.columns if column.metric == metric), metric)
    yield (
        "On validation, mean ± standard deviation over seeds, of the best checkpoint that was evaluated by then. Best "
        f"is by {decides}, which also chooses the setting that is shown. Updates of starts that were not continued "
        "count, evaluations do not."
    )
    precisions = [entry.choice.group.setting.get("precision", "") for entry in same]
    for entry, precision in zip(same, precisions, strict=True):
        seeds = ranges(run.seed for run in entry.choice.group.finished)
        differs = f", in {precision}" if len(set(precisions)) > 1 else ""
        tried = len(entry.choice.tried)
        yield f"{entry.choice.name}: seeds {seeds}{differs}, of {tried} setting{'s' * (tried != 1)}."
    where = same[0].time.machine
    device = where.get("cpu", "cpu") if where.get("device") == "cpu" else where.get("device", "unknown device")
    dates = sorted({entry.time.machine.get("date", "") for entry in same})
    yield f"Clocked alone on {device}, torch {where.get('torch', 'unknown')}, {' and '.join(dates)}."


def over_seconds(same: Sequence[Entry]) -> list[Choice]:
    """What is shown of all blocks, with curves over seconds instead of iterations. Names say what was clocked: items ×
    structures, and the precision if there are several."""
    precisions = {entry.choice.group.setting.get("precision", "") for entry in same}
    return [_over_seconds(entry, len(precisions) > 1) for entry in same]


def _over_seconds(entry: Entry, with_precision: bool) -> Choice:
    choice, setting = entry.choice, entry.choice.group.setting
    runs = [
        replace(run, curve={**run.curve, ITERATION: [entry.time.seconds(i) for i in run.curve[ITERATION]]})
        for run in choice.group.records
    ]
    clocked = [_product(setting), *([setting.get("precision", "")] if with_precision else [])]
    row = choice.place[0], ", ".join([choice.name, *clocked])
    return replace(choice, group=replace(choice.group, records=tuple(runs)), row=row)


def usual_leaders(shown: Sequence[Choice], report: Report, metric: str) -> dict[tuple, Choice]:
    """For the key of each block that differs from another one in its calls and iterations alone, and has unusual ones:
    the estimator that leads that other block on validation."""
    blocks = {key: list(same) for key, same in groupby(shown, lambda choice: choice.block.key)}
    found = {}
    for key, same in blocks.items():
        usual = key if report.timed is None else report.timed(same[0].group.setting).key
        finished = [choice for choice in blocks.get(usual, []) if choice.group.finished]
        if usual != key and finished:
            found[key] = max(finished, key=lambda choice: choice.group.score(metric))
    return found
