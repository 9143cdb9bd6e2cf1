"""What both experiments share beside the data: the encoder, which says how likely orders of a sequence are, and RELAX's
critic. Sequences are padded to one length, and nothing here reads a value."""

import torch
from torch import Tensor, nn

from gumtrace_experiments.bidirectional import BidirectionalLSTM, rows, turned
from gumtrace_experiments.parentheses.data import Split

_READ = 16  # numbers that a critic knows of a token
_FAR = 3.0  # from the mean, in units of the noise


class Encoder(nn.Module):
    """Sequences to a logit for each token, by a one-layer LSTM in both directions.

    >>> batch = Split(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    >>> Encoder(types=2, hidden=8)(batch).shape
    torch.Size([1, 5])
    """

    def __init__(self, types: int, hidden: int = 300):
        super().__init__()
        self.reader = _Reader(types, hidden)
        self.out = nn.Linear(2 * hidden, 1)

    def forward(self, batch: Split) -> Tensor:
        """(B, n)."""
        with torch.autocast(batch.tokens.device.type, enabled=False):  # logits reach far
            return self.out(self.reader(batch)).squeeze(-1)

    def compile(self, *args, **kwargs) -> None:
        """There is nothing to compile: an LSTM is one call of a library, which torch.compile leaves alone."""


class Critic(nn.Module):
    """RELAX's function of the noise and the tokens, smooth in the noise.

    The paper's LSTM reads both. Here the tokens are read apart, and once for all noise: `read` is the context of the
    estimator. What RELAX differentiates twice is then free of the LSTM, whose second derivative cuDNN does not have.

    >>> batch = Split(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    >>> critic = Critic(types=2, longest=5, hidden=8)
    >>> critic(torch.randn(3, 1, 5), critic.read(batch)).shape
    torch.Size([3, 1])
    """

    def __init__(self, types: int, longest: int, hidden: int = 300):
        super().__init__()
        self.reader, self.short = _Reader(types, hidden), nn.Linear(2 * hidden, _READ)
        self.hidden, self.out = nn.Linear(longest * (_READ + 1), hidden), nn.Linear(hidden, 1)

    def read(self, batch: Split) -> Tensor:
        """(B, 16 n)."""
        with torch.autocast(batch.tokens.device.type, enabled=False):
            return (self.short(self.reader(batch)) * batch.racing[..., None]).flatten(1)

    def forward(self, noise: Tensor, context: Tensor) -> Tensor:
        """(*S,) for noise (*S, n), 0 in the padding."""
        with torch.autocast(noise.device.type, enabled=False):
            read = context.expand(*noise.shape[:-1], context.shape[-1])
            hidden = torch.tanh(self.hidden(torch.cat([read, _differences(noise.to(read.dtype))], -1)))
            return self.out(hidden).squeeze(-1).to(noise.dtype)


def _differences(noise: Tensor) -> Tensor:
    """(*S, n): of the tokens' noise to its mean, which no order depends on; a logit that has gone far, no farther than
    1. 0 in the padding."""
    racing = noise != 0  # RELAX puts 0 into the padding; no other noise is 0 but by a rare accident
    mean = noise.sum(-1, keepdim=True) / racing.sum(-1, keepdim=True).clamp(min=1)
    return torch.tanh((noise - mean) * racing / _FAR)


class _Reader(nn.Module):
    """(B, n, 2 hidden) of what stands around each token."""

    def __init__(self, types: int, hidden: int):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(2 * types, hidden))
        self.lstm = BidirectionalLSTM(hidden, hidden)

    def forward(self, batch: Split) -> Tensor:
        return self.lstm(rows(self.embedding, batch.tokens), turned(batch.lengths, batch.tokens.shape[-1]))
