"""What estimators refuse before it fails in torch's words: losses of another shape, what is no objective, a context
that does not fit the batch."""

import re
from functools import partial

import pytest
import torch
from torch.distributions import Independent

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import exact_gradient, gradient_statistics


@pytest.mark.parametrize(
    ("batch", "expand"),
    [((), r", or, if it is a mini-batch, give each item a draw of its own, dist.expand\(\(9,\)\)"), ((2,), "")],
)
def test_losses_of_more_dimensions_get_advice(batch, expand):
    items = torch.ones(9, 5)
    objective = lambda x: (x[..., None, :] * items).sum(-1)  # noqa: E731
    with pytest.raises(ValueError, match=rf"9\); take the mean or sum over the last dimension{expand}$"):
        E.TraceREINFORCE()(gt.Subset(torch.zeros(*batch, 5), 2), objective)


def test_losses_of_two_more_dimensions():
    with pytest.raises(
        ValueError, match=r"take the mean or sum over the last 2 dimensions, or, .* dist.expand\(\(9, 5\)\)$"
    ):
        E.TraceREINFORCE()(gt.Subset(torch.zeros(5), 2), lambda x: x[:, None] * torch.ones(9, 5))


@pytest.mark.parametrize("on", ["value", "trace"])
def test_an_objective_that_is_no_function_is_named(on):
    dist, losses = gt.Subset(torch.zeros(5), 2), torch.zeros(4)
    message = f"the objective must be a function of the {on}s .*, got Tensor; pass lambda {on}s: "
    for call in (
        lambda: E.TraceREINFORCE()(dist, losses, on=on),
        lambda: exact_gradient(dist, losses, on=on),
        lambda: gradient_statistics({"T": E.TraceREINFORCE()}, dist, losses, 2, on=on, exact=False),
    ):
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.parametrize("shape", [(5,), (3,), (5, 2), (1, 2), (2, 3, 2), (3, 1, 2)])
@pytest.mark.parametrize("kind", ["critic", "surrogate"])
def test_a_context_that_does_not_fit_the_batch_is_named(kind, shape):
    """Of (5,), expand would make 5 features, the same for all items."""
    estimator = with_context(kind, shape[-1])
    remedies = {
        (3,): "; of one feature, pass context[..., None]",
        (5,): "; if all items share it, pass context.expand(3, -1)",
        (1, 2): "; if all items share it, pass context.expand(3, -1)",
    }
    message = f"{type(estimator).__name__}: the context must be features, of shape (3, c), got {shape}"
    message = re.escape(message + remedies.get(shape, "")) + "$"
    with pytest.raises(ValueError, match=message):
        estimator(gt.Subset(torch.zeros(3, 4), 2), lambda x: x[..., 0], torch.zeros(shape))


@pytest.mark.parametrize("kind", ["critic", "surrogate"])
def test_a_context_that_is_no_tensor_is_named(kind):
    with pytest.raises(TypeError, match="the context must be a tensor of features, got dict"):
        with_context(kind, 2)(gt.Subset(torch.zeros(3, 4), 2), lambda x: x[..., 0], {"a": torch.zeros(3, 2)})


def with_context(kind, features):
    if kind == "critic":
        return E.RELAX(E.VectorCritic(4, context=features))
    return E.SurrogateREINFORCE(samples=2, extra=4, surrogate=E.MLPSurrogate(4, context=features))


def test_critics_of_ones_own_get_the_context_as_it_is():
    class OfLabels(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.net = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 1)

        def forward(self, noise, context):
            return self.net(noise * self.table(context["label"])).squeeze(-1).tanh()

    labels = {"label": torch.tensor([1, 2, 6])}
    loss = E.RELAX(OfLabels())(gt.Subset(torch.zeros(3, 4, requires_grad=True), 2), lambda x: x[..., 0], labels)
    assert loss.shape == (3,)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile reads it
@pytest.mark.parametrize("wrapped", [lambda critic: critic, partial(torch.compile, backend="eager")])
@pytest.mark.parametrize("structures", [3, 4])
def test_the_structures_of_an_item_share_its_context(structures, wrapped):
    """Three of them, as there are items: the context could be expanded over either."""
    seen, critic = [], wrapped(E.VectorCritic(6, context=2))
    critic.register_forward_pre_hook(lambda _, given: seen.append(given[1].expand(*given[0].shape[:-1], 2)[0]))
    items = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    dist = Independent(gt.Subset(torch.zeros(3, structures, 6, requires_grad=True), 2), 1)
    E.RELAX(critic)(dist, lambda x: x[..., 0].sum(-1), items).sum().backward()
    assert torch.equal(seen[0], items[:, None].expand(3, structures, 2))


def test_subclasses_with_a_forward_of_their_own_get_the_context_as_it_is():
    """Of eight items and four samples, 2 x 4 = 8: samples could be taken for items."""
    seen = []

    class Flat(E.VectorCritic):
        def forward(self, noise, context=None):
            seen.append(context)
            return super().forward(noise.flatten(-2), context)

    class OfLabels(E.MLPSurrogate):
        def forward(self, x, context=None):
            seen.append(context)
            return super().forward(x, torch.nn.functional.one_hot(context, 3).to(x.dtype))

        def fit(self, x, loss, context=None, generator=None):
            super().fit(x, loss, torch.nn.functional.one_hot(context, 3).to(x.dtype), generator)

    dist = gt.Matching(torch.zeros(8, 4, 4, requires_grad=True))
    features, labels = torch.randn(8, 2), torch.arange(8) % 3
    E.RELAX(Flat(16, context=2), samples=4)(dist, lambda x: x[..., 0, 0], features)
    E.SurrogateREINFORCE(surrogate=OfLabels(16, context=3))(dist, lambda x: x[..., 0, 0], labels)
    assert [context is given for context, given in zip(seen, [features, labels, labels], strict=True)] == [True] * 3


class Doubled(E.Estimator):
    """What surrogate_loss returns is given."""

    def surrogate_loss(self, dist, objective, context, generator):
        trace = dist.sample_trace((self.samples,), generator=generator)
        return self.answer(self.evaluate(dist, objective, trace), dist.trace_log_prob(trace))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda loss, score: (loss, score), r"losses \(3, 2\) and a surrogate \(2,\), .* got \(3, 2\) and \(3, 2\)"),
        (lambda loss, score: (loss.mean(0), score.mean(0)), r"got \(2,\) and \(2,\)"),
        (lambda loss, score: (loss.mean(), score.mean(0)), r"got \(\) and \(2,\)"),
        (lambda loss, score: score.mean(0), "must return two tensors"),
        (lambda loss, score: (loss, 0.0), "must return two tensors"),
    ],
)
def test_what_a_subclass_returns(answer, message):
    estimator, d = Doubled(samples=3), gt.Subset(torch.zeros(2, 4, requires_grad=True), 2)
    estimator.answer = answer
    with pytest.raises((TypeError, ValueError), match=f"Doubled: surrogate_loss must return .*{message}|{message}"):
        estimator(d, lambda x: x[..., 0])
    for twice in (lambda loss, score: (loss, score.mean(0)), lambda loss, score: [loss.repeat(2, 1), score.mean(0)]):
        estimator.answer = twice
        assert estimator(d, lambda x: x[..., 0]).shape == (2,)


def test_a_subclass_without_a_gradient():
    with pytest.raises(NotImplementedError, match="Estimator has no surrogate_loss"):
        E.Estimator(samples=2)(gt.Subset(torch.zeros(2, 4), 2), lambda x: x[..., 0])


@pytest.mark.parametrize("critic", [torch.nn.Linear(4, 1), lambda noise: noise.sum(-1)])
def test_a_critic_takes_noise_and_context(critic):
    with pytest.raises(TypeError, match=r"the critic is called as critic\(noise, context\), and \w+ does not take"):
        E.RELAX(critic)
    E.RELAX(lambda noise, context=None: noise.sum(-1))
    with pytest.raises(TypeError, match="RELAX: the critic must be a module, got <class"):
        E.RELAX(E.VectorCritic)


def test_a_seed_is_no_generator():
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got int"):
        gt.Subset(torch.zeros(4), 2).sample(generator=0)


def test_a_bool_is_no_number():
    with pytest.raises(TypeError, match="samples must be an integer, got True"):
        E.TraceREINFORCE(samples=True)
