"""The paper's layout: one table for each model, with the numbers of all k side by side."""

import math
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from gumtrace_experiments.columns import Column, Spread
from gumtrace_experiments.report.groups import Choice
from gumtrace_experiments.report.names import family, marked
from gumtrace_experiments.report.tables import OURS, Cell, Table, number


class _Row(NamedTuple):
    name: str
    by: str
    spreads: dict[int, tuple[Spread, ...]]  # by k, as many as there are columns
    seeds: int | None = None  # the fewest


def overview(shown: list[Choice]) -> list[Table]:
    """Blocks that differ in k alone, which is the last of their key; of one k alone there is nothing to compare."""
    from gumtrace_experiments.l2x.paper import MSE, PRECISION

    done = [choice for choice in shown if choice.group.finished]
    tables = []
    for _, same in groupby(done, lambda choice: choice.block.key[:-1]):
        blocks = {choice.block.key[-1]: list(group) for choice, group in _by_size(list(same))}
        if len(blocks) > 1:
            tables.append(_table(blocks, (MSE, PRECISION)))
    return tables


def _by_size(same: list[Choice]) -> Iterable[tuple[Choice, list[Choice]]]:
    for _, group in groupby(same, lambda choice: choice.block.key[-1]):
        found = list(group)
        yield found[0], found


def _table(blocks: dict[int, list[Choice]], columns: tuple[Column, ...]) -> Table:
    rows = [*_paper(blocks, len(columns)), *_own(blocks, columns)]
    head = ["estimator", "by"]
    body = [[Cell(row.name), Cell(row.by)] for row in rows]
    for size in blocks:
        for i, column in enumerate(columns):
            head.append(f"{column.name}, k = {size}")
            found = [row.spreads[size][i] if size in row.spreads else None for row in rows]
            for line, cell in zip(body, _cells(column, rows, found), strict=True):
                line.append(cell)
    for line, row in zip(body, rows, strict=True):
        line.append(Cell("–" if row.seeds is None else str(row.seeds)))
    size, first = next((size, same[0].block.title) for size, same in blocks.items())
    title = first.replace(f"k = {size}", f"k = {', '.join(map(str, blocks))}")
    return Table(title, (*head, "seeds"), tuple(map(tuple, body)), ())


def _paper(blocks: dict[int, list[Choice]], count: int) -> list[_Row]:
    rows: dict[str, _Row] = {}
    for size, same in blocks.items():
        for row in same[0].block.paper:
            name = marked(row.estimator, family(row.estimator))
            rows.setdefault(name, _Row(name, same[0].block.source, {}, row.seeds)).spreads[size] = row.spreads[:count]
    return list(rows.values())


def _own(blocks: dict[int, list[Choice]], columns: tuple[Column, ...]) -> list[_Row]:
    """In the order of the blocks; an estimator that some lack comes where it is first met."""
    rows: dict[str, _Row] = {}
    for size, same in blocks.items():
        for choice in same:
            name, seeds = marked(choice.estimator, choice.name), len(choice.group.finished)
            before = rows.get(name, _Row(name, OURS, {}, seeds))
            spreads = {**before.spreads, size: tuple(choice.group.spread(column) for column in columns)}
            rows[name] = _Row(name, OURS, spreads, min(before.seeds or seeds, seeds))
    return list(rows.values())


def _cells(column: Column, rows: list[_Row], spreads: list[Spread | None]) -> list[Cell]:
    """Mean ± std; the best mean is bold."""
    means = [s.mean for s in spreads if s is not None and not math.isnan(s.mean)]
    top = (max if column.larger else min)(means) if len(means) > 1 else math.nan
    cells = []
    for row, found in zip(rows, spreads, strict=True):
        if found is None or math.isnan(found.mean):
            cells.append(Cell("–"))
            continue
        digits = column.digits if row.by == OURS else column.paper_digits
        std = "" if found.std is None else f" ± {number(found.std, digits)}"
        cells.append(Cell(number(found.mean, digits) + std, found.mean == top))
    return cells
