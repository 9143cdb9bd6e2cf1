"""The networks of learning to explain, against torch's own convolutions."""

import pytest
import torch
from common import seeded
from torch.nn import functional as F

import gumtrace as gt
from gumtrace_experiments.l2x import model as module
from gumtrace_experiments.l2x.model import FILTERS, Critic, Encoder, Predictor, Surrogate, context

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 6


@pytest.fixture(autouse=True)
def fixed_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def plain(model, words, mask):
    """What the predictor computes, as torch has it: all windows of the masked text, and one that is empty."""
    x = (words * mask[..., None]).reshape(-1, *words.shape[1:]).mT
    found = F.relu(F.conv1d(x, model.weight.permute(2, 1, 0), padding=1).amax(-1))
    return model.out(F.relu(found + model.bias)).squeeze(-1).sigmoid().reshape(mask.shape[:-1])


def close(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    weights = torch.randn(ours.shape, generator=seeded(), dtype=ours.dtype)
    for mine, other in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("items", [1, 2 * module._PART + 1])
@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("soft", [False, True])
def test_the_predictor_is_a_convolution(n, items, soft):
    predictor = Predictor(SIZE).double()
    words = torch.randn(items, n, SIZE, generator=seeded(), dtype=torch.float64)
    mask = torch.rand(3, items, n, generator=seeded(1), dtype=torch.float64)
    mask = (mask if soft else mask.round()).requires_grad_()
    close(predictor(words, mask), plain(predictor, words, mask), [mask, *predictor.parameters()])


@pytest.mark.parametrize(("n", "few"), [(1, 1), (2, 1), (3, 3), (12, 1), (12, 5), (12, 11), (12, 12)])
def test_few_tokens_are_computed_with_alone(n, few):
    """In any order, neighbours or not, at the edges of the text or not."""
    predictor = Predictor(SIZE).double()
    words = torch.randn(40, n, SIZE, generator=seeded(), dtype=torch.float64)
    mask = gt.Subset(torch.zeros(40, n, dtype=torch.float64), few).sample((2,), generator=seeded())
    close(predictor(words, mask, few), plain(predictor, words, mask), list(predictor.parameters()))
    one = mask[0]
    torch.testing.assert_close(predictor(words, one, few), plain(predictor, words, one))


def test_an_empty_window_is_always_there():
    """The maximum is not below that of a window without tokens, which has the bias alone."""
    predictor = Predictor(SIZE)
    with torch.no_grad():
        predictor.weight.fill_(-1.0)
    words = torch.ones(1, 4, SIZE)
    nothing = predictor(words, torch.zeros(1, 4))
    torch.testing.assert_close(predictor(words, torch.ones(1, 4)), nothing)
    torch.testing.assert_close(predictor(words, torch.ones(1, 4), 4), nothing)
    expected = predictor.out(F.relu(predictor.bias)).sigmoid()
    torch.testing.assert_close(nothing, expected)


def test_the_predictor_is_differentiable_twice():
    """REBAR learns its temperature by it."""
    predictor = Predictor(2).double()
    words = torch.randn(1, 3, 2, generator=seeded(), dtype=torch.float64)
    mask = torch.rand(1, 1, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m: predictor(words, m), mask)
    assert torch.autograd.gradgradcheck(lambda m: predictor(words, m), mask)


def test_dropout_of_the_predictor():
    predictor = Predictor(SIZE, dropout=0.25)
    words, mask = torch.randn(2, 5, SIZE), torch.ones(3, 2, 5)
    keep = torch.arange(FILTERS) % 2 == 0
    found = predictor(words, mask, keep=keep.expand(2, FILTERS))
    with torch.no_grad():
        predictor.out.weight.copy_(torch.where(keep, predictor.out.weight / 0.75, 0.0))
    torch.testing.assert_close(found, predictor(words, mask))


def as_convolutions(encoder, words):
    x = words.mT
    for layer in encoder.hidden:
        x = F.relu(layer(x))
    return encoder.last(x).squeeze(1)


@pytest.mark.parametrize("hidden", [0, 2])
def test_the_encoder(hidden):
    """One convolution with one filter, or two of 100 before it; a token's logit depends on its neighbours alone."""
    encoder = Encoder(SIZE, hidden)
    shapes = [tuple(layer.weight.shape) for layer in (*encoder.hidden, encoder.last)]
    assert shapes == ([(FILTERS, SIZE, 3), (FILTERS, FILTERS, 3), (1, FILTERS, 3)] if hidden else [(1, SIZE, 3)])
    words = torch.randn(1, 15, SIZE, requires_grad=True)
    logits = encoder(words)
    assert logits.shape == (1, 15)
    (grad,) = torch.autograd.grad(logits[0, 7], words)
    torch.testing.assert_close(logits, as_convolutions(encoder, words))
    reach = 1 + hidden
    assert grad.abs().sum(-1)[0].nonzero().flatten().tolist() == list(range(7 - reach, 8 + reach))


def test_dropout_of_the_encoder():
    encoder = Encoder(SIZE, dropout=0.5)
    words, keep = torch.randn(2, 5, SIZE), torch.rand(2, 5, SIZE) < 0.5
    torch.testing.assert_close(encoder(words, keep), encoder(torch.where(keep, 2 * words, 0.0)))


def test_critic_and_surrogate_see_the_chosen_tokens_and_the_rating():
    words, ratings = torch.randn(3, 5, SIZE), torch.rand(3)
    seen = context(words, ratings)
    noise = torch.full((2, 3, 5), -99.0)
    noise[..., 1:3] = -20.0
    noise[..., 4] = 0.0  # does not race
    critic = Critic(SIZE)
    mean = words[:, 1:3].mean(1)
    expected = critic.net(torch.cat([mean, ratings[:, None]], -1)).squeeze(-1)
    torch.testing.assert_close(critic(noise, seen), expected.expand(2, 3))
    surrogate = Surrogate(SIZE, memory=64)
    chosen = torch.zeros(2, 3, 5)
    chosen[..., 1:3] = 1
    torch.testing.assert_close(surrogate(chosen, seen), surrogate.mlp(mean, ratings[:, None]).expand(2, 3))
    before = surrogate(chosen, seen)
    for _ in range(30):
        surrogate.fit(chosen, ratings.expand(2, 3), seen, seeded())
    error = (surrogate(chosen, seen) - ratings).abs().max()
    assert error < 0.3 * (before - ratings).abs().max()


def test_gradients_of_the_critic_are_smooth():
    """RELAX differentiates it twice."""
    critic, seen = Critic(2).double(), context(torch.randn(1, 3, 2), torch.rand(1)).double()
    noise = torch.randn(1, 1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda g: critic(g, seen), noise)
