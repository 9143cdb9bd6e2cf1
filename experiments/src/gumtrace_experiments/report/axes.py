"""The axes of curves: of which values they show."""

import math
from collections.abc import Sequence

from gumtrace.extras import require
from gumtrace_experiments.columns import Column
from gumtrace_experiments.report.tables import number

Curve = dict[int, float]  # iteration to value

_TRANSIENT = 0.1  # of the iterations; what comes after must fit into the picture, what comes before need not, nor
_FAR_OFF = 0.4  # of the others, the worst: single evaluations, or many of a run that overflows
_POOR = 0.1  # the same of a share, which cannot be as far off
_LEAST = 0.05  # of the whole share: less would make much of little
_FACTOR = 1.6  # of the largest to the smallest of negated numbers: likewise
_MARGIN = 0.08  # of what is shown


def limit(ax, curves: Sequence[Curve], heights: Sequence[float], column: Column) -> None:
    """Each panel has an axis for its own lines, which may be close to each other, and far from those of another panel.
    Early values may leave the axis: they are far off, and of no interest. No run is left out, however poor it is.

    Args:
        curves: as they are drawn.
        heights: of horizontal lines.
    """
    if column.axis == "share":
        _share(ax, [y for curve in curves for y in _late(curve, _POOR, larger=True)] + [*heights], column.scale)
    elif column.axis == "log of minus":
        _log(ax, [y for curve in curves for y in _late(curve, _FAR_OFF, larger=False)] + [*heights])


def _share(ax, late: list[float], whole: float) -> None:
    high = max(late, default=whole)
    low = min([*late, high - _LEAST * whole]) if late else 0.0
    gap = _MARGIN * (high - low)
    ax.set_ylim(max(low - gap, 0.0), min(high + gap, whole + 0.25 * gap))  # lines at 100 % have a width


def _log(ax, late: list[float]) -> None:
    """Of negated numbers: upside down."""
    ticker = require("matplotlib.ticker", "plot")
    best = min(late, default=1)
    worst = max([*late, _FACTOR * best])
    narrow = worst < 4 * best
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(ticker.MaxNLocator(6) if narrow else ticker.LogLocator(subs=(1, 2, 3, 5, 7)))
    ax.yaxis.set_minor_locator(ticker.NullLocator())
    ax.yaxis.set_major_formatter(lambda y, _: number(-y, 0))
    if late:
        ax.set_ylim(worst * 1.1, best / 1.1)


def _late(curve: Curve, leave_out: float, *, larger: bool) -> list[float]:
    """The late values of a curve without a share of the worst."""
    late = sorted((y for x, y in curve.items() if x >= _TRANSIENT * max(curve)), reverse=larger)  # the best first
    return late[: math.ceil((1 - leave_out) * len(late))]
