"""Encoder, classifier and critic of ListOps. Tokens are padded to one length: nothing here reads a value, so that no
host waits for its device, and padding changes neither the results of the others nor their gradients."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumtrace_experiments.dropout import dropout, kept, thinned
from gumtrace_experiments.listops import messages, rounds
from gumtrace_experiments.listops.expressions import VOCABULARY
from gumtrace_experiments.small_lstm import outputs

ANSWERS = 10  # digits
_SMALL = 1e-5  # next to a variance


class Encoder(nn.Module):
    """Tokens to logits of edges: θ_ij = ⟨v_i, w_j⟩ for the edge from i to j, v and w the outputs of two LSTMs.

    The LSTMs read from left to right, so that tokens never see the padding behind them: there is no need to pack
    them, for which the host would have to know the lengths.

    >>> Encoder(hidden=8)(torch.tensor([[12, 4, 2, 11, 0]])).shape
    torch.Size([1, 5, 5])
    """

    def __init__(self, hidden: int = 60, dropout: float = 0.1):
        super().__init__()
        self.dropout = dropout
        self.embedding = _Embedding(hidden)
        self.functions, self.arguments = (nn.LSTM(hidden, hidden, batch_first=True) for _ in range(2))

    def forward(self, tokens: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, n) to (B, n, n)."""
        thin = partial(dropout, p=self.dropout, generator=generator, training=self.training)
        with torch.autocast(tokens.device.type, enabled=False):  # logits are sums, and reach far
            read = thin(self.embedding(tokens))
            v, w = map(thin, outputs([self.functions, self.arguments], read))
            return v @ w.mT

    def compile(self, *args, **kwargs) -> None:
        """There is nothing to compile: an LSTM is one call of a library, which torch.compile leaves alone."""


class Masks(NamedTuple):
    """Which entries dropout leaves in the classifier; None if it leaves all."""

    messages: Tensor | None = None  # (rounds, *B, n, hidden), of the token that sends
    out: Tensor | None = None  # (*B, hidden)


class Classifier(nn.Module):
    """A graph network that works an expression out, from the inside to the outside, and reads its first token.

    In each round every token receives a message from each of its arguments, made of its own embedding and of what is
    known of the argument by then:

        state(i) ← norm(embedding(i) + Σ_j X_ij message(embedding(i), state(j)))

    A state is made anew in each round, and not added to: after d rounds, nodes of height d or less have reached their
    final states, whatever came before. So five rounds are exactly a recursion along a tree of depth 5.
    experiments/benchmarks/listops_parts.py says how far that gets with the true trees.

    `hard` says that structures are 0/1. Each token then has one head at most, and sends one message a round: n of
    them. Otherwise any numbers will do, and gradients reach them: n² messages, weighted, which are never all in the
    memory of CUDA devices (messages.py). A linear layer on [receiver, sender] is the sum of one on each, so that all
    but the second layer is computed at the tokens.

    What dropout leaves is drawn apart, by `masks`, and is the same for all structures of an item: given it they are
    still independent, so that gradients stay unbiased, and their losses differ by the structures alone.

    >>> tokens, structure = torch.tensor([[12, 4, 2, 11, 0]]), torch.rand(3, 1, 5, 5)
    >>> Classifier(hidden=8)(tokens, structure, hard=False).shape
    torch.Size([3, 1, 10])
    """

    def __init__(self, hidden: int = 60, rounds: int = 5, dropout: float = 0.1):
        super().__init__()
        self.rounds, self.dropout = rounds, dropout
        self.embedding = _Embedding(hidden)
        self.message1, self.message2 = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.out1, self.out2 = nn.Linear(hidden, hidden), nn.Linear(hidden, ANSWERS)

    def masks(self, tokens: Tensor, generator: torch.Generator | None = None) -> Masks:
        """For tokens (*B, n), and any number of structures. After training nothing is drawn."""
        if not self.training:
            return Masks()
        batch, hidden = tokens.shape, self.out1.in_features
        messages = kept((self.rounds, *batch, hidden), self.dropout, generator, tokens.device)
        return Masks(messages, kept((*batch[:-1], hidden), self.dropout, generator, tokens.device))

    def forward(self, tokens: Tensor, structure: Tensor, *, hard: bool, masks: Masks | None = None) -> Tensor:
        """Logits of the answers, (*S, *B, 10), for tokens (*B, n) and structures (*S, *B, n, n)."""
        left, out = masks or Masks()
        own = self.embedding(tokens)  # (*B, n, hidden)
        structure = structure.to(own.dtype)
        receiver, _ = self.message1.weight.chunk(2, 1)
        receiving = F.linear(own, receiver, self.message1.bias)
        # What dropout leaves is larger, everywhere by the same: weights that read it are larger instead.
        weight = self.message2.weight if left is None else self.message2.weight / (1 - self.dropout)
        if hard and rounds.serves(structure, own.shape[-1]):
            _, sender = self.message1.weight.chunk(2, 1)
            layers = rounds.Layers(sender, weight, self.message2.bias, self.norm.weight, self.norm.bias)
            first = rounds.first_states(structure, own, receiving, left, layers, self.rounds, self.norm.eps)
        else:
            if hard:
                along, receiving = messages.along_edges, structure.mT @ receiving  # of the heads
            else:
                along = messages.fused if messages.serves(structure, own.shape[-1]) else messages.along_all
            state = self.norm(own)
            for i in range(self.rounds):
                state = self._round(own, receiving, state, structure, None if left is None else left[i], weight, along)
            first = state[..., 0, :]
        hidden = torch.relu(self.out1(first))
        return self.out2(thinned(hidden, self.dropout, out)).to(own.dtype)

    def compile(self, *args, **kwargs) -> None:
        """A round, which is nearly all of the work where `first_states` has no kernel; what draws from a generator
        cannot be compiled."""
        self._round = torch.compile(self._round, *args, **kwargs)

    def _round(
        self,
        own: Tensor,
        receiving: Tensor,
        state: Tensor,
        structure: Tensor,
        keep: Tensor | None,
        weight: Tensor,
        along: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        _, sender = self.message1.weight.chunk(2, 1)
        sending = F.linear(state, sender)  # (*S, *B, n, hidden); in the first round samples share it
        if keep is not None:
            sending = torch.where(keep, sending, -torch.inf)  # 0 after the relu, to all that receive
        return self.norm(own + along(structure, receiving, sending, weight, self.message2.bias))


class Critic(nn.Module):
    """RELAX's function of the noise and the tokens, smooth in the noise: tanh, where the paper has ReLU.

    The tokens are read apart from it, and once for all noise: `read` is the context of the estimator. What RELAX
    differentiates twice is then free of the LSTM, whose second derivative cuDNN does not have.

    >>> critic, tokens = Critic(size=5, hidden=8), torch.tensor([[12, 4, 2, 11, 0]])
    >>> critic(torch.randn(3, 1, 5, 5), critic.read(tokens, torch.tensor([4]))).shape
    torch.Size([3, 1])
    """

    def __init__(self, size: int, hidden: int = 60, dropout: float = 0.1):
        super().__init__()
        self.dropout = dropout
        self.embedding = _Embedding(hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.hidden, self.out = nn.Linear(hidden + size * size, hidden), nn.Linear(hidden, 1)

    def read(self, tokens: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The LSTM's output at the last token: (B, hidden) for tokens (B, n) and lengths (B,)."""
        thin = partial(dropout, p=self.dropout, generator=generator, training=self.training)
        with torch.autocast(tokens.device.type, enabled=False):
            (states,) = outputs([self.lstm], thin(self.embedding(tokens)))
            last = F.one_hot(lengths - 1, tokens.shape[-1]).to(states.dtype)  # (B, n)
            return thin((last[:, None] @ states).squeeze(1))

    def forward(self, noise: Tensor, context: Tensor) -> Tensor:
        """(*S,) for noise (*S, n, n), 0 where no edge races, and context (*batch, hidden)."""
        with torch.autocast(noise.device.type, enabled=False):
            entries = _standardised(noise.to(self.out.weight.dtype)).flatten(-2)
            read = context.expand(*entries.shape[:-1], context.shape[-1])
            hidden = torch.tanh(self.hidden(torch.cat([read, entries], -1)))
            return self.out(hidden).squeeze(-1).to(noise.dtype)


class _Embedding(nn.Module):
    """A lookup as a matrix product, of a few rows only: the backward pass of a lookup sorts, and may wait."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(len(VOCABULARY), size))

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):
            return F.one_hot(tokens, len(VOCABULARY)).to(self.weight.dtype) @ self.weight


def _standardised(noise: Tensor) -> Tensor:
    """(*S, n, n) with mean 0 and variance 1 over the edges that race; 0 for the others, as before."""
    racing = noise != 0  # RELAX puts 0 where an edge does not race; no other noise is 0 but by a rare accident
    count = racing.sum((-1, -2), keepdim=True).clamp(min=1)
    centred = (noise - noise.sum((-1, -2), keepdim=True) / count) * racing
    return centred * (centred.square().sum((-1, -2), keepdim=True) / count + _SMALL).rsqrt()
