"""What graph layout and ListOps came to, in a few lines: recorded runs beside the best that the paper reports."""

import re
from itertools import groupby
from pathlib import Path

from start_tables import listops_key, table  # beside this file

from gumtrace_experiments import find
from gumtrace_experiments.columns import Block, Column, Spread
from gumtrace_experiments.report.groups import Choice, choices
from gumtrace_experiments.report.names import family
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.tables import number, ranges

RUNS = Path(__file__).parents[1] / "results"
SUMMARY = {
    "graph-layout": ("Graph layout", ("elbo", "precision")),
    "listops": ("ListOps", ("accuracy", "precision")),
}
NOTE = (
    "Means over seeds on the test set. Each column has its own best estimator: the paper's by this mean, ours by the "
    "mean on validation. Calls are items times structures of a batch, 128 and 100 unless a row names others; a "
    "curriculum is short expressions first; the encoder reads other operators in a share `relabel` of a batch."
)


def experiments() -> str:
    """A table for each experiment: the paper's best, and the best of ours in each block with several seeds."""
    parts = [NOTE]
    for name, (title, metrics) in SUMMARY.items():
        about, metric = find(name).report(), find(name).selection_metric
        columns = [(i, c) for i, c in enumerate(about.columns) if c.metric in metrics]
        shown = [c for c in choices(collect([RUNS / name]), about, metric) if len(c.group.finished) > 1]
        known, rows = set(), []
        for _, choice_of_block in groupby(shown, lambda choice: choice.block.key):
            same = list(choice_of_block)
            block = same[0].block
            if block.paper and block.paper not in known:
                known.add(block.paper)
                rows.append(_paper(block, columns))
            rows.append(_own(same, columns))
        alike = {row[0].partition(", ")[0] for row in rows}
        if len(alike) == 1:
            title = ", ".join([title, *alike])
            rows = [[row[0].partition(", ")[2] or "as in the paper", *row[1:]] for row in rows]
        head = [title, "by", *(column.name for _, column in columns), "seeds"]
        parts.append(table(head, 2, rows).rstrip())
    return "\n\n".join(parts) + "\n"


def _paper(block: Block, columns: list[tuple[int, Column]]) -> list[str]:
    """Without the protocol, which several blocks may have in common."""
    best = [max(block.paper, key=lambda row, i=i: row.spreads[i].mean) for i, _ in columns]
    cells = [
        _share(row.spreads[i], column.paper_digits, family(row.estimator))
        for row, (i, column) in zip(best, columns, strict=True)
    ]
    seeds = dict.fromkeys("–" if row.seeds is None else str(row.seeds) for row in best)
    return [block.title.partition(", ")[0], "the paper's best", *cells, ", ".join(seeds)]


def _own(same: list[Choice], columns: list[tuple[int, Column]]) -> list[str]:
    """Of one block."""
    block = same[0].block
    best = [max(same, key=lambda choice, m=column.metric: choice.group.score(m)) for _, column in columns]
    cells = [
        _share(choice.group.spread(column), column.digits, choice.family)
        for choice, (_, column) in zip(best, columns, strict=True)
    ]
    protocol = "the paper's protocol" if block.paper and block.source == "paper" else "not the paper's protocol"
    seeds = dict.fromkeys(str(len(choice.group.finished)) for choice in best)
    title = re.sub(r" \(.*?\)", "", block.title)
    return [title, f"ours, {protocol}", *cells, ", ".join(seeds)]


def _share(found: Spread, digits: int, estimator: str) -> str:
    return f"{_spread(found, digits)} ({estimator})"


def listops() -> str:
    """A row for each setting of recorded runs, and the best of the paper's before them."""
    about = find("listops").report()
    columns = [(i, column) for i, column in enumerate(about.columns) if column.metric in SUMMARY["listops"][1]]
    shown = choices(collect([RUNS / "listops"]), about, find("listops").selection_metric)
    paper = max(next(c.block.paper for c in shown if c.block.paper), key=lambda row: row.spreads[0].mean)
    cells = [_spread(paper.spreads[i], column.paper_digits) for i, column in columns]
    rows = [[f"the paper's best, {family(paper.estimator)}", "–", *cells]]
    groups = [group for choice in shown for group in choice.tried if group.finished]
    for group in sorted(groups, key=lambda group: listops_key(group.setting)):
        seeds = ranges(record.seed for record in group.finished)
        rows.append([listops_key(group.setting)[-1], seeds, *(_spread(group.spread(c), 1) for _, c in columns)])
    return table(["setting", "seeds", *(column.name for _, column in columns)], 1, rows)


def _spread(found: Spread, digits: int) -> str:
    assert found.std is not None
    return f"{number(found.mean, digits)} ± {number(found.std, digits)}"


TABLES = {"experiments": experiments, "listops-summary": listops}
