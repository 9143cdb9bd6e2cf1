"""RELAX's critic as the paper has it: an LSTM that reads each token together with its noise, in both directions."""

import math

import torch
from torch import Tensor, nn

from gumtrace_experiments.bidirectional import rows, turned
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.parentheses.recurrence import states

_SMALL = 1e-5  # next to a variance


class LSTMCritic(nn.Module):
    """A function of noise (*S, B, n), 0 in the padding, and of the tokens: the sum over tokens of a linear layer on the
    LSTM's states. A loss is a sum over tokens, too, and such sums reach its size within a few dozen updates.

    RELAX differentiates it twice, hence the LSTM of its own. The noise is centred and normalised first: an encoder's
    logits may go far, and no order depends on their mean.

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
            entries = entries.movedim(-1, 0)[..., None]  # (n, 2, S, B, 1)
            gates = self._words(tokens, back)[:, :, None] + entries * self.input[:, None, -1:]
            found = states(gates.flatten(2, 3), self.carry).unflatten(2, entries.shape[2:4])  # (n, 2, S, B, hidden)
            each = (found @ self.out[:, None]).squeeze(-1).sum(1)  # (n, S, B)
            return (each * racing.mT[:, None]).sum(0).view(many).to(noise.dtype)

    def _words(self, tokens: Tensor, back: Tensor) -> Tensor:
        """(n, 2, B, 4 hidden): what tokens (B, n) add to the gates. There are fewer different ones than tokens."""
        table = self.embedding @ self.input[:, :-1] + self.bias  # (2, symbols, 4 hidden)
        both = torch.stack([tokens, tokens.gather(-1, back) + len(self.embedding)])
        return rows(table.flatten(0, 1), both.permute(2, 0, 1))


def _standardised(noise: Tensor, racing: Tensor) -> Tensor:
    """Rows with mean 0 and variance 1 over the tokens, from some that are 0 in the padding, and stay so."""
    count = racing.sum(-1, keepdim=True).clamp(min=1)
    centred = torch.addcmul(noise, noise.sum(-1, keepdim=True), racing / count, value=-1)
    return centred * (centred.square().sum(-1, keepdim=True) / count + _SMALL).rsqrt()
