"""Treebank: who is whose head? The arborescence of ListOps, over the words of real sentences with known trees."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from gumtrace.diagnostics.gradients import gradients
from gumtrace.estimators import ESTIMATORS, Estimator, MLPSurrogate
from gumtrace.structures.arborescence import Arborescence
from gumtrace_experiments.columns import Report
from gumtrace_experiments.config import Config, build_estimator, suggest_estimator
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.treebank.data import SYNTHETIC, Split, Treebank, load
from gumtrace_experiments.treebank.likelihoods import crf_log_likelihood, heaviest, trace_log_likelihood
from gumtrace_experiments.treebank.model import Critic, Encoder

CHUNK = 250  # items evaluated at once
DRAWS = 10  # of the gradient, for its standard deviation
LIKELIHOODS = {"TraceLikelihood": trace_log_likelihood, "MatrixTreeCRF": crf_log_likelihood}
if TYPE_CHECKING:
    Supervision = str
else:
    Supervision = Literal[(*ESTIMATORS, *LIKELIHOODS)]


@dataclass(frozen=True)
class TreebankConfig(Config):
    estimators: ClassVar = {**ESTIMATORS, **dict.fromkeys(LIKELIHOODS, Estimator)}

    estimator: Supervision = "TraceLikelihood"
    """Estimator of the expected number of wrong heads, or a likelihood of the true tree, which needs no estimator."""
    calls: int = 64
    """Sentences in a batch. To count wrong heads costs nothing, so here the samples of a sentence are not calls."""
    likelihood: float = 0.0
    """Weight of minus the trace's log-likelihood, beside the expected number of wrong heads, with an estimator."""
    iterations: int = 10_000
    lr: float = 2e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    clip: float = 5.0
    hidden: int = 200
    """Width of word embeddings, and of each direction of each LSTM."""
    layers: int = 2
    """Layers of each LSTM."""
    dropout: float = 0.33
    word_dropout: float = 0.2
    """Share of words taken for unknown in training."""
    min_count: int = 2
    """Rarer words are unknown."""
    longest: int = 60
    """Most words of a sentence in training; evaluation uses all sentences."""
    treebank: str = "en_ewt"
    """What its files begin with, in the folder of --data or a folder inside it; "synthetic": made-up sentences."""
    synthetic_size: int = 2000
    """Made-up sentences to train with; a quarter as many to validate and to test."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("dropout", "word_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and less than 1, got {getattr(self, name)}")
        for name in ("hidden", "layers", "min_count", "longest", "synthetic_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.likelihood >= 0:
            raise ValueError(f"likelihood must not be negative, got {self.likelihood}")
        if self.likelihood and self.estimator in LIKELIHOODS:
            raise ValueError(
                f"likelihood is added to an estimator's loss, and {self.estimator} is not one: set it to 0"
            )

    @property
    def k(self) -> int:
        return 1 if self.estimator in LIKELIHOODS else super().k

    @property
    def calls_per_item(self) -> int:
        return 1


class TreebankExperiment(Experiment):
    name = "treebank"
    config_type = TreebankConfig
    selection_metric = "uas"
    data_fields = ("treebank", "longest", "min_count", "synthetic_size")
    config: TreebankConfig
    data: Treebank

    def __init__(self, config: TreebankConfig, data: Treebank):
        super().__init__(config, data)
        n = data.train.words.shape[1]
        sizes = (config.hidden, config.layers, config.dropout, config.word_dropout)
        self.encoder = Encoder(data.vocabulary, *sizes)
        if config.estimator in LIKELIHOODS:
            self.estimator = Estimator()  # there is nothing to estimate
        else:
            surrogate = partial(MLPSurrogate, (n - 1) ** 2, context=n * n, memory=1024)
            self.estimator = build_estimator(config, critic=Critic, surrogate=surrogate)

    @staticmethod
    def smoke(config: TreebankConfig) -> TreebankConfig:
        return config.replace(
            treebank=SYNTHETIC,
            longest=20,
            hidden=32,
            layers=1,
            calls=32,
            lr=1e-2,
            iterations=150,
            evaluate_every=50,
            start_iterations=50,
        )

    @staticmethod
    def load(config: Any, folder: Path, device: torch.device) -> Treebank:
        return load(folder, config.treebank, config.longest, config.min_count, config.synthetic_size).to(device)

    @staticmethod
    def difficulty(data: Treebank) -> Tensor:
        """Words of a sentence."""
        return data.train.lengths - 1  # which count node 0

    @staticmethod
    def search(config: TreebankConfig, trial: Any) -> TreebankConfig:
        found = config.replace(
            lr=trial.suggest_float("lr", 3e-4, 1e-2, log=True), dropout=trial.suggest_float("dropout", 0.2, 0.5)
        )
        if config.estimator in LIKELIHOODS:
            return found
        return suggest_estimator(found, trial, samples=(4, 8, 16), estimator_lr=(1e-4, 1e-2))

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.treebank.paper import REPORT

        return REPORT

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.treebank.pictures import draw

        return draw(self, path, count=count, split=split)

    @property
    def items(self) -> int:
        return len(self.data.train.words)

    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        batch = self.data.train.batch(index)
        dist = self.distribution(batch, generator)
        words = batch.is_word.sum()
        loss = self._losses(batch, dist, generator).sum() / words
        right = attachments(batch, self.parse(dist)).sum() / words
        return loss, {"loss": loss.detach(), "uas": right}

    def _losses(self, batch: Split, dist: Arborescence, generator: torch.Generator) -> Tensor:
        """(B,): minus a log-likelihood, or an estimate of the number of wrong heads."""
        if self.config.estimator in LIKELIHOODS:
            return -LIKELIHOODS[self.config.estimator](dist, batch.gold)
        wrong = self.estimator(dist, partial(wrong_heads, batch), self.context(batch), generator=generator)
        if not self.config.likelihood:
            return wrong
        return wrong - self.config.likelihood * trace_log_likelihood(dist, batch.gold)

    def gradient_std(self, index: Tensor, generator: torch.Generator) -> float:
        if self.config.estimator in LIKELIHOODS:
            return 0.0
        batch = self.data.train.batch(index)
        with torch.no_grad():
            dist = self.distribution(batch, generator)
        objective, context = partial(wrong_heads, batch), self.context(batch)
        draw = partial(gradients, self.estimator, dist, objective, 1, generator, context)
        return torch.cat([draw() for _ in range(DRAWS)]).std(0)[dist.racing].mean().item()

    def distribution(self, batch: Split, generator: torch.Generator | None = None) -> Arborescence:
        """The distribution of the tree, given the words. It is rooted at node 0."""
        return Arborescence(self.encoder(batch, generator), root=0, lengths=batch.lengths, validate_args=False)

    def parse(self, dist: Arborescence) -> Tensor:
        """(B, n, n), the best tree: the most probable one of a random field, and of others the noiseless run."""
        return heaviest(dist) if self.config.estimator == "MatrixTreeCRF" else dist.mode

    def context(self, batch: Split) -> Tensor:
        """What RELAX's critic and the surrogate see: the true edges."""
        return batch.gold.flatten(1).float()

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """The best tree of each sentence, of whatever length."""
        data: Split = getattr(self.data, split)
        totals = torch.zeros(len(COUNTS), dtype=torch.int64, device=data.lengths.device)
        for index in data.lengths.argsort(stable=True).split(CHUNK):  # of like length: there is less to pad
            batch = data.batch(index, width=int(data.lengths[index[-1]]))
            dist = self.distribution(batch)
            totals += counts(batch, self.parse(dist), heaviest(dist))
        return shares(totals)


def attachments(batch: Split, value: Tensor) -> Tensor:
    """(*S, B, n), 1 for words that hang from their true head, for structures (*S, B, n, n); soft ones are between."""
    return (value * batch.gold).sum(-2)


def wrong_heads(batch: Split, value: Tensor) -> Tensor:
    """How many there are in a sentence, (*S, B)."""
    return batch.lengths - 1 - attachments(batch, value).sum(-1)


COUNTS = ("words", "right", "in heaviest", "others", "others right", "sentences", "sentences right")


def counts(batch: Split, tree: Tensor, heaviest: Tensor) -> Tensor:
    """COUNTS of the best and the heaviest tree of each sentence. Others: words that are no punctuation."""
    word, right = batch.is_word, attachments(batch, tree) > 0
    other, in_heaviest = word & ~batch.is_punctuation, attachments(batch, heaviest) > 0
    found = (word, right, in_heaviest, other, right & other, word.any(-1), (right == word).all(-1))
    return torch.stack([which.sum() for which in found])


def shares(totals: Tensor) -> dict[str, float]:
    """uas: unlabelled attachment score, the share of words that hang from their true head; without punctuation too,
    whose heads are a convention. exact: the share of sentences without a mistake."""
    words, right, in_heaviest, others, others_right, sentences, sentences_right = totals.tolist()
    return {
        "uas": right / words,
        "uas_without_punctuation": others_right / max(others, 1),
        "uas_of_heaviest": in_heaviest / words,
        "exact": sentences_right / sentences,
    }
