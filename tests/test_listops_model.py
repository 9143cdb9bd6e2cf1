"""The networks of ListOps against their formulas, written out edge by edge; dropout by a generator."""

import copy

import pytest
import torch
from common import FALSE_ALARM, seeded
from listops_networks import (
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
from scipy import stats
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import once_differentiable

import gumtrace as gt
from gumtrace.experiments.listops import model as module
from gumtrace.experiments.listops.expressions import CLOSE, VOCABULARY, parse
from gumtrace.experiments.listops.model import Classifier, Critic, Encoder

pytestmark = pytest.mark.usefixtures("one_thread")

BOTH_WAYS = pytest.mark.parametrize("hard", [True, False])
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


@pytest.mark.parametrize("estimator", [gt.estimators.TraceREINFORCE(2), gt.estimators.StochasticSoftmax()])
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


# --- the critic ---


def relax(critic, dtype=torch.float64):
    """Gradients of a call of RELAX to the critic's parameters, by name."""
    estimator = gt.estimators.RELAX(critic)
    logits = torch.randn(ITEMS, N, N, dtype=dtype, generator=seeded(6)).requires_grad_()
    dist = gt.Arborescence(logits, lengths=LENGTHS)
    context = critic.read(tokens(), LENGTHS, seeded(7))
    loss = estimator(dist, lambda x: x[..., 0, :].sum(-1), context, generator=seeded(8))
    loss.mean().backward()
    assert logits.grad.isfinite().all()
    return {name: p.grad for name, p in critic.named_parameters()}


def test_the_critic_is_the_literal_one():
    critic = make(Critic)
    dist = gt.Arborescence(torch.zeros(ITEMS, N, N, dtype=torch.float64), lengths=LENGTHS)
    noise = torch.where(dist.racing, dist.perturb((SAMPLES,), generator=seeded()), 0.0)
    found = critic(noise, critic.read(tokens(), LENGTHS))
    assert found.shape == (SAMPLES, ITEMS)
    for b in range(ITEMS):
        last = literal_lstm(critic.lstm, critic.embedding.weight[tokens()[b, : LENGTHS[b]]])[-1]
        edges = [(i, j) for i in range(LENGTHS[b]) for j in range(1, LENGTHS[b]) if i != j]
        for s in range(SAMPLES):
            own = torch.stack([noise[s, b, i, j] for i, j in edges])
            seen = torch.zeros(N, N, dtype=torch.float64)
            for (i, j), x in zip(edges, (own - own.mean()) / (own.var(correction=0) + 1e-5).sqrt(), strict=True):
                seen[i, j] = x
            hidden = torch.tanh(critic.hidden(torch.cat([last, seen.flatten()])))
            assert_equal([found[s, b]], [critic.out(hidden)[0]])


def test_the_critic_is_smooth_in_the_noise():
    critic = make(Critic)
    noise = trees(1) * 0 + torch.randn(1, ITEMS, N, N, dtype=torch.float64, generator=seeded(9))
    context = critic.read(tokens(), LENGTHS)

    def call(x):
        return critic(x, context.detach())

    assert torch.autograd.gradcheck(call, noise.requires_grad_())
    assert torch.autograd.gradgradcheck(call, noise)


def test_relax_teaches_all_of_the_critic():
    found = relax(make(Critic).train())
    assert all(g.isfinite().all() and g.any() for g in found.values())


class OnceOnly(torch.autograd.Function):
    """What it is applied to can be differentiated, but not twice, as an LSTM of cuDNN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad


def test_relax_differentiates_the_lstm_once():
    critic = make(Critic)
    expected = relax(copy.deepcopy(critic))
    critic.lstm.register_forward_hook(lambda module, inputs, outputs: (OnceOnly.apply(outputs[0]), None))
    assert relax(critic).keys() == expected.keys()
    for name, g in relax(copy.deepcopy(critic)).items():
        assert_equal([g], [expected[name]])
    context = critic.read(tokens(), LENGTHS)
    (slope,) = torch.autograd.grad(context.square().sum(), critic.embedding.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):  # so it would be noticed
        slope.sum().backward()


# --- dropout ---


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
    twin = copy.deepcopy(model)
    model.compile(fullgraph=True, backend="aot_eager")
    masks = model.masks(tokens(), seeded())
    ours, theirs = (m(tokens(), structure, hard=hard, masks=masks) for m in (model, twin))
    torch.testing.assert_close(ours, theirs)
    for x, y in zip(gradients(model, ours), gradients(twin, theirs), strict=True):
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
