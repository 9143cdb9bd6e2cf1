"""A perceptron as surrogate: c(X), fitted to recent losses by Adam."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gumtrace.estimators.adam import adam_step, moments_of
from gumtrace.estimators.base import checked_count
from gumtrace.estimators.surrogates import usable

_DRAWN = 256  # losses in a minibatch


class MLPSurrogate(nn.Module):
    """A perceptron on the structure and the context, trained by Adam on recent finite losses.

    It never synchronises, and its tensors keep their memory: a training step with it can be a CUDA graph. It computes
    in float32 or float64, also under autocast. Each process learns from its own losses: keep it out of
    `DistributedDataParallel`, which would broadcast its buffers but not its weights.

    Args:
        size: entries of the structure, see `SurrogateREINFORCE`.
        hidden: width of its two layers.
        context: features of the context.
        lr: learning rate.
        memory: how many losses it is trained on.
        steps: optimiser steps at each call.
    """

    seen: Tensor  # (memory, inputs)
    losses: Tensor  # (memory,)
    count: Tensor  # of the losses so far; the next one replaces the oldest
    centre: Tensor
    spread: Tensor
    moments: Tensor  # (2, parameters), Adam's
    taken: Tensor  # its steps

    def __init__(
        self, size: int, *, hidden: int = 64, context: int = 0, lr: float = 3e-3, memory: int = 4096, steps: int = 4
    ):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(size + context, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )
        self.requires_grad_(False)  # a training loop's optimiser must not update it
        self.lr = lr
        self.memory = checked_count("MLPSurrogate", "memory", memory)
        self.steps = checked_count("MLPSurrogate", "steps", steps)
        self.register_buffer("seen", torch.zeros(memory, size + context))
        self.register_buffer("losses", torch.zeros(memory))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))
        self.register_buffer("moments", moments_of(self.net))
        self.register_buffer("taken", torch.zeros(()))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        inputs = self._inputs(x, context)
        with torch.autocast(x.device.type, enabled=False):
            return (self.net(inputs).squeeze(-1) * self.spread).to(x.dtype) + self.centre

    @torch.no_grad()
    def fit(
        self, x: Tensor, loss: Tensor, context: Tensor | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Train on these losses too, from the next call on."""
        inputs = self._inputs(x, context).flatten(0, -2)
        known = self._remember(inputs[-self.memory :], loss.flatten()[-self.memory :].to(self.centre.dtype))
        where = self.seen.device if generator is None else generator.device
        for _ in range(self.steps):
            part = torch.rand(_DRAWN, generator=generator, device=where).to(self.seen.device)
            rows = torch.minimum((part * known).long(), known - 1)  # a product may be rounded up
            # Autocast would use its cached half-precision weights of the first step for all of them.
            with torch.autocast(self.seen.device.type, enabled=False):
                self._step(self.seen[rows], (self.losses[rows] - self.centre) / self.spread)

    def _inputs(self, x: Tensor, context: Tensor | None) -> Tensor:
        """(*S, entries and context)."""
        inputs, size = _with_context(x, context), self.seen.shape[-1]
        if inputs.shape[-1] != size:
            given = f"{x.shape[-1]} and {0 if context is None else context.shape[-1]}"
            raise ValueError(f"MLPSurrogate: made for {size} entries and features of the context, got {given}")
        return inputs.to(self.centre.dtype)

    def _remember(self, inputs: Tensor, losses: Tensor) -> Tensor:
        """Stores the losses and returns how many there are now. Unusable ones are ordered last and not written."""
        good = usable(losses, losses.dtype) & inputs.isfinite().all(-1)
        rank = torch.where(good, good.cumsum(0), good.sum() + (~good).cumsum(0)) - 1
        place = (self.count + rank) % self.memory
        self.seen.index_copy_(0, place, torch.where(good[:, None], inputs, self.seen[place]))
        self.losses.index_copy_(0, place, torch.where(good, losses, self.losses[place]))
        self.count += good.sum()
        known = self.count.clamp(1, self.memory)  # there may be none in an empty batch
        inside = torch.arange(self.memory, device=losses.device) < known
        self.centre.copy_(self.losses.sum() / known)
        far = torch.where(inside, self.losses - self.centre, 0)
        self.spread.copy_((far.square().sum() / known).sqrt().clamp(min=1e-6))
        return known

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        def error(weights: dict[str, Tensor]) -> Tensor:
            return (functional_call(self.net, weights, (inputs,)).squeeze(-1) - targets).square().mean()

        adam_step(self.net, self.moments, self.taken, self.lr, error)

    def _apply(self, fn, recurse=True):
        """Moves to the estimator's device and dtype, except half precision, in which it would not learn."""
        super()._apply(fn, recurse)
        if self.centre.dtype.itemsize < 4:
            super()._apply(lambda t: t.float() if t.is_floating_point() else t, recurse)
        return self


def _with_context(x: Tensor, context: Tensor | None) -> Tensor:
    """Detached: the fit must not backpropagate into the encoder that made the context, nor keep its graph."""
    if context is not None:
        x = torch.cat([x, context.expand(*x.shape[:-1], context.shape[-1]).to(x.dtype)], -1)
    return x.detach()
