"""Pictures of structures, of the decisions that made them, and of estimators. Needs matplotlib, the extra `plot`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gumtrace.extras import require
from gumtrace.plotting import rows
from gumtrace.plotting.curves import optimisation, variance
from gumtrace.plotting.panels import steps
from gumtrace.plotting.style import INK, chances
from gumtrace.structures.description import load
from gumtrace.structures.words import Names, Words
from gumtrace.traces.trace import Trace

__all__ = ["decisions", "gallery", "optimisation", "steps", "structure", "variance"]


def structure(trace: Trace, *, logits=None, ax=None, title: str | None = None, labels: Names | None = None):
    """Draws the structure of one trace, with the order of choice where there is one.

    Args:
        trace: a single one: index a batch first. A trace of `Custom` is drawn as its decisions.
        logits: of the distribution; weights then show as heights, shades or sizes.
        ax: where to draw; by default a new figure.
        labels: names of keys, nodes or tokens; of rows and columns, as a pair, for a matching.

    Returns the axes.
    """
    ax = _axes(trace, ax, title)
    drawn = trace.layout.structure
    load(drawn.drawing)(ax, drawn.words(trace, labels), chances(logits, trace.layout.geometry.keys))
    return ax


def decisions(trace: Trace, *, ax=None, title: str | None = None, labels: Names | None = None):
    """Draws the decisions of one trace of any structure: a row each, the keys that raced shaded, the winner filled."""
    ax = _axes(trace, ax, title)
    rows.decisions(ax, Words(trace, labels))
    return ax


def gallery(
    traces: Mapping[str, Trace],
    path: str | Path,
    *,
    logits: Mapping[str, Any] | None = None,
    labels: Mapping[str, Names] | None = None,
) -> Path:
    """Saves one picture of several traces, each under its name; `logits` and `labels` go by the same names."""
    figure_class = require("matplotlib.figure", "plot").Figure  # not pyplot: no window, no state
    columns = min(len(traces), 3)
    lines = -(-len(traces) // max(columns, 1))
    figure = figure_class(figsize=(4 * columns, 4 * lines), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, hspace=0.05)
    for place, (name, trace) in enumerate(traces.items(), 1):
        ax = figure.add_subplot(lines, columns, place)
        structure(trace, ax=ax, title=name, logits=(logits or {}).get(name), labels=(labels or {}).get(name))
    figure.savefig(path, dpi=150)
    return Path(path)


def _axes(trace: Trace, ax, title: str | None):
    if not isinstance(trace, Trace):
        raise TypeError(
            f"a picture shows a trace, got {type(trace).__name__}: draw one, dist.sample_trace(), or take the mode's, "
            "dist.trace(dist.logits)"
        )
    if trace.shape:
        raise ValueError(f"a picture shows one trace, this one has shape {tuple(trace.shape)}: index it first")
    if ax is None:
        _, ax = require("matplotlib.pyplot", "plot").subplots(figsize=(4.6, 4.4), layout="constrained")
    if title is not None:
        ax.set_title(title, fontsize=12, color=INK, pad=8)
    return ax
