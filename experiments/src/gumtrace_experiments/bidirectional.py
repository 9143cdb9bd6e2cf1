"""Reading padded tokens in both directions. Nothing here reads a value, so that no host waits for its device, and
padding changes neither the results of the others nor their gradients."""

import torch
from torch import Tensor, nn

from gumtrace_experiments.dropout import dropout


class BidirectionalLSTM(nn.Module):
    """LSTMs that read in both directions.

    torch's own bidirectional one would read padding before the end of a sentence, or has to be told the lengths by the
    host. Here the second direction is a first one on the words in reverse order, so that padding comes last in both.
    """

    def __init__(self, size: int, hidden: int, layers: int = 1, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        sizes = [size] + [2 * hidden] * (layers - 1)
        self.forwards, self.backwards = (
            nn.ModuleList(nn.LSTM(size, hidden, batch_first=True) for size in sizes) for _ in range(2)
        )

    def forward(self, x: Tensor, turned: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, 2 hidden) for x (B, n, size), and its places in reverse order."""
        for layer, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if layer:
                x = dropout(x, self.dropout, generator, self.training)
            x = torch.cat([forwards(x)[0], along(backwards(along(x, turned))[0], turned)], -1)
        return x


def rows(table: Tensor, index: Tensor) -> Tensor:
    """(*index, size), by a lookup whose backward pass does not sort, and waits for nothing."""
    return table.index_select(0, index.flatten()).unflatten(0, index.shape)


def turned(lengths: Tensor, n: int) -> Tensor:
    """(B, n): the places of sentences in reverse order, with padding where it is.

    >>> turned(torch.tensor([3]), 5)
    tensor([[2, 1, 0, 3, 4]])
    """
    place = torch.arange(n, device=lengths.device)
    turned = lengths[:, None] - 1 - place
    return torch.where(turned >= 0, turned, place)


def along(x: Tensor, places: Tensor) -> Tensor:
    """x (B, n, size) at these places (B, n)."""
    return x.gather(1, places[..., None].expand_as(x))
