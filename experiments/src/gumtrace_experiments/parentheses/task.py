"""What generating along a binary tree and generating by insertions have in common: the data, the orders, one loss from
an estimator, and the evaluation.

The decoder is P(x, z), of a sequence and the order z in which it is generated, and the encoder Q(z | x). A fixed order
is a function of x: its loss is -log P(x, z). Without one, the loss is a bound of -log P(x),

    E_Q [log Q(z | x) - log P(x, z)],

and where the training set gives the order of some sequences, the likelihood of both networks there.
"""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumtrace.diagnostics.gradients import gradients
from gumtrace.estimators import Estimator
from gumtrace.estimators.objectives import Objective
from gumtrace.structures.base import Structure
from gumtrace_experiments.columns import Report
from gumtrace_experiments.config import build_estimator, suggest_estimator
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.parentheses.brackets import BALANCED, balance
from gumtrace_experiments.parentheses.data import Sequences, Split, load
from gumtrace_experiments.parentheses.encoder import Encoder
from gumtrace_experiments.parentheses.evaluation import (
    Bound,
    digest,
    generate_unique,
    iwae,
    of_different,
    perplexity,
    shares,
)
from gumtrace_experiments.parentheses.orders import FIXED, OrderConfig

# K orders a sequence and their log-probabilities, (K, B, n) and (K, B), under one name or several
Proposal = Callable[[Split, Structure, int], dict[str, tuple[Tensor, Tensor]]]

CHUNK = 250  # items evaluated at once
ROWS = 8000  # sequences that the decoder reads at once, in an evaluation: 2 to 3 GB for the default sizes
DRAWS = 10  # of the gradient, for its standard deviation
SEEN = 8  # orders of each sequence, drawn to estimate the encoder's entropy
SOME = 10_000  # sequences, to see in which order they are generated


class Generated(NamedTuple):
    """Sequences of a model, and in which order it generated them."""

    tokens: Tensor  # (N, n)
    lengths: Tensor  # (N,), -1 where it came to no end
    order: Tensor  # (N, n), values of the structure


class Known(NamedTuple):
    """Sequences whose order is known."""

    batch: Split
    orders: Tensor  # (B, n)


class OrderExperiment(Experiment):
    """Subclasses make a decoder, and the estimator by `build_with`, and define what an order is."""

    config_type = OrderConfig
    selection_metric = "log_likelihood"
    data_fields = ("types", "train_size", "test_size", "longest")
    config: Any
    data: Sequences

    def __init__(self, config: Any, data: Sequences):
        super().__init__(config, data)
        fixed = config.order in FIXED
        if not fixed:
            self.encoder = Encoder(config.types, config.hidden)
        # Of the first sequences of the training set, all with a fixed order: found once, not in every update.
        shown = Split(*(x[: config.train_size if fixed else config.known] for x in data.train))
        self._orders = self.fixed_order(shown, config.order if fixed else "smart")

    def build_with(self, critic: Callable[[], torch.nn.Module]) -> Estimator:
        """The config's, or with a fixed order none."""
        return Estimator() if self.config.order in FIXED else build_estimator(self.config, critic=critic)

    @staticmethod
    def smoke(config: Any) -> Any:
        return config.replace(
            types=3,
            hidden=32,
            longest=8,
            lr=1e-2,
            train_size=2000,
            test_size=200,
            iterations=150,
            evaluate_every=50,
            start_iterations=50,
            bound_samples=50,
            valid_bound_samples=10,
            generated=1000,
        )

    @staticmethod
    def load(config: Any, folder: Path, device: torch.device) -> Sequences:
        sizes = (config.train_size, config.test_size, config.test_size)
        return load(folder, config.types, *sizes, longest=config.longest).to(device)

    def difficulty(self, data: Sequences) -> Tensor:  # type: ignore[override]  # which items there are, the config says
        """Tokens of a sequence."""
        return data.train.lengths[self.config.known :]

    @staticmethod
    def search(config: Any, trial: Any) -> Any:
        """The paper gives no ranges for these experiments: those of ListOps."""
        found = config.replace(lr=trial.suggest_float("lr", 1e-4, 1e-2, log=True))
        return found if config.order in FIXED else suggest_estimator(found, trial, samples=(2, 4, 8))

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.parentheses.paper import report

        return report(cls.config_type().to_dict())

    # What an order is ---------------------------------------------------------------------------------

    @abstractmethod
    def structure(self, logits: Tensor, lengths: Tensor) -> Structure:
        """Orders of sequences, by a logit for each token (B, n); it must not check its arguments."""

    @abstractmethod
    def fixed_order(self, batch: Split, order: str) -> Tensor:
        """(B, n): "left-to-right" or "smart", as values of the structure."""

    @abstractmethod
    def log_joint(self, batch: Split, order: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """log P(x, z), (B,), of sequences and orders (B, n); the generator is for dropout."""

    @abstractmethod
    def generate(self, count: int, generator: torch.Generator) -> Generated:
        """Samples of the decoder."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Memory that it takes to generate a sequence among others, about."""

    # Training -----------------------------------------------------------------------------------------

    @property
    def items(self) -> int:
        """Those whose order is known are not among them: some join every batch."""
        return self.config.train_size - self.config.known

    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        batch = self.data.train.batch(self.config.known + index)
        if self.config.order in FIXED:
            loss = -self.log_joint(batch, self._orders.index_select(0, index), generator).mean()
            return loss, {"loss": loss.detach()}
        known = self._some_known(len(index), generator)
        both = batch if known is None else batch.joined(known.batch)
        logits = self.encoder(both)
        dist = self.structure(logits[: len(index)], batch.lengths)
        seen: list[Tensor] = []  # log P(x, z) of those whose order is known
        objective = self._objective(batch, dist, generator, known, seen)
        bounds = self.estimator(dist, objective, self._context(batch), generator=generator)  # (B,)
        total, metrics = bounds.sum(), {"bound": bounds.mean().detach()}
        if known is not None:
            by_encoder = self.structure(logits[len(index) :], known.batch.lengths).log_prob(known.orders)
            total = total - seen[0].sum() - by_encoder.sum()
            metrics |= {"smart_by_decoder": -seen[0].mean().detach(), "smart_by_encoder": -by_encoder.mean().detach()}
        loss = total / len(both.lengths)
        return loss, {"loss": loss.detach(), **metrics}

    def gradient_std(self, index: Tensor, generator: torch.Generator) -> float:
        if self.config.order in FIXED:
            return 0.0
        batch = self.data.train.batch(self.config.known + index)
        with torch.no_grad():  # gradients go to the logits, and no further
            dist, context = self.posterior(batch), self._context(batch)

        def draw() -> Tensor:
            return gradients(self.estimator, dist, self._objective(batch, dist, generator), 1, generator, context)

        return torch.cat([draw() for _ in range(DRAWS)]).std(0)[dist.racing].mean().item()

    def posterior(self, batch: Split) -> Structure:
        """Q(z | x)."""
        return self.structure(self.encoder(batch), batch.lengths)

    def _some_known(self, count: int, generator: torch.Generator) -> Known | None:
        """To join so many others: a batch, or one shard of it."""
        if not self.config.known:
            return None
        shape, device = (self.config.known_beside(count),), self.data.train.tokens.device
        index = torch.randint(self.config.known, shape, generator=generator, device=device)
        return Known(self.data.train.batch(index), self._orders.index_select(0, index))

    def _objective(
        self,
        batch: Split,
        dist: Structure,
        generator: torch.Generator,
        known: Known | None = None,
        seen: list[Tensor] | None = None,
    ) -> Objective:
        """log Q(z | x) - log P(x, z), (*S, B), for orders (*S, B, n). Sequences whose order is known are read by the
        decoder in the same call."""

        def objective(orders: Tensor) -> Tensor:
            with torch.no_grad():  # the derivative of log Q has mean 0
                own = dist.log_prob(orders)
            several, flat = batch.repeated(own.shape[:-1].numel()), orders.flatten(0, -2)
            if known is not None:
                several, flat = several.joined(known.batch), torch.cat([flat, known.orders])
            joint = self.log_joint(several, flat, generator)
            if known is not None and seen is not None:
                seen.append(joint[own.numel() :])
            return own - joint[: own.numel()].view_as(own)

        return objective

    def _context(self, batch: Split) -> Tensor | None:
        """What a critic sees of the sequences."""
        critic = getattr(self.estimator, "critic", None)
        return None if critic is None else critic.read(batch)

    # Evaluation ---------------------------------------------------------------------------------------

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """The log-likelihood a token, exact for a fixed order and a bound otherwise, and the perplexity; of the encoder
        its entropy (a sequence), and how often its most likely order is the smart one; on test, what sequences the
        decoder generates, and how many of the correct ones in the smart order."""
        data: Split = getattr(self.data, split)
        found = self._likelihood_metrics(data, split, generator)
        if self.config.order not in FIXED:
            found |= self._encoder_metrics(data, generator)
        if split == "test":
            found |= self._generated_metrics(generator)
        return found

    def _likelihood_metrics(self, data: Split, split: str, generator: torch.Generator) -> dict[str, float]:
        samples = self.config.valid_bound_samples if split == "valid" else self.config.bound_samples
        fixed = self.config.order in FIXED
        propose = None if fixed else self.proposal(split, generator)
        totals: dict[str, Tensor] = {}
        for batch in data.by_length(CHUNK):
            for name, bound in self.bounds(batch, propose, samples).items():
                totals[name] = totals.get(name, 0) + torch.stack(bound).sum(-1)
        found = {}
        for name, (total, effective) in zip(totals, torch.stack(list(totals.values())).tolist(), strict=True):
            found[f"log_likelihood{name}"] = total / int(data.lengths.sum())
            found[f"perplexity{name}"] = perplexity(found[f"log_likelihood{name}"])
            if not fixed:
                found[f"effective_samples{name}"] = effective / len(data.lengths)
        return found

    def proposal(self, split: str, generator: torch.Generator) -> Proposal:
        """Where orders come from that likelihoods are bounded with, by the suffix of the metrics' names: by default the
        encoder."""

        def propose(batch: Split, dist: Structure, count: int) -> dict[str, tuple[Tensor, Tensor]]:
            orders = dist.sample((count,), generator=generator)
            return {"": (orders, dist.log_prob(orders))}

        return propose

    def bounds(self, batch: Split, propose: Proposal | None, samples: int) -> dict[str, Bound]:
        """Of log P(x), from so many orders; without a proposal log P(x, z) of the fixed order z."""
        if propose is None:
            exact = self.log_joint(batch, self.fixed_order(batch, self.config.order)).double()
            return {"": Bound(exact, torch.ones_like(exact))}
        proposed = propose(batch, self.posterior(batch), samples)
        n = int(batch.lengths.max())  # the decoder need not read padding behind all of them
        orders, cut = torch.cat([orders for orders, _ in proposed.values()]), Split(batch.tokens[:, :n], batch.lengths)
        joint = of_different(lambda item, order: self.log_joint(cut.batch(item), order), orders[..., :n], ROWS)
        parts = zip(proposed.items(), joint.split(samples), strict=True)
        return {name: iwae(own, log_q) for (name, (_, log_q)), own in parts}

    def _encoder_metrics(self, data: Split, generator: torch.Generator) -> dict[str, float]:
        totals = torch.zeros(2, dtype=torch.float64, device=data.lengths.device)
        for batch in data.by_length(CHUNK):
            dist = self.posterior(batch)
            entropy = -dist.log_prob(dist.sample((SEEN,), generator=generator)).double().mean(0)
            smart = (dist.mode == self.fixed_order(batch, "smart")).all(-1).double()
            totals += torch.stack([entropy.sum(), smart.sum()])
        entropy, smart = (totals / len(data.lengths)).tolist()
        return {"entropy": entropy, "smart_modes": smart}

    def _generated_metrics(self, generator: torch.Generator) -> dict[str, float]:
        """How sequences are generated, of some; and what they are, of many different ones."""
        device, count = self.data.train.tokens.device, self.config.generated
        tokens, lengths, order = self.generate(min(count, SOME), generator)
        right = balance(tokens, lengths) == BALANCED
        some = Split(tokens[right], lengths[right])
        smart = (order[right] == self.fixed_order(some, "smart")).all(-1).double().mean().item() if right.any() else 0.0
        generated, draws = generate_unique(
            lambda size, noise: self.generate(size, noise)[:2],
            count,
            self.config.seed,
            device,
            row_bytes=self.row_bytes,
            folder=self.scratch,
            about=digest(self.state_dict()),
        )
        found = {"smart_generated": smart, "correct_generated": right.double().mean().item()}
        counts = {"different": float(len(generated.lengths)), "draws": float(draws)}
        return {**found, **shares(generated, self.data.train, self.config.longest), **counts}
