"""Parentheses along a binary tree: the paper's non-monotonic LSTM generates a tree level by level from its root."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gumtrace.structures.base import Structure
from gumtrace.structures.binary_tree import BinaryTree
from gumtrace_experiments.parentheses.brackets import left_to_right_tree, smart_tree
from gumtrace_experiments.parentheses.critic import LSTMCritic
from gumtrace_experiments.parentheses.data import Sequences, Split
from gumtrace_experiments.parentheses.orders import OrderConfig
from gumtrace_experiments.parentheses.task import Generated, OrderExperiment, Proposal
from gumtrace_experiments.parentheses.tree_model import Decoder
from gumtrace_experiments.parentheses.tree_order import from_level_order, level_order
from gumtrace_experiments.parentheses.tree_proposals import GeneratedTrees, propose

_TREES = {"left-to-right": left_to_right_tree, "smart": smart_tree}
ALONE = {"_by_encoder": 1.0, "_by_decoder": 0.0}  # shares of trees from the encoder


@dataclass(frozen=True)
class TreeConfig(OrderConfig):
    proposal_trees: int = 10_000
    """Trees that the decoder generates, to propose trees for the bound of the likelihood; as in the paper."""
    proposal_share: float = 0.1
    """Share of the proposed trees that come from the encoder instead; the paper's is 0."""

    def __post_init__(self):
        super().__post_init__()
        if self.proposal_trees < 1:
            raise ValueError(f"proposal_trees must be at least 1, got {self.proposal_trees}")
        if not 0 <= self.proposal_share <= 1:
            raise ValueError(f"proposal_share must be from 0 to 1, got {self.proposal_share}")


class TreeExperiment(OrderExperiment):
    name = "parentheses-tree"
    config_type = TreeConfig
    config: TreeConfig

    def __init__(self, config: TreeConfig, data: Sequences):
        super().__init__(config, data)
        self.decoder = Decoder(config.types, config.hidden)
        self.estimator = self.build_with(partial(LSTMCritic, config.types, config.hidden))

    @staticmethod
    def smoke(config: TreeConfig) -> TreeConfig:
        return OrderExperiment.smoke(config).replace(proposal_trees=1000)

    def draw(self, path: Path, count: int, split: str) -> Path:
        from gumtrace_experiments.parentheses.tree_pictures import draw

        return draw(self, path, count=count, split=split)

    def structure(self, logits: Tensor, lengths: Tensor) -> Structure:
        return BinaryTree(logits, lengths=lengths, validate_args=False)

    def fixed_order(self, batch: Split, order: str) -> Tensor:
        return _TREES[order](*batch)

    def log_joint(self, batch: Split, order: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.decoder(level_order(*batch, order, self.decoder.eos))

    def generate(self, count: int, generator: torch.Generator) -> Generated:
        """Twice as long as those of the training set, if need be."""
        symbols = self.decoder.generate(count, 2 * self.config.longest, generator)
        return Generated(*from_level_order(symbols, self.decoder.eos))

    @property
    def row_bytes(self) -> int:
        """Of the LSTM's gates and states, of the scores, and of nodes when they are put in order."""
        c = self.config
        return 4 * (10 * c.hidden + 6 * (2 * c.types + 1)) + 8 * 12 * (4 * c.longest + 2)

    def proposal(self, split: str, generator: torch.Generator) -> Proposal:
        """Trees that the decoder generated, and some of the encoder; on test also those of each alone. By the decoder
        alone is as in the paper."""
        _, lengths, parents = self.generate(self.config.proposal_trees, generator)
        trees = GeneratedTrees(parents[:, : self.config.longest], lengths)
        shares = {"": self.config.proposal_share, **(ALONE if split == "test" else {})}
        return lambda batch, dist, count: propose(dist, batch.lengths, trees, shares, count, generator)
