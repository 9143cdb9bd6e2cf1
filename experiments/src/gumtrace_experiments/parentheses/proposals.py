"""Trees to bound the likelihood of a sequence with: from the encoder, and from what the decoder writes.

The paper found that its encoder puts all weight on few trees, and took the trees that the decoder writes instead:
10 000 of them, whatever their tokens, as a distribution over the trees of each size. Such a distribution lacks every
other tree. A share of draws from the encoder, which lacks none, makes the average of P / Q unbiased; each weight is
divided by the mixture that all draws together come from.
"""

import math

import torch
from torch import Tensor

from gumtrace.structures.base import Structure
from gumtrace_experiments.parentheses.trees import level_order, shape_code


class WrittenTrees:
    """The trees of each size that a decoder wrote.

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
        """(*S, B) float64, for trees (*S, B, n); -inf for those that were not written."""
        codes = _codes(parents, lengths)
        if not len(self.codes):
            return torch.full(codes.shape, -math.inf, dtype=torch.float64, device=codes.device)
        place = torch.searchsorted(self.codes, codes).clamp(max=len(self.codes) - 1)
        count = torch.where(self.codes[place] == codes, self.counts[place], 0)
        return count.double().log() - self.sizes[lengths].double().clamp(min=1).log()

    def _none(self, index: Tensor) -> Tensor:
        return torch.full((*index.shape, self.parents.shape[1]), -2, device=index.device)


def propose(
    dist: Structure,
    lengths: Tensor,
    written: WrittenTrees,
    share: float,
    count: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Trees (count, B, n), and log-probabilities (count, B) of the mixture: that share of them from the encoder, the
    others from what was written; all from the encoder for a length of which nothing was."""
    orders = dist.sample((count,), generator=generator)
    own = max(round(share * count), int(share > 0))  # few draws have one, too: without it some trees have no chance
    known = written.sizes[lengths] > 0
    others = written.draw(lengths, count - own, generator)
    orders[own:] = torch.where(known[:, None], others, orders[own:])
    part = torch.where(known, own / count, 1.0).double()
    by_encoder = part.log() + dist.log_prob(orders).double()
    by_decoder = (1 - part).log() + written.log_prob(orders, lengths)
    return orders, torch.logaddexp(by_encoder, by_decoder)


def _codes(parents: Tensor, lengths: Tensor) -> Tensor:
    """A number for each tree."""
    blank = torch.zeros(parents.shape[-2:], dtype=torch.int64, device=parents.device)
    return shape_code(level_order(blank, lengths, parents, eos=1), eos=1)
