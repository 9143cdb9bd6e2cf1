"""IMLE and MarginalStraightThrough: their formulas, the step that adapts, and what their bias is."""

import copy

import pytest
import torch
from common import FALSE_ALARM, seeded
from torch.distributions import Independent

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import enumerate_values, exact_gradient, gradients
from gumtrace.estimators.hard import TARGET
from gumtrace.structures.joint import as_structure


def randn(*shape, seed=1):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


STRUCTURES = {
    "subset": lambda x: gt.Subset(x[..., 0, :], 2),
    "matching": gt.Matching,
    "tree": gt.SpanningTree,
    "arborescence": gt.Arborescence,
    "several": lambda x: Independent(gt.Subset(x, 2), 1),
}


def entries(dist):
    return len(dist.event_shape)


def objective(dist):
    weights = randn(*dist.event_shape, seed=4)
    return lambda x: (x * weights).flatten(-entries(dist)).sum(-1).square()


# IMLE ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_it_is_the_difference_of_two_runs_on_the_same_noise(name):
    """By hand: the slope in the entries of the value by the product rule, and the run once more."""
    logits = randn(3, 4, 4).requires_grad_()
    dist = STRUCTURES[name](logits)
    base = dist.base_dist if name == "several" else dist
    f, step = objective(dist), 0.7
    E.IMLE(samples=5, step=step)(dist, f, generator=seeded(2)).sum().backward()
    noise = base.perturb((5,), generator=seeded(2)).detach()
    value = base.trace(noise).value.requires_grad_()
    (slope,) = torch.autograd.grad(f(value).sum(), value)
    if name == "tree":  # an edge is in the upper triangle and in the lower one
        slope = slope + slope.mT
    moved = torch.where(base.racing, noise - step * slope, -torch.inf)
    expected = (value.detach() - base.trace(moved).value) / step
    expected = torch.where(base.racing, expected, 0.0).mean(0)
    assert expected.abs().sum() > 0
    if name == "subset":
        expected = torch.nn.functional.pad(expected[:, None, :], (0, 0, 0, 3))
    torch.testing.assert_close(logits.grad, expected)


def test_a_small_step_gives_the_gradient_of_a_linear_objective():
    """The Jacobian of the mean is symmetric, so that the derivative along the slope is the gradient."""
    dist, weights = gt.Subset(randn(5), 2), randn(5, seed=4)
    exact = exact_gradient(dist, lambda x: x @ weights)[1]
    n = 200_000
    found = gradients(E.IMLE(step=0.01), dist, lambda x: x @ weights, n, seeded(5))
    z = (found.mean(0) - exact) / (found.std(0) / n**0.5)
    assert (torch.special.erfc(z.abs() / 2**0.5) > FALSE_ALARM).all()
    far = gradients(E.IMLE(step=5.0), dist, lambda x: x @ weights, n // 10, seeded(5))
    assert (far.mean(0) - exact).norm() > 0.2 * exact.norm()  # and a large one does not


def adapted(estimator, scale, calls=400):
    logits = randn(64, 20).requires_grad_()
    dist, weights = gt.Subset(logits, 5), randn(20, seed=4)
    for seed in range(calls):
        estimator(dist, lambda x: scale * (x @ weights).square(), generator=seeded(seed))
    return estimator


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("step", [0.02, 1.0])
def test_the_step_adapts_until_one_key_differs(step, scale):
    """From below and from above, whatever the size of the loss."""
    estimator = adapted(E.IMLE(step=step, adaptive=True), scale)
    assert estimator.changed.item() == pytest.approx(TARGET, rel=0.15)
    assert (estimator.factor > 1) == (step < 0.1)
    frozen = copy.deepcopy(estimator).eval()
    adapted(frozen, scale, calls=3)
    torch.testing.assert_close(frozen.state_dict(), estimator.state_dict(), rtol=0, atol=0)


def test_the_step_adapts_to_each_of_an_items_structures():
    """The same structures as 64 items and as 8 items of 8: one key of each differs, not one of an item's eight."""
    estimator, weights = E.IMLE(adaptive=True), randn(20, seed=4)
    dist = torch.distributions.Independent(gt.Subset(randn(8, 8, 20).requires_grad_(), 5), 1)
    for seed in range(400):
        estimator(dist, lambda x: (x @ weights).square().sum(-1), generator=seeded(seed))
    assert estimator.changed.item() == pytest.approx(TARGET, rel=0.15)
    noise = dist.base_dist.perturb((50,), generator=seeded(1))
    x = dist.base_dist.trace(noise).value
    slope = 2 * (x @ weights)[..., None] * weights
    found = estimator.eval()._difference(as_structure("test", dist), noise, x, slope)
    assert (found != 0).sum(-1).double().mean().item() == pytest.approx(TARGET, rel=0.2)


def test_losses_that_are_not_finite_leave_the_step_as_it_is():
    estimator = E.IMLE(adaptive=True)
    dist = gt.Subset(randn(3, 6).requires_grad_(), 2, validate_args=False)
    estimator(dist, lambda x: x.sum(-1) * torch.nan)
    assert (estimator.factor, estimator.changed) == (1.0, TARGET)


def test_the_factor_is_that_of_a_checkpoint():
    first = adapted(E.IMLE(adaptive=True), 1.0, calls=50)
    second = E.IMLE(adaptive=True)
    second.load_state_dict(first.state_dict())
    logits = randn(3, 6).requires_grad_()
    f = lambda x: x[..., 0] - x[..., 1]  # noqa: E731
    found = [
        torch.autograd.grad(e(gt.Subset(logits, 2), f, generator=seeded(1)).sum(), logits)[0] for e in (first, second)
    ]
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert list(E.IMLE().state_dict()) == []


@pytest.mark.parametrize("adaptive", [True, False])
def test_no_slope_is_no_gradient(adaptive):
    logits = randn(3, 6).requires_grad_()
    estimator = E.IMLE(samples=2, adaptive=adaptive)
    estimator(gt.Subset(logits, 2), lambda x: 0 * x.sum(-1)).sum().backward()
    assert logits.grad.abs().max() == 0
    alone = torch.zeros(1, 1, requires_grad=True)  # noise without a spread
    estimator(gt.Subset(alone, 1), lambda x: x.sum(-1)).sum().backward()
    assert alone.grad.item() == 0


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_slope_that_overflows_keeps_its_item_finite(adaptive):
    logits = randn(3, 6).float().requires_grad_()
    estimator = E.IMLE(samples=4, adaptive=adaptive)
    estimator(gt.Subset(logits, 2), lambda x: 1e38 * x[..., 0] - 1e38 * x[..., 1]).mean().backward()
    assert logits.grad.isfinite().all()
    assert all(value.isfinite() for value in estimator.state_dict().values())


@pytest.mark.parametrize(
    "dist", [gt.Permutation(torch.zeros(3)), gt.Permutation(torch.zeros(3), matrix=True), gt.BinaryTree(torch.zeros(3))]
)
def test_values_without_an_entry_for_each_key_are_refused(dist):
    assert not E.IMLE.supports(dist)
    with pytest.raises(NotImplementedError, match=r"IMLE moves the noise of each key .* take TraceREINFORCE"):
        E.IMLE()(dist, lambda x: x.sum(-1))


@pytest.mark.parametrize("step", [0, -1.0, float("inf"), float("nan"), "a"])
def test_the_step_must_be_a_positive_number(step):
    with pytest.raises(ValueError, match=f"IMLE: step must be a positive number, got {step!r}"):
        E.IMLE(step=step)


def test_what_is_no_structure_is_refused():
    with pytest.raises(TypeError, match="MarginalStraightThrough"):
        E.MarginalStraightThrough.supports(torch.distributions.Normal(0.0, 1.0))


# MarginalStraightThrough ---------------------------------------------------------------------------


def test_it_is_the_slope_times_the_jacobian_of_the_mean():
    logits = randn(3, 6).requires_grad_()
    dist = gt.Subset(logits, 2)
    f = objective(dist)
    E.MarginalStraightThrough(samples=4)(dist, f, generator=seeded(2)).sum().backward()
    value = dist.sample((4,), generator=seeded(2)).requires_grad_()
    (slope,) = torch.autograd.grad(f(value).sum(), value)
    (expected,) = torch.autograd.grad(dist.mean, logits, slope.mean(0))
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("build", [lambda x: gt.Subset(x, 2), lambda x: gt.Permutation(x[:3], matrix=True)])
def test_a_linear_objective_has_its_exact_gradient_from_every_sample(build):
    logits = randn(5).requires_grad_()
    dist = build(logits)
    weights = randn(*dist.event_shape, seed=4)
    f = lambda x: (x * weights).flatten(-entries(dist)).sum(-1)  # noqa: E731
    found = gradients(E.MarginalStraightThrough(), dist, f, 5, seeded(1))
    torch.testing.assert_close(found, exact_gradient(dist, f)[1].expand(5, -1))


def test_its_mean_is_that_of_the_slopes():
    """By enumeration: biased for objectives that are not linear, and by how much."""
    dist = gt.Subset(randn(5), 2)
    f = objective(dist)
    law = enumerate_values(dist)
    value = law.outcomes.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(value).sum(), value)
    x = dist.logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(gt.Subset(x, 2).mean, x, (law.log_prob.exp()[:, None] * slope).sum(0))
    n = 20_000
    found = gradients(E.MarginalStraightThrough(), dist, f, n, seeded(1))
    z = (found.mean(0) - expected) / (found.std(0) / n**0.5)
    assert (torch.special.erfc(z.abs() / 2**0.5) > FALSE_ALARM).all()
    assert (expected - exact_gradient(dist, f)[1]).norm() > 0.05 * expected.norm()


def test_it_says_what_has_no_mean():
    with pytest.raises(NotImplementedError, match="MarginalStraightThrough needs the mean of the structure; take"):
        E.MarginalStraightThrough()(gt.BinaryTree(torch.zeros(3)), lambda x: x.sum(-1))
    tree = gt.SpanningTree(torch.zeros(12, 12))
    assert not E.MarginalStraightThrough.supports(tree)
    with pytest.raises(ValueError, match=r"MarginalStraightThrough needs the mean .* too many to enumerate"):
        E.MarginalStraightThrough()(tree, lambda x: x.sum((-1, -2)))
