"""Trees to bound the likelihood of a sequence with: from the encoder, and from what the decoder generates.

The paper found that its encoder puts all weight on few trees, and took the trees that the decoder generates instead:
10 000 of them, whatever their tokens, as a distribution over the trees of each size. Such a distribution lacks every
other tree. A share of draws from the encoder, which lacks none, makes the average of P / Q unbiased; each weight is
divided by the mixture that all draws together come from.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gumtrace.structures.base import Structure
from gumtrace_experiments.parentheses.tree_order import level_order, shape_code


class GeneratedTrees:
    """The trees of each size that a decoder generated.

    Args:
        parents: (M, n), values of `BinaryTree`.
        lengths: (M,); -1 for those that came to no end, which are left out.
    """

    def __init__(self, parents: Tensor, lengths: Tensor):
        n = parents.shape[1]
        order = lengths.argsort(stable=True)
        order = order[(lengths[order] > 0) & (lengths[order] <= n)]
        self.parents = parents[order]
        sizes = torch.bincount(lengths[order], minlength=n + 1)
        self.sizes, self.starts = sizes, sizes.cumsum(0) - sizes  # by length
        self.codes, self.counts = _codes(self.parents, lengths[order]).unique(return_counts=True)

    def draw(self, lengths: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, B, n): trees of these lengths; anything where there is none."""
        chance = torch.rand(count, len(lengths), generator=generator, device=lengths.device)
        size = self.sizes[lengths]
        index = self.starts[lengths] + torch.minimum((chance * size).long(), size - 1)
        return self.parents[index.clamp(0, max(len(self.parents) - 1, 0))] if len(self.parents) else self._none(index)

    def log_prob(self, parents: Tensor, lengths: Tensor) -> Tensor:
        """(*S, B) float64, for trees (*S, B, n); -inf for those that were not generated."""
        codes = _codes(parents, lengths)
        if not len(self.codes):
            return torch.full(codes.shape, -math.inf, dtype=torch.float64, device=codes.device)
        place = torch.searchsorted(self.codes, codes).clamp(max=len(self.codes) - 1)
        count = torch.where(self.codes[place] == codes, self.counts[place], 0)
        return count.double().log() - self.sizes[lengths].double().clamp(min=1).log()

    def _none(self, index: Tensor) -> Tensor:
        return torch.full((*index.shape, self.parents.shape[1]), -2, device=index.device)


class _Draws(NamedTuple):
    orders: Tensor  # (K, B, n)
    by_encoder: Tensor  # (K, B) float64, log-probabilities
    by_decoder: Tensor  # (K, B) float64


def propose(
    dist: Structure,
    lengths: Tensor,
    generated: GeneratedTrees,
    shares: Mapping[str, float],
    count: int,
    generator: torch.Generator | None = None,
) -> dict[str, tuple[Tensor, Tensor]]:
    """For each share, by its name: trees (count, B, n), and log-probabilities (count, B) of the mixture. That share of
    them is from the encoder, the others from what the decoder generated; all from the encoder for a length of which
    nothing was. All shares have the same draws in common, so that what is computed of a tree serves all."""

    def described(orders: Tensor) -> _Draws:
        return _Draws(orders, dist.log_prob(orders).double(), generated.log_prob(orders, lengths))

    own = described(dist.sample((count,), generator=generator))
    others = described(generated.draw(lengths, count, generator))
    known = generated.sizes[lengths] > 0
    return {name: _mixed(own, others, known, share) for name, share in shares.items()}


def _mixed(own: _Draws, others: _Draws, known: Tensor, share: float) -> tuple[Tensor, Tensor]:
    count = len(own.orders)
    first = max(round(share * count), int(share > 0))  # few draws have one, too: without it some trees have no chance
    theirs = known & (torch.arange(count, device=known.device) >= first)[:, None]
    orders = torch.where(theirs[..., None], others.orders, own.orders)
    by_encoder, by_decoder = (torch.where(theirs, y, x) for x, y in zip(own[1:], others[1:], strict=True))
    part = torch.where(known, first / count, 1.0).double()
    return orders, torch.logaddexp(part.log() + by_encoder, (1 - part).log() + by_decoder)


def _codes(parents: Tensor, lengths: Tensor) -> Tensor:
    """A number for each tree."""
    blank = torch.zeros(parents.shape[-2:], dtype=torch.int64, device=parents.device)
    return shape_code(level_order(blank, lengths, parents, eos=1), eos=1)
