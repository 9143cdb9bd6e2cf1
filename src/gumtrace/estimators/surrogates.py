"""Cheap functions c(X) of a structure, fitted to the objective as training goes along."""

import torch
from torch import Tensor, nn


class LinearSurrogate(nn.Module):
    """c(X) = w·φ(X), by ridge regression on all losses seen, older ones counting less.

    φ is a one and the entries of the structure; `PairwiseSurrogate` adds their products.

    Args:
        ridge: how strongly w is held at zero.
        forget: weight of an iteration's losses relative to the next one's; 1 if the objective does not change.
    """

    def __init__(self, ridge: float = 1e-3, forget: float = 0.99):
        super().__init__()
        self.ridge, self.forget = ridge, forget
        self.weight: Tensor | None = None
        self.gram: Tensor | None = None
        self.moment: Tensor | None = None

    def features(self, x: Tensor) -> Tensor:
        """(*S, entries) -> (*S, features)."""
        return torch.cat([torch.ones_like(x[..., :1]), x], -1)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if self.weight is None:
            return x.new_zeros(x.shape[:-1])
        return self.features(x) @ self.weight.to(x.dtype)

    @torch.no_grad()
    def fit(self, x: Tensor, loss: Tensor, context: Tensor | None = None) -> None:
        """Take these losses into account from the next call on."""
        features = self.features(x).flatten(0, -2).double()  # (rows, features)
        if self.gram is None or self.moment is None:
            size = features.shape[-1]
            self.gram, self.moment = features.new_zeros(size, size), features.new_zeros(size)
        self.gram = self.forget * self.gram + features.mT @ features
        self.moment = self.forget * self.moment + features.mT @ loss.flatten().double()
        ridge = self.ridge * torch.eye(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)
        self.weight = torch.linalg.solve(self.gram + ridge, self.moment)


class PairwiseSurrogate(LinearSurrogate):
    """Products of entries too: right for objectives that are quadratic in the structure."""

    def features(self, x: Tensor) -> Tensor:
        size = x.shape[-1]
        i, j = torch.triu_indices(size, size, 1, device=x.device)
        return torch.cat([super().features(x), x[..., i] * x[..., j]], -1)


class MLPSurrogate(nn.Module):
    """A perceptron on the structure and the context, trained by its own optimiser on recent losses.

    Args:
        size: entries of the structure.
        context: features of the context.
        memory: how many losses it is trained on.
        steps: optimiser steps at each call.
    """

    def __init__(
        self, size: int, hidden: int = 64, context: int = 0, *, lr: float = 3e-3, memory: int = 4096, steps: int = 4
    ):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(size + context, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )
        self.requires_grad_(False)  # its own optimiser trains it: a training loop's must not
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr)
        self.memory, self.steps = memory, steps
        self.seen: Tensor | None = None  # (rows, inputs)
        self.losses: Tensor | None = None
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        inputs = _with_context(x, context).to(self.centre.dtype)
        return (self.net(inputs).squeeze(-1) * self.spread + self.centre).to(x.dtype)

    def fit(self, x: Tensor, loss: Tensor, context: Tensor | None = None) -> None:
        inputs = _with_context(x, context).flatten(0, -2).to(self.centre.dtype)
        loss = loss.flatten().to(self.centre.dtype)
        self.seen = inputs if self.seen is None else torch.cat([self.seen, inputs])[-self.memory :]
        self.losses = loss if self.losses is None else torch.cat([self.losses, loss])[-self.memory :]
        self.centre = self.losses.mean()
        self.spread = self.losses.std(correction=0).clamp(min=1e-6)
        with torch.enable_grad():
            self.net.requires_grad_(True)
            for _ in range(self.steps):
                rows = torch.randint(len(self.seen), (min(256, len(self.seen)),), device=self.seen.device)
                error = self.net(self.seen[rows]).squeeze(-1) - (self.losses[rows] - self.centre) / self.spread
                self.optimiser.zero_grad()
                error.square().mean().backward()
                self.optimiser.step()
            self.net.requires_grad_(False)


def _with_context(x: Tensor, context: Tensor | None) -> Tensor:
    if context is None:
        return x
    return torch.cat([x, context.expand(*x.shape[:-1], context.shape[-1]).to(x.dtype)], -1)
