"""RELAX's critic as the paper has it: an LSTM that reads each token together with its noise, in both directions."""

import math

import torch
from torch import Tensor, nn

from gumtrace_experiments.both_ways import rows
from gumtrace_experiments.parentheses.data import Split

_SMALL = 1e-5  # next to a variance


class LSTMCritic(nn.Module):
    """A function of noise (*S, B, n), 0 in the padding, and of the tokens: the sum over tokens of a linear layer on the
    LSTM's states.

    Its steps are written out, because RELAX differentiates twice, and cuDNN's LSTM does so once. The noise is centred
    and normalised first: an encoder's logits may go far, and no order depends on their mean.

    >>> batch = Split(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    >>> critic = LSTMCritic(types=2, hidden=8)
    >>> critic(torch.randn(3, 1, 5), critic.read(batch)).shape
    torch.Size([3, 1])
    """

    def __init__(self, types: int, hidden: int = 300):
        super().__init__()
        width = 1 / math.sqrt(hidden)
        self.embedding = nn.Parameter(torch.randn(2 * types, hidden))
        self.input = nn.Parameter(torch.empty(2, hidden + 1, 4 * hidden).uniform_(-width, width))  # both directions
        self.bias = nn.Parameter(torch.empty(2, 1, 4 * hidden).uniform_(-width, width))
        self.carry = nn.Parameter(torch.empty(2, hidden, 4 * hidden).uniform_(-width, width))
        self.out = nn.Parameter(torch.empty(2, hidden, 1).uniform_(-width, width))
        self.constant = nn.Parameter(torch.zeros(()))

    @staticmethod
    def read(batch: Split) -> Tensor:
        """The context of the estimator, (B, n + 1): tokens and lengths."""
        return torch.cat([batch.tokens, batch.lengths[:, None]], -1)

    def forward(self, noise: Tensor, context: Tensor) -> Tensor:
        """(*S,) for noise (*S, n) and the context (*batch, n + 1), whose dimensions are the last of S."""
        *many, n = noise.shape
        tokens, lengths = context[..., :-1].reshape(-1, n), context[..., -1:]
        racing = (torch.arange(n, device=noise.device) < lengths).expand(noise.shape).reshape(-1, n)  # (S B, n)
        with torch.autocast(noise.device.type, enabled=False):
            entries = _standardised(noise.to(self.out.dtype).reshape(-1, n), racing)
            words = rows(self.embedding, tokens) @ self.input[:, None, :-1] + self.bias[:, None]  # (2, B, n, 4 hidden)
            words = words[:, None].expand(2, len(entries) // len(tokens), *words.shape[1:]).flatten(1, 2)
            gates = words + entries[..., None] * self.input[:, None, -1:]  # (2, S B, n, 4 hidden)
            found = self._summed_states(gates, racing) @ self.out  # (2, S B, 1)
            return (found.sum((0, -1)) + self.constant).view(many).to(noise.dtype)

    def _summed_states(self, gates: Tensor, racing: Tensor) -> Tensor:
        """(2, R, hidden), summed over the tokens of each row. Padding leaves a state as it is, so that the direction
        that meets it first begins behind it."""
        forwards, backwards = gates.unbind(0)
        steps = torch.stack([forwards, backwards.flip(1)]).unbind(2)
        inside = torch.stack([racing, racing.flip(1)])[..., None].unbind(2)  # (2, R, 1) each
        hidden = cell = total = gates.new_zeros(2, gates.shape[1], self.carry.shape[1])
        for gate, now in zip(steps, inside, strict=True):
            add, keep, show, new = torch.baddbmm(gate, hidden, self.carry).chunk(4, -1)
            next_cell = keep.sigmoid() * cell + add.sigmoid() * new.tanh()
            next_hidden = show.sigmoid() * next_cell.tanh()
            hidden, cell = torch.where(now, next_hidden, hidden), torch.where(now, next_cell, cell)
            total = torch.where(now, total + next_hidden, total)
        return total


def _standardised(noise: Tensor, racing: Tensor) -> Tensor:
    """Rows with mean 0 and variance 1 over the tokens, 0 in the padding."""
    count = racing.sum(-1, keepdim=True).clamp(min=1)
    centred = (noise - noise.sum(-1, keepdim=True) / count) * racing
    return centred * (centred.square().sum(-1, keepdim=True) / count + _SMALL).rsqrt()
