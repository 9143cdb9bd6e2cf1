"""The decoder: a Transformer that generates a sentence by insertions (InDIGO, Gu et al. 2019).

Step t chooses a word given the t tokens that are there, or to stop; and then, given the word, the gap that it goes into
(`insertion_order`). So for a sentence x of L tokens and an order σ

    log P(x, σ) = Σ_t [ log P(word_t | before) + log P(gap_t | word_t, before) ] + log P(stop | all L tokens).

Attention knows where elements are by the signs of relations alone, which never change. An element sees those that came
before it, so that its state stays what it was, too: all steps of a sentence are one pass with a causal mask, and
generation adds one element at a time to a cache.
"""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumtrace_experiments.bidirectional import rows
from gumtrace_experiments.dropout import kept, thinned
from gumtrace_experiments.parentheses import attention
from gumtrace_experiments.parentheses.draws import EVERY, categorical
from gumtrace_experiments.parentheses.growing import Growing, Written
from gumtrace_experiments.parentheses.insertion_order import (
    BEGIN,
    END,
    FIRST,
    neighbours,
    order_of_slots,
    relations,
)


class Steps(NamedTuple):
    """Log-probabilities of the steps that write a sentence; 0 in the padding."""

    words: Tensor  # (*B, n + 1), that of stopping among them
    slots: Tensor  # (*B, n)

    @property
    def total(self) -> Tensor:
        return self.words.sum(-1) + self.slots.sum(-1)


class Drawn(NamedTuple):
    """Sentences that the decoder generated."""

    tokens: Tensor  # (B, n), 0 in the padding
    lengths: Tensor  # (B,)
    order: Tensor  # (B, n), as `gumtrace.Permutation` has it
    log_prob: Tensor  # (B,), of the sentence and the order; where it did not end, of its n insertions
    ended: Tensor  # (B,), whether the model stopped by itself after n tokens at most


class Seen(NamedTuple):
    """What elements are to each other, the same for all blocks and heads: bool, (*B, 1, m, elements)."""

    left: Tensor  # whether the row's element is left of the column's
    right: Tensor
    later: Tensor | None  # (m, m), whether the column's came later; None where none did

    @classmethod
    def by(cls, relations: Tensor) -> Self:
        """Relations of the last m elements to all, (*B, m, elements): of one, or of all of them."""
        m, elements = relations.shape[-2:]
        signs = relations.unsqueeze(-3)
        later = torch.ones(m, elements, dtype=torch.bool, device=signs.device).triu(1) if m > 1 else None
        return cls(signs < 0, signs > 0, later)


class Decoder(nn.Module):
    """log P(x, σ) of sentences and orders, and samples of both.

    >>> decoder = Decoder(words=4, hidden=8, layers=1, heads=2)
    >>> tokens, order = torch.tensor([[0, 1, 0, 0]]), torch.tensor([[1, 0, 2, 3]])
    >>> decoder(tokens, order, lengths=torch.tensor([2])).total.shape
    torch.Size([1])
    """

    def __init__(self, words: int, hidden: int = 256, layers: int = 4, heads: int = 8, dropout: float = 0.0):
        super().__init__()
        self.words, self.heads, self.dropout = words, heads, dropout
        self.embedding = nn.Parameter(torch.randn(words + FIRST, hidden) / math.sqrt(hidden))  # begin and end are last
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.word = nn.Linear(hidden, words + 1)  # the last one stops
        self.pointer = nn.Linear(hidden, hidden)
        self.sides = nn.Linear(hidden, 2 * hidden)  # of an element: its left, its right

    def masks(self, tokens: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """What dropout leaves for tokens (B, n), and any number of orders. After training nothing is drawn."""
        batch, n = tokens.shape
        shape = (2 * len(self.blocks), batch, n + FIRST, self.embedding.shape[1])
        return kept(shape, self.dropout, generator, tokens.device) if self.training else None

    def forward(self, tokens: Tensor, order: Tensor, lengths: Tensor, keep: Tensor | None = None) -> Steps:
        """For tokens (B, n), orders (*S, B, n) and lengths (B,)."""
        n = tokens.shape[-1]
        step = torch.arange(n + 1, device=tokens.device)
        words = torch.where(step[:n] < lengths[:, None], tokens.expand_as(order).gather(-1, order), 0)  # as inserted
        state = self._states(words, Seen.by(relations(order)), keep)
        targets = torch.where(step < lengths[:, None], F.pad(words, (0, 1)), self.words)
        chosen = self._word_log_probs(state[..., END:, :]).gather(-1, targets[..., None]).squeeze(-1)
        scores = self._pointer_scores(state[..., END:-1, :], words, self.sides(state[..., :-1, :]))
        there = step < step[:n, None] + FIRST  # (n, n + 1), elements at each step
        gaps = _gap_log_probs(scores.masked_fill(~there[:, None], -torch.inf), *neighbours(order))
        return Steps(
            torch.where(step <= lengths[:, None], chosen, 0.0), torch.where(step[:n] < lengths[:, None], gaps, 0.0)
        )

    @torch.no_grad()
    def generate(self, count: int, longest: int, generator: torch.Generator | None = None) -> Drawn:
        """Samples of at most `longest` tokens."""
        now = Growing.begun(self.embedding, count, longest, len(self.blocks), self.heads, first=self.words)
        found = Written(*(getattr(now, name).clone() for name in Written._fields))
        for i in range(longest + FIRST):  # element i enters, and its state chooses the next one
            if i and i % EVERY == 0:
                now.put(found)
                now.drop_ended()
                if not len(now.number):
                    break
            there = now.place[:, : i + 1]
            state = self._next_state(now.element, (there[:, i:] - there).sign(), i, now.cache)
            now.sides[:, i] = self.sides(state)
            if i == BEGIN:
                now.element = now.element + 1  # the other marker
            else:
                self._insert(now, state, i, generator)
        now.put(found)
        order = order_of_slots(found.slots)
        tokens = torch.zeros_like(found.words).scatter(-1, order, found.words)
        return Drawn(tokens, found.lengths, order, found.log_prob, found.ended)

    def _insert(self, now: Growing, state: Tensor, i: int, generator: torch.Generator | None) -> None:
        """What the state of element i says: a word and its gap, or the end."""
        t, n = i - END, now.words.shape[1]  # tokens so far, and at most
        element, chosen = _drawn(self._word_log_probs(state), generator)
        stops = element == self.words
        now.log_prob += torch.where(~now.ended & (stops | (t < n)), chosen, 0.0)
        now.ended |= stops
        if t == n:
            return
        scores = self._pointer_scores(state[:, None], element[:, None] % self.words, now.sides[:, : i + 1])
        gap, chosen = _drawn(_by_gap(scores[:, 0], now.place[:, : i + 1]), generator)
        now.log_prob += torch.where(now.ended, 0.0, chosen)
        now.element, gap = torch.where(now.ended, 0, element), torch.where(now.ended, t, gap)
        now.words[:, t], now.slots[:, t] = now.element, gap
        now.lengths += ~now.ended
        now.place = torch.where(now.place > gap[:, None], now.place + 1, now.place)
        now.place[:, i + 1] = gap + 1

    def _states(self, words: Tensor, seen: Seen, keep: Tensor | None) -> Tensor:
        """(*B, n + 2, hidden) of all elements, for words (*B, n) as they are inserted."""
        markers = torch.arange(self.words, self.words + FIRST, device=words.device).expand(*words.shape[:-1], FIRST)
        x = rows(self.embedding, torch.cat([markers, words], -1))
        for i, block in enumerate(self.blocks):
            x = block(x, seen, self.dropout, None if keep is None else keep[2 * i : 2 * i + 2])
        return self.norm(x)

    def _next_state(self, element: Tensor, relations: Tensor, i: int, cache: Tensor) -> Tensor:
        """(B, hidden) of element i, for its relations (B, i + 1) to those that are there."""
        x, seen = rows(self.embedding, element)[:, None], Seen.by(relations[:, None])
        for block, of_block in zip(self.blocks, cache, strict=True):
            x = block(x, seen, cache=of_block[..., : i + 1, :])
        return self.norm(x)[:, 0]

    def _word_log_probs(self, state: Tensor) -> Tensor:
        return _at_least_float32(self.word(state)).log_softmax(-1)

    def _pointer_scores(self, state: Tensor, words: Tensor, sides: Tensor) -> Tensor:
        """(*B, steps, 2, elements), left and right of each; left of begin and right of end are -inf."""
        query = self.pointer(state) + rows(self.embedding, words)
        left, right = sides.chunk(2, -1)
        scores = _at_least_float32(torch.stack([query @ left.mT, query @ right.mT], -2)) / math.sqrt(query.shape[-1])
        element = torch.arange(scores.shape[-1], device=scores.device)
        return scores.masked_fill(torch.stack([element == BEGIN, element == END]), -torch.inf)


class Block(nn.Module):
    """Attention with relations, and a layer of four times the width. The score of element i for an element j is
    ⟨query_i, key_j + relative[relation_ij]⟩ / √size: three vectors, for left of, same as and right of."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.project, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.relative = nn.Parameter(torch.randn(3, self.size) / math.sqrt(self.size))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(
        self,
        x: Tensor,
        seen: Seen,
        dropout: float = 0.0,
        keep: Tensor | None = None,
        cache: Tensor | None = None,
    ) -> Tensor:
        """(*B, m, hidden), each of the m elements given those before it and itself.

        With a cache of keys and values, (2, B, heads, elements, size), x is the last element alone: it joins those
        before it in the cache.
        """
        heads = self.project(self.norm1(x)).unflatten(-1, (3, self.heads, self.size))
        if cache is None and attention.serves(heads):
            attended = attention.attend(heads, seen.left, seen.right, self.relative)
        else:
            attended = self._attended(heads, seen, cache)
        x = x + thinned(self.out(attended), dropout, None if keep is None else keep[0])
        return x + thinned(self._wide(x), dropout, None if keep is None else keep[1])

    def _attended(self, heads: Tensor, seen: Seen, cache: Tensor | None) -> Tensor:
        """(*B, m, hidden), for queries, keys and values (*B, m, 3, heads, size)."""
        query, key, value = heads.movedim(-3, 0).transpose(-2, -3)  # (*B, heads, m, size)
        if cache is not None:
            cache[..., -1:, :] = torch.stack([key, value])
            key, value = cache
        left, same, right = (query @ self.relative.mT).split(1, -1)  # (*B, heads, m, 1)
        by_relation = torch.where(seen.left, left, torch.where(seen.right, right, same))
        scores = (query @ key.mT + by_relation) / math.sqrt(self.size)
        if seen.later is not None:
            scores = scores.masked_fill(seen.later, -torch.inf)
        return (scores.softmax(-1).to(value.dtype) @ value).transpose(-2, -3).flatten(-2)

    def _wide(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm2(x))))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _gap_log_probs(scores: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """(*B, steps), for scores (*B, steps, 2, elements) and the neighbours (*B, steps) of the gap: two pointers name
    it, right of the one and left of the other."""
    of_left, of_right = scores.unbind(-2)
    ways = torch.cat([of_right.gather(-1, left[..., None]), of_left.gather(-1, right[..., None])], -1)
    return ways.logsumexp(-1) - scores.logsumexp((-2, -1))


def _by_gap(scores: Tensor, place: Tensor) -> Tensor:
    """Log-probabilities (B, m - 1) of the gaps of a row of m elements, from the scores (B, 2, m) and places (B, m) of
    elements: the one at place g is left of gap g."""
    at = place.argsort(-1)
    of_left, of_right = (side.gather(-1, at) for side in scores.unbind(1))
    return torch.logaddexp(of_right[:, :-1], of_left[:, 1:]) - scores.logsumexp((-2, -1), keepdim=True)[:, 0]


def _drawn(log_probs: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """A draw from each row, and its log-probability."""
    index = categorical(log_probs, generator)
    return index, log_probs.gather(-1, index[:, None])[:, 0]
