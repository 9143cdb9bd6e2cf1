"""Every unbiased estimator against the exact gradient, for every structure it applies to: plain, masked, ragged, K = 1,
2, 4. False alarms: one in a million for each test; seeds are fixed."""

import pytest
import torch
from cases import DISTS
from common import FALSE_ALARM
from unbiased import (
    LOG_PROB,
    RELAXED,
    case,
    critic_for,
    fitted,
    p_value,
    replicates_of,
    surrogate_for,
    unbiased,
)

from gumtrace import estimators as E
from gumtrace.diagnostics import exact_gradient, exact_variance

KS = pytest.mark.parametrize("samples", [1, 2, 4])


@KS
@pytest.mark.parametrize("name", DISTS)
def test_trace_reinforce(name, samples):
    assert unbiased(E.TraceREINFORCE(samples), name)


@KS
@pytest.mark.parametrize("name", DISTS)
def test_noise_reinforce(name, samples):
    assert unbiased(E.NoiseREINFORCE(samples), name)


@KS
@pytest.mark.parametrize("name", LOG_PROB)
def test_structure_reinforce(name, samples):
    assert unbiased(E.StructureREINFORCE(samples), name, 6000)


@KS
@pytest.mark.parametrize("name", DISTS)
def test_relax(name, samples):
    dist, _ = case(name)
    fixed = critic_for(dist).requires_grad_(False)  # training it would take a second derivative here
    assert unbiased(E.RELAX(fixed, samples), name, 8000)


@pytest.mark.parametrize("name", ["matching", "tree-ragged"])
def test_relax_with_a_matrix_critic(name):
    torch.manual_seed(0)
    assert unbiased(E.RELAX(E.MatrixCritic(8).double().requires_grad_(False), 2), name)


@KS
@pytest.mark.parametrize("name", RELAXED)
def test_rebar(name, samples):
    assert unbiased(E.REBAR(samples=samples, temperature=0.7, scale=0.8).double().requires_grad_(False), name, 6000)


@pytest.mark.parametrize("kind", ["expfamily", "euclidean", "categorical", "binary"])
def test_rebar_with_every_subset_relaxation(kind):
    assert unbiased(E.REBAR(kind, temperature=0.7).double().requires_grad_(False), "subset-masked", 3000)


@KS
@pytest.mark.parametrize("name", DISTS)
def test_surrogate_reinforce(name, samples):
    assert unbiased(fitted("linear", name, samples), name, 24_000)


@KS
@pytest.mark.parametrize("kind", ["pairwise", "mlp"])
@pytest.mark.parametrize("name", ["subset-ragged", "tree-masked", "binary-ragged"])
def test_every_surrogate(name, kind, samples):
    assert unbiased(fitted(kind, name, samples), name, 24_000)


@pytest.mark.parametrize("kind", ["linear", "pairwise", "mlp"])
def test_a_surrogate_that_goes_on_learning(kind):
    """c changes between the chunks, by draws made before: their errors stay uncorrelated, and the z-test right."""
    dist, _ = case("tree")
    estimator = E.SurrogateREINFORCE(surrogate_for(kind, dist), 2, extra=4)
    assert p_value(estimator, "tree", 20_000, chunk=200, learn=True) > FALSE_ALARM


@pytest.mark.parametrize("name", DISTS)
def test_no_case_is_blind(name):
    """Half a gradient, what an own baseline gives with K = 2, is seven standard errors off: p is 1e-11 or less."""
    dist, f = case(name)
    _, grad = exact_gradient(dist, f)
    alive = grad.abs() > 1e-9
    error = (exact_variance(dist, f, 2).trace[alive] / replicates_of(name, 2)).sqrt()
    assert (0.5 * grad[alive].abs() / error).max() > 7
