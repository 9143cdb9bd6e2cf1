"""Pictures of what a trained model finds: posteriors over trees, beside the trees that moved the nodes."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gumtrace.extras import require
from gumtrace.plotting.style import CHOSEN, INK, RIGHT, SOFT, WRONG, bare
from gumtrace_experiments.graph_layout.experiment import GraphLayout

_VISIBLE = 0.02  # probability of an edge; below, it is not drawn
_ACROSS = 3  # items in a row
_SIDE, _GAP = 2.1, 0.12  # of a panel, in inches; between items, in panels
_CAPTION = (
    "Faint: where the nodes came from. Widths: posterior probabilities of edges. Full colour: the mode.\n"
    "Green: edges of the true tree; vermilion, dashed: others. Precision: of samples, on average."
)


class _Item(NamedTuple):
    positions: Tensor  # (frames, n, 2)
    tree: Tensor  # (n, n) bool
    mode: Tensor  # (n, n) bool
    marginals: Tensor  # (n, n)


def draw(
    experiment: GraphLayout, path: str | Path, count: int = 6, split: str = "test", samples: int = 200, seed: int = 0
) -> Path:
    """Saves a picture of the first items of a split: the true tree, and what the encoder makes of the frames.

    Args:
        samples: that the posterior's marginals are taken over.
    """
    items = _items(experiment, count, split, samples, seed)
    wide = min(_ACROSS, len(items))
    high = -(-len(items) // wide)
    size = (_SIDE * (2 + _GAP) * wide, (_SIDE + 0.25) * high + 0.6)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(high, 3 * wide - 1, width_ratios=([1, 1, _GAP] * wide)[:-1])
    for i, item in enumerate(items):
        row, place = divmod(i, wide)
        _true(figure.add_subplot(grid[row, 3 * place]), item, f"{split} item {i}: its tree")
        _found(figure.add_subplot(grid[row, 3 * place + 1]), item)
    figure.supxlabel(_CAPTION, fontsize=9, color=SOFT)
    figure.savefig(path, dpi=140)
    return Path(path)


def _items(experiment: GraphLayout, count: int, split: str, samples: int, seed: int) -> list[_Item]:
    data = getattr(experiment.data, split)
    positions, trees = data.positions[:count], data.trees[:count]
    generator = torch.Generator(positions.device).manual_seed(seed)
    was_training = experiment.training
    experiment.eval()
    with torch.no_grad():
        dist = experiment.posterior(positions)
        marginals = dist.sample((samples,), generator=generator).float().mean(0)
        mode = dist.mode.bool()
    experiment.train(was_training)
    return [_Item(*(x.cpu() for x in item)) for item in zip(positions, trees, mode, marginals, strict=True)]


def _true(ax, item: _Item, title: str) -> None:
    for u, v in _edges(item.tree):
        _edge(ax, item, u, v, color=CHOSEN, linewidth=2.0)
    _nodes(ax, item, title)


def _found(ax, item: _Item) -> None:
    for u, v in _edges(item.marginals > _VISIBLE):
        right, sure = bool(item.tree[u, v]), bool(item.mode[u, v])
        look = {"color": RIGHT if right else WRONG, "linestyle": "-" if right else (0, (3, 1.2))}
        _edge(ax, item, u, v, linewidth=0.4 + 2.8 * float(item.marginals[u, v]), alpha=1.0 if sure else 0.45, **look)
    edges = len(item.tree) - 1
    precision = float((item.marginals * item.tree).sum()) / 2 / edges
    hits = int((item.mode & item.tree).sum()) // 2
    _nodes(ax, item, f"mode {hits} of {edges}, precision {precision:.0%}")


def _edges(matrix: Tensor) -> list[list[int]]:
    return matrix.triu(1).nonzero().tolist()


def _edge(ax, item: _Item, u: int, v: int, **look) -> None:
    last = item.positions[-1]
    ax.plot(*last[[u, v]].T.tolist(), zorder=2, solid_capstyle="round", **look)


def _nodes(ax, item: _Item, title: str) -> None:
    x, y = item.positions.unbind(-1)  # (frames, n)
    ax.plot(x, y, color=SOFT, linewidth=0.6, alpha=0.35, zorder=1)
    ax.scatter(x[-1], y[-1], s=22, color=INK, zorder=3, linewidths=0)
    ax.set_title(title, fontsize=9, color=INK)
    low, high = (float(limit) for limit in item.positions.aminmax())
    bare(ax, (low - 0.05, high + 0.05), (low - 0.05, high + 0.05), "")
