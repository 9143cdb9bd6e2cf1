"""What an estimator does if nothing is said: a constant in the loss must not become noise in the gradient.

Standard deviations are of 2,000 estimates, each known to 2 %; the factors between them are far from that."""

import warnings

import pytest
import torch
from common import seeded
from unbiased import critic_for

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import gradients
from gumtrace.estimators.score import ScoreEstimator

EVERY = pytest.mark.parametrize("name", E.ESTIMATORS)
SCORES = [name for name, cls in E.ESTIMATORS.items() if issubclass(cls, ScoreEstimator)]


def spread(estimator, offset):
    """The root mean square standard deviation of a gradient, for a loss of this offset."""
    dist = gt.Subset(torch.tensor([0.5, -0.2, 0.1, 0.4, -0.6], dtype=torch.float64), 2)
    weights = torch.tensor([0.3, -0.1, 0.4, 0.2, -0.3], dtype=torch.float64)
    grads = gradients(estimator, dist, lambda x: (x @ weights).square() + offset, 2_000, seeded(3))
    return grads.std(0).square().mean().sqrt().item()


def made(name, **settings):
    dist = gt.Subset(torch.zeros(5, dtype=torch.float64), 2)
    return E.ESTIMATORS[name].from_settings(settings, critic=lambda: critic_for(dist)).double().eval()


@EVERY
def test_an_offset_of_the_loss_is_no_noise(name):
    """As it comes, and before anything has been learned."""
    estimator = made(name)
    assert spread(estimator, 100.0) < 1.1 * spread(estimator, 0.0)


@pytest.mark.parametrize("name", SCORES)
def test_the_default_is_not_the_one_without_a_baseline(name):
    alone = made(name, samples=1, leave_one_out=False)
    assert spread(alone, 100.0) > 50 * spread(made(name), 100.0)


@pytest.mark.parametrize("name", SCORES)
def test_one_sample_says_so(name):
    cls = E.ESTIMATORS[name]
    with pytest.warns(UserWarning, match=rf"{name}: one sample .* samples=2 or more, or leave_one_out=False") as seen:
        cls(samples=1)
    assert seen[0].filename == __file__  # where it was made
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls()
        cls(samples=2)
        cls(samples=1, leave_one_out=False)


@EVERY
def test_no_default_warns(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(name)
