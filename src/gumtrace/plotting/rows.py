"""Pictures of subsets, permutations and matchings, and of the decisions of any trace."""

import numpy as np

from gumtrace.plotting.style import CHOSEN, FAINT, INK, MANY, PAPER, SOFT, badge, bare, mix
from gumtrace.steps import member_keys
from gumtrace.traces.trace import Trace


def subset(ax, trace: Trace, names, chance) -> None:
    """Bars as high as a key's chance, the chosen ones filled and numbered in order of choice."""
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


def permutation(ax, trace: Trace, names, chance) -> None:
    """From each key on the left a line to the position it took on the right, darker the earlier."""
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


def matching(ax, trace: Trace, names, chance) -> None:
    """The matrix: winners filled and numbered; any other cell says at which step its row or column was crossed out."""
    n, m = trace.layout.geometry.n, trace.layout.geometry.m
    order = _order(trace)
    row_at = {k // m: b for k, b in order.items()}
    column_at = {k % m: b for k, b in order.items()}
    rows, columns = names
    large = max(n, m) > MANY
    for i in range(n):
        ax.text(-0.72, -i, "" if large else rows[i], ha="right", va="center_baseline", fontsize=9.5, color=INK)
        for j in range(m):
            k = i * m + j
            shade = 0.2 if chance is None else chance[k] ** 0.5
            face = CHOSEN if k in order else mix(SOFT, 0.08 + 0.5 * shade)
            ax.add_patch(_square(i, j, face))
            crossed = min(row_at.get(i, -1), column_at.get(j, n))  # a row that was never matched has nothing to say
            if k in order and not large:
                ax.text(j, -i, order[k] + 1, ha="center", va="center_baseline", fontsize=11, color=PAPER, weight="bold")
            elif crossed >= 0 and not large:
                ax.text(j, -i, crossed + 1, ha="center", va="center_baseline", fontsize=7.5, color=mix(INK, 0.7))
    for j in range(m):
        ax.text(j, 0.72, "" if large else columns[j], ha="center", va="bottom", fontsize=9.5, color=INK)
    bare(ax, (-1.3, m - 0.2), (0.3 - n, 1.3), "small: the step that crossed a cell out")


def decisions(ax, trace: Trace, names, chance) -> None:
    """Any trace as its incidence of decisions and keys: a row a decision, its members shaded, its winner filled."""
    winners = trace.winners.tolist()
    taken = [(b, keys) for b, keys in enumerate(member_keys(trace)) if winners[b] >= 0]
    d = trace.layout.geometry.keys
    for i, (b, keys) in enumerate(taken):
        ax.text(-0.8, -i, i + 1 if len(taken) <= MANY else "", ha="right", va="center_baseline", fontsize=9, color=SOFT)
        for k in keys:
            ax.add_patch(_square(i, k, CHOSEN if k == winners[b] else FAINT))
    for k in range(d):
        ax.text(k, 0.75, names[k] if d <= MANY else "", ha="center", va="bottom", fontsize=9, color=INK)
    bare(ax, (-1.8, d - 0.2), (0.2 - len(taken), 1.6), "rows: decisions, columns: the keys that raced")


def _square(row: float, column: float, face):
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.46, -row - 0.46), 0.92, 0.92, facecolor=face, linewidth=0)


def _order(trace: Trace) -> dict[int, int]:
    """key -> step at which it was chosen."""
    return {k: b for b, k in enumerate(trace.winners.tolist()) if k >= 0}
