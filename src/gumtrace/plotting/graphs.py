"""Pictures of spanning trees, arborescences and binary trees."""

import math
from collections import defaultdict

import numpy as np

from gumtrace.plotting.style import ACCENT, CHOSEN, FAINT, INK, MANY, PAPER, SHADES, SOFT, badge, bare, mix, node
from gumtrace.structures.arborescence import ArborescenceWords, supernodes
from gumtrace.structures.binary_tree import depth
from gumtrace.structures.spanning_tree import SpanningTreeWords
from gumtrace.structures.words import Words


def spanning_tree(ax, words: SpanningTreeWords, chance) -> None:
    """Nodes on a circle, the edges of the tree numbered in order of choice, the others faint."""
    n, ends, names = words.nodes, words.edges(), words.labels()
    chosen = [k for k in words.trace.winners.tolist() if k >= 0]
    at = circle(n)
    complete = len(ends) == n * (n - 1) // 2
    usual = 0.0 if n > MANY and complete else 0.25  # all edges of a large graph would be a blot
    for k, (u, v) in ends.items():
        strength = usual if chance is None else chance[k]
        if strength > (0 if n <= MANY else 0.1):
            ax.plot(*at[[u, v]].T, color=mix(SOFT, 0.12 + 0.6 * strength), linewidth=0.6 + 0.9 * strength, zorder=1)
    taken = list(at)  # places that a number must keep away from
    for k in chosen:
        ax.plot(*at[list(ends[k])].T, color=CHOSEN, linewidth=2.4, zorder=2, solid_capstyle="round")
    for step, k in enumerate(chosen if n <= MANY else []):
        place = _free_place(at[ends[k][0]], at[ends[k][1]], taken, [at[list(ends[j])] for j in chosen if j != k])
        taken.append(place)
        badge(ax, place[0], place[1], step + 1)
    for v in range(n):
        node(ax, at[v, 0], at[v, 1], names[v] if n <= MANY else "", radius=0.115 if n <= MANY else 0.03)
    bare(ax, (-1.25, 1.25), (-1.25, 1.25), "numbers: order of choice" if n <= MANY else "")


def circle(n: int) -> np.ndarray:
    """Places for n nodes, clockwise from the top, (n, 2)."""
    turn = np.pi / 2 - 2 * np.pi * np.arange(n) / max(n, 1)
    return np.stack([np.cos(turn), np.sin(turn)], 1)


def _free_place(start: np.ndarray, end: np.ndarray, taken: list[np.ndarray], others: list[np.ndarray]) -> np.ndarray:
    """The point of an edge farthest from nodes, numbers and other edges; near its middle if that is no worse."""

    def room(share: float) -> float:
        point = start + share * (end - start)
        gaps = [float(np.linalg.norm(point - t)) for t in taken] + [
            0.8 * _distance(point, *edge) + 0.1 for edge in others
        ]
        return min([0.3, *gaps]) - 0.05 * abs(share - 0.5)

    share = max(np.linspace(0.25, 0.75, 21), key=room)
    return start + share * (end - start)


def _distance(point: np.ndarray, start: np.ndarray, end: np.ndarray) -> float:
    """From a point to a segment."""
    along = np.clip((point - start) @ (end - start) / ((end - start) @ (end - start)), 0, 1)
    return float(np.linalg.norm(point - start - along * (end - start)))


def arborescence(ax, words: ArborescenceWords, chance) -> None:
    """Layers below the root. Contracted cycles are shaded; an edge that was dropped when its cycle opened is dashed."""
    trace, names, n, root = words.trace, words.labels(), words.nodes, words.root
    links = trace.links.tolist()
    parent = {v: u for u, v in trace.value.nonzero().tolist()}
    at, room = _layered(parent, root)
    around = {v: supernodes(v, links) for v in at}
    deepest = max((len(chain) for chain in around.values()), default=0)
    radius = min(0.17, 0.27 * room)
    for cycle in sorted(
        {c for chain in around.values() for c in chain}, reverse=True
    ):  # outer ones have larger numbers
        inside = [v for v in at if cycle in around[v]]
        height = max(around[v].index(cycle) for v in inside)  # cycles within cycles
        reach = radius + (0.5 * room - radius) * (height + 1) / (deepest + 1)
        strokes = [(at[v], at[parent[v]] if parent[v] in inside else at[v]) for v in inside]
        blob(ax, strokes, reach, SHADES[min(len(supernodes(cycle, links)), len(SHADES) - 1)])
    discs = {}
    for v, (x, y) in at.items():
        look = {"fill": ACCENT, "edge": ACCENT, "ink": PAPER} if v == root else {}
        discs[v] = node(ax, x, y, names[v] if n <= MANY else "", radius=radius, size=9.5 * radius / 0.17, **look)
    for v, u in parent.items():
        width = 2.0 if chance is None else 1.2 + 1.6 * chance[u * n + v] ** 0.5
        arrow(ax, at[u], at[v], discs[u], discs[v], color=CHOSEN, linewidth=width)
    taken = [*at.values(), *(np.add(at[u], at[v]) / 2 for v, u in parent.items())]  # what a dashed arc must not cross
    for key in trace.winners.tolist():
        u, v = divmod(key, n)
        if key >= 0 and parent[v] != u:
            bend, arc = _free_bend(np.array(at[u]), np.array(at[v]), taken)
            taken += list(arc)
            look = {"color": ACCENT, "linewidth": 1.2, "linestyle": (0, (3, 2)), "connectionstyle": f"arc3,rad={bend}"}
            arrow(ax, at[u], at[v], discs[u], discs[v], **look)
    caption = "shaded: cycles, dashed: edges dropped again" if deepest else "no cycle was contracted"
    xs, ys = zip(*at.values(), strict=True)
    bare(ax, _view(xs), _view(ys), caption)


def _free_bend(start: np.ndarray, end: np.ndarray, taken: list) -> tuple[float, np.ndarray]:
    """How far an arc between two nodes bends so as to keep clear of everything else, and points of that arc."""
    share = np.linspace(0.15, 0.85, 15)[:, None]
    across = np.array([end[1] - start[1], start[0] - end[0]])
    others = [place for place in taken if not (np.allclose(place, start) or np.allclose(place, end))]

    def arc(bend: float) -> np.ndarray:  # as matplotlib draws it: one quadratic curve
        middle = (start + end) / 2 + bend * across
        return (1 - share) ** 2 * start + 2 * share * (1 - share) * middle + share**2 * end

    def room(bend: float) -> float:
        gaps = [float(np.linalg.norm(arc(bend) - place, axis=1).min()) for place in others]
        return min([0.35, *gaps]) - 0.05 * abs(bend)

    bend = max((0.5, -0.5, 0.7, -0.7, 0.9, -0.9, 0.35, -0.35), key=room)
    return bend, arc(bend)[1::4]


def _view(values: tuple[float, ...]) -> tuple[float, float]:
    middle, half = (min(values) + max(values)) / 2, (max(values) - min(values)) / 2
    return middle - max(half + 0.45, 1.2), middle + max(half + 0.45, 1.2)


def _layered(parent: dict[int, int], root: int) -> tuple[dict[int, tuple[float, float]], float]:
    """Leaves side by side, parents above the middle of their children, in a box of 4 x 3.4; and the least distance."""
    children = defaultdict(list)
    for v, u in sorted(parent.items()):
        children[u].append(v)
    at: dict[int, tuple[float, float]] = {}
    leaves = deepest = 0
    stack = [(root, 0, False)]
    while stack:
        v, level, ready = stack.pop()
        deepest = max(deepest, level)
        if not ready and children[v]:
            stack += [(v, level, True), *((c, level + 1, False) for c in reversed(children[v]))]
        else:
            x = sum(at[c][0] for c in children[v]) / len(children[v]) if children[v] else leaves
            leaves += not children[v]
            at[v] = (float(x), -float(level))
    across, down = min(1.3, 4 / max(leaves - 1, 1)), min(1.2, 3.4 / max(deepest, 1))
    return {v: (across * x, down * y) for v, (x, y) in at.items()}, min(across, down)


def blob(ax, strokes, radius: float, color: str) -> None:
    """All points near some edges, with a darker rim: round strokes in data units, which grow with the picture."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    for reach, face in ((radius + 0.015, mix(ACCENT, 0.55)), (radius, color)):
        for start, end in strokes:
            ax.add_patch(PathPatch(Path(_capsule(start, end, reach)), facecolor=face, linewidth=0, zorder=0.5))


def _capsule(start, end, radius: float) -> np.ndarray:
    """The outline of all points within a radius of a segment, (points, 2)."""
    (x0, y0), (x1, y1) = start, end
    heading = math.atan2(y1 - y0, x1 - x0)
    turn = np.linspace(math.pi / 2, 3 * math.pi / 2, 40) + heading
    back = np.stack([x0 + radius * np.cos(turn), y0 + radius * np.sin(turn)], 1)
    front = np.stack([x1 - radius * np.cos(turn), y1 - radius * np.sin(turn)], 1)
    return np.concatenate([back, front])


def arrow(ax, start, end, from_disc, to_disc, **style) -> None:
    from matplotlib.patches import FancyArrowPatch

    ends = {"patchA": from_disc, "patchB": to_disc, "shrinkA": 1, "shrinkB": 1}
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=60 * to_disc.radius, zorder=3, **ends, **style)
    )


def binary_tree(ax, words: Words, chance) -> None:
    """Tokens from left to right, each as deep as it is in the tree."""
    parents, names = words.trace.links.tolist(), words.labels()
    level = [depth(i, parents) if parents[i] > -2 else -1 for i in range(len(parents))]
    low = -max(level, default=0) - 0.9
    for i, parent in enumerate(parents):
        if parent > -2:
            ax.plot([i, i], [-level[i], low + 0.1], color=FAINT, linewidth=1, zorder=1)
        if parent >= 0:
            ax.plot([parent, i], [-level[parent], -level[i]], color=CHOSEN, linewidth=2.2, zorder=2)
        if len(parents) <= MANY:
            ax.text(i, low, names[i], ha="center", va="top", fontsize=9.5, color=INK if parent > -2 else SOFT)
        if parent > -2:
            size = 70 if chance is None else 40 + 130 * chance[i]
            color = ACCENT if parent == -1 else CHOSEN
            ax.scatter([i], [-level[i]], s=size, color=color, zorder=4, edgecolors=PAPER, linewidths=1.5)
    bare(ax, (-0.7, len(parents) - 0.3), (low - 0.7, 0.5), "each token splits the gap that it won", equal=False)
