"""Figures of training: validation metrics over the iterations, or over seconds, seed by seed."""

from collections.abc import Sequence
from itertools import cycle, groupby
from pathlib import Path
from textwrap import fill

import numpy as np

from gumtrace.extras import require
from gumtrace.plotting.style import INK, PAPER, SERIES, SOFT
from gumtrace_experiments.columns import Column, Report
from gumtrace_experiments.report.equal_time import entries, over_seconds
from gumtrace_experiments.report.groups import Choice, Group, choices
from gumtrace_experiments.report.records import ITERATION, Record
from gumtrace_experiments.report.tables import number
from gumtrace_experiments.report.times import Times

_TRANSIENT = 0.1  # of the iterations; what comes after must fit into the picture, what comes before need not, nor
_FAR_OFF = 0.4  # of the others, the worst: single evaluations, or many of a run that overflows
_WIDTH, _HEIGHT, _LEGEND = 5.0, 3.3, 2.1  # inches, of a panel and of the legend
_PAPER = "best mean of the paper"
_GAP = 0.055  # of the iterations, between columns of dots


def draw(records: Sequence[Record], report: Report, metric: str, out: Path, times: Times | None = None) -> list[Path]:
    """Saves a figure for each metric with a curve: a panel per block, a colour per estimator, a thin line per seed, a
    bold one for their median, and dots for where the seeds end. Of several settings the one that the table shows.
    Where updates were clocked, the same over seconds, with what the tables at equal time show."""
    shown = choices(records, report, metric)
    timed = [over_seconds(entry) for entry in entries(records, report, metric, times or Times())]
    colours = _colours([*shown, *timed])
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for place, column in enumerate(report.columns):
        if column.axis is not None:
            files.append(out / f"{column.metric}.png")
            _figure(shown, column, place, colours).savefig(files[-1], dpi=140)
            if timed:
                files.append(out / f"{column.metric}-seconds.png")
                _figure(timed, column, place, colours, "seconds of updates alone").savefig(files[-1], dpi=140)
    return files + (report.figures(shown, out) if report.figures else [])


def _colours(shown: list[Choice]) -> dict[str, str]:
    """One for each name, the same in all figures of an experiment."""
    names = [c.name for c in sorted(shown, key=lambda c: (c.place, c.name))]
    return dict(zip(dict.fromkeys(names), cycle(SERIES), strict=False))


def _figure(shown: list[Choice], column: Column, place: int, colours: dict[str, str], along: str = "iteration"):
    blocks = [list(same) for _, same in groupby(shown, lambda choice: choice.block.key)]
    wide = len(blocks) if len(blocks) <= 3 else 2
    high = -(-len(blocks) // wide)
    size = (_WIDTH * wide + _LEGEND, _HEIGHT * high + 0.3)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    panels = figure.subplots(high, wide, squeeze=False, sharey=True).flatten()
    for ax, same in zip(panels, blocks, strict=False):
        _panel(ax, same, column, colours, along)
        best = (max if column.larger else min)((r.spreads[place].mean for r in same[0].block.paper), default=None)
        if best is not None:
            ax.axhline(_sign(column) * best, color=SOFT, linewidth=1.2, linestyle=":", label=_PAPER)
    for ax in panels[len(blocks) :]:
        ax.set_visible(False)
    _limits(panels[: len(blocks)], shown, column)
    handles = {label: line for ax in panels for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    labels = [label for label in (*colours, _PAPER) if label in handles]
    figure.legend([handles[label] for label in labels], labels, loc="outside right center", frameon=False, fontsize=9)
    return figure


def _sign(column: Column) -> int:
    """Numbers below zero are drawn as their opposites, on an axis that points down."""
    return -1 if column.axis == "log of minus" else 1


def _panel(ax, same: list[Choice], column: Column, colours: dict[str, str], along: str) -> None:
    curves = {choice.name: [_curve(record, column) for record in choice.group.records] for choice in same}
    end = max((x for several in curves.values() for curve in several for x in curve), default=1)
    for i, choice in enumerate(same):
        colour = colours[choice.name]
        _lines(ax, curves[choice.name], column, colour, choice.name)
        _dots(ax, choice.group, column, (1 + _GAP * (i + 1)) * end, 0.5 * _GAP * end, colour)
    ax.set_xlim(0, (1 + _GAP * (len(same) + 1)) * end)
    ax.set_xticks([x for x in ax.get_xticks() if x <= end])
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.set_title(fill(same[0].block.title, 64), fontsize=10, color=INK)
    hollow = ", hollow: not finished" if any(choice.group.unfinished for choice in same) else ""
    ax.set_xlabel(f"{along} (dots: the checkpoints kept{hollow})", color=SOFT, fontsize=9)
    ax.set_ylabel(f"{column.name} (validation)", color=SOFT)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=SOFT, labelleft=True, labelsize=9)
    ax.grid(axis="y", color=SOFT, alpha=0.18, linewidth=0.6)


def _lines(ax, curves: list[dict[int, float]], column: Column, colour: str, label: str) -> None:
    for curve in curves:
        ax.plot(list(curve), list(curve.values()), color=colour, linewidth=0.7, alpha=0.4, zorder=2)
    points = sorted({x for curve in curves for x in curve})
    better = _sign(column) if column.larger else -_sign(column)
    values = {x: sorted((curve[x] for curve in curves if x in curve), key=lambda y: better * y) for x in points}
    kept = [x for x in points if 2 * len(values[x]) >= len(curves)]  # not of the few that got farther
    # Of an even number the worse one of the middle two: their mean may be where no run ever was.
    middle = [values[x][(len(values[x]) - 1) // 2] for x in kept]
    ax.plot(kept, middle, color=PAPER, linewidth=3.4, zorder=3)  # a rim, so that lines can be told apart
    ax.plot(kept, middle, color=colour, linewidth=2.0, zorder=3, label=label)


def _dots(ax, group: Group, column: Column, x: float, width: float, colour: str) -> None:
    """Side by side, in the order of seeds. Filled: the checkpoint that was kept. Hollow: a run that is not finished, as
    it is now."""
    count = len(group.records)
    for i, record in enumerate(group.records):
        curve = _curve(record, column)
        if record.result is not None:
            y = _sign(column) * column.scale * record.result["valid"].get(column.metric, np.nan)
        else:
            y = list(curve.values())[-1] if curve else np.nan
        look = {"facecolor": colour if record.result is not None else "none", "edgecolor": colour}
        if np.isfinite(y):
            ax.scatter(x + ((i + 0.5) / count - 0.5) * width, y, s=14, linewidth=0.9, alpha=0.65, zorder=4, **look)


def _curve(record: Record, column: Column) -> dict[int, float]:
    """Iteration to value; where it diverged, there is none."""
    pairs = zip(record.curve[ITERATION], record.curve.get(column.metric, []), strict=False)
    return {x: _sign(column) * column.scale * y for x, y in pairs if y is not None and np.isfinite(y)}


def _limits(axes: Sequence, shown: list[Choice], column: Column) -> None:
    """The panels share an axis. Early values may leave it: they are far off, and of no interest."""
    if column.axis == "share":
        axes[0].set_ylim(0, column.scale * 1.02)
    if column.axis != "log of minus":
        return
    ticker = require("matplotlib.ticker", "plot")
    late = [y for choice in shown for record in choice.group.records for y in _late(_curve(record, column))]
    late += [line.get_ydata()[0] for ax in axes for line in ax.lines if line.get_linestyle() == ":"]
    narrow = max(late, default=1) < 4 * min(late, default=1)
    for ax in axes:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(ticker.MaxNLocator(6) if narrow else ticker.LogLocator(subs=(1, 2, 3, 5, 7)))
        ax.yaxis.set_minor_locator(ticker.NullLocator())
        ax.yaxis.set_major_formatter(lambda y, _: number(-y, 0))
    if late:
        axes[0].set_ylim(max(late) * 1.1, min(late) / 1.1)  # upside down


def _late(curve: dict[int, float]) -> list[float]:
    """The late values of a curve without the worst, of numbers that are drawn negated: the larger, the worse."""
    late = sorted(y for x, y in curve.items() if x >= _TRANSIENT * max(curve))
    return late[: len(late) - int(_FAR_OFF * len(late))]
