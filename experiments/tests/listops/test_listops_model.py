"""The networks of ListOps against their formulas, written out edge by edge; padding; half precision, compilation."""

import copy

import pytest
import torch
from common import seeded
from listops_networks import (
    BOTH_WAYS,
    EXACT,
    HIDDEN,
    ITEMS,
    LENGTHS,
    ROUNDS,
    SAMPLES,
    N,
    assert_equal,
    gradients,
    literal_classifier,
    literal_lstm,
    literal_message,
    make,
    soft,
    tokens,
    trees,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import gumtrace as gt
from gumtrace_experiments.listops.expressions import CLOSE, VOCABULARY, parse
from gumtrace_experiments.listops.model import Classifier, Critic, Encoder

pytestmark = pytest.mark.usefixtures("one_thread")

CASE = "[MIN 3 [MED 1 [MAX 5 2 ] 4 ] 0 ]"  # of depth 3


# --- the classifier ---


@BOTH_WAYS
def test_the_classifier_is_the_literal_one(hard):
    model, structure = make(Classifier), trees(SAMPLES) if hard else soft(SAMPLES).requires_grad_()
    others = () if hard else (structure,)
    ours = model(tokens(), structure, hard=hard)
    theirs = literal_classifier(model, tokens(), structure)
    assert ours.shape == (SAMPLES, ITEMS, 10)
    assert_equal([ours], [theirs])
    found = gradients(model, ours, *others)
    assert all(x.abs().max() > 1e-6 for x in found)  # nothing that is compared is trivially zero
    assert_equal(found, gradients(model, theirs, *others))


def test_both_ways_agree_on_arborescences():
    model, structure = make(Classifier), trees(20)
    ours, theirs = (model(tokens(), structure, hard=hard) for hard in (True, False))
    assert_equal([ours], [theirs])
    assert_equal(gradients(model, ours), gradients(model, theirs))


@BOTH_WAYS
def test_rounds_are_a_recursion(hard):
    """From the innermost operators to the outermost; once it has arrived at the first token, nothing changes."""
    model, expression = make(Classifier), parse(CASE)
    words, heads = torch.tensor(expression.tokens).long(), torch.tensor(expression.heads)
    n = len(words)
    structure = (heads == torch.arange(n)[:, None]).double()[None]

    def state(i):
        own = model.embedding.weight[words[i]]
        messages = [literal_message(model, own, state(j)) for j in range(n) if heads[j] == i]
        return model.norm(own + sum(messages))

    expected = model.out2(torch.relu(model.out1(state(0))))
    for rounds in range(5):
        model.rounds = rounds
        found = model(words[None], structure, hard=hard)[0]
        assert torch.allclose(found, expected, **EXACT) == (rounds >= expression.depth == 3)


def test_shapes_of_samples_and_batches():
    model = make(Classifier)
    for hard, structure in ((True, trees(2, 4)), (False, soft(2, 4))):
        together = model(tokens(), structure, hard=hard)
        assert together.shape == (2, 4, ITEMS, 10)
        assert_equal([together[1, 2, 1]], [model(tokens()[1], structure[1, 2, 1], hard=hard)])


# --- the encoder ---


def test_the_encoder_is_the_literal_one():
    model = make(Encoder)
    ours = model(tokens())
    for item, logits in zip(tokens(), ours, strict=True):
        v, w = (literal_lstm(lstm, model.embedding.weight[item]) for lstm in (model.functions, model.arguments))
        assert_equal([logits], [torch.stack([torch.stack([a @ b for b in w]) for a in v])])


# --- padding ---


def other_padding():
    """The same tokens, others behind them, and more of these."""
    longer = torch.randint(1, CLOSE + 4, (ITEMS, N + 3), generator=seeded(5))
    return torch.where(torch.arange(N + 3) < LENGTHS[:, None], nn.functional.pad(tokens(), (0, 3)), longer)


def test_padding_changes_no_logits():
    model = make(Encoder)
    inside = (torch.arange(N) < LENGTHS[:, None])[:, :, None] & (torch.arange(N) < LENGTHS[:, None])[:, None]
    runs = [model(x)[:, :N, :N] * inside for x in (tokens(), other_padding())]
    assert_equal(*[[x] for x in runs])
    assert_equal(*(gradients(model, x) for x in runs))


@BOTH_WAYS
def test_padding_changes_no_answer(hard):
    model, structure = make(Classifier), (trees if hard else soft)(SAMPLES)
    longer = nn.functional.pad(structure, (0, 3, 0, 3))
    runs = [model(*x, hard=hard) for x in ((tokens(), structure), (other_padding(), longer))]
    assert_equal(*[[x] for x in runs])
    assert_equal(*(gradients(model, x) for x in runs))


def test_padding_changes_nothing_that_the_critic_reads():
    model = make(Critic)
    runs = [model.read(x, LENGTHS) for x in (tokens(), other_padding())]
    assert_equal(*[[x] for x in runs])
    assert_equal(*(gradients(model, x) for x in runs))


@pytest.mark.parametrize("estimator", [gt.estimators.TraceREINFORCE(samples=2), gt.estimators.StochasticSoftmax()])
def test_padding_gets_no_gradient(estimator):
    """All the way from the answers to the embeddings: a token that occurs in padding alone."""
    encoder, classifier = make(Encoder), make(Classifier)
    words = tokens().clamp(max=CLOSE)
    words[torch.arange(N) >= LENGTHS[:, None]] = CLOSE + 1
    dist = gt.Arborescence(encoder(words), lengths=LENGTHS, validate_args=False)
    loss = estimator(dist, lambda x: classifier(words, x, hard=not x.requires_grad)[..., 0], generator=seeded())
    for model in (encoder, classifier):
        found = torch.autograd.grad(loss.sum(), [*model.parameters()], retain_graph=True)
        assert all(x.isfinite().all() for x in found)
        assert found[0].shape == (len(VOCABULARY), HIDDEN)
        assert not found[0][CLOSE + 1].any()
        assert found[0].any()


# --- half precision, compilation, waiting ---


@BOTH_WAYS
def test_half_precision(hard):
    """A rounding is off by at most 2⁻⁹, relatively; some twenty follow each other, and most of them cancel."""
    model, structure = make(Classifier, torch.float32), trees(SAMPLES, dtype=torch.float32)
    value = model(tokens(), structure, hard=hard)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(tokens(), structure, hard=hard)
        encoder = make(Encoder, torch.float32)
        assert encoder(tokens()).dtype == torch.float32
    assert rough.dtype == torch.float32
    assert 0 < (value - rough).norm() / value.norm() < 20 * 2**-9
    assert_equal([encoder(tokens())], [make(Encoder, torch.float32)(tokens())])


@BOTH_WAYS
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch's own compiler
def test_rounds_are_compiled_without_breaks(hard):
    model, structure = make(Classifier, torch.float32).train(), trees(SAMPLES, dtype=torch.float32)
    other = copy.deepcopy(model)
    model.compile(fullgraph=True, backend="aot_eager")
    masks = model.masks(tokens(), seeded())
    ours, theirs = (m(tokens(), structure, hard=hard, masks=masks) for m in (model, other))
    torch.testing.assert_close(ours, theirs)
    for x, y in zip(gradients(model, ours), gradients(other, theirs), strict=True):
        torch.testing.assert_close(x, y)


@BOTH_WAYS
def test_nothing_looks_at_values(hard):
    """Tensors without values will do: nothing waits for a device, and no shape depends on what it holds."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        words, lengths = torch.ones(ITEMS, N, dtype=torch.int64), torch.ones(ITEMS, dtype=torch.int64)
        structure = torch.ones(SAMPLES, ITEMS, N, N)
        encoder, classifier, critic = Encoder(HIDDEN), Classifier(HIDDEN, ROUNDS), Critic(N, HIDDEN)
        logits = encoder(words)
        answers = classifier(words, structure, hard=hard, masks=classifier.masks(words, torch.Generator()))
        control = critic(structure, critic.read(words, lengths))
        (logits.sum() + answers.sum() + control.sum()).backward()
        assert encoder.embedding.weight.grad.shape == (len(VOCABULARY), HIDDEN)
