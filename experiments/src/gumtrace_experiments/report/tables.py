"""Tables: our runs beside the paper's, mean ± standard deviation over seeds and the best seed, on test; and on
the training set, where that was evaluated too."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gumtrace_experiments.columns import Block, Column, PaperRow, Report, Spread
from gumtrace_experiments.report.groups import Choice, choices
from gumtrace_experiments.report.names import UNBIASED, family, marked
from gumtrace_experiments.report.records import Record

OURS = "ours"
MOMENTS = ("beginning", "half-way", "end")  # of training
UNLIKE = (
    "Compare our rows with each other only: they are measured on one batch, for the logits of one item at a time, with "
    "the model of that moment. The paper's are measured with its best model and averaged over the training set."
)


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False  # the best of its column


@dataclass(frozen=True)
class Table:
    """Ready to be printed."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]
    folded: bool = False
    """On a page only its title is shown at first: it adds to the table before it."""


@dataclass(frozen=True)
class _Row:
    name: str
    source: str
    spreads: tuple[Spread, ...]
    seeds: int | None
    settings: int


def build(records: Iterable[Record], report: Report, metric: str) -> tuple[list[Table], list[str]]:
    """An overview, if the report has one, a table for each block, and notes on all of them. What the training set and
    the gradients are like is folded, and of blocks that an overview has, all."""
    shown = choices(records, report, metric)
    by_block = [list(same) for _, same in groupby(shown, lambda choice: choice.block.key)]
    tables = [] if report.overview is None else report.overview(shown)
    whole = bool(tables)
    for same in by_block:
        tables += [replace(_table(report, same), folded=whole), *_training(report, same), *_gradients(same)]
    return tables, _notes(shown, report, metric)


def _table(report: Report, shown: list[Choice]) -> Table:
    block = shown[0].block
    rows = _rows(report, shown, block.paper, "test")
    notes = tuple(note for choice in shown for note in _about(choice))
    return Table(block.title, *_printed(report, rows), notes)


def _training(report: Report, shown: list[Choice]) -> list[Table]:
    """The same models on the training set, if they were evaluated there."""
    block = shown[0].block
    if not any(choice.group.evaluated("train") for choice in shown):
        return []
    rows = _rows(report, shown, block.paper_train, "train")
    return [Table(f"On the training set, {block.title}", *_printed(report, rows), (), folded=True)]


def _rows(report: Report, shown: list[Choice], paper: tuple[PaperRow, ...], split: str) -> list[_Row]:
    ours = [_own(choice, report, split) for choice in shown if choice.group.evaluated(split)]
    return [*(_paper(row, shown[0].block) for row in paper), *ours]


def _printed(report: Report, rows: list[_Row]) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """The head and the body of a table."""
    head = ["estimator", "by"]
    body = [[Cell(row.name), Cell(row.source)] for row in rows]
    for i, column in enumerate(report.columns):
        head += [column.name, "best"]
        for line, cells in zip(body, _cells(column, rows, i), strict=True):
            line += cells
    for line, row in zip(body, rows, strict=True):
        line += [Cell("–" if row.seeds is None else str(row.seeds)), Cell(str(row.settings))]
    return (*head, "seeds", "settings"), tuple(map(tuple, body))


def _gradients(shown: list[Choice]) -> list[Table]:
    """Standard deviations of the gradient, on average over seeds, of those that estimate it."""
    block = shown[0].block
    rows = []
    for choice in shown:
        found = [record.result.get("gradient_std", {}) for record in choice.group.finished if record.result]
        if any(std for stds in found for std in stds.values()):  # a likelihood has no noise
            means = [_mean([stds[moment] for stds in found if moment in stds]) for moment in MOMENTS]
            rows.append((choice.title, OURS, *means))
    if not rows:
        return []
    paper = [(marked(n, family(n)), block.source, *(f"{x:.4g}" for x in s)) for n, s in block.gradient_std.items()]
    head = ("estimator", "by", *MOMENTS)
    cells = tuple(tuple(Cell(text) for text in row) for row in paper + rows)
    notes = (UNLIKE,) if paper else ()
    return [Table(f"Standard deviation of the gradient to a logit, {block.title}", head, cells, notes, folded=True)]


def _mean(values: list[float | None]) -> str:
    known = [x for x in values if x is not None]  # JSON has no nan
    return f"{sum(known) / len(known):.4g}" if known else ""


def _own(choice: Choice, report: Report, split: str) -> _Row:
    group = choice.group
    spreads = tuple(group.spread(column, split) for column in report.columns)
    return _Row(choice.title, OURS, spreads, len(group.evaluated(split)), len(choice.tried))


def _paper(row: PaperRow, block: Block) -> _Row:
    name = marked(row.estimator, family(row.estimator))
    return _Row(name, block.source, row.spreads, row.seeds, row.settings)


def _cells(column: Column, rows: list[_Row], i: int) -> list[list[Cell]]:
    """Mean ± std and best of one metric, for each row; the best means and bests are bold."""
    spreads = [row.spreads[i] for row in rows]
    top_mean, top_best = (top([getattr(s, name) for s in spreads], column) for name in ("mean", "best"))
    cells = []
    for row, found in zip(rows, spreads, strict=True):
        digits = column.digits if row.source == OURS else column.paper_digits
        alone = found.std is None or math.isnan(found.mean)
        mean = number(found.mean, digits) + ("" if alone else f" ± {number(found.std or 0.0, digits)}")
        best = Cell(number(found.best, digits), found.best == top_best)
        cells.append([Cell(mean, found.mean == top_mean), best])
    return cells


def top(values: list[float], column: Column) -> float:
    """The best of several; of one alone there is none."""
    known = [x for x in values if not math.isnan(x)]
    return (max if column.larger else min)(known) if len(known) > 1 and column.larger is not None else math.nan


def _about(choice: Choice) -> Iterable[str]:
    """What a reader has to know of one estimator: how its setting was found, which seeds, what is missing."""
    group = choice.group
    if group.finished:
        seeds = f"seed{'s' * (len(group.finished) > 1)} {ranges(record.seed for record in group.finished)}"
        tuned = ", ".join(f"{name} {_plain(value)}" for name, value in sorted(choice.tuned().items()))
        tuned = f"; {tuned}, of {len(choice.tried)} settings" if tuned else ""
        easy_first = "" if "curriculum" in choice.tuned() else group.setting.get("curriculum", "")
        easy_first = f"; curriculum {easy_first}" if easy_first else ""
        yield f"{choice.title.removesuffix(UNBIASED).rstrip()}: {seeds}{easy_first}{tuned}."
    if lost := [record.seed for record in group.finished if record.result and "diverged" in record.result]:
        yield f"{choice.family}: seed{'s' * (len(lost) > 1)} {ranges(lost)} diverged."
    if choice.unfinished:
        runs = "1 run is" if choice.unfinished == 1 else f"{choice.unfinished} runs are"
        yield f"{choice.family}: {runs} not finished, and not averaged."


def _notes(shown: list[Choice], report: Report, metric: str) -> list[str]:
    decides = next((column.name for column in report.columns if column.metric == metric), metric)
    return [
        f"{UNBIASED} unbiased gradients. Mean ± standard deviation over seeds, and the best seed, on test. Checkpoints "
        f"are chosen by {decides} on validation, and so is the setting that is shown: the best mean of those that were "
        "run with at least half as many seeds as any other.",
        *(
            ["Settings: in our rows those among these runs, in the paper's those of its search."]
            if any(c.block.paper for c in shown)
            else []
        ),
        *_machines([record for choice in shown for record in choice.group.finished]),
    ]


def _machines(records: list[Record]) -> Iterable[str]:
    """Where our runs were made."""
    where: dict[str, list[str]] = {}
    for record in records:
        found = record.machine
        device = found.get("device", "unknown device")
        device = found.get("cpu", device) if device == "cpu" else device
        where.setdefault(f"{device}, torch {found.get('torch', 'unknown')}", []).append(found.get("date", ""))
    for machine, dates in sorted(where.items()):
        first, last = min(dates), max(dates)
        days = [day for day in dict.fromkeys((first, last)) if day]
        yield f"{OURS.capitalize()}: {', '.join([machine, *([' to '.join(days)] if days else [])])}."


def number(x: float, digits: int) -> str:
    """
    >>> number(-1582.716, 2)
    '−1582.72'
    """
    if math.isnan(x):
        return "–"
    return f"{x:.{digits}f}".replace("-", "−")


def _plain(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def ranges(numbers: Iterable[int]) -> str:
    """
    >>> ranges([3, 0, 1, 2, 7])
    '0–3, 7'
    """
    runs: list[list[int]] = []
    for x in sorted(numbers):
        if runs and x == runs[-1][1] + 1:
            runs[-1][1] = x
        else:
            runs.append([x, x])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
