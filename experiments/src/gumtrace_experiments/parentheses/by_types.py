"""What is shown of several numbers of types together: tables, and the paper's figure."""

import math
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

from gumtrace.extras import require
from gumtrace.plotting.style import INK, SOFT
from gumtrace_experiments.columns import Column
from gumtrace_experiments.parentheses.brackets import BALANCED, KINDS
from gumtrace_experiments.parentheses.data import best_perplexity
from gumtrace_experiments.report.colours import looks
from gumtrace_experiments.report.groups import Choice
from gumtrace_experiments.report.tables import Cell, Table, number, top

NEW, OLD, PERPLEXITY = (
    Column("new and correct, %", "new_correct", scale=100, digits=1),
    Column("old, %", "old", scale=100, digits=1, larger=None),
    Column("perplexity", "perplexity", digits=3, larger=False, axis="linear"),
)
_COLUMNS = (NEW, OLD, PERPLEXITY)
BEST = "the generator of the data"
_ERRORS = tuple(kind for i, kind in enumerate(KINDS) if i != BALANCED)
_OTHERS = (
    Column("reachable, %", "reachable", scale=100, digits=1),
    *(Column(f"{kind}, %", f"wrong_{kind}", scale=100, digits=1) for kind in _ERRORS),
    Column("in smart order, %", "smart_generated", scale=100, digits=1),
    Column("effective samples", "effective_samples", digits=0),
)
_ABOUT_OTHERS = (
    "Reachable: new, correct, and such as the generator of the data can make. Errors by what a reader meets first. In "
    "smart order: of the correct sequences that a model generates, repeated ones included. Effective samples: of the "
    "orders that the likelihood is bounded with, on average over sequences."
)
_BARS = "mean of the seeds on test, bars: their standard deviation"
_SIZE = (4.2, 3.2)  # inches, of a panel


def overview(shown: list[Choice]) -> list[Table]:
    """A table for each metric, with the numbers of types side by side, and one of what else is known of the
    models; all of them for each size of models, which titles say if there are several."""
    tables = []
    sizes = [list(same) for _, same in groupby((c for c in shown if c.group.finished), lambda c: c.block.key[0])]
    for same in sizes:
        of_size = []
        if len(_types(same)) > 1:
            of_size += [_by_types(same, column) for column in _COLUMNS]
        of_size.append(_others(same))
        setting = same[0].group.setting
        size = f", hidden = {setting['hidden']}, {setting['iterations']:,} iterations" if len(sizes) > 1 else ""
        tables += [replace(table, title=table.title + size) for table in of_size]
    return tables


def _types(shown: list[Choice]) -> list[int]:
    return sorted({choice.block.key[1] for choice in shown})


def _names(shown: list[Choice]) -> list[str]:
    return [name for _, name in sorted({(choice.place, choice.name) for choice in shown})]


def _by_types(shown: list[Choice], column: Column) -> Table:
    types = _types(shown)
    by_name = {(choice.name, choice.block.key[1]): choice.group.spread(column) for choice in shown}
    best = {t: top([s.mean for (_, own), s in by_name.items() if own == t], column) for t in types}
    rows = []
    for name in _names(shown):
        found = [by_name.get((name, t)) for t in types]
        cells = [
            Cell("–") if s is None else _cell(s, column, s.mean == best[t]) for s, t in zip(found, types, strict=True)
        ]
        rows.append((Cell(name), *cells))
    if column.metric == "perplexity":
        longest = shown[0].group.setting["longest"]
        rows.append((Cell(BEST), *(Cell(number(best_perplexity(t, longest), column.digits)) for t in types)))
    head = ("order", *(f"{t} types" for t in types))
    return Table(f"{column.name}, by types of parentheses", head, tuple(rows), ())


def _others(shown: list[Choice]) -> Table:
    rows = []
    for choice in shown:
        cells = [_cell(choice.group.spread(column), column, False) for column in _OTHERS]
        rows.append((Cell(str(choice.block.key[1])), Cell(choice.name), *cells))
    head = ("types", "order", *(column.name for column in _OTHERS))
    return Table("What else is known of the models", head, tuple(rows), (_ABOUT_OTHERS,))


def _cell(spread, column: Column, bold: bool) -> Cell:
    std = "" if spread.std is None or math.isnan(spread.mean) else f" ± {number(spread.std, column.digits)}"
    return Cell(number(spread.mean, column.digits) + std, bold)


# The figure -------------------------------------------------------------------------------------------


def figures(shown: list[Choice], out: Path) -> list[Path]:
    """The paper's figure: the metrics by the number of types, a line for each order, bars of a standard deviation over
    seeds, where there are several. One for each budget, if there are several."""
    files = []
    done = [choice for choice in shown if choice.group.finished]
    for i, (_, same) in enumerate(groupby(done, lambda choice: choice.block.key[0])):
        files.append(out / (f"types-{i + 1}.png" if i else "types.png"))
        _figure(list(same)).savefig(files[-1], dpi=140)
    return files


def _figure(shown: list[Choice]):
    size = (_SIZE[0] * len(_COLUMNS), _SIZE[1] + 0.7)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(_COLUMNS), squeeze=False)[0]
    names, types = _names(shown), _types(shown)
    colours = looks(shown)
    gap = min((high - low for low, high in pairwise(types)), default=1)
    for ax, column in zip(axes, _COLUMNS, strict=True):
        for i, name in enumerate(names):
            own = {c.block.key[1]: c.group.spread(column) for c in shown if c.name == name}
            shift = (i - (len(names) - 1) / 2) * 0.02 * gap  # so that bars do not hide each other
            x = [t + shift for t in own]
            look = {**colours[name], "marker": "o", "markersize": 4, "linewidth": 1.6, "capsize": 2.5}
            errors = [math.nan if spread.std is None else spread.std for spread in own.values()]  # nan: no bar
            ax.errorbar(x, [spread.mean for spread in own.values()], yerr=errors, label=name, **look)
        if column.metric == "perplexity":
            longest = shown[0].group.setting["longest"]
            best = [best_perplexity(t, longest) for t in types]
            ax.plot(types, best, color=INK, linewidth=1, linestyle=":", label=BEST)
        ax.set_xticks(types)
        ax.set_xlabel("types of parentheses", color=SOFT, fontsize=9)
        ax.set_title(column.name, fontsize=10, color=INK)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=SOFT, labelsize=9)
        ax.grid(axis="y", color=SOFT, alpha=0.18, linewidth=0.6)
    handles, labels = axes[-1].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9, title=_BARS)
    legend.get_title().set(color=SOFT, fontsize=8)
    return figure
