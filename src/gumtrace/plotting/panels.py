"""A run in pictures: a small panel for each decision, and one for what they make."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gumtrace.extras import require
from gumtrace.plotting.graphs import arrow, blob, circle
from gumtrace.plotting.rows import cells
from gumtrace.plotting.style import (
    ACCENT,
    CHOSEN,
    FAINT,
    INK,
    MANY,
    PAPER,
    SHADES,
    SOFT,
    badge,
    bare,
    mix,
    node,
)
from gumtrace.steps import Step
from gumtrace.steps import steps as steps_of
from gumtrace.structures.arborescence import supernodes
from gumtrace.structures.base import Structure
from gumtrace.structures.binary_tree import depth
from gumtrace.structures.description import load
from gumtrace.structures.words import Names
from gumtrace.traces.trace import Trace

EARLIER = 0.5  # how much of its colour a winner of an earlier decision keeps
WIDTH, HEIGHT = 1.85, 2.15  # of a panel, in inches


@dataclass(frozen=True)
class Panel:
    """One decision as it is drawn, or the end of the run."""

    trace: Trace
    words: Any  # `Words` of the structure
    earlier: list[Step]  # the decisions before
    step: Step | None  # None: the run is over
    share: dict[int, float]  # of the keys that race: their chances to win
    highest: float  # of all shares of the run

    @property
    def names(self) -> Any:
        return self.words.labels()

    @property
    def winner(self) -> int | None:
        return None if self.step is None else self.step.winner

    @property
    def order(self) -> dict[int, int]:
        """key -> the number of the decision that it won, this one included."""
        taken = [*self.earlier, self.step] if self.step is not None else self.earlier
        return {step.winner: i for i, step in enumerate(taken, 1)}

    def won(self, key: int) -> Any:
        """The colour of a winner: full now and at the end, paler if it won before."""
        return CHOSEN if self.step is None or key == self.winner else mix(CHOSEN, EARLIER)

    def grey(self, key: int) -> Any:
        """The colour of a key that races, darker the better its chances."""
        return mix(SOFT, 0.2 + 0.7 * (self.share[key] / max(self.share.values())) ** 0.5)


def steps(dist: Structure, trace: Trace, *, labels: Names | None = None, columns: int = 5, figure=None):
    """Draws a run step by step: in each panel the keys that race, the more visible the better their chances, the winner
    in colour with its probability below; earlier winners are paler, keys that have left are gone. The last panel is the
    structure.

    Args:
        dist: an unbatched distribution.
        trace: a single one of it.
        labels: names of keys, nodes or tokens; of rows and columns, as a pair, for a matching.
        columns: the most panels in a row.
        figure: an empty one to draw in; by default a new one of fitting size.

    Returns the figure.
    """
    panels = _panels(dist, trace, labels)
    columns = min(len(panels), columns)
    rows = -(-len(panels) // columns)
    if figure is None:
        size = (WIDTH * columns, HEIGHT * rows)
        figure = require("matplotlib.pyplot", "plot").figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    draw = load(trace.layout.structure.panel)
    for place, ax in enumerate(axes):
        if place < len(panels):
            panel = panels[place]
            ax.set_title(_title(panel, place + 1), fontsize=8.5, color=INK, pad=4)
            draw(ax, panel, _caption(panel))
        else:
            ax.axis("off")
    return figure


def _panels(dist: Structure, trace: Trace, labels: Names | None) -> list[Panel]:
    taken = steps_of(dist, trace, labels)
    x = dist.log_rates.detach().flatten().double().cpu()
    shares = [dict(zip(s.racing, x[list(s.racing)].softmax(-1).tolist(), strict=True)) for s in taken]
    highest = max((share for race in shares for share in race.values()), default=1.0)
    words = trace.layout.structure.words(trace, labels)
    panels = [Panel(trace, words, taken[:i], s, shares[i], highest) for i, s in enumerate(taken)]
    return [*panels, Panel(trace, words, taken, None, {}, highest)]


def _title(panel: Panel, number: int) -> str:
    if panel.step is None:
        return "the structure"
    race = panel.step.race if panel.words.short_races else f"{len(panel.step.racing)} racing"
    return f"{number}. {race}"


def _caption(panel: Panel) -> str:
    if panel.step is None:
        total = panel.earlier[-1].running if panel.earlier else 0.0
        return f"P(trace) = {math.exp(total):.2g}"
    return f"{panel.words.short_key(panel.step.winner)} wins, P = {panel.step.probability:.2f}"


# Drawings, which structures name as their `panel` ------------------------------------------------------


def bars(ax, panel: Panel, caption: str) -> None:
    """Keys side by side, as high as their chances; at the end only the order in which they won."""
    _bars(ax, panel, caption, {k: k for k in range(panel.trace.layout.geometry.keys)})


def places(ax, panel: Panel, caption: str) -> None:
    """The same, with the keys in the order in which they won at the end."""
    if panel.step is None:
        _bars(ax, panel, caption, {k: number - 1 for k, number in panel.order.items()})
    else:
        bars(ax, panel, caption)


def _bars(ax, panel: Panel, caption: str, place: dict[int, int]) -> None:
    d, order, top = panel.trace.layout.geometry.keys, panel.order, panel.highest
    for k, x in place.items():
        height = 0.3 * top if panel.step is None and k in order else panel.share.get(k, 0.0)
        ax.bar(x, height, 0.74, color=panel.won(k) if k in order else panel.grey(k) if height else PAPER, zorder=2)
        if d <= MANY:
            ink = INK if k in panel.share or (panel.step is None and k in order) else SOFT
            ax.text(x, -0.05 * top, panel.names[k], ha="center", va="top", fontsize=8, color=ink)
            if k in order:
                badge(ax, x, height + 0.1 * top, order[k], color=panel.won(k), size=7)
    ax.plot([-0.6, d - 0.4], [0, 0], color=INK, linewidth=0.8, zorder=3)
    bare(ax, (-0.8, d - 0.2), (-0.24 * top, 1.25 * top), caption, equal=False)


def keys(ax, panel: Panel, caption: str) -> None:
    """Of a user's recursion: bars, or squares where the keys are a matrix or more."""
    total, shape = panel.trace.layout.geometry.keys, panel.trace.layout.event_shape
    if len(shape) <= 1:
        bars(ax, panel, caption)
    else:
        _grid(ax, panel, total // max(shape[-1], 1), shape[-1], caption)


def matrix(ax, panel: Panel, caption: str) -> None:
    """Rows and columns; what is crossed out is gone."""
    rows, columns = panel.trace.layout.event_shape
    _grid(ax, panel, rows, columns, caption, panel.names)


def _grid(ax, panel: Panel, rows: int, columns: int, caption: str, sides=None) -> None:
    order = panel.order
    gone = {k: mix(FAINT, 0.4) for k in range(rows * columns)}
    racing = {k: panel.grey(k) for k in panel.share}
    cells(ax, rows, columns, gone | racing | {k: panel.won(k) for k in order})
    if max(rows, columns) <= MANY:
        for k, number in order.items():
            look = {"fontsize": 9, "color": PAPER, "weight": "bold"}
            ax.text(k % columns, -(k // columns), number, ha="center", va="center_baseline", **look)
        for i, name in enumerate(sides[0] if sides else []):
            ax.text(-0.7, -i, name, ha="right", va="center_baseline", fontsize=8, color=INK)
        for j, name in enumerate(sides[1] if sides else []):
            ax.text(j, 0.65, name, ha="center", va="bottom", fontsize=8, color=INK)
    bare(ax, (-1.2, columns - 0.4), (0.4 - rows, 1.2), caption)


def edges(ax, panel: Panel, caption: str) -> None:
    """Nodes on a circle and the edges that still join two parts."""
    at, order, ends = circle(panel.words.nodes), panel.order, panel.words.ends
    for k in panel.share.keys() - order.keys():
        width = 0.5 + 2 * (panel.share[k] / panel.highest) ** 0.5
        ax.plot(*at[list(ends(k))].T, color=panel.grey(k), linewidth=width, zorder=1)
    for k in order:
        ax.plot(*at[list(ends(k))].T, color=panel.won(k), linewidth=2.6, zorder=2, solid_capstyle="round")
    _nodes(ax, at, panel.names)
    bare(ax, (-1.2, 1.2), (-1.2, 1.2), caption)


def arrows(ax, panel: Panel, caption: str) -> None:
    """Nodes on a circle, the edges into one of them or into a cycle, which is shaded once it races as one."""
    links, n = panel.trace.links.tolist(), panel.words.nodes
    at = circle(n)
    taken = {step.decision for step in panel.earlier} | ({panel.step.decision} if panel.step else set())
    holds = {v: [s for s in supernodes(v, links) if s in taken] for v in range(n)}
    for cycle in sorted({s for chain in holds.values() for s in chain}, reverse=True):  # outer ones first
        inside = [v for v in range(n) if cycle in holds[v]]
        level = max(holds[v].index(cycle) for v in inside)
        shade = SHADES[min(len(supernodes(cycle, links)), len(SHADES) - 1)]
        blob(ax, list(zip(at[inside], np.roll(at[inside], 1, 0), strict=True)), 0.24 + 0.08 * level, shade)
        ax.fill(*at[inside].T, color=shade, linewidth=0, zorder=0.5)
    discs = _nodes(ax, at, panel.names, root=panel.words.root)

    def draw(key: int, **look) -> None:
        u, v = divmod(key, n)
        arrow(ax, at[u], at[v], discs[u], discs[v], connectionstyle="arc3,rad=0.1", **look)

    if panel.step is None:
        for u, v in panel.trace.value.nonzero().tolist():
            draw(u * n + v, color=CHOSEN, linewidth=1.8)
    else:
        for k in panel.share.keys() - {panel.winner}:
            draw(k, color=panel.grey(k), linewidth=0.5 + 1.3 * (panel.share[k] / panel.highest) ** 0.5)
        for k in panel.order:
            draw(k, color=panel.won(k), linewidth=2.0 if k == panel.winner else 1.3)
    bare(ax, (-1.4, 1.4), (-1.4, 1.4), caption)


def tokens(ax, panel: Panel, caption: str) -> None:
    """Tokens from left to right; those that race for a gap are level with the winner, who won hangs in the tree."""
    parents = panel.trace.links.tolist()
    level = {i: depth(i, parents) for i, parent in enumerate(parents) if parent > -2}
    low, order = -max(level.values(), default=0) - 0.8, panel.order
    if panel.step is not None:
        height = -level[panel.step.winner]
        left, right = min(panel.share) - 0.4, max(panel.share) + 0.4
        ax.fill_between([left, right], height - 0.42, height + 0.42, color=mix(FAINT, 0.7), linewidth=0, zorder=0)
        for i in panel.share.keys() - order.keys():
            size = 8 + 60 * panel.share[i] / panel.highest
            ax.scatter([i], [height], s=size, color=[panel.grey(i)], zorder=3, linewidths=0)
    for i in order:
        ax.plot([i, i], [-level[i], low + 0.1], color=FAINT, linewidth=0.8, zorder=1)
        if parents[i] >= 0:
            ax.plot([parents[i], i], [-level[parents[i]], -level[i]], color=panel.won(i), linewidth=2, zorder=2)
        ax.scatter([i], [-level[i]], s=62, color=[panel.won(i)], zorder=4, edgecolors=PAPER, linewidths=1.2)
    for i in range(len(parents) if len(parents) <= MANY else 0):
        ink = INK if i in panel.share or panel.step is None else SOFT
        ax.text(i, low, panel.names[i], ha="center", va="top", fontsize=8, color=ink)
    bare(ax, (-0.7, len(parents) - 0.3), (low - 0.6, 0.6), caption, equal=False)


def _nodes(ax, at, called, root: int | None = None) -> list:
    """Discs with their names; returns them."""
    many = len(at) > MANY
    looks = [{"fill": ACCENT, "edge": ACCENT, "ink": PAPER} if v == root else {} for v in range(len(at))]
    radius = 0.04 if many else 0.17
    return [
        node(ax, x, y, "" if many else called[v], radius=radius, size=7.5, **look)
        for v, ((x, y), look) in enumerate(zip(at, looks, strict=True))
    ]
