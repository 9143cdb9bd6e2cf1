"""What the three k-subset tasks have in common: the images, and one loss for each of them from an estimator."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.diagnostics.gradients import gradients
from gumtrace.estimators import Estimator, MLPSurrogate
from gumtrace.estimators.objectives import Objective
from gumtrace.structures.joint import as_structure
from gumtrace_experiments.config import Config, build_estimator
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.kset.data import SYNTHETIC, Digits, load
from gumtrace_experiments.kset.model import Critic

CHUNK = 500  # images evaluated at once
DRAWS = 10  # of the gradient, for its standard deviation


@dataclass(frozen=True)
class TaskConfig(Config):
    temperature: float = 0.5
    width: int = 512
    """Units of the first hidden layer; the second has half as many."""
    digits: str = "mnist"
    """Name of the file of images in the folder of --data, without .npz; "synthetic": made-up digits."""
    valid_size: int = 5000
    """Images of the file's training set that are kept for validation."""
    synthetic_size: int = 2000
    """Made-up digits to train with; a quarter as many to validate and to test."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("valid_size", "synthetic_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width < 2:
            raise ValueError(f"width must be at least 2, got {self.width}")

    @property
    def hidden(self) -> tuple[int, int]:
        return self.width, self.width // 2

    def check_subset(self, size: int, keys: int) -> None:
        if not 1 <= size < keys:
            raise ValueError(f"subset_size must be at least 1 and less than the {keys} keys, got {size}")


class Problem(NamedTuple):
    """What an estimator is asked in an update."""

    dist: Distribution  # subsets, of as many items as the batch has
    objective: Objective
    context: Tensor  # (B, c): what the objective knows of an item, for critics and surrogates


class Task(Experiment):
    data_fields = ("digits", "valid_size", "synthetic_size")
    config: Any
    data: Digits

    @staticmethod
    def load(config: Any, folder: Path, device: torch.device) -> Digits:
        return load(folder, config.digits, config.valid_size, config.synthetic_size).to(device)

    @staticmethod
    def smoke(config: Any) -> Any:
        return config.replace(digits=SYNTHETIC, width=64, iterations=150, evaluate_every=50, start_iterations=50)

    @abstractmethod
    def problem(self, index: Tensor, generator: torch.Generator) -> Problem:
        """For these items of the training set."""

    @property
    def items(self) -> int:
        return len(self.data.train.labels)

    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.estimator(*self.problem(index, generator), generator=generator).mean()
        return loss, {"loss": loss.detach()}

    def gradient_std(self, index: Tensor, generator: torch.Generator) -> float:
        """Of the gradient of an item's loss to its own logits."""
        with torch.no_grad():
            dist, objective, context = self.problem(index, generator)
        draws = [gradients(self.estimator, dist, objective, 1, generator, context) for _ in range(DRAWS)]
        return torch.cat(draws).std(0)[as_structure(self.name, dist).racing].mean().item()


def build(config: Config, shape: tuple[int, ...], context: int) -> Estimator:
    """The estimator that the config names, for subsets of these keys: an item's subsets, if several, and their keys."""
    return build_estimator(
        config,
        critic=lambda: Critic(*shape, context=context),
        surrogate=lambda: MLPSurrogate(math.prod(shape), context=context, memory=1024),
    )
