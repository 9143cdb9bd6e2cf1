"""The encoder, which says how likely orders of a sequence are. Sequences are padded to one length, and nothing here
reads a value."""

import torch
from torch import Tensor, nn

from gumtrace_experiments.bidirectional import BidirectionalLSTM, rows, turned
from gumtrace_experiments.parentheses.data import Split


class Encoder(nn.Module):
    """Sequences to a logit for each token, by a one-layer LSTM in both directions.

    >>> batch = Split(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    >>> Encoder(types=2, hidden=8)(batch).shape
    torch.Size([1, 5])
    """

    def __init__(self, types: int, hidden: int = 300):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(2 * types, hidden))
        self.lstm = BidirectionalLSTM(hidden, hidden)
        self.out = nn.Linear(2 * hidden, 1)

    def forward(self, batch: Split) -> Tensor:
        """(B, n)."""
        with torch.autocast(batch.tokens.device.type, enabled=False):  # logits reach far
            states = self.lstm(rows(self.embedding, batch.tokens), turned(batch.lengths, batch.tokens.shape[-1]))
            return self.out(states).squeeze(-1)

    def compile(self, *args, **kwargs) -> None:
        """There is nothing to compile: an LSTM is one call of a library, which torch.compile leaves alone."""
