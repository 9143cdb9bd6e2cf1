"""What objectives do and return: they write into their values, reuse their tensors, return nan, inf and complex."""

import copy
from functools import partial

import pytest
import torch
import unbiased
from common import seeded
from unbiased import CONTROL, entries_of, make

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.structures.checks import NotFinite

SURROGATES = {
    "linear": lambda d: E.LinearSurrogate(),
    "pairwise": lambda d: E.PairwiseSurrogate(),
    "mlp": lambda d: perceptron(d),
}
WITH_SURROGATE = {
    name: lambda d, build=build: E.SurrogateREINFORCE(surrogate=build(d), samples=3, extra=4)
    for name, build in SURROGATES.items()
}
ANY = {name: partial(make, name) for name in unbiased.ANY} | WITH_SURROGATE
ANY["one sample"] = lambda d: E.TraceREINFORCE(samples=1, leave_one_out=False)
SMOOTH = {name: partial(make, name) for name in unbiased.SMOOTH}
ALL = ANY | SMOOTH


def perceptron(dist):
    torch.manual_seed(0)
    return E.MLPSurrogate(entries_of(dist))


def randn(*shape):
    return torch.randn(*shape, generator=seeded(8), dtype=torch.float64).requires_grad_()


SOFT = {
    "subset": lambda: gt.Subset(randn(2, 5), 2),
    "permutation": lambda: gt.Permutation(randn(2, 3), matrix=True),
    "matching": lambda: gt.Matching(randn(2, 3, 3)),
    "tree": lambda: gt.SpanningTree(randn(2, 4, 4)),
    "arborescence": lambda: gt.Arborescence(randn(2, 4, 4)),
}
WHOLE = {"order": lambda: gt.Permutation(randn(2, 4)), "binary": lambda: gt.BinaryTree(randn(2, 4))}
CASES = [
    (estimator, structure)
    for estimator in ALL
    for structure, dist in (SOFT | WHOLE).items()
    if estimator not in E.ESTIMATORS or E.ESTIMATORS[estimator].supports(dist())
]


def weights(x, dist):
    """Not linear in row and column, as every permutation would have the same loss."""
    return torch.arange(2, 2 + dist.event_shape.numel(), dtype=x.dtype).square().reshape(dist.event_shape)


def total(x, dist):
    return x.double().flatten(-len(dist.event_shape)).sum(-1).square()


def plain(x, dist):
    return total(x * weights(x, dist), dist)


def cleared(x, dist):
    loss = plain(x, dist)
    x.zero_()
    return loss


def partly(x, dist):
    """Through a view, of which autograd keeps account."""
    x[0].mul_(weights(x, dist))
    x[1:].mul_(weights(x, dist))
    return total(x, dist)


IN_PLACE = {
    "scaled": lambda x, dist: total(x.mul_(weights(x, dist)), dist),
    "cleared": cleared,
    "partly": partly,
    "reshaped": lambda x, dist: total(x.unsqueeze_(0).mul_(weights(x, dist)), dist).squeeze(0),
}


def twice(estimator, dist, objective):
    """Losses and gradients of two calls, the second after what the first has taught, and all that is known then."""
    found = []
    for seed in (1, 2):
        dist.logits.grad = None
        estimator.zero_grad()
        loss = estimator(dist, lambda x: objective(x, dist), generator=seeded(seed))
        loss.mean().backward()
        found += [loss.detach(), dist.logits.grad, *(p.grad for p in estimator.parameters() if p.requires_grad)]
    return found, estimator.state_dict()


@pytest.mark.parametrize("way", IN_PLACE)
@pytest.mark.parametrize(("estimator", "structure"), CASES)
@pytest.mark.slow
def test_objectives_may_write_into_their_values(estimator, structure, way):
    dist = (SOFT | WHOLE)[structure]()
    expected = twice(ALL[estimator](dist), dist, plain)
    assert expected[0][1].abs().sum() > 0
    torch.testing.assert_close(twice(ALL[estimator](dist), dist, IN_PLACE[way]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("estimator", ANY)
def test_objectives_may_return_one_tensor_again_and_again(estimator, known):
    """Whether torch knows that it has changed, or not."""

    def gradient(reuse):
        dist = SOFT["subset"]()
        made, kept = ALL[estimator](dist), torch.zeros(ALL[estimator](dist).samples, 2, dtype=torch.float64)

        def objective(x):
            loss = plain(x, dist)
            if not reuse:
                return loss
            if known:
                return kept.copy_(loss)
            kept.numpy()[...] = loss.numpy()
            return kept

        torch.stack([made(dist, objective, generator=seeded(seed)) for seed in (1, 2)]).mean().backward()
        return dist.logits.grad

    torch.testing.assert_close(gradient(True), gradient(False))


def test_rebar_keeps_losses_of_a_tensor_that_is_filled_again():
    """It calls the objective three times, and needs the first losses at the end."""

    def gradient(reuse):
        dist = SOFT["subset"]()
        made, kept = ALL["REBAR"](dist), [torch.zeros(ALL["REBAR"](dist).samples, 2, dtype=torch.float64)]

        def objective(x):
            if not reuse:
                return plain(x, dist)
            kept[0] = kept[0].detach()  # the same memory
            return kept[0].copy_(plain(x, dist))

        loss = made(dist, objective, generator=seeded(1))
        loss.mean().backward()
        return loss.detach(), dist.logits.grad

    torch.testing.assert_close(gradient(True), gradient(False))


# Losses that are no numbers ------------------------------------------------------------------------


def spoilt(x, dist, bad):
    """The second item of the batch, in its last sample: its loss and its derivative."""
    factor = torch.ones(x.shape[:2], dtype=torch.float64)
    factor[-1, 1] = bad
    return plain(x, dist) * factor


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("estimator", ALL)
def test_a_loss_that_is_not_finite_is_an_error(estimator, bad):
    dist = SOFT["subset"]()
    made = ALL[estimator](dist)
    made(dist, lambda x: plain(x, dist), generator=seeded(1))
    before = copy.deepcopy(made.state_dict())
    message = rf"{type(made).__name__}: the loss of sample {made.samples - 1} of item \(1,\) of the batch is {bad}"
    with pytest.raises(NotFinite, match=message):
        made(dist, lambda x: spoilt(x, dist, bad), generator=seeded(2))
    torch.testing.assert_close(made.state_dict(), before, rtol=0, atol=0)
    with torch.no_grad(), pytest.raises(NotFinite, match=message):
        made(dist, lambda x: spoilt(x, dist, bad), generator=seeded(2))


def test_the_error_names_the_sample_of_a_single_item():
    estimator = E.TraceREINFORCE(samples=4)
    with pytest.raises(NotFinite, match="the loss of sample 2 of the item is nan"):
        estimator(gt.Subset(torch.zeros(5), 2), lambda x: torch.tensor([0.0, 1.0, torch.nan, torch.nan]))


@torch.no_grad()
def test_losses_whose_sum_overflows_are_finite():
    f = lambda x: torch.full(x.shape[:-1], 3e38)  # noqa: E731
    assert E.TraceREINFORCE(samples=1, leave_one_out=False)(gt.Subset(torch.zeros(4, 5), 2), f).isfinite().all()


def unchecked():
    return gt.Subset(randn(3, 5), 2, validate_args=False)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("estimator", ALL)
def test_without_checks_it_stays_with_its_item(estimator, bad):
    dist = unchecked()
    found = []
    for objective in (plain, lambda x, d: spoilt(x, d, bad)):
        made = ALL[estimator](dist)
        dist.logits.grad = None
        loss = made(dist, lambda x, f=objective: f(x, dist), generator=seeded(1))
        loss.mean().backward()
        found.append((loss.detach(), dist.logits.grad))
        assert all(p.grad.isfinite().all() for p in made.parameters() if p.requires_grad)
        assert all(value.isfinite().all() for value in made.state_dict().values())
    (clean, clean_grad), (loss, grad) = found
    assert not loss[1].isfinite()
    assert not grad[1].isfinite().all()
    for other in (0, 2):
        torch.testing.assert_close(loss[other], clean[other], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(grad[other], clean_grad[other], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CONTROL)
def test_parameters_learn_from_the_items_whose_loss_is_finite(name):
    """Their gradient is a sum over the items: what some teach and what the others teach is what all teach."""
    dist, made = unchecked(), ALL[name](unchecked())

    def taught(*lost):
        hard = torch.zeros(3, dtype=torch.float64)
        hard[list(lost)] = torch.nan  # at the hard structure only
        made.zero_grad()
        made(dist, lambda x: plain(x, dist) + (0 if x.requires_grad else hard), generator=seeded(1)).sum().backward()
        return [p.grad.clone() for p in made.parameters()]

    some, others = taught(2), taught(0, 1)
    assert all(grad.abs().sum() > 0 for grad in (*some, *others))
    torch.testing.assert_close([a + b for a, b in zip(some, others, strict=True)], taught())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30, -3e38])
@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_learn_on_after_it(name, bad):
    """In float32, in which the square of a loss of 1e30 overflows."""
    dist = gt.Subset(torch.zeros(3, 5), 2, validate_args=False)
    made = ALL[name](dist)
    for step in range(20):
        objective = plain if step % 4 else lambda x, d: spoilt(x, d, bad).float()
        made(dist, lambda x, f=objective: f(x, dist).float(), generator=seeded(step))
        assert all(value.isfinite().all() for value in made.state_dict().values())
    x = dist.sample((200,), generator=seeded(99))
    assert (plain(x, dist) - made.surrogate(x)).std() < 0.7 * plain(x, dist).std()


def test_complex_losses_are_refused():
    dist = SOFT["subset"]()
    for build in ALL.values():
        made = build(dist)
        message = f"{type(made).__name__}: the objective must return real losses, got torch.complex128"
        with pytest.raises(TypeError, match=message):
            made(dist, lambda x: torch.complex(x[..., 0], x[..., 1]))


# Keys that are as good as masked -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*do not give their trace back")
@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.parametrize("structure", SOFT)
def test_logits_at_the_lowest_number_give_finite_gradients_to_all(structure, name):
    """Half of the keys: where the loss and the logits' gradient are finite, so are those of the estimator's own."""
    shape = SOFT[structure]().logits.shape
    masked = torch.randn(20, *shape[1:], generator=seeded(5))
    masked[..., ::2] = torch.finfo(torch.float32).min
    logits = masked.requires_grad_()
    dist = {
        "subset": lambda x: gt.Subset(x, 2),
        "permutation": lambda x: gt.Permutation(x, matrix=True),
        "matching": gt.Matching,
        "tree": gt.SpanningTree,
        "arborescence": gt.Arborescence,
    }[structure](logits)
    made = make(name, dist, samples=2).float()
    loss = made(dist, lambda x: plain(x, dist).float(), generator=seeded(1))
    assert loss.isfinite().all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss.mean(), [logits, *made.parameters()]))
