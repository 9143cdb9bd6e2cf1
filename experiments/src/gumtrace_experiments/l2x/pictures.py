"""Pictures of explanations: reviews in full, with what people marked and which tokens were chosen."""

from functools import lru_cache
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import torch

from gumtrace.extras import require
from gumtrace.plotting.style import INK, PAPER, RIGHT, SERIES, SOFT, WRONG, bare, mix
from gumtrace_experiments.l2x.experiment import L2XExperiment

_WIDTH, _LINE = 9.6, 0.185  # inches, of the text and from line to line
_POINTS = 8.5
_SPACE = 2.0 / 72  # inches between words
_PAD = 0.03  # inches around a word that is marked
_LETTERS = 14  # of the caption, to an inch
_HEAD, _FOOT, _EDGE = 0.5, 0.65, 0.2  # inches above a review, of the caption, and at the sides
_LONG = 26  # letters of a token that are shown
MARKED = SERIES[4]
_CAPTION = (
    "Yellow: what people marked as the reason of the rating. Boxes: the tokens that the model chose, and all that its "
    "prediction knows of the review; green and filled where people marked them, too, and vermilion and dashed where "
    "they did not."
)


class _Item(NamedTuple):
    tokens: tuple[str, ...]
    marked: list[bool]
    chosen: list[bool]
    rating: float
    guess: float


class _Word(NamedTuple):
    """A token, and where it begins: inches from the left, and which line."""

    text: str
    x: float
    width: float
    line: int


def draw(experiment: L2XExperiment, path: str | Path, count: int = 4, split: str = "test") -> Path:
    """Saves a picture of the first reviews of a split, or of the annotated ones where those of the test set are not;
    high ratings and low ones in turn."""
    items = _items(experiment, count, split)
    words = [_laid_out(item.tokens) for item in items]
    caption = fill(_CAPTION, int(_LETTERS * _WIDTH))
    width, height = _WIDTH + 2 * _EDGE, sum(map(_height, words)) + _HEAD * len(words) + _FOOT
    figure = require("matplotlib.figure", "plot").Figure(figsize=(width, height))
    top = height  # inches, as everything here: lines are as far apart in a short review as in a long one
    for item, found in zip(items, words, strict=True):
        top -= _HEAD + _height(found)
        box = (_EDGE / width, top / height, _WIDTH / width, _height(found) / height)
        _panel(figure.add_axes(box), item, found)
    figure.text(0.5, 0.5 * _FOOT / height, caption, ha="center", va="center", fontsize=9, color=SOFT)
    figure.savefig(path, dpi=140)
    return Path(path)


def _height(words: list[_Word]) -> float:
    return _LINE * (words[-1].line + 1)


def _items(experiment: L2XExperiment, count: int, split: str) -> list[_Item]:
    data = experiment.data
    split = "annotated" if split == "test" else split
    texts = data.texts[split]
    sides = [[i for i, review in enumerate(texts) if (review.rating > 0.5) == high] for high in (True, False)]
    order = sorted(range(len(texts)), key=lambda i: (min(side.index(i) for side in sides if i in side), i))[:count]
    batch = getattr(data, split).batch(torch.tensor(order, device=data.vectors.device))
    was_training = experiment.training
    experiment.eval()
    with torch.no_grad():
        vectors = experiment.vectors(batch)
        mask = experiment.shown(batch, vectors, torch.Generator(vectors.device).manual_seed(0))
        guesses = experiment.rate(vectors, mask).tolist()
    experiment.train(was_training)
    items = []
    for place, i in enumerate(order):
        n = len(texts[i].tokens)
        marked, chosen = (x[place, :n].bool().tolist() for x in (batch.marked, mask))
        items.append(_Item(texts[i].tokens, marked, chosen, texts[i].rating, guesses[place]))
    return items


def _laid_out(tokens: tuple[str, ...]) -> list[_Word]:
    """Left-justified, in lines of the width of the page."""
    words, x, line = [], 0.0, 0
    for token in tokens:
        text = token if len(token) <= _LONG else f"{token[: _LONG - 1]}…"
        width = _width(text)
        if x and x + width > _WIDTH:
            x, line = 0.0, line + 1
        words.append(_Word(text, x, width, line))
        x += width + _SPACE
    return words


@lru_cache(maxsize=100_000)
def _width(text: str) -> float:
    """Inches of a word, with the room around it."""
    textpath, font = require("matplotlib.textpath", "plot"), _font()
    width, *_ = textpath.TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return width / 72 + 2 * _PAD


@lru_cache(maxsize=1)
def _font() -> Any:
    return require("matplotlib.font_manager", "plot").FontProperties(size=_POINTS)


def _panel(ax, item: _Item, words: list[_Word]) -> None:
    patches = require("matplotlib.patches", "plot")
    for i, word in enumerate(words):
        y = -_LINE * word.line
        if item.marked[i]:  # up to the next word, if it is in the same span
            after = i + 1 < len(words) and item.marked[i + 1] and words[i + 1].line == word.line
            width = word.width + (_SPACE if after else 0)
            box = patches.Rectangle((word.x, y - _LINE / 2), width, _LINE, facecolor=mix(MARKED, 0.35), linewidth=0)
            ax.add_patch(box)
        if item.chosen[i]:
            _box(ax, patches, word, y, item.marked[i])
        colour = PAPER if item.chosen[i] and item.marked[i] else INK
        ax.text(
            word.x + _PAD, y, word.text, va="center_baseline", fontproperties=_font(), color=colour, parse_math=False
        )
    right = sum(a and b for a, b in zip(item.marked, item.chosen, strict=True))
    what = f"{right} of the {sum(item.chosen)} chosen tokens are marked by people"
    ax.set_title(
        f"rated {item.rating:.2g}, predicted {item.guess:.2f}; {what}",
        fontsize=9.5,
        color=INK,
        loc="left",
        weight="bold",
    )
    bare(ax, (0, _WIDTH), (-_LINE * (words[-1].line + 0.5), _LINE * 0.5), "", equal=False)


def _box(ax, patches, word: _Word, y: float, right: bool) -> None:
    look = {"facecolor": RIGHT, "linewidth": 0} if right else {"facecolor": PAPER, "edgecolor": WRONG, "linewidth": 1.1}
    style = "-" if right else (0, (3, 1.2))
    shape = patches.FancyBboxPatch(
        (word.x + 0.006, y - 0.42 * _LINE),
        word.width - 0.012,
        0.84 * _LINE,
        boxstyle="round,pad=0,rounding_size=0.03",
        linestyle=style,
        **look,
    )
    ax.add_patch(shape)
