"""Pictures of estimators at work: how the objective falls, and how noisy the gradients are."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from gumtrace.diagnostics.statistics import GradientStatistics
from gumtrace.extras import require
from gumtrace.plotting.style import CHOSEN, INK, SERIES, SOFT
from gumtrace.toy.optimise import Curve

_LINES = tuple(product(("-", "--", ":"), SERIES))  # dashes where the colours run out


def optimisation(curves: Sequence[Curve], path: str | Path, title: str = "") -> Path:
    """Saves two panels over the iterations: the objective, and the standard deviation of the gradient.

    Lines are means over the seeds, bands their range.
    """
    figure = require("matplotlib.figure", "plot").Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, name in enumerate(dict.fromkeys(c.estimator for c in curves)):
        dashes, colour = _LINES[place % len(_LINES)]
        runs = [c for c in curves if c.estimator == name]
        for ax, field in ((left, "objective"), (right, "std")):
            values = np.array([getattr(run, field) for run in runs])  # (seeds, points)
            ax.plot(runs[0].iterations, values.mean(0), dashes, color=colour, linewidth=1.8, label=name)
            ax.fill_between(runs[0].iterations, values.min(0), values.max(0), color=colour, alpha=0.12, linewidth=0)
    left.set_title("expected objective", fontsize=11, color=INK)
    right.set_title("standard deviation of the gradient", fontsize=11, color=INK)
    right.set_yscale("log")
    for ax in (left, right):
        ax.set_xlabel("iteration", color=SOFT)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=SOFT)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path, dpi=140)
    return Path(path)


def variance(statistics: Sequence[GradientStatistics], ax=None, title: str | None = None):
    """Draws the standard deviations of `diagnostics.gradient_statistics` as bars, smallest on top. Returns the axes."""
    if ax is None:
        _, ax = require("matplotlib.pyplot", "plot").subplots(
            figsize=(6, 0.4 * len(statistics) + 1), layout="constrained"
        )
    rows = sorted(statistics, key=lambda row: row.std, reverse=True)
    ax.barh([row.name for row in rows], [row.std for row in rows], color=CHOSEN, height=0.6)
    for place, row in enumerate(rows):
        ax.text(row.std, place, f"  {row.std:.3g}", va="center", fontsize=9, color=INK)
    ax.set_xlabel("standard deviation of one gradient estimate", color=SOFT)
    ax.spines[["top", "right"]].set_visible(False)
    if title:
        ax.set_title(title, fontsize=11, color=INK)
    return ax
