"""The discrete k-subset autoencoder: an image becomes twenty subsets, of ten out of twenty keys each, and an image
again. The setting is that of I-MLE and its adaptive variant, which print a loss with the KL of another distribution: it
is reported, and beside it a bound on the likelihood."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Independent
from torch.nn.functional import softplus

from gumtrace.divergences import noise_kl, structure_kl
from gumtrace.structures.subset import Subset
from gumtrace_experiments.columns import Report
from gumtrace_experiments.kset.data import PIXELS, Digits
from gumtrace_experiments.kset.model import perceptron
from gumtrace_experiments.kset.task import CHUNK, Problem, Task, TaskConfig, build

CODES = 10  # samples of an image's code in an evaluation, as in I-MLE's
PRINTED_WEIGHT = 0.1  # of the KL divergence in the loss that I-MLE prints: one, beside a sum over ten samples


@dataclass(frozen=True)
class AutoencoderConfig(TaskConfig):
    calls: int = 1000
    samples: int = 10
    iterations: int = 60_000
    evaluate_every: int = 3000
    lr: float = 1e-3
    rows: int = 20
    """Subsets of an image."""
    columns: int = 20
    """Keys of each."""
    subset_size: int = 10
    """Keys that are chosen, of each row."""
    logit_scale: float = 5.0
    """Logits of the subsets are the encoder's output times this, as if noise had the scale 1 / this. I-MLE's noise is
    several times narrower than Gumbel noise of scale 1."""
    kl: Literal["category", "noise"] = "category"
    """KL divergence in the training objective. category: I-MLE's, that of one draw from softmax of each row of the
    encoder's output. noise: that of the noise, which bounds the subsets' (`noise_kl`)."""
    kl_weight: float = PRINTED_WEIGHT
    """Weight of the KL divergence; 1 with --kl noise makes the objective a bound on the likelihood."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("rows", "columns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.check_subset(self.subset_size, self.columns)
        if not self.logit_scale > 0:
            raise ValueError(f"logit_scale must be positive, got {self.logit_scale}")
        if not self.kl_weight >= 0:
            raise ValueError(f"kl_weight must not be negative, got {self.kl_weight}")


class Autoencoder(Task):
    name = "kset-autoencoder"
    config_type = AutoencoderConfig
    selection_metric = "objective"
    config: AutoencoderConfig

    def __init__(self, config: AutoencoderConfig, data: Digits):
        super().__init__(config, data)
        code = config.rows * config.columns
        self.encoder = perceptron(PIXELS, *config.hidden, code)
        self.decoder = perceptron(code, *reversed(config.hidden), PIXELS)
        self.estimator = build(config, (config.rows, config.columns), context=PIXELS)

    @staticmethod
    def smoke(config: AutoencoderConfig) -> AutoencoderConfig:
        return Task.smoke(config).replace(rows=6, columns=8, subset_size=4, calls=160, samples=4)

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.kset.paper import AUTOENCODER

        return AUTOENCODER

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.kset.pictures import draw_codes

        return draw_codes(self, path, count=count, split=split)

    def encode(self, images: Tensor) -> Tensor:
        """(B, rows, columns): the encoder's output."""
        return self.encoder(images).unflatten(-1, (self.config.rows, self.config.columns))

    def posterior(self, encoded: Tensor) -> Independent:
        """One item an image."""
        subsets = Subset(self.config.logit_scale * encoded, self.config.subset_size, validate_args=False)
        return Independent(subsets, 1, validate_args=False)

    def prior(self, device: torch.device) -> Independent:
        """All subsets alike."""
        return self.posterior(torch.zeros(1, self.config.rows, self.config.columns, device=device))

    def cross_entropy(self, images: Tensor, value: Tensor) -> Tensor:
        """(*S, B), summed over pixels, for codes (*S, B, rows, columns): that of the image's grey values as chances."""
        found = self.decoder(value.flatten(-2))
        return softplus(found).sum(-1) - (found * images).sum(-1)

    def divergence(self, encoded: Tensor) -> Tensor:
        """(B,): the one in the training objective."""
        if self.config.kl == "category":
            return category_kl(encoded)
        return noise_kl(self.posterior(encoded), self.prior(encoded.device), any_scale=True)

    def problem(self, index: Tensor, generator: torch.Generator) -> Problem:
        images = self.data.train.batch(index).images
        return self._problem(images, self.encode(images))

    def _problem(self, images: Tensor, encoded: Tensor) -> Problem:
        return Problem(self.posterior(encoded), lambda value: self.cross_entropy(images, value), images)

    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        images = self.data.train.batch(index).images
        encoded = self.encode(images)
        cross_entropy = self.estimator(*self._problem(images, encoded), generator=generator).mean()
        loss = cross_entropy + self.config.kl_weight * self.divergence(encoded).mean()
        return loss, {"loss": loss.detach(), "cross_entropy": cross_entropy.detach()}

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """loss: I-MLE's, whatever was trained. kl: of the subsets, estimated from one sample of each. bound: their sum
        with the cross-entropy."""
        data = getattr(self.data, split)
        totals = torch.zeros(4, dtype=torch.float64, device=data.labels.device)
        for images, _ in data.chunks(CHUNK):
            encoded = self.encode(images)
            posterior = self.posterior(encoded)
            value = posterior.base_dist.sample((CODES,), generator=generator)
            found = (
                self.cross_entropy(images, value).mean(0),
                category_kl(encoded),
                structure_kl(posterior, self.prior(images.device), 1, generator=generator),
                self.divergence(encoded),
            )
            totals += torch.stack([each.sum(dtype=torch.float64) for each in found])
        cross_entropy, category, kl, trained = (totals / len(data.labels)).tolist()
        return {
            "objective": -cross_entropy - self.config.kl_weight * trained,
            "loss": cross_entropy + PRINTED_WEIGHT * category,
            "cross_entropy": cross_entropy,
            "kl": kl,
            "bound": cross_entropy + kl,
        }


def category_kl(encoded: Tensor) -> Tensor:
    """(B,): Σ over rows of KL(softmax(row) ‖ uniform), for (B, rows, columns).

    >>> category_kl(torch.tensor([[[0.0, 0.0], [0.0, 100.0]]]))  # none, and log 2
    tensor([0.6931])
    """
    log_p = encoded.log_softmax(-1)
    return (log_p.exp() * (log_p + math.log(encoded.shape[-1]))).sum((-1, -2))
