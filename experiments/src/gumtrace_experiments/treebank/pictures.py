"""Pictures of parses: arcs from heads to words, the true ones above the sentence and those that were found below."""

from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np
import torch

from gumtrace.extras import require
from gumtrace.plotting.style import CHOSEN, INK, RIGHT, SOFT, WRONG, bare
from gumtrace_experiments.report.arcs import HIGH, arc
from gumtrace_experiments.treebank.experiment import TreebankExperiment

ROOT = "•"  # node 0
_GAP_INCHES, _LETTER = 0.16, 0.075  # between words, and of a letter
_HEIGHT = 2.3  # inches of a sentence
_GAP = 0.2  # where arcs begin, above and below the middle of the words
_LONGEST = 24  # words that fit into a picture
_LETTERS = 13  # of the caption, to an inch
_CAPTION = (
    f"Arcs go from heads to words, and end with a dot; what hangs from {ROOT} is the root. Above, blue: the treebank. "
    "Below: the parse, green where it is right, and vermilion and dashed where it is wrong."
)


class _Item(NamedTuple):
    words: tuple[str, ...]  # node 0 first
    heads: list[int]  # of each node, -1 for the first
    found: list[int]

    @property
    def places(self) -> np.ndarray:
        """Where the middles of the words are, in inches."""
        widths = np.array([_LETTER * len(word) for word in self.words]) + _GAP_INCHES
        return np.cumsum(widths) - widths / 2


def draw(experiment: TreebankExperiment, path: str | Path, count: int = 4, split: str = "test") -> Path:
    """Saves a picture of the first sentences of a split that are neither very short nor too long to be drawn."""
    items = _items(experiment, count, split)
    width = max(item.places[-1] for item in items) + 0.5
    size = (max(width, 7.0), _HEIGHT * len(items) + 0.6)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    for ax, item in zip(figure.subplots(len(items), squeeze=False)[:, 0], items, strict=True):
        _panel(ax, item, size[0])
    figure.supxlabel(fill(_CAPTION, int(_LETTERS * size[0])), fontsize=9, color=SOFT)
    figure.savefig(path, dpi=140)
    return Path(path)


def _items(experiment: TreebankExperiment, count: int, split: str) -> list[_Item]:
    sentences = experiment.data.sentences[split]
    sizes = [len(sentence.forms) for sentence in sentences]
    # Those of middle length first, in the order of the file, and others only where these are too few.
    fits = sorted(range(len(sizes)), key=lambda i: (not 5 <= sizes[i] <= _LONGEST, i))[:count]
    device = experiment.data.train.words.device
    batch = getattr(experiment.data, split).batch(torch.tensor(fits, device=device), 1 + max(sizes[i] for i in fits))
    was_training = experiment.training
    experiment.eval()
    with torch.no_grad():
        found = experiment.parse(experiment.distribution(batch)).argmax(-2).tolist()  # (B, n)
    experiment.train(was_training)
    items = []
    for i, own in zip(fits, found, strict=True):
        forms, _, heads = sentences[i]
        items.append(_Item((ROOT, *forms), [-1, *heads], own[: 1 + len(forms)]))
    return items


def _panel(ax, item: _Item, width: float) -> None:
    """As wide as so many inches."""
    right = [head == found for head, found in zip(item.heads, item.found, strict=True)]
    _arcs(ax, item, item.heads, 1, [CHOSEN for _ in right])
    _arcs(ax, item, item.found, -1, [RIGHT if hit else WRONG for hit in right])
    for x, word in zip(item.places, item.words, strict=True):
        ax.text(x, 0, word, ha="center", va="center", fontsize=8, color=INK)
    ax.set_title(f"{sum(right[1:])} of {len(right) - 1} heads right", fontsize=9, color=INK, loc="left")
    reach = _GAP + HIGH + 0.05
    bare(ax, (0, width), (-reach, reach), "", equal=False)


def _arcs(ax, item: _Item, heads: list[int], side: int, colours: list[str]) -> None:
    """On one side of the words, 1 above and -1 below."""
    places = item.places
    widest = places[-1] - places[0]
    for word in range(1, len(heads)):
        start, end, colour = places[heads[word]], places[word], colours[word]
        x, y = arc(start, end, widest, side, _GAP)
        dashes = (0, (3, 1.2)) if colour == WRONG else "-"
        ax.plot(x, y, color=colour, linestyle=dashes, linewidth=0.9 if colour == CHOSEN else 1.2, zorder=2)
        ax.plot(end, side * _GAP, ".", color=colour, markersize=5, zorder=3)
