"""Pictures of what a trained model finds: arcs from functions to arguments, the true ones above the tokens and those of
the posterior's mode below."""

from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np
import torch

from gumtrace.extras import require
from gumtrace.plotting.style import CHOSEN, INK, RIGHT, SOFT, WRONG, bare
from gumtrace_experiments.listops.data import Split
from gumtrace_experiments.listops.experiment import ListOpsExperiment
from gumtrace_experiments.listops.expressions import CLOSE, VOCABULARY, depths
from gumtrace_experiments.report.arcs import HIGH, arc

_TOKEN = 0.27  # inches from token to token
_HEIGHT = 2.5  # inches of an item
_GAP = 0.16  # where arcs begin, above and below the middle of the tokens
_LETTERS = 13  # of the caption, to an inch
_LOOKED_AT = 1000  # items, to find some of each depth
_CAPTION = (
    "Arcs go from functions to arguments, and end with a dot. Above, blue: the parse. Below: the mode of the "
    "posterior, green where it is right, and vermilion and dashed where it is wrong. Grey, dotted: heads of brackets, "
    "which are no arguments and are not counted."
)


class _Item(NamedTuple):
    words: list[str]
    heads: list[int]  # of each token, -1 for the first
    found: list[int]
    answer: int
    guess: int


def draw(experiment: ListOpsExperiment, path: str | Path, count: int = 4, split: str = "test") -> Path:
    """Saves a picture of items of a split, by depth: the first of each depth, then the second of each, and so on."""
    items = _items(experiment, count, split)
    tokens = max(len(item.words) for item in items)
    size = (max(_TOKEN * (tokens + 2), 7.0), _HEIGHT * len(items) + 0.6)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    for ax, item in zip(figure.subplots(len(items), squeeze=False)[:, 0], items, strict=True):
        _panel(ax, item, tokens)
    figure.supxlabel(fill(_CAPTION, int(_LETTERS * size[0])), fontsize=9, color=SOFT)
    figure.savefig(path, dpi=140)
    return Path(path)


def _items(experiment: ListOpsExperiment, count: int, split: str) -> list[_Item]:
    chosen = _of_all_depths(getattr(experiment.data, split).tokens[:_LOOKED_AT].cpu().numpy(), count)
    batch = Split(*(x[chosen].long() for x in getattr(experiment.data, split)))
    was_training = experiment.training
    experiment.eval()
    with torch.no_grad():
        mode = experiment.posterior(batch).mode  # (B, n, n)
        guesses = experiment.answer(batch, mode).argmax(-1).tolist()
    experiment.train(was_training)
    found = mode.argmax(-2)  # (B, n)
    items = []
    for i, length in enumerate(batch.lengths.tolist()):
        words = [VOCABULARY[token] for token in batch.tokens[i, :length].tolist()]
        true, own = (x[i, :length].tolist() for x in (batch.heads, found))
        items.append(_Item(words, true, own, int(batch.answers[i]), guesses[i]))
    return items


def _of_all_depths(tokens: np.ndarray, count: int) -> list[int]:
    """Which of (B, n) to draw, by depth; single digits only where there is nothing else."""
    depth = depths(tokens).tolist()
    turn = [depth[:i].count(d) for i, d in enumerate(depth)]  # how many of its depth come before
    first = sorted(range(len(depth)), key=lambda i: (depth[i] == 0, turn[i], depth[i]))[:count]
    return sorted(first, key=lambda i: (depth[i], i))


def _panel(ax, item: _Item, tokens: int) -> None:
    """As wide as so many tokens."""
    right = [head == found for head, found in zip(item.heads, item.found, strict=True)]
    _arcs(ax, item, item.heads, 1, [CHOSEN for _ in right])
    _arcs(ax, item, item.found, -1, [RIGHT if hit else WRONG for hit in right])
    for place, word in enumerate(item.words):
        ax.text(place, 0, word.lstrip("["), ha="center", va="center", fontsize=7.5, color=INK)
    arguments = [hit for hit, word in zip(right[1:], item.words[1:], strict=True) if word != VOCABULARY[CLOSE]]
    guess = "right" if item.guess == item.answer else f"taken for {item.guess}"
    title = f"value {item.answer}, {guess}; {sum(arguments)} of {len(arguments)} edges right"
    ax.set_title(title, fontsize=9, color=INK)
    reach = _GAP + HIGH + 0.05
    bare(ax, (-1, tokens), (-reach, reach), "", equal=False)


def _arcs(ax, item: _Item, heads: list[int], side: int, colours: list[str]) -> None:
    """On one side of the tokens, 1 above and -1 below."""
    widest = len(item.words) - 1
    for place in range(1, len(item.words)):
        head, bracket = heads[place], item.words[place] == VOCABULARY[CLOSE]
        x, y = arc(head, place, widest, side, _GAP)
        colour = SOFT if bracket else colours[place]
        dashes = ":" if bracket else (0, (3, 1.2)) if colour == WRONG else "-"
        thin = bracket or colour == CHOSEN
        ax.plot(x, y, color=colour, linestyle=dashes, linewidth=0.8 if thin else 1.3, zorder=1 if bracket else 2)
        ax.plot(place, side * _GAP, ".", color=colour, markersize=3 if bracket else 5, zorder=3)
