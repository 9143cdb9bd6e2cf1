"""Figures of training: validation metrics over the iterations, or over seconds, seed by seed."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill

import numpy as np

from gumtrace.extras import require
from gumtrace.plotting.style import INK, PAPER, SOFT
from gumtrace_experiments.columns import Column, Report
from gumtrace_experiments.report import axes
from gumtrace_experiments.report.colours import Look, looks
from gumtrace_experiments.report.equal_time import entries, over_seconds, usual_leaders
from gumtrace_experiments.report.groups import Choice, Group, choices
from gumtrace_experiments.report.names import batch
from gumtrace_experiments.report.records import ITERATION, Record
from gumtrace_experiments.report.times import Times

_WIDTH, _HEIGHT, _LEGEND = 5.0, 3.3, 2.1  # inches, of a panel and of the legend
_PAPER = "best mean of the paper"
_SECONDS = "seconds of updates alone"
_THICK = ("thick: median of the seeds", "thin: single seeds")
_AXES = ("panels have axes of their own",)
_BATCHES = ("items × structures of a batch",)
_COMPARED = (0, (3, 2))
_GAP = 0.055  # of the iterations, between columns of dots


def draw(records: Sequence[Record], report: Report, metric: str, out: Path, times: Times | None = None) -> list[Path]:
    """Saves a figure for each metric with a curve: a panel per block, a colour per estimator, a thin line per seed, a
    thick one for their median, and dots for where the seeds end. Of several settings the one that the table shows.
    Where updates were clocked, the same over seconds, with what the tables at equal time show."""
    shown = choices(records, report, metric)
    timed = over_seconds(entries(records, report, metric, times or Times()))
    rivals = usual_leaders(shown, report, metric)
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for place, column in enumerate(report.columns):
        if column.axis is not None:
            files.append(out / f"{column.metric}.png")
            _figure(shown, column, place, rivals).savefig(files[-1], dpi=140)
            if timed:
                files.append(out / f"{column.metric}-seconds.png")
                _figure(timed, column, place, {}, _SECONDS).savefig(files[-1], dpi=140)
    return files + (report.figures(shown, out) if report.figures else [])


def _figure(shown: list[Choice], column: Column, place: int, rivals: dict[tuple, Choice], along: str = "iteration"):
    blocks = [list(same) for _, same in groupby(shown, lambda choice: choice.block.key)]
    wide = len(blocks) if len(blocks) <= 3 else 2
    high = -(-len(blocks) // wide)
    size = (_WIDTH * wide + _LEGEND, _HEIGHT * high + 0.3)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    panels = figure.subplots(high, wide, squeeze=False).flatten()
    colours = looks(shown)
    for ax, same in zip(panels, blocks, strict=False):
        _panel(ax, same, column, colours, along)
        drawn = [_curve(record, column) for choice in same for record in choice.group.records]
        if (rival := rivals.get(same[0].block.key)) is not None:
            drawn.append(_compared(ax, rival, column, colours))
        best = (max if column.larger else min)((r.spreads[place].mean for r in same[0].block.paper), default=None)
        heights = [] if best is None else [_sign(column) * best]
        for height in heights:
            ax.axhline(height, color=SOFT, linewidth=1.2, linestyle=":", label=_PAPER)
        axes.limit(ax, drawn, heights, column)
    for ax in panels[len(blocks) :]:
        ax.set_visible(False)
    about = (*_THICK, *_AXES * (len(blocks) > 1), *_BATCHES * (along == _SECONDS))
    _legend(figure, panels, list(colours), "\n".join(about))
    return figure


def _legend(figure, panels: Sequence, names: list[str], about: str) -> None:
    handles = {label: line for ax in panels for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    last = [label for label in handles if label not in (*names, _PAPER)]
    labels = [label for label in (*names, *last, _PAPER) if label in handles]
    legend = figure.legend(
        [handles[label] for label in labels], labels, loc="outside right center", frameon=False, fontsize=9, title=about
    )
    legend.get_title().set(color=SOFT, fontsize=8)
    legend.set_alignment("left")


def _sign(column: Column) -> int:
    """Numbers below zero are drawn as their opposites, on an axis that points down."""
    return -1 if column.axis == "log of minus" else 1


def _panel(ax, same: list[Choice], column: Column, colours: dict[str, Look], along: str) -> None:
    curves = {choice.name: [_curve(record, column) for record in choice.group.records] for choice in same}
    end = max((x for several in curves.values() for curve in several for x in curve), default=1)
    for i, choice in enumerate(same):
        look = colours[choice.name]
        _lines(ax, curves[choice.name], column, look, choice.name)
        _dots(ax, choice.group, column, (1 + _GAP * (i + 1)) * end, 0.5 * _GAP * end, look["color"])
    ax.set_xlim(0, (1 + _GAP * (len(same) + 1)) * end)
    ax.set_xticks([x for x in ax.get_xticks() if x <= end])
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.set_title(_title(same), fontsize=10, color=INK)
    hollow = ", hollow: not finished" if any(choice.group.unfinished for choice in same) else ""
    ax.set_xlabel(f"{along} (dots: the checkpoints kept{hollow})", color=SOFT, fontsize=9)
    ax.set_ylabel(f"{column.name} (validation)", color=SOFT)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=SOFT, labelleft=True, labelsize=9)
    ax.grid(axis="y", color=SOFT, alpha=0.18, linewidth=0.6)


def _title(same: list[Choice]) -> str:
    """That of the block; where all have one batch, it says more than the number of calls. Lines end at commas."""
    title = same[0].block.title
    if len(batches := {batch(choice.group.setting) for choice in same}) == 1:
        calls, (items, structures) = same[0].group.setting["calls"], batches.pop()
        title = title.replace(f"calls = {calls}", f"{items} items × {structures} structures")
    parts = [part.replace(" ", "\u00a0") for part in title.split(", ")]
    return fill(", ".join(parts), 64, break_long_words=False).replace("\u00a0", " ")


def _lines(ax, curves: list[dict[int, float]], column: Column, look: Look, label: str) -> None:
    for curve in curves:
        ax.plot(list(curve), list(curve.values()), color=look["color"], linewidth=0.7, alpha=0.4, zorder=2)
    if middle := _median(curves, column):
        x, y = list(middle), list(middle.values())
        ax.plot(x, y, color=PAPER, linewidth=3.4, zorder=3)  # a rim, so that lines can be told apart
        ax.plot(x, y, **look, linewidth=2.0, zorder=3, label=label)


def _median(curves: list[dict[int, float]], column: Column) -> dict[int, float]:
    points = sorted({x for curve in curves for x in curve})
    better = _sign(column) if column.larger else -_sign(column)
    values = {x: sorted((curve[x] for curve in curves if x in curve), key=lambda y: better * y) for x in points}
    kept = [x for x in points if 2 * len(values[x]) >= len(curves)]  # not of the few that got farther
    # Of an even number the worse one of the middle two: their mean may be where no run ever was.
    return {x: values[x][(len(values[x]) - 1) // 2] for x in kept}


def _compared(ax, rival: Choice, column: Column, colours: dict[str, Look]) -> dict[int, float]:
    """The median of another block, for panels that have nothing to be compared with."""
    middle = _median([_curve(record, column) for record in rival.group.records], column)
    label = f"{rival.name}, {{}} × {{}},\nfor comparison".format(*batch(rival.group.setting))
    look = {"color": colours[rival.name]["color"], "linestyle": _COMPARED, "linewidth": 1.2}
    ax.plot(list(middle), list(middle.values()), **look, zorder=3.5, label=label)
    return middle


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
