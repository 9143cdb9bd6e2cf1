"""Estimators: value, shapes, gradients to everything that learns, errors. `test_unbiased.py` has their means."""

import pytest
import torch
from common import FALSE_ALARM, seeded
from unbiased import ANY, CONTROL, case, make

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import exact_gradient, exact_variance, gradients

ALL = list(E.ESTIMATORS)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_one_call_for_all(name, batch):
    """Value, shape, and gradients to logits, to the objective's parameters and to the estimator's: in one backward."""
    logits = torch.zeros(*batch, 4, 4, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    dist = gt.SpanningTree(logits)
    estimator = make(name, dist)
    seen = []

    def f(x):
        seen.append(x.shape)
        return scale * (x.flatten(-2) @ torch.arange(16.0, dtype=x.dtype)).square() + 1.0

    loss = estimator(dist, f, generator=seeded(1))
    assert loss.shape == batch
    loss.mean().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0
    assert scale.grad is not None
    assert all(p.grad is not None for p in estimator.parameters() if p.requires_grad)
    assert all(shape[1:] == (*batch, 4, 4) for shape in seen)


@pytest.mark.parametrize("name", [name for name, cls in E.ESTIMATORS.items() if not cls.weighted])
def test_value_is_the_mean_of_the_objective(name):
    dist = gt.SpanningTree(torch.zeros(4, 4, dtype=torch.float64, requires_grad=True))
    losses = []

    def f(x):
        losses.append(x[..., 0, 1].square())
        return losses[-1]

    loss = make(name, dist)(dist, f)
    torch.testing.assert_close(loss.detach(), losses[0].mean(0).detach())


@pytest.mark.parametrize("name", ANY)
def test_objectives_need_not_be_differentiable(name):
    dist = gt.SpanningTree(torch.zeros(4, 4, dtype=torch.float64, requires_grad=True))
    loss = make(name, dist)(dist, lambda x: torch.from_numpy((x.detach().numpy()[..., 0, 1] > 0).astype("float64")))
    loss.backward()
    assert dist.logits.grad.isfinite().all()


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16])
def test_losses_may_be_counts(name, dtype):
    dist = gt.SpanningTree(torch.zeros(4, 4, dtype=torch.float64, requires_grad=True))
    drawn = []
    for t in (dtype, torch.float64):
        drawn.append(make(name, dist)(dist, lambda x, t=t: x[..., 0, 1].to(t), generator=seeded(1)))
    assert drawn[0].dtype == torch.float64
    for loss in drawn:
        loss.backward()
    torch.testing.assert_close(drawn[0], drawn[1])


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ALL)
def test_without_gradients_there_is_only_the_mean(name, off):
    """For as many structures as there are samples; nothing is learnt."""
    dist = gt.SpanningTree(torch.zeros(3, 4, 4, dtype=torch.float64, requires_grad=True))
    estimator = make(name, dist)
    losses = []

    def f(x):
        losses.append(x[..., 0, 1])
        return losses[-1]

    before = [value.clone() for value in estimator.state_dict().values()]
    with off():
        loss = estimator(dist, f, generator=seeded(1))
    assert not loss.requires_grad
    assert len(losses) == 1
    assert losses[0].shape == (estimator.samples, 3)
    torch.testing.assert_close(loss, losses[0].mean(0))
    torch.testing.assert_close(list(estimator.state_dict().values()), before)


def test_gradient_of_the_objective_is_plain_backpropagation():
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    dist = gt.Subset(torch.zeros(5, dtype=torch.float64), 2)
    samples = dist.sample((4,), generator=seeded(2))
    E.TraceREINFORCE(samples=4)(dist, lambda x: scale * x[..., 0], generator=seeded(2)).backward()
    assert scale.grad.item() == pytest.approx(samples[:, 0].mean().item())


@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.slow
def test_training_on_the_variance_lowers_it(name):
    """Below that of T-REINFORCE with as many samples, which is c = 0."""
    dist, f = case("subset")
    estimator = make(name, dist, samples=2, scale=3.0)
    without = exact_variance(dist, f, estimator.samples).trace.sum()
    optimiser = torch.optim.Adam(estimator.parameters(), 0.02)
    for step in range(150):
        optimiser.zero_grad()
        many = dist.with_log_rates(dist.log_rates.detach().expand(32, *dist.key_shape))
        estimator(many, f, generator=seeded(100 + step)).mean().backward()
        optimiser.step()
    assert gradients(estimator, dist, f, 3000, seeded(5)).var(0).sum() < 0.9 * without


def test_variance_gradient_is_that_of_the_squared_norm():
    """The estimator's parameters get d/dφ of Σ g², by finite differences at fixed randomness."""
    dist, f = case("subset")
    estimator = E.REBAR(samples=1, temperature=0.6, scale=0.9).double()
    estimator(dist, f, generator=seeded(4)).backward()

    def norm():
        return gradients(estimator, dist, f, 1, seeded(4)).square().sum()

    for p in estimator.parameters():
        values = []
        for step in (1e-5, -2e-5):
            p.data.add_(step)
            values.append(norm())
        p.data.add_(1e-5)
        up, down = values
        assert p.grad.item() == pytest.approx(((up - down) / 2e-5).item(), rel=1e-4)


class Once(torch.autograd.Function):
    """x², which can be differentiated once."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def test_a_temperature_that_is_kept_takes_first_derivatives_alone():
    found = []
    for learned in (True, False):
        square = torch.square if learned else Once.apply
        logits = torch.linspace(-1, 1, 10, dtype=torch.float64).view(2, 5).requires_grad_()
        estimator = E.REBAR(samples=1, temperature=0.6, scale=0.9).double()
        estimator.log_temperature.requires_grad_(learned)
        estimator(
            gt.Subset(logits, 2), lambda x, square=square: square(x)[..., 1], generator=seeded(4)
        ).mean().backward()
        found.append((logits.grad, estimator.scale.grad))
        assert (estimator.log_temperature.grad is not None) == learned
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", CONTROL)
def test_variance_is_lowered_whatever_the_sign_of_the_loss(name):
    """A reward is maximised by -loss; the estimator's variance is not."""
    grads = []
    for sign in (1, -1):
        logits = torch.zeros(2, 4, 4, dtype=torch.float64, requires_grad=True)
        dist = gt.SpanningTree(logits)
        estimator = make(name, dist)
        loss = estimator(dist, lambda x: x[..., 0, 1].square() + x[..., 1, 2], generator=seeded(1))
        (sign * loss).mean().backward()
        grads.append((logits.grad, [p.grad for p in estimator.parameters()]))
    (up, tuned), (down, tuned_too) = grads
    torch.testing.assert_close(up, -down)
    torch.testing.assert_close(tuned, tuned_too)
    assert any(grad.abs().sum() > 0 for grad in tuned)


def test_rebar_starts_at_a_scale_that_makes_up_for_a_missing_baseline():
    assert E.REBAR(samples=1).scale.item() == pytest.approx(1.3)
    assert E.REBAR().scale.item() == 1
    assert E.REBAR(samples=2).scale.item() == 1
    assert E.REBAR(samples=2, leave_one_out=False, scale=0.5).scale.item() == 0.5


def test_control_variate_does_not_leak_into_the_model():
    """The objective's parameters get their gradient from the hard structure alone, whatever REBAR does."""
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    dist = gt.Subset(torch.zeros(5, dtype=torch.float64, requires_grad=True), 2)
    hard = []

    def f(x):
        hard.append(x)
        return scale * x[..., 0].square()

    E.REBAR(samples=1).double()(dist, f, generator=seeded(2)).backward()
    assert scale.grad.item() == pytest.approx(hard[0][0, 0].item())


def test_surrogate_takes_most_of_the_variance():
    """A quadratic objective and a pairwise surrogate: little is left after a few fits."""
    dist, f = case("tree")
    estimator = E.SurrogateREINFORCE(samples=8, extra=512)
    for step in range(30):
        estimator(dist, f, generator=seeded(step))
    ours = gradients(estimator.eval(), dist, f, 500, seeded(77)).std(0).square().mean().sqrt()
    plain = gradients(E.TraceREINFORCE(samples=8), dist, f, 2000, seeded(78)).std(0).square().mean().sqrt()
    assert ours < 0.5 * plain


def test_gumbel_rao_has_the_mean_of_straight_through():
    dist, f = case("subset")
    rao = gradients(E.GumbelRao(temperature=0.7, draws=8), dist, f, 20_000, seeded(1))
    through = gradients(E.StraightThrough(temperature=0.7), dist, f, 20_000, seeded(2))
    error = ((rao.var(0) + through.var(0)) / 20_000).sqrt()
    z = (rao.mean(0) - through.mean(0)) / error
    assert (torch.special.erfc(z.abs() / 2**0.5) > FALSE_ALARM).all()
    assert rao.var(0).sum() < through.var(0).sum()


def test_context_reaches_critics_and_surrogates():
    context = torch.randn(3, 2, generator=seeded())
    logits = torch.randn(3, 4, generator=seeded(), requires_grad=True)
    f = lambda x: x[..., 0] * context[:, 0]  # noqa: E731
    E.RELAX(E.VectorCritic(4, context=2))(gt.Subset(logits, 2), f, context).mean().backward()
    surrogate = E.MLPSurrogate(4, context=2)
    E.SurrogateREINFORCE(surrogate=surrogate, samples=2, extra=4)(gt.Subset(logits, 2), f, context).mean().backward()
    matrix = torch.randn(3, 4, 4, generator=seeded(), requires_grad=True)
    E.RELAX(E.MatrixCritic(context=2))(gt.SpanningTree(matrix), lambda x: x[..., 0, 1], context).mean().backward()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d: E.TraceREINFORCE(samples=1, leave_one_out=True), ValueError, "samples >= 2"),
        (lambda d: E.TraceREINFORCE(samples=0), ValueError, "at least 1"),
        (lambda d: E.TraceREINFORCE(samples=2)(d, lambda x: x), ValueError, "one loss for each sample"),
        (lambda d: E.TraceREINFORCE(samples=2)(d, lambda x: x.mean()), ValueError, "one loss for each sample"),
        (lambda d: E.TraceREINFORCE(samples=2)(d, lambda x: 1.0), ValueError, "got float"),
        (
            lambda d: E.StructureREINFORCE(samples=2)(gt.Arborescence(torch.zeros(3, 3)), lambda x: x[..., 0, 1]),
            NotImplementedError,
            "TraceREINFORCE",
        ),
        (
            lambda d: E.StochasticSoftmax()(gt.BinaryTree(torch.zeros(3)), lambda x: x[..., 0]),
            NotImplementedError,
            "BinaryTree has no relaxation",
        ),
        (lambda d: E.REBAR(kind="sinkhorn")(d, lambda x: x[..., 0]), ValueError, "expfamily"),
        (lambda d: E.REBAR()(d, lambda x: (x[..., 0] > 0.5).to(x.dtype)), ValueError, "differentiable"),
        (lambda d: E.StochasticSoftmax(temperature=0.0), ValueError, "positive"),
        (
            lambda d: E.StochasticSoftmax()(gt.Permutation(torch.zeros(3)), lambda x: x[..., 0]),
            ValueError,
            "matrix=True",
        ),
        (lambda d: E.SurrogateREINFORCE(extra=1), ValueError, "at least 2"),
        (lambda d: E.TraceREINFORCE(samples=2.5), TypeError, "samples must be an integer"),
        (lambda d: E.GumbelRao(draws=2.5), TypeError, "draws must be an integer"),
        (lambda d: E.REBAR(temperature=0.0), ValueError, "REBAR: temperature must be positive"),
        (
            lambda d: E.StructureREINFORCE(samples=2)(gt.SpanningTree(torch.zeros(23, 23)), lambda x: x[..., 0, 1]),
            ValueError,
            "take TraceREINFORCE instead",
        ),
        (
            lambda d: E.RELAX(E.MatrixCritic(size=3))(gt.SpanningTree(torch.zeros(4, 4)), lambda x: x[..., 0, 1]),
            ValueError,
            r"made for 3 x 3 keys, got noise of shape \(8, 4, 4\)",
        ),
    ],
)
def test_bad_use_is_told(call, error, message):
    with pytest.raises(error, match=message):
        call(gt.Subset(torch.zeros(4, requires_grad=True), 2))


def test_exact_gradient_of_a_batch_is_that_of_its_items():
    dist, f = case("tree-ragged")
    value, grad = exact_gradient(dist, f)
    for i, n in enumerate([3, 4]):
        alone = gt.SpanningTree(dist.logits[i, :n, :n])

        def padded(x, i=i, n=n):
            full = torch.nn.functional.pad(x, (0, 4 - n, 0, 4 - n))
            return f(full[..., None, :, :].expand(-1, 2, 4, 4))[:, i]

        own_value, own_grad = exact_gradient(alone, padded)
        torch.testing.assert_close(value[i], own_value)
        torch.testing.assert_close(grad[i, :n, :n], own_grad)
