"""Stochastic nearest neighbours: where in a plane should images go, so that those nearby show the same digit? Of 128
candidates ten are chosen, the nearer the likelier."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gumtrace.structures.subset import Subset
from gumtrace_experiments.columns import Report
from gumtrace_experiments.kset.data import CLASSES, PIXELS, Digits, Split
from gumtrace_experiments.kset.model import perceptron
from gumtrace_experiments.kset.task import CHUNK, Problem, Task, TaskConfig, build


@dataclass(frozen=True)
class NeighboursConfig(TaskConfig):
    iterations: int = 4000
    lr: float = 1e-3
    evaluate_every: int = 500
    subset_size: int = 10
    """Neighbours, k."""
    candidates: int = 128
    """Training images that neighbours are chosen from in an update, the same for all images of the batch."""
    dimensions: int = 2
    """Of the space that images are mapped to."""

    def __post_init__(self):
        super().__post_init__()
        self.check_subset(self.subset_size, self.candidates - 1)  # an image is no neighbour of its own
        if self.dimensions < 1:
            raise ValueError(f"dimensions must be at least 1, got {self.dimensions}")


class Neighbours(Task):
    name = "kset-neighbours"
    config_type = NeighboursConfig
    selection_metric = "accuracy"
    config: NeighboursConfig

    def __init__(self, config: NeighboursConfig, data: Digits):
        super().__init__(config, data)
        self.encoder = perceptron(PIXELS, *config.hidden, config.dimensions)
        self.estimator = build(config, (config.candidates,), context=config.candidates)

    @staticmethod
    def smoke(config: NeighboursConfig) -> NeighboursConfig:
        return Task.smoke(config).replace(candidates=64, subset_size=5)

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.kset.paper import NEIGHBOURS

        return NEIGHBOURS

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.kset.pictures import draw_plane

        return draw_plane(self, path, split=split)

    def problem(self, index: Tensor, generator: torch.Generator) -> Problem:
        train = self.data.train
        there = torch.randint(self.items, (self.config.candidates,), generator=generator, device=train.labels.device)
        images, labels = train.batch(torch.cat([index, there]))
        found = self.encoder(images)
        mine, others = found.split([len(index), len(there)])
        logits = -(mine[:, None] - others).square().sum(-1)  # by differences: products of near points would cancel
        logits = logits.masked_fill(index[:, None] == there, -torch.inf)  # an image is no neighbour of its own
        alike = (labels[: len(index), None] == labels[len(index) :]).to(logits.dtype)  # (B, candidates)

        def wrong(value: Tensor) -> Tensor:
            return -(value * alike).sum(-1) / self.config.subset_size

        return Problem(Subset(logits, self.config.subset_size, validate_args=False), wrong, alike)

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """By the most frequent digit among the nearest of all training images, the least of several."""
        data: Split = getattr(self.data, split)
        known = torch.cat([self.encoder(images) for images, _ in self.data.train.chunks(CHUNK)])
        own = int(split == "train")  # the image itself, which comes first
        right = alike = torch.zeros((), dtype=torch.float64, device=known.device)
        for images, labels in data.chunks(CHUNK):
            distances = torch.cdist(self.encoder(images), known, compute_mode="donot_use_mm_for_euclid_dist")
            nearest = distances.topk(self.config.subset_size + own, largest=False).indices[:, own:]
            votes = one_hot(self.data.train.labels[nearest], CLASSES).sum(-2)  # (B, 10)
            right = right + (votes.argmax(-1) == labels).sum()
            alike = alike + votes.gather(-1, labels[:, None]).sum()
        count = len(data.labels)
        return {"accuracy": right.item() / count, "alike": alike.item() / (count * self.config.subset_size)}
