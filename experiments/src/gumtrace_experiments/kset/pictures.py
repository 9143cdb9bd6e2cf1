"""Pictures of what the k-subset tasks find: images and their codes, the chosen pixels, the plane of digits."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gumtrace.extras import require
from gumtrace.plotting.style import CHOSEN, INK, SERIES, SOFT
from gumtrace_experiments.kset.autoencoder import Autoencoder
from gumtrace_experiments.kset.data import CLASSES, SIDE, Split
from gumtrace_experiments.kset.features import Features
from gumtrace_experiments.kset.neighbours import Neighbours
from gumtrace_experiments.kset.task import CHUNK, Task

_COLOURS = (*SERIES, "#a3001f")  # one for each digit
_DOTS = 3000  # images in the plane


def draw_codes(experiment: Autoencoder, path: str | Path, count: int = 6, split: str = "test") -> Path:
    """The first images of a split, a sample of each one's code, and what the decoder makes of it."""
    with _evaluating(experiment):
        batch = _first(experiment, split, count)
        generator = torch.Generator(batch.images.device).manual_seed(0)
        codes = experiment.posterior(experiment.encode(batch.images)).base_dist.sample(generator=generator)
        made = experiment.decoder(codes.flatten(-2)).sigmoid()
    rows = {"image": _square(batch.images), "code": codes, "reconstruction": _square(made)}
    figure, axes = _grid(len(rows), len(batch.labels))
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for ax, image in zip(line, images, strict=True):
            _show(ax, image)
        line[0].set_ylabel(name, color=INK, fontsize=9)
    return _saved(figure, path)


def draw_pixels(experiment: Features, path: str | Path, count: int = 6, split: str = "test") -> Path:
    """The chosen pixels, as coloured squares on the first images of a split, and below what can be seen of these.
    Before them the logits, if they are the same for all images."""
    with _evaluating(experiment):
        batch = _first(experiment, split, count)
        dist = experiment.subsets(batch.images)
        kept, found = dist.mode, experiment.classify(batch.images, dist.mode).argmax(-1).tolist()
    same = int(experiment.config.selector == "global")
    figure, axes = _grid(2, len(batch.labels) + same)
    if same:
        axes[0][0].imshow(_square(dist.log_rates[0]).numpy(force=True), cmap="viridis")
        axes[0][0].set_title("logits", fontsize=9, color=INK)
        _marked(axes[1][0], torch.zeros(SIDE, SIDE), kept[0])
    for place, (image, own, digit) in enumerate(zip(batch.images, kept, found, strict=True), same):
        _marked(axes[0][place], _square(image), own)
        _show(axes[1][place], _square(image * own))
        axes[0][place].set_title(f"read as {digit}", fontsize=9, color=INK)
    return _saved(figure, path)


def draw_plane(experiment: Neighbours, path: str | Path, split: str = "test") -> Path:
    """Where the images of a split are in the plane, coloured by digit; of more dimensions the first two."""
    with _evaluating(experiment):
        data: Split = getattr(experiment.data, split)
        points = torch.cat([experiment.encoder(images) for images, _ in data.chunks(CHUNK)])[:_DOTS].cpu()
        labels = data.labels[:_DOTS].cpu()
    figure = require("matplotlib.figure", "plot").Figure(figsize=(6.2, 5.2), layout="constrained")
    ax = figure.subplots()
    for digit in range(CLASSES):
        x = points[labels == digit]
        second = x[:, 1] if x.shape[1] > 1 else torch.zeros(len(x))
        ax.scatter(x[:, 0], second, s=5, color=_COLOURS[digit], label=str(digit), linewidth=0, alpha=0.7)
    ax.legend(frameon=False, fontsize=9, markerscale=3, loc="center left", bbox_to_anchor=(1, 0.5))
    ax.tick_params(colors=SOFT, labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return _saved(figure, path)


@contextmanager
def _evaluating(experiment: Task) -> Iterator[None]:
    was_training = experiment.training
    experiment.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        experiment.train(was_training)


def _first(experiment: Task, split: str, count: int) -> Split:
    return next(getattr(experiment.data, split).chunks(count))


def _square(images: Tensor) -> Tensor:
    return images.unflatten(-1, (SIDE, SIDE))


def _grid(rows: int, columns: int):
    size = (1.25 * columns + 0.3, 1.35 * rows + 0.2)
    figure = require("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set_color(SOFT)
            spine.set_linewidth(0.5)
    return figure, axes


def _show(ax, image: Tensor) -> None:
    ax.imshow(image.numpy(force=True), cmap="Greys", vmin=0, vmax=1)


def _marked(ax, image: Tensor, kept: Tensor) -> None:
    """The image in grey, with a square on each chosen pixel."""
    _show(ax, image)
    y, x = _square(kept).nonzero().cpu().unbind(-1)
    ax.scatter(x, y, marker="s", s=8, color=CHOSEN, linewidth=0)


def _saved(figure, path: str | Path) -> Path:
    figure.savefig(path, dpi=140)
    return Path(path)
