"""Encoder and critic of the treebank experiment. Sentences are padded to one length: nothing here reads a value, so
that no host waits for its device, and padding changes neither the results of the others nor their gradients."""

from functools import partial

import torch
from torch import Tensor, nn

from gumtrace_experiments.bidirectional import BidirectionalLSTM, rows, turned
from gumtrace_experiments.dropout import dropout, kept
from gumtrace_experiments.treebank.data import ROOT, TAG_COUNT, UNKNOWN, Split

_TAG_SIZE = 32  # numbers for a tag
_FAR = -1e4  # the noise of an edge that does not race, where it has to be a number


class Encoder(nn.Module):
    """Sentences to logits of edges: θ_ij = ⟨v_i, w_j⟩ + b_i for the edge from head i to word j.

    As in ListOps v and w are the outputs of two LSTMs; here they read in both directions, since a head may be on either
    side of its words. b says how likely a word is to be a head at all.

    Args:
        vocabulary: how many numbers words have.
        hidden: width of word embeddings, and of each direction of each LSTM.
        layers: of each LSTM.
        dropout: of embeddings and outputs.
        word_dropout: share of words that are taken for unknown in training, so that unknown ones are learned from.
    """

    def __init__(
        self, vocabulary: int, hidden: int = 200, layers: int = 2, dropout: float = 0.33, word_dropout: float = 0.2
    ):
        super().__init__()
        self.dropout, self.word_dropout = dropout, word_dropout
        self.words = nn.Parameter(torch.randn(vocabulary, hidden))
        self.tags = nn.Parameter(torch.randn(TAG_COUNT, _TAG_SIZE))
        self.heads, self.dependents = (BidirectionalLSTM(hidden + _TAG_SIZE, hidden, layers, dropout) for _ in range(2))
        self.bias = nn.Linear(2 * hidden, 1, bias=False)

    def forward(self, batch: Split, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, n), for a batch of sentences of up to n nodes."""
        thin = partial(dropout, p=self.dropout, generator=generator, training=self.training)
        words = self._some_unknown(batch.words, generator) if self.training else batch.words
        with torch.autocast(words.device.type, enabled=False):  # logits are sums, and reach far
            read = thin(torch.cat([rows(self.words, words), rows(self.tags, batch.tags)], -1))
            backwards = turned(batch.lengths, words.shape[-1])
            v, w = (thin(lstm(read, backwards, generator)) for lstm in (self.heads, self.dependents))
            return v @ w.mT + self.bias(v)

    def _some_unknown(self, words: Tensor, generator: torch.Generator | None) -> Tensor:
        keep = kept(words.shape, self.word_dropout, generator, words.device)
        return words if keep is None else torch.where(keep | (words == ROOT), words, UNKNOWN)

    def compile(self, *args, **kwargs) -> None:
        """There is nothing to compile: an LSTM is one call of a library, which torch.compile leaves alone."""


class Critic(nn.Module):
    """RELAX's function of the noise. It knows the true edges: for each word it sees how far its true head is from
    winning the race, log softmax of the noise, and adds up something learned and smooth of that.

    >>> gold = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]])
    >>> Critic()(torch.randn(4, 1, 3, 3), gold.flatten(1)).shape
    torch.Size([4, 1])
    """

    def __init__(self, hidden: int = 16):
        super().__init__()
        self.hidden, self.out = nn.Linear(1, hidden), nn.Linear(hidden, 1)

    def forward(self, noise: Tensor, context: Tensor) -> Tensor:
        """(*S,) for noise (*S, n, n), 0 where no edge races, and the true edges (*batch, n²) as context."""
        with torch.autocast(noise.device.type, enabled=False):
            gold = context.unflatten(-1, noise.shape[-2:]).to(noise.dtype)
            racing = torch.where(noise != 0, noise, _FAR)
            share = (racing * gold).sum(-2) - racing.logsumexp(-2)  # (*S, n)
            found = self.out(torch.tanh(self.hidden(share[..., None].to(self.out.weight.dtype)))).squeeze(-1)
            return (found * gold.sum(-2)).sum(-1).to(noise.dtype)
