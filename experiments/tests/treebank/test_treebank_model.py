"""The networks of the treebank experiment: what padding, order, dropout and true edges do to them."""

import pytest
import torch
from common import seeded
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from gumtrace.relaxations.partition import arborescence_log_partition
from gumtrace_experiments import bidirectional
from gumtrace_experiments.bidirectional import BidirectionalLSTM, turned
from gumtrace_experiments.treebank import model as module
from gumtrace_experiments.treebank.data import ROOT, UNKNOWN, Split
from gumtrace_experiments.treebank.model import Critic, Encoder

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(n=7, seed=0):
    """Three sentences of 7, 4 and 2 nodes."""
    lengths = torch.tensor([7, 4, 2])
    inside = torch.arange(n) < lengths[:, None]
    words = torch.randint(3, 30, (3, n), generator=seeded(seed))
    tags = torch.randint(2, 19, (3, n), generator=seeded(seed + 1))
    words[:, 0], tags[:, 0] = ROOT, 1
    heads = torch.where(torch.arange(n) == 0, -1, torch.where(inside, 0, -2))
    return Split(torch.where(inside, words, 0), torch.where(inside, tags, 0), heads, lengths)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return Encoder(30, hidden=6, layers=2).eval()


def test_padding_changes_nothing(encoder):
    short, long = batch(7), batch(7)
    long = Split(*(torch.nn.functional.pad(x, (0, 3)) for x in long[:3]), long.lengths)
    odd = long._replace(words=torch.where(torch.arange(10) < long.lengths[:, None], long.words, 5))
    one, other = encoder(short), encoder(odd)
    assert one.shape == (3, 7, 7)
    for i, size in enumerate(short.lengths.tolist()):
        torch.testing.assert_close(other[i, :size, :size], one[i, :size, :size])
        alone = encoder(Split(*(x[i : i + 1, :size] for x in short[:3]), short.lengths[i : i + 1]))
        torch.testing.assert_close(alone[0], one[i, :size, :size])


def test_nothing_looks_at_a_value():
    """There are none in fake tensors: to ask for one is an error, as it would be to wait in a recorded update."""
    with FakeTensorMode():
        items, encoder = batch(), Encoder(30, hidden=6, layers=2)
        logits = encoder(items, torch.Generator())
        assert logits.shape == items.gold.shape == (3, 7, 7)
        assert arborescence_log_partition(logits, 0, items.lengths).shape == (3,)
        with pytest.raises(DataDependentOutputException):
            items.lengths.max().item()


def test_gradients_do_not_see_padding(encoder):
    items = batch()
    inside = torch.arange(7) < items.lengths[:, None]
    logits = encoder(items)
    torch.where(inside[:, None, :] & inside[:, :, None], logits, 0.0).square().sum().backward()
    assert encoder.words.grad[0].eq(0).all()  # padding
    assert encoder.words.grad[ROOT].any()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())
    assert all(p.grad.any() for p in encoder.parameters())


def test_every_word_sees_the_whole_sentence(encoder):
    """A change at one end reaches the logits at the other, in both directions."""
    items = batch()
    before = encoder(items)
    for place, others in ((6, slice(0, 6)), (1, slice(2, 7))):
        words = items.words.clone()
        words[0, place] = (words[0, place] + 1) % 27 + 3
        after = encoder(items._replace(words=words))
        changed = (after != before)[0]
        assert changed[others, others].any(0).all()
        assert changed[others, others].any(1).all()
        assert after[1:].equal(before[1:])


def test_both_directions_are_those_of_torch():
    """Which has to be told the lengths."""
    torch.manual_seed(0)
    ours, lengths = BidirectionalLSTM(5, 6, 2, 0.33).eval(), torch.tensor([7, 4, 2])
    theirs = torch.nn.LSTM(5, 6, num_layers=2, batch_first=True, bidirectional=True)
    for layer in range(2):
        for lstm, suffix in ((ours.forwards[layer], ""), (ours.backwards[layer], "_reverse")):
            for name, value in lstm.named_parameters():
                getattr(theirs, name.replace("_l0", f"_l{layer}{suffix}")).data.copy_(value.data)
    x = torch.randn(3, 7, 5, generator=seeded())
    packed, _ = theirs(torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    found = ours(x, turned(lengths, 7), None)
    inside = torch.arange(7) < lengths[:, None]
    torch.testing.assert_close(found[inside], expected[inside])


def test_logits_are_those_of_the_edge_from_head_to_word(encoder):
    """The bias is the head's: the same along a row, whatever the other LSTM says."""
    items = batch()

    @torch.no_grad()
    def of_the_bias():
        plain = encoder(items)
        encoder.bias.weight.add_(1.0)
        added = encoder(items) - plain
        encoder.bias.weight.sub_(1.0)
        return added

    first = of_the_bias()
    torch.testing.assert_close(first, first[:, :, :1].expand_as(first))
    for p in encoder.dependents.parameters():
        p.data.mul_(2)
    torch.testing.assert_close(of_the_bias(), first)
    for p in encoder.heads.parameters():
        p.data.mul_(2)
    assert (of_the_bias() - first).abs().max() > 0.01


def test_dropout_is_the_generator_s(encoder):
    items = batch()
    assert encoder(items).equal(encoder(items))
    encoder.train()
    one, other = encoder(items, seeded(0)), encoder(items, seeded(1))
    assert one.equal(encoder(items, seeded(0)))
    assert not one.equal(other)


def test_outputs_are_thinned(encoder, monkeypatch):
    """Of both LSTMs, and between their layers: with dropout of nearly everything, most products are 0."""
    encoder.train()
    encoder.dropout, encoder.word_dropout = 0.9, 0.0
    monkeypatch.setattr(encoder.bias, "forward", lambda v: torch.zeros(*v.shape[:-1], 1))
    assert (encoder(batch(), seeded()) == 0).float().mean() > 0.7  # if of one LSTM alone, 0.9¹² = 0.28
    seen, plain = [], module.dropout
    for place in (module, bidirectional):
        monkeypatch.setattr(place, "dropout", lambda x, *args, **kw: seen.append(x.shape) or plain(x, *args, **kw))
    encoder(batch(), seeded())
    assert seen == [(3, 7, 6 + 32), *4 * [(3, 7, 12)]]  # embeddings; for each LSTM, after its two layers


def test_some_words_are_unknown_in_training(encoder):
    encoder.train()
    words = torch.randint(3, 30, (100, 100), generator=seeded())
    words[:, 0] = ROOT
    found = encoder._some_unknown(words, seeded())
    assert found[:, 0].eq(ROOT).all()
    assert (found[:, 1:] == UNKNOWN).float().mean() == pytest.approx(0.2, abs=0.02)  # five standard errors
    assert found[found != UNKNOWN].equal(words[found != UNKNOWN])
    encoder.word_dropout = 0.0
    assert encoder._some_unknown(words, seeded()) is words


def test_the_critic_sees_true_edges_only_where_they_race():
    torch.manual_seed(0)
    critic = Critic().double()
    gold = torch.zeros(2, 4, 4, dtype=torch.float64)
    gold[0, 0, 1] = gold[0, 1, 2] = gold[0, 1, 3] = 1
    gold[1, 0, 1] = 1  # the other item has two nodes
    noise = torch.randn(5, 2, 4, 4, generator=seeded(), dtype=torch.float64)
    noise[..., 0] = 0
    noise.diagonal(dim1=-2, dim2=-1).fill_(0)
    noise[:, 1, 2:] = noise[:, 1, :, 2:] = 0
    found = critic(noise, gold.flatten(1))
    assert found.shape == (5, 2)
    alone = critic(noise[:, 1:, :2, :2], gold[1:, :2, :2].flatten(1))
    torch.testing.assert_close(found[:, 1:], alone)
    shifted = torch.where(noise != 0, noise + torch.tensor([0.0, 1.0, 2.0, 3.0]), 0.0)
    torch.testing.assert_close(critic(shifted, gold.flatten(1)), found)  # who wins at a word is all that counts
    leaf = noise.clone().requires_grad_()
    (grad,) = torch.autograd.grad(critic(leaf, gold.flatten(1)).sum(), leaf, create_graph=True)
    assert grad[:, 0, 0, 1].all()
    assert grad[:, 1, :, 2:].eq(0).all()
    grad.square().sum().backward()
    assert leaf.grad.isfinite().all()
    assert leaf.grad.any()
