"""Pictures of insertions: sequences with the order that an encoder finds, and what the decoder generates by itself."""

from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import torch
from torch import Tensor

from gumtrace.extras import require
from gumtrace.plotting.style import ACCENT, CHOSEN, FAINT, INK, SOFT, bare
from gumtrace_experiments.parentheses.brackets import KINDS, balance
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.parentheses.insertion import InsertionExperiment
from gumtrace_experiments.parentheses.orders import FIXED

_TOKEN, _STEP = 0.27, 0.19  # inches from token to token, and from step to step
_HEAD, _FOOT = 0.45, 0.7  # inches of a title, and of the caption
_LETTERS = 13  # of the caption, to an inch
_CAPTION = (
    "From top to bottom, one token is inserted in each row; grey lines lead to the finished sequence in the last row. "
    "Numbers are types, blue opens, orange closes. Left: sequences of the data, in {order}. Right: what the decoder "
    "generated, in the order in which it did."
)
_FIXED = "the fixed order"
_FOUND = "the encoder's most likely order"


class _Item(NamedTuple):
    tokens: list[int]
    order: list[int]
    title: str


def draw(experiment: InsertionExperiment, path: str | Path, count: int = 4, split: str = "test") -> Path:
    """Saves a picture of sequences of a split, long ones first, and of as many that the decoder generates."""
    columns = _of_data(experiment, count, split), _by_decoder(experiment, count)
    longest = max(len(item.tokens) for column in columns for item in column)
    rows = [max(len(item.tokens) for item in row) for row in zip(*columns, strict=True)]
    width, height = 2 * _TOKEN * (longest + 2), sum(_STEP * (n + 2) + _HEAD for n in rows) + _FOOT
    figure = require("matplotlib.figure", "plot").Figure(figsize=(width, height))
    top = height
    for row, n in zip(zip(*columns, strict=True), rows, strict=True):
        top -= _HEAD + _STEP * (n + 2)
        for side, item in enumerate(row):
            _panel(figure.add_axes((0.5 * side, top / height, 0.5, _STEP * (n + 2) / height)), item, longest, n)
    order = _FIXED if experiment.config.order in FIXED else _FOUND
    text = fill(_CAPTION.format(order=order), int(_LETTERS * width))
    figure.text(0.5, 0.5 * _FOOT / height, text, ha="center", va="center", fontsize=9, color=SOFT)
    figure.savefig(path, dpi=140)
    return Path(path)


@torch.no_grad()
def _of_data(experiment: InsertionExperiment, count: int, split: str) -> list[_Item]:
    data: Split = getattr(experiment.data, split)
    batch = data.batch(data.lengths.argsort(descending=True, stable=True)[:count])
    smart = experiment.fixed_order(batch, "smart")
    if experiment.config.order in FIXED:
        order = experiment.fixed_order(batch, experiment.config.order)
    else:
        order = experiment.posterior(batch).mode
    same = (order == smart).all(-1).tolist()
    titles = [f"{split}: {'the smart order' if hit else 'another order than the smart one'}" for hit in same]
    return _items(batch, order, titles)


@torch.no_grad()
def _by_decoder(experiment: InsertionExperiment, count: int) -> list[_Item]:
    """Of a few more that are drawn, those that are longest."""
    device = experiment.data.test.tokens.device
    tokens, lengths, order = experiment.generate(4 * count, torch.Generator(device).manual_seed(0))
    kinds = [KINDS[code].replace("_", " ") for code in balance(tokens, lengths).tolist()]
    lengths = torch.where(lengths < 0, tokens.shape[1], lengths)
    first = lengths.argsort(descending=True, stable=True)[:count]
    titles = [f"generated: {kinds[i]}" for i in first.tolist()]
    return _items(Split(tokens, lengths).batch(first), order[first], titles)


def _items(batch: Split, order: Tensor, titles: list[str]) -> list[_Item]:
    rows = zip(batch.tokens.tolist(), order.tolist(), batch.lengths.tolist(), titles, strict=True)
    return [_Item(tokens[:n], places[:n], title) for tokens, places, n, title in rows]


def _panel(ax, item: _Item, longest: int, steps: int) -> None:
    """As wide as so many tokens, and as high as so many steps."""
    last = -len(item.tokens) - 0.5
    for step, place in enumerate(item.order):
        ax.plot([place, place], [-step - 0.45, last + 0.5], color=FAINT, linewidth=1, zorder=1)
        for y in (-step, last):
            kind, closes = divmod(item.tokens[place], 2)
            text, colour = (f"{kind})", ACCENT) if closes else (f"({kind}", CHOSEN)
            ax.text(place, y, text, ha="center", va="center_baseline", fontsize=8, color=colour, zorder=2)
    ax.set_title(item.title, fontsize=9, color=INK)
    bare(ax, (-1, longest), (-steps - 1.2, 0.7), "", equal=False)
