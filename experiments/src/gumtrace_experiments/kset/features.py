"""Feature selection: which 50 of the 784 pixels tell the digits apart? One choice for all images, or one for each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from gumtrace.structures.subset import Subset
from gumtrace_experiments.columns import Report
from gumtrace_experiments.kset.data import CLASSES, PIXELS, Digits, Split
from gumtrace_experiments.kset.model import perceptron
from gumtrace_experiments.kset.task import CHUNK, Problem, Task, TaskConfig, build


@dataclass(frozen=True)
class FeaturesConfig(TaskConfig):
    lr: float = 1e-3
    iterations: int = 8000
    subset_size: int = 50
    """Pixels that are chosen, k."""
    selector: Literal["global", "instance"] = "global"
    """One vector of 784 logits for all images, or a network 784-100-784 that finds them for each image."""
    selector_width: int = 100
    """Hidden units of that network."""
    selector_lr: float = 1e-2
    """Learning rate of the logits, or of that network; 0: the same as --lr."""
    evaluate_every: int = 500

    def __post_init__(self):
        super().__post_init__()
        self.check_subset(self.subset_size, PIXELS)
        if not self.selector_lr >= 0:
            raise ValueError(f"selector_lr must not be negative, got {self.selector_lr}")
        if self.selector_width < 1:
            raise ValueError(f"selector_width must be at least 1, got {self.selector_width}")


class Features(Task):
    name = "kset-features"
    config_type = FeaturesConfig
    selection_metric = "accuracy"
    config: FeaturesConfig

    def __init__(self, config: FeaturesConfig, data: Digits):
        super().__init__(config, data)
        self.classifier = perceptron(PIXELS, *config.hidden, CLASSES)
        self.selector = _Same() if config.selector == "global" else perceptron(PIXELS, config.selector_width, PIXELS)
        self.estimator = build(config, (PIXELS,), context=PIXELS + CLASSES)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self.with_own_rate(self.selector, self.config.selector_lr)

    @staticmethod
    def smoke(config: FeaturesConfig) -> FeaturesConfig:
        return Task.smoke(config).replace(subset_size=60, lr=1e-2)

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.kset.paper import FEATURES

        return FEATURES

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.kset.pictures import draw_pixels

        return draw_pixels(self, path, count=count, split=split)

    def subsets(self, images: Tensor) -> Subset:
        """(B, 784): each image has a subset of its own, also where the logits are the same for all."""
        return Subset(self.selector(images), self.config.subset_size, validate_args=False)

    def classify(self, images: Tensor, value: Tensor) -> Tensor:
        """(*S, B, 10), log-probabilities of the digits given the chosen pixels (*S, B, 784)."""
        return self.classifier(value * images).log_softmax(-1)

    def problem(self, index: Tensor, generator: torch.Generator) -> Problem:
        images, labels = self.data.train.batch(index)
        truth = one_hot(labels, CLASSES).to(images.dtype)

        def cross_entropy(value: Tensor) -> Tensor:
            return -(self.classify(images, value) * truth).sum(-1)

        return Problem(self.subsets(images), cross_entropy, torch.cat([images, truth], -1))

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """With the pixels of the largest logits; and, as in training, with random ones."""
        data: Split = getattr(self.data, split)
        totals = torch.zeros(3, dtype=torch.float64, device=data.labels.device)
        for images, labels in data.chunks(CHUNK):
            dist = self.subsets(images)
            found, drawn = (self.classify(images, x) for x in (dist.mode, dist.sample(generator=generator)))
            lost = -found.gather(-1, labels[:, None])
            right = [(x.argmax(-1) == labels).sum(dtype=torch.float64) for x in (found, drawn)]
            totals += torch.stack([*right, lost.sum(dtype=torch.float64)])
        accuracy, sampled, cross_entropy = (totals / len(data.labels)).tolist()
        return {"accuracy": accuracy, "accuracy_sampled": sampled, "cross_entropy": cross_entropy}


class _Same(nn.Module):
    """Logits that do not depend on the image."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(PIXELS))

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.expand(*images.shape[:-1], PIXELS)
