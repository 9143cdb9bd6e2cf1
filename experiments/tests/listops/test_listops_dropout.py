"""Dropout in the networks of ListOps: by a generator alone, against the formula, by its law, and where it is."""

import pytest
import torch
from common import FALSE_ALARM, seeded
from listops_networks import (
    BOTH_WAYS,
    HIDDEN,
    ITEMS,
    LENGTHS,
    ROUNDS,
    SAMPLES,
    N,
    assert_equal,
    gradients,
    literal_classifier,
    make,
    soft,
    tokens,
    trees,
)
from scipy import stats

from gumtrace_experiments.listops import model as module
from gumtrace_experiments.listops.model import Classifier, Critic, Encoder

pytestmark = pytest.mark.usefixtures("one_thread")


def call(network, model, generator):
    if network is Encoder:
        return model(tokens(), generator)
    if network is Critic:
        return model.read(tokens(), LENGTHS, generator)
    return model(tokens(), trees(SAMPLES), hard=network == "hard", masks=model.masks(tokens(), generator))


@pytest.mark.parametrize("network", [Encoder, Critic, "hard", "soft"])
def test_dropout_is_a_function_of_the_generator(network):
    """In training, and of nothing else; there is none after it."""
    model = make(Classifier if isinstance(network, str) else network)
    exact = call(network, model, seeded())
    before, generator = torch.get_rng_state(), seeded(1)
    assert torch.equal(call(network, model, generator), exact)
    assert torch.equal(generator.get_state(), seeded(1).get_state())  # nothing is drawn
    model.train()
    first, again, other = (call(network, model, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, exact)
    assert torch.equal(torch.get_rng_state(), before)
    model.dropout = 0.0
    assert torch.equal(call(network, model, seeded()), exact)


@BOTH_WAYS
def test_the_classifier_with_dropout_is_the_literal_one(hard):
    """Between the layers of messages, of the same entries in all samples, and before the last layer."""
    model, structure = make(Classifier, dropout=0.4).train(), (trees if hard else soft)(SAMPLES)
    masks = model.masks(tokens(), seeded())
    assert masks.messages.shape == (ROUNDS, ITEMS, N, HIDDEN)
    assert masks.out.shape == (ITEMS, HIDDEN)
    ours = model(tokens(), structure, hard=hard, masks=masks)
    theirs = literal_classifier(model, tokens(), structure, masks)
    assert_equal([ours], [theirs])
    assert_equal(gradients(model, ours), gradients(model, theirs))


def test_dropout_is_the_same_both_ways():
    model, structure = make(Classifier, dropout=0.4).train(), trees(SAMPLES)
    masks = model.masks(tokens(), seeded())
    ours, theirs = (model(tokens(), structure, hard=hard, masks=masks) for hard in (True, False))
    assert_equal([ours], [theirs])


@pytest.mark.parametrize("part", ["messages", "out"])
def test_the_law_of_masks(part):
    model = make(Classifier, dropout=0.3).train()
    keep = getattr(model.masks(tokens(n=30, batch=50), seeded()), part)
    assert stats.binomtest(int(keep.sum()), keep.numel(), 0.7).pvalue > FALSE_ALARM / 2


def places(monkeypatch, network, model):
    """What goes through dropout, one after the other."""
    seen, plain = [], module.dropout
    monkeypatch.setattr(module, "dropout", lambda x, **kw: seen.append(x.detach()) or plain(x, **kw))
    call(network, model, seeded())
    return seen


def test_where_the_encoder_and_the_critic_have_dropout(monkeypatch):
    """Embeddings, and the outputs of LSTMs: of both, and of the last token."""
    for network, shapes in ((Encoder, 2 * [(ITEMS, N, HIDDEN)]), (Critic, [(ITEMS, HIDDEN)])):
        model = make(network).train()
        with monkeypatch.context() as patch:
            embedded, *outputs = places(patch, network, model)
        assert_equal([embedded], [model.embedding(tokens())])
        assert [x.shape for x in outputs] == shapes


@pytest.mark.parametrize("network", [Encoder, Critic])
def test_outputs_are_thinned(network, monkeypatch):
    """With dropout at the output alone, of nearly everything: what is left is 0 in most places."""
    model = make(network).train()
    model.dropout = 0.9
    monkeypatch.setattr(model.embedding, "forward", lambda x: torch.ones(*x.shape, HIDDEN, dtype=torch.float64))
    found = call(network, model, seeded())
    assert (found == 0).double().mean() > (0.7 if network is Critic else 0.5)
