"""Pictures of subsets, permutations and matchings, and of the decisions of any trace."""

import numpy as np

from gumtrace.plotting.style import CHOSEN, FAINT, INK, MANY, PAPER, SOFT, badge, bare, mix
from gumtrace.steps import racing_keys
from gumtrace.structures.words import Words
from gumtrace.traces.trace import Trace


def subset(ax, words: Words, chance) -> None:
    """Bars as high as a key's chance, the chosen ones filled and numbered in order of choice."""
    trace, names = words.trace, words.labels()
    d = trace.layout.geometry.keys
    height = np.full(d, 0.28) if chance is None else 0.04 + 0.96 * chance
    order = _order(trace)
    for k in range(d):
        ax.bar(k, height[k], 0.72, color=CHOSEN if k in order else FAINT, zorder=2)
        if d <= MANY:
            ax.text(k, -0.05, names[k], ha="center", va="top", fontsize=9.5, color=INK if k in order else SOFT)
        if k in order and d <= MANY:
            badge(ax, k, height[k] + 0.1, order[k] + 1)
    ax.plot([-0.6, d - 0.4], [0, 0], color=INK, linewidth=1, zorder=3)
    caption = "numbers: order of choice" + ("" if chance is None else ", heights: chance to be first")
    bare(ax, (-0.8, d - 0.2), (-0.25, 1.25 if chance is not None else 0.75), caption, equal=False)


def permutation(ax, words: Words, chance) -> None:
    """From each key on the left a line to the position it took on the right, darker the earlier."""
    trace, names = words.trace, words.labels()
    d = trace.layout.geometry.keys
    order = _order(trace)
    bend = np.linspace(0, 1, 60)
    ease = bend**2 * (3 - 2 * bend)
    for k in range(d):
        left = d - 1 - k
        size = 46 if chance is None else 14 + 110 * chance[k]
        color = mix(CHOSEN, 1 - 0.72 * order[k] / max(d - 1, 1)) if k in order else FAINT
        if d <= MANY:
            name_color = INK if k in order else SOFT
            ax.text(-0.09, left, names[k], ha="right", va="center_baseline", fontsize=9.5, color=name_color)
        ax.scatter([0], [left], s=size, color=[color], zorder=4, linewidths=0)
        if k in order:
            right = d - 1 - order[k]
            ax.plot(bend, left + (right - left) * ease, color=color, linewidth=2.2, zorder=3, solid_capstyle="round")
            if d <= MANY:
                badge(ax, 1.05, right, order[k] + 1)
    ax.text(-0.09, d - 0.3, "key", ha="right", va="bottom", fontsize=8.5, color=SOFT)
    ax.text(1.05, d - 0.3, "place", ha="center", va="bottom", fontsize=8.5, color=SOFT)
    bare(ax, (-0.35, 1.35), (-0.6, d + 0.1), "darker: earlier", equal=False)


def matching(ax, words: Words, chance) -> None:
    """The matrix: winners filled and numbered; any other cell shows the step that crossed out its row or column."""
    n, m = words.trace.layout.event_shape
    order = _order(words.trace)
    row_at = {k // m: b for k, b in order.items()}
    column_at = {k % m: b for k, b in order.items()}
    shade = np.full(n * m, 0.2) if chance is None else chance**0.5
    cells(ax, n, m, {k: CHOSEN if k in order else mix(SOFT, 0.08 + 0.5 * shade[k]) for k in range(n * m)})
    if small := max(n, m) <= MANY:
        margins(ax, *words.labels())
        for k in range(n * m):
            i, j = divmod(k, m)
            if k in order:
                look = {"fontsize": 11, "color": PAPER, "weight": "bold"}
                ax.text(j, -i, order[k] + 1, ha="center", va="center_baseline", **look)
            elif i in row_at:  # a row that was never matched was crossed out by no step
                look = {"fontsize": 7.5, "color": mix(INK, 0.7)}
                ax.text(j, -i, min(row_at[i], column_at.get(j, n)) + 1, ha="center", va="center_baseline", **look)
    bare(ax, (-1.3, m - 0.2), (0.3 - n, 1.3), "small: the step that crossed a cell out" if small else "")


def decisions(ax, words: Words, chance=None) -> None:
    """Any trace as incidence of decisions and keys: a row per decision, the racing keys shaded, the winner filled."""
    trace = words.trace
    winners = trace.winners.tolist()
    taken = [(winners[b], keys) for b, keys in enumerate(racing_keys(trace)) if winners[b] >= 0]
    rows, d = len(taken), trace.layout.geometry.keys
    raced = {i * d + k: FAINT for i, (_, keys) in enumerate(taken) for k in keys}
    cells(ax, rows, d, raced | {i * d + winner: CHOSEN for i, (winner, _) in enumerate(taken)})
    if max(rows, d) <= MANY:
        margins(ax, range(1, rows + 1), words.labels())
    bare(ax, (-1.3, d - 0.2), (0.3 - rows, 1.3), "rows: decisions, columns: the keys that raced")


def cells(ax, rows: int, columns: int, colors: dict) -> None:
    """A matrix from the top down; row · columns + column -> colour."""
    from matplotlib.colors import to_rgb

    image = np.ones((rows, columns, 3))
    for k, color in colors.items():
        image[divmod(k, columns)] = to_rgb(color)
    gap = 2.5 if max(rows, columns) <= MANY else 0
    x, y = np.arange(columns + 1) - 0.5, 0.5 - np.arange(rows + 1)
    ax.pcolormesh(x, y, image, edgecolors=PAPER, linewidth=gap)


def margins(ax, rows, columns) -> None:
    for i, name in enumerate(rows):
        ax.text(-0.72, -i, name, ha="right", va="center_baseline", fontsize=9.5, color=INK)
    for j, name in enumerate(columns):
        ax.text(j, 0.72, name, ha="center", va="bottom", fontsize=9.5, color=INK)


def _order(trace: Trace) -> dict[int, int]:
    """key -> step at which it was chosen."""
    return {k: b for b, k in enumerate(trace.winners.tolist()) if k >= 0}
