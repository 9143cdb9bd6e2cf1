"""What supports of structures are made of: torch.distributions constraints whose `check(value)` says which values are
possible. Each structure's own is in its file."""

import torch
from torch import Tensor
from torch.distributions import constraints


class Support(constraints.Constraint):
    """A constraint on a whole discrete event."""

    is_discrete = True

    def __init__(self, event_dim: int):
        self._event_dim = event_dim
        super().__init__()

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return self._event_dim

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class IndicatorSupport(Support):
    """0/1 over any event."""

    def check(self, value: Tensor) -> Tensor:
        good = binary(value)
        return good.flatten(good.dim() - self.event_dim).all(-1) if self.event_dim else good


def binary(value: Tensor, racing: Tensor | None = None) -> Tensor:
    """0, or 1 where a key races."""
    one = value == 1
    return (value == 0) | (one if racing is None else one & racing)


def count(value: Tensor) -> Tensor:
    """How many ones, as an integer: half types do not hold every count."""
    return (value == 1).sum(-1)


def closure(adjacency: Tensor) -> Tensor:
    """Who can reach whom, by repeated squaring."""
    n = adjacency.shape[-1]
    reach = ((adjacency > 0.5) | torch.eye(n, dtype=torch.bool, device=adjacency.device)).float()
    for _ in range(max(n - 1, 1).bit_length()):
        reach = (reach @ reach > 0.5).float()
    return reach > 0.5


def part_count(adjacency: Tensor) -> Tensor:
    """How many connected components: nodes that reach no node of a lower number."""
    reach = closure(adjacency)
    return (~reach.tril(-1).any(-1)).sum(-1)
