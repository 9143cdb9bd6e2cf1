"""Parentheses by insertions: a Transformer that puts tokens between others, in an order that is a permutation."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gumtrace.structures.base import Structure
from gumtrace.structures.permutation import Permutation
from gumtrace_experiments.parentheses.brackets import smart_permutation
from gumtrace_experiments.parentheses.critic import LSTMCritic
from gumtrace_experiments.parentheses.data import Sequences, Split
from gumtrace_experiments.parentheses.insertion_model import Decoder
from gumtrace_experiments.parentheses.orders import OrderConfig
from gumtrace_experiments.parentheses.task import Generated, OrderExperiment


@dataclass(frozen=True)
class InsertionConfig(OrderConfig):
    iterations: int = 20_000
    evaluate_every: int = 1000
    start_iterations: int = 2000
    lr: float = 5e-4
    width: int = 256
    """Width of the decoder; the paper does not give its sizes. --hidden is that of the encoder and of the critic."""
    layers: int = 4
    """Blocks of the decoder."""
    heads: int = 8
    """Heads of attention in a block."""
    dropout: float = 0.1
    """Of the decoder's blocks."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of the {self.heads} heads, got {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self.dropout}")


class InsertionExperiment(OrderExperiment):
    name = "parentheses-insertion"
    config_type = InsertionConfig
    config: InsertionConfig

    def __init__(self, config: InsertionConfig, data: Sequences):
        super().__init__(config, data)
        self.decoder = Decoder(2 * config.types, config.width, config.layers, config.heads, config.dropout)
        self.estimator = self.build_with(partial(LSTMCritic, config.types, config.hidden))

    @staticmethod
    def smoke(config: InsertionConfig) -> InsertionConfig:
        return OrderExperiment.smoke(config).replace(width=32, layers=2, heads=4, dropout=0.0)

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.parentheses.insertion_pictures import draw

        return draw(self, path, count=count, split=split)

    def structure(self, logits: Tensor, lengths: Tensor) -> Structure:
        return Permutation(logits, lengths=lengths, validate_args=False)

    def fixed_order(self, batch: Split, order: str) -> Tensor:
        if order == "smart":
            return smart_permutation(*batch)
        return torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(batch.tokens)

    def log_joint(self, batch: Split, order: Tensor, generator: torch.Generator | None = None) -> Tensor:
        keep = self.decoder.masks(batch.tokens, generator)
        return self.decoder(batch.tokens, order, batch.lengths, keep).total

    def generate(self, count: int, generator: torch.Generator) -> Generated:
        """Twice as long as those of the training set, if need be."""
        drawn = self.decoder.generate(count, 2 * self.config.longest, generator)
        return Generated(drawn.tokens, torch.where(drawn.ended, drawn.lengths, -1), drawn.order)

    @property
    def row_bytes(self) -> int:
        """Of keys, values and sides of as many elements as a long sequence of the data has. Twice as many would take
        four times the memory, were they not fewer and fewer that are so long."""
        c = self.config
        return 4 * c.longest * (2 * c.layers + 2) * c.width
