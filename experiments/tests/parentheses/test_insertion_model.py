"""The insertion decoder: exact probabilities of sentences with orders, and samples that have them."""

from itertools import permutations, product

import pytest
import torch
from common import FALSE_ALARM, seeded
from scipy import stats
from torch.nn import functional as F

from gumtrace_experiments.parentheses import growing, insertion_model
from gumtrace_experiments.parentheses.insertion_model import Block, Decoder, Seen
from gumtrace_experiments.parentheses.insertion_order import relations

WORDS, LONGEST = 2, 3
pytestmark = pytest.mark.usefixtures("one_thread")


def decoder(words=WORDS, dtype=torch.float64, scale=3.0, **sizes):
    """With weights that make its probabilities unequal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Decoder(words, **{"hidden": 8, "layers": 2, "heads": 2, **sizes})
    for p in made.parameters():
        p.data *= scale
    return made.to(dtype)


def every(longest=LONGEST, words=WORDS):
    """All sentences of all lengths with all their orders: tokens, orders, lengths."""
    rows = []
    for length in range(longest + 1):
        pad = longest - length
        for sentence, order in product(product(range(words), repeat=length), permutations(range(length))):
            rows.append(([*sentence, *[0] * pad], [*order, *range(length, longest)], length))
    return tuple(map(torch.tensor, zip(*rows, strict=True)))


def test_probabilities_sum_to_one():
    """Sentences of the greatest length that is enumerated may end there or not: the last factor is left out."""
    tokens, order, lengths = every()
    steps = decoder()(tokens, order, lengths)
    probs = (steps.total - torch.where(lengths == LONGEST, steps.words[:, LONGEST], 0.0)).exp()
    assert len(probs) == 1 + 2 + 8 + 48
    assert probs.std() > 0.1 * probs.mean()  # the model is not uniform
    torch.testing.assert_close(probs.sum(), torch.ones((), dtype=torch.float64))


def test_samples_have_the_probabilities_of_the_teacher_forced_pass():
    model = decoder(words=6, layers=3)
    generated = model.generate(500, 12, seeded())
    steps = model(generated.tokens, generated.order, generated.lengths)
    stop = steps.words.gather(1, generated.lengths[:, None])[:, 0]
    torch.testing.assert_close(generated.log_prob, steps.total - torch.where(generated.ended, 0.0, stop))
    assert generated.ended.any()
    assert generated.lengths.max() == 12
    padding = torch.arange(12) >= generated.lengths[:, None]
    assert (generated.tokens[padding] == 0).all()
    assert (generated.order == torch.arange(12))[padding].all()
    assert generated.order.sort(-1).values.equal(torch.arange(12).expand(500, -1))


@pytest.mark.parametrize("look", [growing.EVERY, 2])
def test_frequencies_of_samples_are_those_of_enumeration(look, monkeypatch):
    """A chi-square test; false-alarm rate 10⁻⁶."""
    for module in (growing, insertion_model):  # also where sentences end while others grow
        monkeypatch.setattr(module, "EVERY", look)
    model = decoder()
    tokens, order, lengths = every()
    steps = model(tokens, order, lengths)
    ended = steps.total.exp()
    unended = (lengths == LONGEST) * ((steps.total - steps.words[:, LONGEST]).exp() - ended)
    index = {key: i for i, key in enumerate(_keys(tokens, order, lengths))}
    count, generated = 20_000, model.generate(20_000, LONGEST, seeded(1))
    drawn = torch.zeros(2, len(index), dtype=torch.float64)
    for key, end in zip(
        _keys(generated.tokens, generated.order, generated.lengths), generated.ended.tolist(), strict=True
    ):
        drawn[int(end), index[key]] += 1
    expected = count * torch.stack([unended, ended]).detach()
    assert (drawn[expected == 0] == 0).all()
    rare = expected < 5
    pool = [[*x[~rare].tolist(), x[rare].sum().item()] for x in (drawn, expected)]
    assert stats.chisquare(*pool, sum_check=False).pvalue > FALSE_ALARM


def _keys(tokens, order, lengths):
    return list(zip(map(tuple, tokens.tolist()), map(tuple, order.tolist()), lengths.tolist(), strict=True))


def test_padding_changes_nothing():
    model, (tokens, order, lengths) = decoder(), every()
    wide = torch.cat([tokens, torch.ones(len(tokens), 2, dtype=torch.long)], 1)
    padding = torch.arange(LONGEST, LONGEST + 2).expand(len(order), -1)
    torch.testing.assert_close(
        model(wide, torch.cat([order, padding], 1), lengths).total, model(tokens, order, lengths).total
    )


def test_several_orders_of_a_sentence_share_what_dropout_leaves():
    model = decoder(words=4, dropout=0.5)
    tokens, lengths = torch.tensor([[0, 1, 2], [3, 1, 0]]), torch.tensor([3, 2])
    order = torch.tensor([[[0, 1, 2], [1, 0, 2]], [[2, 0, 1], [0, 1, 2]]])
    keep = model.masks(tokens, seeded())
    both = model(tokens, order, lengths, keep).total
    assert both.shape == (2, 2)
    for s in range(2):
        torch.testing.assert_close(model(tokens, order[s], lengths, keep).total, both[s])
    assert (model(tokens, order, lengths).total != both).all()
    assert model.eval().masks(tokens, seeded()) is None


def test_attention_is_the_formula():
    """⟨query_i, key_j + relative[relation_ij + 1]⟩ / √size over j <= i, one head and one element at a time."""
    block = Block(8, 2).double()
    x = torch.randn(5, 8, generator=seeded(), dtype=torch.float64)
    signs = relations(torch.tensor([1, 2, 0]))
    query, key, value = block.project(block.norm1(x)).view(5, 3, 2, 4).unbind(1)
    attended = torch.zeros(5, 2, 4, dtype=torch.float64)
    for h, i in product(range(2), range(5)):
        scores = [query[i, h] @ (key[j, h] + block.relative[signs[i, j] + 1]) / 2 for j in range(i + 1)]
        attended[i, h] = torch.stack(scores).softmax(0) @ value[: i + 1, h]
    middle = x + block.out(attended.flatten(1))
    expected = middle + block.down(F.gelu(block.up(block.norm2(middle))))
    torch.testing.assert_close(block(x, Seen.by(signs)), expected)


def test_gradients_are_finite_and_reach_every_parameter():
    """A sentence without tokens, and steps with one gap alone, among others."""
    model = decoder(dtype=torch.float32)
    model(*every()).total.mean().backward()
    for name, p in model.named_parameters():
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name
