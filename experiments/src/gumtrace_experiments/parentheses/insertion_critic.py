"""RELAX's critic as the paper has it: an LSTM that reads each token together with its noise, in both directions."""

import math

import torch
from torch import Tensor, nn

from gumtrace_experiments.bidirectional import rows, turned
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
        tokens, lengths = context[..., :-1].reshape(-1, n), context[..., -1].flatten()
        back = turned(lengths, n)
        racing = torch.arange(n, device=noise.device) < lengths[:, None]  # (B, n)
        with torch.autocast(noise.device.type, enabled=False):
            entries = _standardised(noise.to(self.out.dtype).reshape(-1, *tokens.shape), racing)  # (S, B, n)
            entries = torch.stack([entries, entries.gather(-1, back.expand_as(entries))])  # both directions
            words = rows(self.embedding, torch.stack([tokens, tokens.gather(-1, back)]))  # (2, B, n, hidden)
            words = words @ self.input[:, None, :-1] + self.bias[:, None]
            gates = words[:, None] + entries[..., None] * self.input[:, None, None, -1:]  # (2, S, B, n, 4 hidden)
            states = self._states(gates.flatten(1, 2)).unflatten(1, entries.shape[1:3])  # (2, S, B, n, hidden)
            each = (states @ self.out[:, None, None]).sum(0).squeeze(-1)  # (S, B, n)
            return ((each * racing).sum(-1) + self.constant).view(many).to(noise.dtype)

    def _states(self, gates: Tensor) -> Tensor:
        """(2, R, n, hidden) of the LSTM, for what tokens and noise add to its gates, (2, R, n, 4 hidden)."""
        hidden = cell = gates.new_zeros(2, gates.shape[1], self.carry.shape[1])
        states = []
        for gate in gates.unbind(2):
            opening, new = torch.baddbmm(gate, hidden, self.carry).split([3 * hidden.shape[-1], hidden.shape[-1]], -1)
            add, keep, show = opening.sigmoid().chunk(3, -1)
            cell = torch.addcmul(keep * cell, add, new.tanh())
            hidden = show * cell.tanh()
            states.append(hidden)
        return torch.stack(states, 2)


def _standardised(noise: Tensor, racing: Tensor) -> Tensor:
    """Rows with mean 0 and variance 1 over the tokens, 0 in the padding."""
    count = racing.sum(-1, keepdim=True).clamp(min=1)
    centred = (noise - noise.sum(-1, keepdim=True) / count) * racing
    return centred * (centred.square().sum(-1, keepdim=True) / count + _SMALL).rsqrt()
