"""The encoder, which says how likely orders of a sequence are. Sequences are padded to one length, and nothing here
reads a value."""

from typing import cast

import torch
from torch import Tensor, nn

from gumtrace_experiments.bidirectional import BidirectionalLSTM, along, rows, turned
from gumtrace_experiments.parentheses import recurrence
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.small_lstm import stacked_weights


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
            back = turned(batch.lengths, batch.tokens.shape[-1])
            if recurrence.serves(self.embedding):
                states = self._read_at_once(batch.tokens, back)
            else:
                states = self.lstm(rows(self.embedding, batch.tokens), back)
            return self.out(states).squeeze(-1)

    def _read_at_once(self, tokens: Tensor, back: Tensor) -> Tensor:
        """What the LSTM returns, both directions in the same steps: cuDNN would take one after the other."""
        weights = stacked_weights([cast(nn.LSTM, self.lstm.forwards[0]), cast(nn.LSTM, self.lstm.backwards[0])])
        # torch has the gates in the order in, forget, new, out, and `recurrence` has the last two the other way round.
        by_gate = (x.chunk(4, 1) for x in weights)
        entering, carry, bias = (torch.cat([opens, forgets, out, new], 1) for opens, forgets, new, out in by_gate)
        table = torch.baddbmm(bias[:, None], self.embedding.expand(2, -1, -1), entering.mT)  # (2, symbols, 4 hidden)
        both = torch.stack([tokens, tokens.gather(-1, back) + len(self.embedding)])
        gates = rows(table.flatten(0, 1), both.permute(2, 0, 1))  # (n, 2, B, 4 hidden)
        forwards, backwards = recurrence.states(gates, carry.mT).permute(1, 2, 0, 3)  # (B, n, hidden)
        return torch.cat([forwards, along(backwards, back)], -1)

    def compile(self, *args, **kwargs) -> None:
        """There is nothing to compile: LSTMs are calls of a library or kernels, which torch.compile leaves alone."""
