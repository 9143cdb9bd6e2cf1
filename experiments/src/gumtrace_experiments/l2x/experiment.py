"""Learning to explain: which k tokens of a review say how it is rated? The paper's fourth experiment."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from gumtrace.diagnostics.gradients import gradients
from gumtrace.estimators import ESTIMATORS, Estimator
from gumtrace.structures.subset import Subset
from gumtrace_experiments.columns import Report
from gumtrace_experiments.config import Config, build_estimator, suggest_estimator
from gumtrace_experiments.dropout import kept
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.l2x.beer import ASPECTS, Aspect
from gumtrace_experiments.l2x.data import SOURCES, Reviews, Source, Split, load
from gumtrace_experiments.l2x.model import FILTERS, Critic, Encoder, Predictor, Surrogate, context

CHUNK = 100  # items evaluated at once
DRAWS = 10  # of the gradient, for its standard deviation
MODELS = {"simple": 0, "complex": 2}  # convolutions of the encoder before the one that gives the logits
BASELINES = ("RandomSubset", "FirstTokens", "FullText")  # what the predictor is shown, with nothing to estimate
DATA_FIELDS = ("reviews", "aspect", "original", "longest", "chosen", "synthetic_size")  # in the order of `load`
KINDS = Subset.relaxations
if TYPE_CHECKING:
    Choice = str
    Kind = str
else:
    Choice = Literal[(*ESTIMATORS, *BASELINES)]
    Kind = Literal[KINDS]


@dataclass(frozen=True)
class L2XConfig(Config):
    estimators: ClassVar = {**ESTIMATORS, **dict.fromkeys(BASELINES, Estimator)}

    estimator: Choice = "TraceREINFORCE"
    """An estimator, or what else to show the predictor: k random tokens, the first k, or the full text."""
    calls: int = 100
    temperature: float = 0.5
    kind: Kind = "expfamily"
    """Relaxation of the subset, for estimators that have one."""
    iterations: int = 800
    evaluate_every: int = 40
    lr: float = 5e-3
    final_decay: float = 0.1
    """Share of the learning rates that is left at the last iteration; they decay exponentially. 1: they do not."""
    reviews: Source = "eraser"
    """Movie reviews of ERASER or the original beer reviews, in the folder of --data; or made-up reviews, no files."""
    aspect: Aspect = "aroma"
    """Of a beer: which rating is predicted."""
    original: bool = True
    """Of beer reviews, take the original annotations only; with --no-original, others too."""
    model: Literal["simple", "complex"] = "simple"
    """The paper's encoders: one convolution, or three."""
    chosen: int = 10
    """Tokens to choose, the paper's k."""
    longest: int = 350
    """Tokens of a review; the rest is cut off."""
    dropout: float = 0.1
    """Of the encoder's input, and of the predictor's features."""
    synthetic_size: int = 2000
    """Made-up reviews to train with; a quarter as many to validate and to test."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        if not 0 < self.final_decay <= 1:
            raise ValueError(f"final_decay must be positive and at most 1, got {self.final_decay}")
        for name, known in (("model", MODELS), ("reviews", SOURCES), ("aspect", ASPECTS), ("kind", KINDS)):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose from {', '.join(known)}")
        for name in ("chosen", "synthetic_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.longest <= self.chosen:
            raise ValueError(f"longest must be more than the {self.chosen} tokens to choose, got {self.longest}")

    @property
    def k(self) -> int:
        return 1 if self.estimator in BASELINES else super().k

    def rate_factor(self, iteration: int) -> float:
        return super().rate_factor(iteration) * self.final_decay ** (iteration / self.iterations)


class L2XExperiment(Experiment):
    name = "l2x"
    config_type = L2XConfig
    selection_metric = "explained"
    data_fields = DATA_FIELDS
    final_splits = ("test", "train")
    config: L2XConfig
    data: Reviews

    def __init__(self, config: L2XConfig, data: Reviews):
        super().__init__(config, data)
        size = data.vectors.shape[1]
        self.encoder = Encoder(size, MODELS[config.model], config.dropout)
        self.predictor = Predictor(size, config.dropout)
        if config.estimator in BASELINES:
            self.estimator = Estimator()  # there is nothing to estimate
        else:
            self.estimator = build_estimator(config, critic=partial(Critic, size), surrogate=partial(Surrogate, size))

    @staticmethod
    def smoke(config: L2XConfig) -> L2XConfig:
        return config.replace(
            reviews="synthetic",
            longest=40,
            chosen=5,
            lr=1e-2,
            synthetic_size=1000,
            iterations=150,
            evaluate_every=50,
            start_iterations=50,
        )

    @staticmethod
    def load(config: Any, folder: Path, device: torch.device) -> Reviews:
        return load(folder, *(getattr(config, name) for name in DATA_FIELDS)).to(device)

    @staticmethod
    def search(config: L2XConfig, trial: Any) -> L2XConfig:
        """The paper's ranges; the temperature, and the learning rate of RELAX's critic, which it does not give, as for
        other experiments."""
        found = config.replace(
            lr=trial.suggest_categorical("lr", [1e-4, 3e-4, 5e-4, 1e-3, 3e-3, 5e-3, 1e-2]),
            final_decay=trial.suggest_categorical("final_decay", [1e-4, 1e-3, 1e-2, 1e-1]),
            weight_decay=trial.suggest_categorical("weight_decay", [0.0, 1e-6, 1e-5, 1e-4]),
        )
        if config.estimator in BASELINES:
            return found
        if "kind" in config.estimator_type.settings():
            found = found.replace(kind=trial.suggest_categorical("kind", list(KINDS)))
        return suggest_estimator(found, trial, samples=(1, 2, 4))

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.l2x.paper import REPORT

        return REPORT

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.l2x.pictures import draw

        return draw(self, path, count=count, split=split)

    @property
    def items(self) -> int:
        return len(self.data.train.words)

    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        batch = self.data.train.batch(index)
        words = self.vectors(batch)
        objective = self._objective(batch, words, generator)
        if self.config.estimator in BASELINES:
            loss = objective(self.shown(batch, words, generator)).mean()
        else:
            dist = self.distribution(batch, words, generator)
            loss = self.estimator(dist, objective, self._context(batch, words), generator=generator).mean()
        return loss, {"loss": loss.detach()}

    def gradient_std(self, index: Tensor, generator: torch.Generator) -> float:
        if self.config.estimator in BASELINES:
            return 0.0
        batch = self.data.train.batch(index)
        words = self.vectors(batch)
        with torch.no_grad():
            dist = self.distribution(batch, words, generator)
        seen = self._context(batch, words)

        def draw() -> Tensor:
            return gradients(self.estimator, dist, self._objective(batch, words, generator), 1, generator, seen)

        return torch.cat([draw() for _ in range(DRAWS)]).std(0)[dist.racing].mean().item()

    def _objective(self, batch: Split, words: Tensor, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Squared errors (*S, B) for masks (*S, B, n). The dropout of a review is the same for all its subsets."""
        keep = kept((len(words), FILTERS), self.config.dropout, generator, words.device) if self.training else None
        return lambda mask: (self.rate(words, mask, keep) - batch.ratings).square()

    def vectors(self, batch: Split) -> Tensor:
        """(B, n, size)."""
        return self.data.vectors.index_select(0, batch.words.flatten()).view(*batch.words.shape, -1)

    def distribution(self, batch: Split, words: Tensor, generator: torch.Generator | None = None) -> Subset:
        """The distribution of the subset, given the review."""
        keep = kept(words.shape, self.config.dropout, generator, words.device) if self.training else None
        logits = self.encoder(words, keep).float()
        return Subset(logits, self.config.chosen, lengths=batch.lengths, validate_args=False)

    def shown(self, batch: Split, words: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, n), the mask of a review: the k tokens of the largest logits, or what a baseline takes."""
        kind, k = self.config.estimator, self.config.chosen
        if kind == "FullText":
            return batch.racing.float()
        if kind == "FirstTokens":
            return (torch.arange(words.shape[1], device=words.device) < k).float().expand(len(words), -1)
        if kind == "RandomSubset":
            blank = torch.zeros(words.shape[:-1], device=words.device)
            return Subset(blank, k, lengths=batch.lengths, validate_args=False).sample(generator=generator)
        return self.distribution(batch, words).mode

    def rate(self, words: Tensor, mask: Tensor, keep: Tensor | None = None) -> Tensor:
        """Ratings. A mask whose gradient is asked for is relaxed, or passes for it; others have k ones."""
        any_mask = mask.requires_grad or self.config.estimator == "FullText"
        return self.predictor(words, mask, None if any_mask else self.config.chosen, keep).float()

    def _context(self, batch: Split, words: Tensor) -> Tensor | None:
        """What a critic or a surrogate sees: the review and its rating."""
        if not {"critic", "surrogate"} & self.estimator.settings().keys():
            return None
        return context(words, batch.ratings)

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """The mean squared error with the tokens of the largest logits, and with a sample of the subset; the share of
        the ratings' variance that the former explains; and subset precision, if people marked the reviews of the split
        or, with the test set, others."""
        data: Split = getattr(self.data, split)
        errors, by_sample, hits = self._totals(data, generator)
        if split == "test":
            data = self.data.annotated
            hits = self._totals(data, generator)[2]
        spread = getattr(self.data, split).ratings.var(correction=0).item()
        found = {"mse": errors, "explained": 1 - errors / spread, "mse_of_samples": by_sample}
        return {**found, "precision": hits} if split in self.data.are_marked or split == "test" else found

    def _totals(self, data: Split, generator: torch.Generator) -> tuple[float, float, float]:
        """Means over reviews: of squared errors, of those of samples, and of the share of shown tokens that are
        marked."""
        totals = torch.zeros(3, dtype=torch.float64, device=data.words.device)
        for index in torch.arange(len(data.words), device=data.words.device).split(CHUNK):
            batch = data.batch(index)
            words = self.vectors(batch)
            mask = self.shown(batch, words, generator)
            sample = mask
            if self.config.estimator not in BASELINES:
                sample = self.distribution(batch, words).sample(generator=generator)
            squares = [(self.rate(words, x) - batch.ratings).square() for x in (mask, sample)]
            share = (mask * batch.marked).sum(-1) / mask.sum(-1)
            totals += torch.stack([x.sum(dtype=torch.float64) for x in (*squares, share)])
        errors, by_sample, hits = (totals / len(data.words)).tolist()
        return errors, by_sample, hits
