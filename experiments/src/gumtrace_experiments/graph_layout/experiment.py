"""Graph layout: which tree made these points move? An autoencoder whose latent variable is a spanning tree."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gumtrace.diagnostics.gradients import gradients
from gumtrace.divergences import noise_kl
from gumtrace.estimators import GraphSurrogate
from gumtrace.structures.spanning_tree import SpanningTree
from gumtrace_experiments.columns import Report
from gumtrace_experiments.config import Config, build_estimator, suggest_estimator
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.graph_layout.data import Layouts, Split, load
from gumtrace_experiments.graph_layout.decoder import SHARED, FusedDecoder
from gumtrace_experiments.graph_layout.encoder import Encoder

VARIANCE = 5e-5  # of a coordinate, given the one predicted
CHUNK = 1000  # items evaluated at once
DRAWS = 10  # of the gradient, for its standard deviation


@dataclass(frozen=True)
class GraphLayoutConfig(Config):
    training: Literal["teacher-forced", "unrolled"] = "teacher-forced"
    """Predict each frame from the true one before it, or all of them from the first, as the paper does."""
    frames: int = 10
    """Frames of a scene, T."""
    nodes: int = 10
    hidden: int = 256
    """Width of the layers of encoder and decoder."""
    decoder_lr: float = 0.0
    """Learning rate of the decoder; 0: the same as --lr."""
    critic_hidden: int = 256
    """Width of RELAX's critic."""
    train_size: int = 50_000
    test_size: int = 10_000
    """Size of the test set, and of the validation set."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("hidden", "critic_hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.decoder_lr >= 0:
            raise ValueError(f"decoder_lr must not be negative, got {self.decoder_lr}")


class GraphLayout(Experiment):
    name = "graph-layout"
    config_type = GraphLayoutConfig
    selection_metric = "elbo"
    data_fields = ("frames", "nodes", "train_size", "test_size")
    config: GraphLayoutConfig
    data: Layouts

    def __init__(self, config: GraphLayoutConfig, data: Layouts):
        super().__init__(config, data)
        seen = config.frames * config.nodes * 2
        self.encoder = Encoder(config.frames, config.nodes, config.hidden)
        self.decoder = FusedDecoder(config.nodes, config.hidden)
        self.estimator = build_estimator(
            config,
            critic=lambda: Critic(config.nodes**2, seen, config.critic_hidden),
            surrogate=lambda: GraphSurrogate(config.nodes, 2 * config.frames),
        )

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self.with_own_rate(self.decoder, self.config.decoder_lr)

    @staticmethod
    def smoke(config: GraphLayoutConfig) -> GraphLayoutConfig:
        return config.replace(
            frames=5,
            nodes=5,
            hidden=32,
            calls=64,
            train_size=512,
            test_size=128,
            iterations=60,
            evaluate_every=20,
            start_iterations=20,
        )

    @staticmethod
    def load(config: Any, folder: Path, device: torch.device) -> Layouts:
        sizes = (config.train_size, config.test_size, config.test_size)
        return load(folder, frames=config.frames, nodes=config.nodes, sizes=sizes).to(device)

    @staticmethod
    def search(config: GraphLayoutConfig, trial: Any) -> GraphLayoutConfig:
        """The paper's ranges; temperatures of relaxations as the paper it takes them from."""
        rates = {name: trial.suggest_float(name, 1e-5, 1e-3, log=True) for name in ("lr", "decoder_lr")}
        found = suggest_estimator(config.replace(**rates), trial)
        if "critic" in config.estimator_type.settings():
            found = found.replace(critic_hidden=trial.suggest_categorical("critic_hidden", [256, 512, 1024, 2056]))
        return found

    @classmethod
    def report(cls) -> Report:
        from gumtrace_experiments.graph_layout.paper import REPORT

        return REPORT

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.graph_layout.pictures import draw

        return draw(self, path, count=count, split=split)

    @property
    def items(self) -> int:
        return len(self.data.train.positions)

    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        split = self.data.train
        positions = split.positions.index_select(0, index)
        dist = self.posterior(positions)
        kl = self.kl(dist)
        trees: list[Tensor] = []  # that the objective saw

        def objective(structure: Tensor) -> Tensor:
            trees.append(structure.detach())
            return self.reconstruction(positions, structure)

        reconstruction = self.estimator(dist, objective, self.context(positions), generator=generator)
        loss = (reconstruction + kl).mean()
        metrics = {"elbo": -loss, "kl": kl.mean()}
        metrics["precision"] = _hits(trees[0], split.trees.index_select(0, index)) / (self.config.nodes - 1)
        return loss, metrics

    def gradient_std(self, index: Tensor, generator: torch.Generator) -> float:
        positions = self.data.train.positions.index_select(0, index)
        with torch.no_grad():
            dist = self.posterior(positions)
        objective = partial(self.reconstruction, positions)
        grads = gradients(self.estimator, dist, objective, DRAWS, generator, self.context(positions))
        return grads.std(0)[dist.racing.expand(grads.shape[1:])].mean().item()

    def posterior(self, positions: Tensor) -> SpanningTree:
        """The distribution of the tree, given the frames (B, frames, n, 2)."""
        return SpanningTree(self.encoder(positions), validate_args=False)

    def context(self, positions: Tensor) -> Tensor:
        """What a critic or a surrogate sees of the frames (B, frames, n, 2), flat; the surrogate node by node."""
        if hasattr(self.estimator, "surrogate"):
            positions = positions.transpose(1, 2)
        return positions.flatten(1)

    def kl(self, dist: SpanningTree) -> Tensor:
        """KL divergence of noise from that of a uniform prior, (B,). Both (i, j) and (j, i) count, as in the paper."""
        prior = SpanningTree(torch.zeros_like(dist.logits), validate_args=False)
        return 2 * noise_kl(dist, prior) / self.config.nodes

    def reconstruction(self, positions: Tensor, structure: Tensor, unrolled: bool | None = None) -> Tensor:
        """-log p(frames | tree) up to a constant, a node: (samples, B) for trees (samples, B, n, n)."""
        if unrolled is None:
            unrolled = self.config.training == "unrolled"
        few = unrolled or len(structure) < SHARED
        hard = few and (not self.estimator.differentiates or not torch.is_grad_enabled())
        # The gradient of a temperature is that of a variance in which the objective's slope occurs.
        twice = self.config.learns_temperature and torch.is_grad_enabled()
        if unrolled:
            steps = positions.shape[1] - 1
            predicted = self.decoder.unroll(positions[:, 0], structure, steps, hard=hard, twice=twice)
        else:
            predicted = self.decoder(positions[:, :-1], structure, hard=hard, twice=twice)
        error = (predicted - positions[:, 1:]).square().sum((-1, -2, -3))  # (samples, B)
        return error / (2 * VARIANCE * self.config.nodes)

    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """One sample per graph, every frame predicted from the true one before it, however the model was trained."""
        data: Split = getattr(self.data, split)
        totals = torch.zeros(3, dtype=torch.float64, device=data.positions.device)
        for positions, trees in zip(data.positions.split(CHUNK), data.trees.split(CHUNK), strict=True):
            dist = self.posterior(positions)
            value = dist.sample((1,), generator=generator)
            elbo = -self.reconstruction(positions, value, unrolled=False)[0] - self.kl(dist)
            sums = torch.stack([elbo.sum(), self.kl(dist).sum(), _hits(value, trees) * len(positions)])
            totals += sums.double()
        elbo, kl, hits = (totals / len(data.positions)).tolist()
        return {"elbo": elbo, "kl": kl, **edge_metrics(hits, self.config.nodes)}


class Critic(nn.Module):
    """A perceptron with one hidden layer on the frames and the noise, as the paper's; smooth, as RELAX needs it."""

    def __init__(self, noise: int, context: int, hidden: int):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(noise + context, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, noise: Tensor, context: Tensor) -> Tensor:
        """(*S, B) for noise (*S, B, n, n) and context (B, c)."""
        noise = noise.flatten(-2)
        return self.net(torch.cat([noise, context.expand(*noise.shape[:-1], -1)], -1)).squeeze(-1)


def _hits(value: Tensor, trees: Tensor) -> Tensor:
    """Edges of the true trees (B, n, n) in the values (samples, B, n, n), a graph, on average."""
    return (value * trees).sum((-1, -2)).mean() / 2


def edge_metrics(hits: float, nodes: int) -> dict[str, float]:
    """Precision and recall of X or of 1 - X, whichever is more precise: the model cannot know which is the tree.

    >>> edge_metrics(9.0, 10)
    {'precision': 1.0, 'recall': 1.0, 'complement': 0.0}
    >>> edge_metrics(0.0, 10)["precision"]  # of 36 edges, 9 are right
    0.25
    """
    edges = nodes - 1
    others = nodes * edges // 2 - edges
    precision, inverted = hits / edges, (edges - hits) / max(others, 1)
    if precision >= inverted:
        return {"precision": precision, "recall": precision, "complement": 0.0}
    return {"precision": inverted, "recall": (edges - hits) / edges, "complement": 1.0}
