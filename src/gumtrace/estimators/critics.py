"""Critics for RELAX: smooth functions of the noise, small enough to be trained beside a model.

They compute in their own dtype and return the dtype of the noise.
"""

from typing import NoReturn

import torch
from torch import Tensor, nn

_EMBEDDING = 8  # entries of the embedding of a row or column


class VectorCritic(nn.Module):
    """A perceptron on noise (*S, d) and context (*batch, c).

    Args:
        size: d.
        hidden: width of its two layers.
        context: c, features of the context.
    """

    key_dims = 1
    """Dimensions of the noise that it takes at once."""

    def __init__(self, size: int, *, hidden: int = 64, context: int = 0):
        super().__init__()
        self.net, self.size, self.context = _perceptron(size + context, hidden), size, context

    def forward(self, noise: Tensor, context: Tensor | None = None) -> Tensor:
        if noise.shape[-1:] != (self.size,):
            _refuse(self, str(self.size), noise, "pad all batches to one width (lengths=); MatrixCritic takes n x m")
        own = noise.to(self.net[-1].weight.dtype)  # type: ignore[arg-type]
        return self.net(_join(own, context, self)).squeeze(-1).to(noise.dtype)


class MatrixCritic(nn.Module):
    """For noise (*S, n, m) of any size: the features of an entry are the noise there, the means of its row and column,
    and the context.

    Entries that do not race are left out, so padding changes nothing. Nor does permuting the nodes: all entries are
    treated alike. For an objective that tells nodes apart, give the size.

    Args:
        size: n, or (n, m): every row and every column gets a learned embedding, a feature of its entries.
        hidden: width of its layers.
        context: features of the context.

    >>> critic = MatrixCritic(size=3)
    >>> noise = torch.randn(4, 3, 3)
    >>> critic(noise).shape
    torch.Size([4])
    """

    key_dims = 2

    def __init__(self, *, size: int | tuple[int, int] | None = None, hidden: int = 32, context: int = 0):
        super().__init__()
        n, m = (size, size) if isinstance(size, int) else size or (0, 0)
        self.size = (n, m) if size else None
        self.rows = nn.Parameter(torch.randn(n, 1, _EMBEDDING)) if size else None
        self.columns = nn.Parameter(torch.randn(m, _EMBEDDING)) if size else None
        seen = 3 + context + (2 * _EMBEDDING if size else 0)
        self.entry = nn.Sequential(nn.Linear(seen, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.out, self.context = nn.Linear(hidden, 1), context

    def forward(self, noise: Tensor, context: Tensor | None = None) -> Tensor:
        if noise.dim() < 2 or self.size not in (None, noise.shape[-2:]):
            made_for = " x ".join(map(str, self.size or "nm"))
            _refuse(self, made_for, noise, "VectorCritic takes n keys")
        own = noise.to(self.out.weight.dtype)
        racing = noise != 0  # RELAX puts 0 where a key does not race; other noise is almost never 0
        means = [own.sum(dim, keepdim=True) / racing.sum(dim, keepdim=True).clamp(min=1) for dim in (-1, -2)]
        seen = torch.stack(torch.broadcast_tensors(own, *means), -1)  # (*S, n, m, 3)
        seen = _join(self._with_embeddings(seen), None if context is None else context[..., None, None, :], self)
        entries = self.entry(seen) * racing[..., None]
        count = racing.sum((-1, -2)).clamp(min=1)
        return self.out(entries.sum((-2, -3)) / count[..., None]).squeeze(-1).to(noise.dtype)

    def _with_embeddings(self, seen: Tensor) -> Tensor:
        """(*S, n, m, features), with the embeddings of row and column if there are any."""
        if self.rows is None or self.columns is None:
            return seen
        embeddings = [x.expand(*seen.shape[:-1], _EMBEDDING) for x in (self.rows, self.columns)]
        return torch.cat([seen, *embeddings], -1)


def _refuse(critic: nn.Module, made_for: str, noise: Tensor, other: str) -> NoReturn:
    shape = tuple(noise.shape)
    raise ValueError(f"{type(critic).__name__}: made for {made_for} keys, got noise of shape {shape}; {other}")


def _perceptron(size: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def _join(x: Tensor, context: Tensor | None, critic: VectorCritic | MatrixCritic) -> Tensor:
    """The features followed by the context, which is repeated over the samples."""
    given = 0 if context is None else context.shape[-1]
    if given != critic.context:
        name = type(critic).__name__
        raise ValueError(f"{name}: made for {critic.context} features of the context (context=), got {given}")
    if context is None:
        return x
    return torch.cat([x, context.expand(*x.shape[:-1], context.shape[-1]).to(x.dtype)], -1)
