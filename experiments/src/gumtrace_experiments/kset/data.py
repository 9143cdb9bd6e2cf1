"""The images of the k-subset tasks: MNIST, read from a file, or made-up digits that need none."""

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gumtrace_experiments.kset.synthetic import generate

SYNTHETIC = "synthetic"  # in place of a file's name
SIDE, CLASSES = 28, 10
PIXELS = SIDE * SIDE
_SEED = 0  # of the order of a file, and of what is made up: the same for all runs


class Split(NamedTuple):
    """Images with their digits. Grey values are whole numbers in memory, and a batch has them between 0 and 1."""

    images: Tensor  # (B, 784) uint8
    labels: Tensor  # (B,) int64

    def to(self, device: torch.device | str) -> "Split":
        return Split(*(tensor.to(device) for tensor in self))

    def batch(self, index: Tensor) -> "Split":
        images, labels = (x.index_select(0, index) for x in self)
        return Split(images.float() / 255, labels)

    def chunks(self, size: int):
        """All of it, in batches of so many, in order."""
        for part in torch.arange(len(self.labels), device=self.labels.device).split(size):
            yield self.batch(part)


@dataclass(frozen=True)
class Digits:
    train: Split
    valid: Split
    test: Split

    def to(self, device: torch.device | str) -> "Digits":
        return Digits(self.train.to(device), self.valid.to(device), self.test.to(device))


def load(folder: str | Path, name: str, valid_size: int, synthetic_size: int) -> Digits:
    """The images of a file in a folder, or made-up ones. A file may be sorted by digit: it is shuffled, always in the
    same way, and the last `valid_size` of its training images are for validation.

    Args:
        name: of the file without .npz, such as mnist; or "synthetic".
        synthetic_size: made-up images to train with; a quarter as many to validate and to test.
    """
    generator = torch.Generator().manual_seed(_SEED)
    if name == SYNTHETIC:
        print(f"kset: {synthetic_size:,} made-up digits to train with, and no handwriting", file=sys.stderr)
        few = -(-synthetic_size // 4)
        made = [Split(*generate(size, generator)) for size in (synthetic_size, few, few)]
        return Digits(*made)
    train, test = read(Path(folder) / f"{name}.npz")
    if valid_size >= len(train.labels):
        raise ValueError(f"kset: valid_size must be less than the {len(train.labels):,} images of the training set")
    order = torch.randperm(len(train.labels), generator=generator)
    rest, valid = order[: len(order) - valid_size], order[len(order) - valid_size :]
    return Digits(Split(*(x[rest] for x in train)), Split(*(x[valid] for x in train)), test)


def read(path: Path) -> tuple[Split, Split]:
    """The training set and the test set of a file, checked: four arrays as MNIST has them, of any number of images."""
    arrays = _arrays(path)
    return _split(path, arrays, "train"), _split(path, arrays, "test")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    names = [f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")]
    if not path.exists():
        raise ValueError(
            f"kset: {path} not found. It should hold the arrays {', '.join(names)}: MNIST as uint8 images (n, 28, 28) "
            "and digits (n,), by numpy.savez_compressed. Give its folder as --data, or train on made-up digits with "
            f"--digits {SYNTHETIC}"
        )
    content = path.read_bytes()  # apart: a file that may not be read is not a damaged one
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found = {name: file[name] for name in names if name in file.files}
    except Exception as error:  # of many kinds: zipfile and numpy believe most of what they read
        raise ValueError(f"{path} is damaged, or no .npz file of plain arrays") from error
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path} has no {missing[0]}: expected the arrays {', '.join(names)}")
    return found


def _split(path: Path, arrays: dict[str, np.ndarray], part: str) -> Split:
    images, labels = (arrays[f"{part}_{what}"] for what in ("images", "labels"))
    count = len(images) if images.ndim else 0
    if images.dtype != np.uint8 or images.shape != (count, SIDE, SIDE) or not count:
        found = f"{images.dtype} of shape {images.shape}"
        raise ValueError(f"{path}: {part}_images must be uint8 of shape (n, {SIDE}, {SIDE}), got {found}")
    if labels.dtype.kind not in "iu" or labels.shape != (count,):
        found = f"{labels.dtype} of shape {labels.shape}"
        raise ValueError(f"{path}: {part}_labels must be {count} whole numbers, one for each image, got {found}")
    if not ((labels >= 0) & (labels < CLASSES)).all():
        raise ValueError(f"{path}: {part}_labels must be digits, got {labels.min()} to {labels.max()}")
    if images.max() < 128:  # as they are if somebody has divided them by 255
        raise ValueError(f"{path}: {part}_images must have grey values up to 255, got at most {images.max()}")
    return Split(torch.from_numpy(images.reshape(count, PIXELS)), torch.from_numpy(labels.astype(np.int64)))
