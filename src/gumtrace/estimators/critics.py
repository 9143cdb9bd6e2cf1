"""Critics for RELAX: smooth functions of the noise, small enough to train along."""

import torch
from torch import Tensor, nn


class VectorCritic(nn.Module):
    """A perceptron on noise (*S, d) and context (*batch, c)."""

    def __init__(self, size: int, hidden: int = 64, context: int = 0):
        super().__init__()
        self.net = _perceptron(size + context, hidden)

    def forward(self, noise: Tensor, context: Tensor | None = None) -> Tensor:
        return self.net(_join(noise, context)).squeeze(-1)


class MatrixCritic(nn.Module):
    """For noise (*S, n, m) of any size: each entry sees itself, the means of its row and column, and the context.

    Nodes have no order here: permuting them changes nothing.
    """

    def __init__(self, hidden: int = 32, context: int = 0):
        super().__init__()
        self.entry = nn.Sequential(nn.Linear(3 + context, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.out = nn.Linear(hidden, 1)

    def forward(self, noise: Tensor, context: Tensor | None = None) -> Tensor:
        rows, cols = noise.mean(-1, keepdim=True), noise.mean(-2, keepdim=True)
        seen = torch.stack(torch.broadcast_tensors(noise, rows, cols), -1)  # (*S, n, m, 3)
        if context is not None:
            seen = _join(seen, context[..., None, None, :])
        return self.out(self.entry(seen).mean((-2, -3))).squeeze(-1)


def _perceptron(size: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def _join(x: Tensor, context: Tensor | None) -> Tensor:
    """Context behind the features, repeated over the samples."""
    if context is None:
        return x
    return torch.cat([x, context.expand(*x.shape[:-1], context.shape[-1])], -1)
