"""The encoder of Neural Relational Inference (Kipf et al., 2018), the MLP version. Under autocast the wide layers run
in half precision, and what reads coordinates or writes results does not."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumtrace_experiments.graph_layout.layers import at_nodes, ends, with_diagonal


class Encoder(nn.Module):
    """Frames of moving nodes to logits of their edges.

    >>> Encoder(frames=4, nodes=3, hidden=8)(torch.randn(2, 4, 3, 2)).shape
    torch.Size([2, 3, 3])
    """

    ends: Tensor

    def __init__(self, frames: int, nodes: int = 10, hidden: int = 256):
        super().__init__()
        self.nodes = nodes
        self.mlp1, self.mlp3 = _MLP(2 * frames, hidden), _MLP(hidden, hidden)  # of nodes
        self.mlp2, self.mlp4 = _MLP(2 * hidden, hidden), _MLP(3 * hidden, hidden)  # of pairs
        self.out = nn.Linear(hidden, 1)
        self.register_buffer("ends", ends(nodes), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
                nn.init.constant_(module.bias, 0.1)

    def forward(self, positions: Tensor) -> Tensor:
        """Positions (B, frames, n, 2) to symmetric logits (B, n, n), zero on the diagonal."""
        with torch.autocast(positions.device.type, enabled=False):
            read = self.mlp1.fc1(positions.transpose(1, 2).flatten(2))
        nodes = self.mlp1(read)  # (B, n, hidden)
        first = self.mlp2.fc1
        pairs = self.mlp2(self._to_pairs(nodes, first.weight, first.bias))  # (B, n(n-1), hidden)
        incoming = pairs.unflatten(1, (self.nodes, -1)).sum(2) / self.nodes  # by n, though there are n - 1: as in NRI
        nodes = self.mlp3(self.mlp3.fc1(incoming))
        first = self.mlp4.fc1
        ends, skip = first.weight.split([2 * nodes.shape[-1], pairs.shape[-1]], 1)
        pairs = self.mlp4(self._to_pairs(nodes, ends, first.bias) + F.linear(pairs, skip))
        with torch.autocast(positions.device.type, enabled=False):
            logits = with_diagonal(self.out(pairs.to(read.dtype)).squeeze(-1), self.nodes)
        return (logits + logits.mT) / 2

    def _to_pairs(self, nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.ends @ _halves(nodes, *at_nodes(weight, bias))


class _MLP(nn.Module):
    """Linear, ELU, linear, ELU, batch norm over items and nodes or pairs. The first layer is left to the caller."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.norm = _BatchNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.fc2(F.elu(x)))
        return self.norm(x.flatten(0, 1)).view_as(x)


class _BatchNorm(nn.BatchNorm1d):
    """With running variances that are not less than a small part of their mean.

    A channel may be constant in batch after batch and yet differ for one graph in thousands. Its running variance is
    next to nothing then, and that graph would have logits of -1e5, and a KL divergence of e^1e5.
    """

    LEAST = 1e-5

    def forward(self, input: Tensor) -> Tensor:
        if self.training or self.running_var is None:
            return super().forward(input)
        variance = self.running_var.clamp_min(self.LEAST * self.running_var.mean())
        return F.batch_norm(input, self.running_mean, variance, self.weight, self.bias, eps=self.eps)


def _halves(nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(*, n, inputs) to (*, 2n, hidden): each node as a sender, then as a receiver."""
    return F.linear(nodes, weight, bias).unflatten(-1, (2, -1)).flatten(-3, -2)
