"""A network learns to read four-digit numbers from nothing but the order of five of them at a time.

    python sort_numbers.py --out sorted.png                            digits that this file draws, in seconds
    python sort_numbers.py --mnist mnist.npz --steps 12000 --lr 2e-3   handwritten ones, in minutes

For your own images replace `load_data`.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import gumtrace as gt

# How many lists -> images (lists, n, h, w) and the values to sort by, (lists, n)
Lists = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def load_data(mnist: str | None, n: int = 5, digits: int = 4) -> dict[str, Lists]:
    """For train, valid and test, a function that draws lists of n images with the values to sort them by."""

    def lists(images: Tensor, labels: Tensor) -> Lists:
        def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            rows = torch.randint(len(images), (count, n, digits), generator=generator)
            values = (labels[rows].long() * 10 ** torch.arange(digits - 1, -1, -1)).sum(-1)
            return torch.cat(images[rows].float().unbind(2), -1) / 255, values  # side by side

        return draw

    if mnist is None:
        split = {"train": drawn_digits(5000, 0), "valid": drawn_digits(1000, 1), "test": drawn_digits(1000, 2)}
    else:
        file = {name: torch.from_numpy(array) for name, array in np.load(mnist).items()}
        names = ("{}_images", "{}_labels") if "train_images" in file else ("x_{}", "y_{}")  # Keras has the latter
        train, test = ([file[name.format(part)] for name in names] for part in ("train", "test"))
        split = {"train": [part[:55000] for part in train], "valid": [part[55000:] for part in train], "test": test}
    return {name: lists(*part) for name, part in split.items()}


def drawn_digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 14, 14), 0 to 255, of a pocket calculator's digits, each turned, stretched and moved."""
    generator = torch.Generator().manual_seed(seed)
    bars = ["abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg"]
    where = {"a": (0, 0, 1, 4), "b": (0, 3, 4, 4), "c": (3, 3, 7, 4), "d": (6, 0, 7, 4), "e": (3, 0, 7, 1)}
    where |= {"f": (0, 0, 4, 1), "g": (3, 0, 4, 4)}
    shapes = torch.zeros(10, 1, 11, 8)
    for digit, names in enumerate(bars):
        for top, left, bottom, right in map(where.get, names):
            shapes[digit, 0, 2 + top : 2 + bottom, 2 + left : 2 + right] = 1
    labels = torch.randint(10, (count,), generator=generator)
    turns = torch.tensor([[0.9, 0, 0], [0, 0.9, 0]]) + 0.08 * torch.randn(count, 2, 3, generator=generator)
    grid = nn.functional.affine_grid(turns, [count, 1, 14, 14], align_corners=False)
    images = nn.functional.grid_sample(shapes[labels], grid, align_corners=False)[:, 0]
    return (255 * images + 40 * torch.rand(images.shape, generator=generator)).clamp(0, 255), labels


class Scorer(nn.Module):
    """One number for each image, (*, h, w) -> (*,)."""

    def __init__(self, h: int, w: int):
        super().__init__()
        shrunk = 32 * -(-h // 4) * -(-w // 4)  # two strides of 2, rounded up
        convolutions = [nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.layers = nn.Sequential(*convolutions, nn.Linear(shrunk, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.float().flatten(0, -3).unsqueeze(1)).view(images.shape[:-2])


def loss(scores: Tensor, values: Tensor) -> Tensor:
    """Minus the exact log-probability of the true order, largest first."""
    return -gt.Permutation(scores).log_prob(values.argsort(-1, descending=True)).mean()


@torch.no_grad()
def accuracy(scorer: nn.Module, lists: Lists, count: int, seed: int) -> tuple[float, float]:
    """Share of lists in which every number has its place, and share of numbers that have theirs."""
    generator, right = torch.Generator().manual_seed(seed), []
    for start in range(0, count, 200):
        images, values = lists(min(200, count - start), generator)
        order = gt.Permutation(scorer(images)).mode
        right.append(values.gather(-1, order) == values.sort(-1, descending=True).values)
    found = torch.cat(right)
    return found.all(-1).float().mean().item(), found.float().mean().item()


def fit(data: dict[str, Lists], steps: int, batch: int, lr: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    scorer = Scorer(*data["train"](1, generator)[0].shape[-2:])
    optimiser = torch.optim.Adam(scorer.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    for step in range(1, steps + 1):
        images, values = data["train"](batch, generator)
        optimiser.zero_grad()
        loss(scorer(images), values).backward()
        optimiser.step()
        schedule.step()
        if step % -(-steps // 5) == 0 or step == steps:
            lists_right, numbers_right = accuracy(scorer, data["valid"], 400, seed)
            print(f"step {step:5}   lists sorted {lists_right:.1%}   numbers in place {numbers_right:.1%}", flush=True)
    return scorer


@torch.no_grad()
def draw(scorer: nn.Module, lists: Lists, path: str) -> None:
    """Three lists as they are sorted, and the learned score of 300 numbers beside their value."""
    from matplotlib.figure import Figure

    from gumtrace.plotting.style import CHOSEN, INK, RIGHT, SOFT, WRONG

    generator = torch.Generator().manual_seed(0)
    images, values = lists(60, generator)
    scores = scorer(images)
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.35, 1])
    n = values.shape[-1]
    for place, ax in enumerate(left.subplots(n, 3).flat):
        row, column = divmod(place, 3)
        shown = scores[column].argsort(descending=True)[row]
        truth = values[column].sort(descending=True).values[row]
        ax.imshow(images[column, shown].numpy(), cmap="Greys", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set(color=RIGHT if values[column, shown] == truth else WRONG, linewidth=1.8)
    left.suptitle("three lists, sorted by the learned score", fontsize=10, color=INK)
    ax = right.subplots()
    ax.plot(values.flatten(), scores.flatten(), ".", color=CHOSEN, markersize=4, alpha=0.7)
    ax.set_xlabel("number in the image", color=SOFT)
    ax.set_ylabel("learned score", color=SOFT)
    ax.tick_params(colors=SOFT)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", help="mnist.npz, with images and labels for train and test")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=20, help="lists in a step")
    parser.add_argument("--lr", type=float, default=4e-3, help="at first; it falls to 0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    data = load_data(args.mnist)
    scorer = fit(data, args.steps, args.batch, args.lr, args.seed)
    lists_right, numbers_right = accuracy(scorer, data["test"], 2000, args.seed)
    print(f"test         lists sorted {lists_right:.1%}   numbers in place {numbers_right:.1%}")
    if args.out:
        draw(scorer, data["test"], args.out)


if __name__ == "__main__":
    main()
