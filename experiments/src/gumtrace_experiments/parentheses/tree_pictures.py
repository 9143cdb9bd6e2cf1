"""Pictures of trees: those that a model finds for sequences, and those along which it generates its own."""

from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import torch
from torch import Tensor

from gumtrace.extras import require
from gumtrace.plotting.style import ACCENT, CHOSEN, FAINT, INK, PAPER, SOFT, WRONG, bare
from gumtrace.structures.binary_tree import depth
from gumtrace_experiments.parentheses.brackets import BALANCED, KINDS, balance
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.parentheses.orders import FIXED
from gumtrace_experiments.parentheses.tree import TreeExperiment

_WIDTH, _LEVEL, _HEAD = 0.27, 0.2, 0.75  # inches: of a token, of a level, and of what is above and below a tree
_SEED = 0  # of what is generated
_LETTERS = 14  # of the caption, to an inch
_CAPTION = (
    "Blue: opening parentheses, orange: closing ones; numbers are types. The higher a token, the earlier it is "
    "generated. At the left, sequences of the data with the model's trees; at the right, what it generates by itself."
)


class _Item(NamedTuple):
    tokens: list[int]
    parents: list[int]
    title: str
    wrong: bool = False

    @property
    def levels(self) -> list[int]:
        return [depth(i, self.parents) for i in range(len(self.parents))]


def draw(experiment: TreeExperiment, path: str | Path, count: int = 4, split: str = "test") -> Path:
    """Saves a picture: at the left the first sequences of a split that are not short, with the trees that the model has
    for them; at the right some that it generates."""
    was_training = experiment.training
    experiment.eval()
    with torch.no_grad():
        pairs = list(zip(_given(experiment, count, split), _generated(experiment, count), strict=True))
    experiment.train(was_training)
    wide = [max(len(pair[side].tokens) for pair in pairs) for side in (0, 1)]
    high = [max(max(item.levels, default=0) for item in pair) for pair in pairs]
    size = (_WIDTH * (sum(wide) + 4), sum(_LEVEL * levels + _HEAD for levels in high) + 0.7)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    ratios = {"width_ratios": wide, "height_ratios": [_LEVEL * levels + _HEAD for levels in high]}
    axes = figure.subplots(len(pairs), 2, squeeze=False, gridspec_kw=ratios)
    for row, pair, levels in zip(axes, pairs, high, strict=True):
        for ax, item, tokens in zip(row, pair, wide, strict=True):
            _panel(ax, item, tokens, levels)
    figure.supxlabel(fill(_CAPTION, int(_LETTERS * size[0])), fontsize=9, color=SOFT)
    figure.savefig(path, dpi=140)
    return Path(path)


def _given(experiment: TreeExperiment, count: int, split: str) -> list[_Item]:
    """Sequences of at least half the greatest length first, and others only where these are too few."""
    data: Split = getattr(experiment.data, split)
    short = (2 * data.lengths < experiment.config.longest).byte()
    batch = data.batch(short.argsort(stable=True)[:count])
    order = experiment.config.order
    if order in FIXED:
        trees, what = experiment.fixed_order(batch, order), f"{split} set, {order}"
    else:
        trees, what = experiment.posterior(batch).mode, f"{split} set, encoder's mode"
    return [_Item(*row, what) for row in _rows(*batch, trees)]


def _generated(experiment: TreeExperiment, count: int) -> list[_Item]:
    """Those that came to an end and are not short, as far as there are."""
    generator = torch.Generator(experiment.data.train.tokens.device).manual_seed(_SEED)
    found = experiment.generate(50 * count, generator)
    short = torch.where(found.lengths > 0, (2 * found.lengths < experiment.config.longest).byte(), 2)
    chosen = short.argsort(stable=True)[:count]
    tokens, lengths, parents = (x[chosen] for x in found)
    codes = balance(tokens, lengths).tolist()
    known = {tuple(row) for row, _ in _rows(*experiment.data.train, experiment.data.train.tokens)}
    items = []
    for (row, above), code in zip(_rows(tokens, lengths, parents), codes, strict=True):
        what = KINDS[code] if code != BALANCED else "old" if tuple(row) in known else "new and correct"
        items.append(_Item(row, above, f"generated: {what}", code != BALANCED))
    return items


def _rows(tokens: Tensor, lengths: Tensor, parents: Tensor) -> list[tuple[list[int], list[int]]]:
    triples = zip(tokens.tolist(), lengths.tolist(), parents.tolist(), strict=True)
    return [(row[: max(length, 0)], above[: max(length, 0)]) for row, length, above in triples]


def _panel(ax, item: _Item, wide: int, high: int) -> None:
    """With room for so many tokens and levels."""
    low, levels = -high - 0.9, item.levels
    for i, (token, parent, level) in enumerate(zip(item.tokens, item.parents, levels, strict=True)):
        colour, sign = (CHOSEN, "(") if token % 2 == 0 else (ACCENT, ")")
        ax.plot([i, i], [-level, low + 0.3], color=FAINT, linewidth=0.8, zorder=1)
        if parent >= 0:
            ax.plot([parent, i], [-levels[parent], -level], color=SOFT, linewidth=1.3, zorder=2)
        ax.scatter([i], [-level], s=26, color=colour, zorder=4, edgecolors=PAPER, linewidths=0.8)
        name = f"${sign}_{{{token // 2}}}$"
        ax.text(i, low, name, ha="center", va="center", fontsize=10, color=colour)
    ax.set_title(item.title, fontsize=9, color=WRONG if item.wrong else INK, loc="left")
    bare(ax, (-0.7, wide - 0.3), (low - 0.5, 0.5), "", equal=False)
