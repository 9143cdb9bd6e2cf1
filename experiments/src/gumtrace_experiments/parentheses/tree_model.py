"""The decoder of trees: an LSTM that generates the nodes of a binary tree level by level, EOS for leaves.

It is a language model of what `tree_order.level_order` gives, so that training is one call of the LSTM for all nodes.
Whether a tree is complete follows from the symbols themselves: a token promises two children, and EOS none.
"""

import torch
from torch import Tensor, nn

from gumtrace_experiments.bidirectional import rows
from gumtrace_experiments.parentheses.draws import EVERY, categorical
from gumtrace_experiments.parentheses.tree_order import ended


class Decoder(nn.Module):
    """log P of a tree with its tokens, and samples of both.

    >>> decoder = Decoder(types=2, hidden=8)
    >>> decoder(torch.tensor([[0, 4, 1, 4, 4]])).shape
    torch.Size([1])
    >>> decoder.generate(3, longest=5).shape
    torch.Size([3, 11])
    """

    def __init__(self, types: int, hidden: int = 300):
        super().__init__()
        self.eos, self._begin = 2 * types, 2 * types + 1
        self.embedding = nn.Parameter(torch.randn(2 * types + 2, hidden))
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2 * types + 1)

    def forward(self, symbols: Tensor) -> Tensor:
        """(*S,) for symbols (*S, m), level by level; what stands behind the end counts nothing."""
        batch, m = symbols.shape[:-1], symbols.shape[-1]
        symbols = symbols.reshape(-1, m)
        before = torch.cat([symbols.new_full((len(symbols), 1), self._begin), symbols[:, :-1]], 1)
        with torch.autocast(symbols.device.type, enabled=False):
            outputs, _ = self.lstm(rows(self.embedding, before))
            chances = self.out(outputs).log_softmax(-1)
        each = chances.gather(-1, symbols[..., None]).squeeze(-1)
        return torch.where(ended(symbols, self.eos), 0.0, each).sum(-1).view(batch)

    def generate(self, count: int, longest: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, 2 longest + 1): samples, each as far as a tree of `longest` tokens may need, EOS behind their ends.
        The LSTM's state is kept from node to node, of those trees that are not complete."""
        device = self.embedding.device
        symbols = torch.full((count, 2 * longest + 1), self.eos, device=device)
        growing = torch.arange(count, device=device)  # trees
        wanted = torch.ones_like(growing)  # nodes that were promised, and not generated yet
        last, state = torch.full_like(growing, self._begin), None
        with torch.autocast(device.type, enabled=False):
            for i in range(symbols.shape[1]):
                outputs, state = self.lstm(rows(self.embedding, last)[:, None], state)
                scores = self.out(outputs[:, 0])
                last = torch.where(wanted > 0, categorical(scores, generator), self.eos)
                symbols[growing, i] = last
                wanted = wanted + torch.where(wanted > 0, torch.where(last == self.eos, -1, 1), 0)
                if (i + 1) % EVERY == 0:
                    left = (wanted > 0).nonzero().flatten()
                    if not len(left):
                        break
                    growing, wanted, last = growing[left], wanted[left], last[left]
                    state = tuple(x[:, left] for x in state)
        return symbols

    def compile(self, *args, **kwargs) -> None:
        """There is nothing to compile: an LSTM is one call of a library, which torch.compile leaves alone."""
