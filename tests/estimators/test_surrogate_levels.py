"""Surrogates and the losses they see: a constant in all of them is nothing to them, nor is one that is not finite."""

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import gradients

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {"linear": E.LinearSurrogate, "pairwise": E.PairwiseSurrogate, "mlp": lambda: E.MLPSurrogate(6)}
BAD = (torch.nan, torch.inf, -torch.inf)


def spread_of_gradients(kind, samples, offset, dtype):
    """The standard deviation of the gradient, of a surrogate that has seen a hundred calls; trees of four nodes."""
    logits = torch.randn(4, 4, generator=seeded(1)).to(dtype)
    weights = torch.randn(4, 4, generator=seeded(2)).to(dtype)
    f = lambda x: (x * weights).sum((-1, -2)).square() + offset  # noqa: E731
    torch.manual_seed(0)
    estimator = E.SurrogateREINFORCE(surrogate=KINDS[kind](), samples=samples, extra=64)
    for step in range(100):
        estimator(gt.SpanningTree(logits), f, generator=seeded(step))
    return (
        gradients(estimator.eval(), gt.SpanningTree(logits), f, 200, seeded(200)).std(0).square().mean().sqrt().item()
    )


@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_constant_in_the_loss_changes_nothing(kind, samples):
    """The draws are the same, so that all there is between them are losses rounded to 1/16, at a constant of 10⁶."""
    plain = spread_of_gradients(kind, samples, 0.0, torch.float32)
    for offset in (1e4, -1e6):
        assert spread_of_gradients(kind, samples, offset, torch.float32) == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("kind", ["linear", "pairwise"])
def test_a_constant_in_the_loss_goes_into_one_weight(kind):
    weights = []
    for offset in (0.0, 1e8):
        surrogate, generator = KINDS[kind](), seeded(1)
        for _ in range(30):
            x = torch.randint(2, (4, 6), generator=generator).double()
            surrogate.fit(x, torch.randn(4, generator=generator, dtype=torch.float64) + offset)
        weights.append(surrogate.weight)
    torch.testing.assert_close(weights[0][1:], weights[1][1:], rtol=0, atol=1e-5)
    assert (weights[1][0] - weights[0][0]).item() == pytest.approx(1e8, abs=1e-5)
    assert weights[0][1:].abs().max() > 0.1


def data(calls, generator):
    """Some losses of every call are not finite, all of them in the second."""
    for call in range(calls):
        x = torch.randint(2, (6, 6), generator=generator).double()
        loss = torch.randn(6, generator=generator, dtype=torch.float64)
        lost = torch.randperm(6, generator=generator)[: 6 if call == 1 else 3]
        loss[lost] = torch.tensor(BAD * 2, dtype=torch.float64)[: len(lost)]
        yield x, loss


@pytest.mark.parametrize("kind", KINDS)
def test_losses_that_are_not_finite_are_as_if_they_were_not_there(kind):
    """In a memory that is filled in part, and then over and over."""
    states = []
    for left_out in (False, True):
        torch.manual_seed(0)
        surrogate = E.MLPSurrogate(6, memory=20) if kind == "mlp" else KINDS[kind]()
        for call, (x, loss) in enumerate(data(20, seeded(1))):
            keep = loss.isfinite() if left_out else torch.ones(6, dtype=torch.bool)
            surrogate.fit(x[keep], loss[keep], generator=seeded(call))
        states.append(surrogate.state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert all(value.isfinite().all() for value in states[0].values())


@pytest.mark.parametrize("none", [torch.zeros(0), torch.tensor([torch.nan, torch.inf])])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_from_which_nothing_can_be_learnt(kind, none):
    """The first of all, and one between others."""
    surrogate = KINDS[kind]()
    x = torch.eye(6)
    for loss in (none, torch.arange(6.0), none):
        surrogate.fit(x[: len(loss)], loss)
        assert surrogate(x).isfinite().all()
        assert all(value.isfinite().all() for value in surrogate.state_dict().values())


def test_features_that_are_not_finite_are_not_remembered():
    surrogate = E.MLPSurrogate(4, context=2)
    context = torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [0.0, torch.inf]])
    surrogate.fit(torch.ones(3, 4), torch.arange(3.0), context)
    assert surrogate.count == 1
    assert all(value.isfinite().all() for value in surrogate.state_dict().values())
