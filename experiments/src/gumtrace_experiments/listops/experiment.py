"""ListOps: how is this expression nested? A classifier of expressions whose latent variable is an arborescence."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from gumtrace.diagnostics.gradients import gradients
from gumtrace.estimators import MLPSurrogate
from gumtrace.structures.arborescence import Arborescence
from gumtrace_experiments.columns import Report
from gumtrace_experiments.config import Config, build_estimator, suggest_estimator
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.listops.data import ListOps, Split, load, read, read_folder
from gumtrace_experiments.listops.expressions import CLOSE, PADDING, VOCABULARY
from gumtrace_experiments.listops.model import Classifier, Critic, Encoder, Masks
from gumtrace_experiments.listops.sampling import SAMPLED, shortest

SHORTEST = 10  # tokens
CHUNK = 1000  # items evaluated at once
DRAWS = 10  # of the gradient, for its standard deviation
EDGES = ("precision", "recall", "attachment")  # metrics that an expression of one digit does not have


@dataclass(frozen=True)
class ListOpsConfig(Config):
    calls: int = 100
    weight_decay: float = 1e-4
    classifier_lr: float = 0.0
    """Learning rate of the classifier; 0: the same as --lr."""
    hidden: int = 60
    """Width of embeddings, LSTMs and layers."""
    rounds: int = 5
    """Rounds of messages: one per level of the deepest expression."""
    dropout: float = 0.1
    relabel: float = 0.0
    """Share of the expressions in a batch whose operators the encoder reads as others, drawn anew: how an expression
    is nested does not depend on them."""
    longest: int = 50
    """Most tokens of an expression; the fewest are 10."""
    depth: int = 5
    """Depth of the deepest expressions; all depths are equally frequent."""
    train_size: int = 100_000
    test_size: int = 20_000
    """Size of the test set, and of the validation set."""
    original: bool = False
    """Train and test on original files, train*.tsv and test*.tsv in the folder of --data, as far as they have only the
    paper's operators and are no longer than `longest`; depth and sizes are theirs."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        if not 0 <= self.relabel <= 1:
            raise ValueError(f"relabel must be at least 0 and at most 1, got {self.relabel}")
        for name in ("hidden", "rounds", "depth", "train_size", "test_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.classifier_lr >= 0:
            raise ValueError(f"classifier_lr must not be negative, got {self.classifier_lr}")
        least = SHORTEST if self.original else max(SHORTEST, shortest(self.depth))
        if self.longest < least:
            raise ValueError(f"longest must be at least {least}, for expressions of this depth, got {self.longest}")


class ListOpsExperiment(Experiment):
    name = "listops"
    config_type = ListOpsConfig
    selection_metric = "accuracy"
    data_fields = ("original", "longest", "depth", "train_size", "test_size")
    final_splits = ("test", "train")
    config: ListOpsConfig
    data: ListOps

    def __init__(self, config: ListOpsConfig, data: ListOps):
        super().__init__(config, data)
        size = data.train.tokens.shape[1]
        self.encoder = Encoder(config.hidden, config.dropout)
        self.classifier = Classifier(config.hidden, config.rounds, config.dropout)
        self.estimator = build_estimator(
            config,
            critic=lambda: Critic(size, config.hidden, config.dropout),
            # What it remembers is in every checkpoint: 13 MB as it is.
            surrogate=lambda: MLPSurrogate(
                (size - 1) ** 2, hidden=config.hidden, context=size * len(VOCABULARY), memory=1024
            ),
        )

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self.with_own_rate(self.classifier, self.config.classifier_lr)

    @staticmethod
    def smoke(config: ListOpsConfig) -> ListOpsConfig:
        return config.replace(
            longest=20,
            depth=2,
            rounds=2,
            hidden=32,
            lr=3e-3,
            train_size=2000,
            test_size=500,
            iterations=150,
            evaluate_every=50,
            start_iterations=50,
        )

    @staticmethod
    def load(config: Any, folder: Path, device: torch.device) -> ListOps:
        if config.original:
            return read_folder(folder, config.longest).to(device)
        sizes = (config.train_size, config.test_size, config.test_size)
        depths = range(1, config.depth + 1)
        return load(folder, sizes, lengths=(SHORTEST, config.longest), depths=depths).to(device)

    @staticmethod
    def difficulty(data: ListOps) -> Tensor:
        """Tokens of an expression."""
        return data.train.lengths

    @staticmethod
    def search(config: ListOpsConfig, trial: Any) -> ListOpsConfig:
        """The paper's ranges; temperatures of relaxations as for graph layout."""
        names = ("lr", "classifier_lr", "weight_decay")
        found = config.replace(**{name: trial.suggest_float(name, 1e-5, 1e-3, log=True) for name in names})
        return suggest_estimator(found, trial, samples=(2, 4, 5))

    def read_test(self, file: Path) -> None:
        """An original file. What is longer than the expressions of training, or has other operators, is left out."""
        test = read(file, SAMPLED, self.config.longest).to(self.data.test.tokens.device)
        self.data = replace(self.data, test=test)

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.listops.paper import REPORT

        return REPORT

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.listops.pictures import draw

        return draw(self, path, count=count, split=split)

    @property
    def items(self) -> int:
        return len(self.data.train.tokens)

    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        batch = _batch(self.data.train, index)
        dist, masks = self.posterior(batch, generator), self.classifier.masks(batch.tokens, generator)
        seen: list[tuple[Tensor, Tensor]] = []  # structures and the answers' logits

        def objective(structure: Tensor) -> Tensor:
            logits = self.answer(batch, structure, masks)
            seen.append((structure.detach(), logits.detach()))
            return cross_entropy(logits, batch.answers)

        loss = self.estimator(dist, objective, self.context(batch, generator), generator=generator).mean()
        return loss, means(totals(batch, *seen[0]))

    def gradient_std(self, index: Tensor, generator: torch.Generator) -> float:
        batch = _batch(self.data.train, index)
        with torch.no_grad():  # the critic is in eval mode now, in which cuDNN's LSTMs cannot go back
            dist, context = self.posterior(batch, generator), self.context(batch, generator)

        def objective(masks: Masks, structure: Tensor) -> Tensor:
            return cross_entropy(self.answer(batch, structure, masks), batch.answers)

        def draw() -> Tensor:
            loss = partial(objective, self.classifier.masks(batch.tokens, generator))
            return gradients(self.estimator, dist, loss, 1, generator, context)

        # One by one: the n² messages of relaxed structures fill gigabytes.
        grads = torch.cat([draw() for _ in range(DRAWS)])
        return grads.std(0)[dist.racing].mean().item()

    def posterior(self, batch: Split, generator: torch.Generator | None = None) -> Arborescence:
        """The distribution of the arborescence, given the tokens. It is rooted at the first one."""
        tokens = batch.tokens
        if self.training and self.config.relabel > 0:
            tokens = relabelled(tokens, self.config.relabel, generator)
        logits = self.encoder(tokens, generator)
        return Arborescence(logits, root=0, lengths=batch.lengths, validate_args=False)

    def answer(self, batch: Split, structure: Tensor, masks: Masks | None = None) -> Tensor:
        """Logits of the answers. Structures whose gradient is asked for are relaxed, or have to pass for it."""
        hard = not structure.requires_grad
        control = self.estimator.unbiased and not hard  # a control variate, from which the classifier must not learn
        fixed = {name: p.detach() for name, p in self.classifier.named_parameters()} if control else {}
        return functional_call(self.classifier, fixed, (batch.tokens, structure), {"hard": hard, "masks": masks})

    def context(self, batch: Split, generator: torch.Generator) -> Tensor | None:
        """What a critic or a surrogate sees of the tokens."""
        if (critic := getattr(self.estimator, "critic", None)) is not None:
            return critic.read(batch.tokens, batch.lengths, generator)
        if hasattr(self.estimator, "surrogate"):
            return F.one_hot(batch.tokens, len(VOCABULARY)).flatten(1).float()
        return None

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """One sample per expression."""
        data: Split = getattr(self.data, split)
        sums: dict[str, Tensor] = {}
        for chunk in zip(*(x.split(CHUNK) for x in data), strict=True):
            batch = Split(*(x.long() for x in chunk))
            structure = self.posterior(batch).sample((1,), generator=generator)
            for name, found in totals(batch, structure, self.answer(batch, structure)).items():
                sums[name] = sums.get(name, 0.0) + found
        found = means(sums)
        return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))


def _batch(split: Split, index: Tensor) -> Split:
    """Some of the items, in integers that can be computed with."""
    return Split(*(x.index_select(0, index).long() for x in split))


def relabelled(tokens: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Tokens (B, n), with all operators drawn anew in a share of the expressions."""
    drawn = {"generator": generator, "device": tokens.device}
    operators = torch.randint(CLOSE + 1, CLOSE + 1 + len(SAMPLED), tokens.shape, **drawn)
    chosen = torch.rand(len(tokens), 1, **drawn) < share
    return torch.where(chosen & (tokens > CLOSE), operators, tokens)


def cross_entropy(logits: Tensor, answers: Tensor) -> Tensor:
    """(*S, B) for logits (*S, B, 10) and answers (B,)."""
    right = answers.expand(logits.shape[:-1])[..., None]
    return -logits.log_softmax(-1).gather(-1, right).squeeze(-1)


def totals(batch: Split, structure: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """(2,) of each metric: its sum, and how many structures it is of. A digit on its own has no edges to count."""
    found = metrics(batch, structure, logits)
    values, several = torch.stack(list(found.values())), batch.lengths > 1  # all at once: an update has these, too
    counted = torch.stack([several if name in EDGES else torch.ones_like(several) for name in found])
    counted = counted[:, None].expand_as(values)  # (metrics, samples, B)
    sums = torch.where(counted, values, 0.0).sum((-1, -2), dtype=torch.float64)
    return dict(zip(found, torch.stack([sums, counted.sum((-1, -2))], -1), strict=True))


def means(totals: dict[str, Tensor]) -> dict[str, Tensor]:
    """0 where there was nothing to count."""
    total, count = torch.stack(list(totals.values())).unbind(-1)
    return dict(zip(totals, total / count.clamp(min=1), strict=True))


def metrics(batch: Split, structure: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """Metrics of each structure, (*S, B), for structures (*S, B, n, n) and the answers' logits (*S, B, 10)."""
    right = (logits.argmax(-1) == batch.answers).float()
    return {"accuracy": right, "loss": cross_entropy(logits, batch.answers), **edge_metrics(batch, structure)}


def true_trees(batch: Split) -> Tensor:
    """(B, n, n), True for edges from functions to arguments and closing brackets."""
    place = torch.arange(batch.heads.shape[-1], device=batch.heads.device)
    return batch.heads[:, None, :] == place[:, None]


def edge_metrics(batch: Split, structure: Tensor) -> dict[str, Tensor]:
    """How many edges are right, (*S, B); anything for a digit on its own, which has none.

    Brackets are no arguments, and the paper's true edges go from functions to arguments. So precision and recall leave
    out every edge that enters or leaves a bracket: what hangs from a bracket is missed, and counts for recall, but was
    not claimed, and does not for precision. Where nothing hangs from brackets they are equal, as they are for the
    paper's best models. Recall is the share of arguments that hang from their function.

    attachment: the share of all tokens but the first, brackets too, that hang from their function.
    """
    tokens = batch.tokens
    word = (tokens != PADDING) & (tokens != CLOSE)  # operators and digits
    between = word[:, :, None] & word[:, None, :]  # (B, n, n)
    true = true_trees(batch)

    def count(edges: Tensor) -> Tensor:
        return (structure * edges).sum((-1, -2))

    hits, claimed = count(true & between), count(between)
    return {
        "precision": torch.where(claimed > 0, hits / claimed, 0.0),
        "recall": hits / (true & between).sum((-1, -2)),
        "attachment": count(true) / (batch.lengths - 1),
    }
