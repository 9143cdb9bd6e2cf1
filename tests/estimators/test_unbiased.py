"""Every unbiased estimator against the exact gradient, for every structure it applies to: plain, masked, ragged, K = 1,
2, 4. False alarms: one in a million for each test; seeds are fixed."""

import pytest
import torch
from cases import DISTS, LITERAL
from common import FALSE_ALARM
from unbiased import (
    case,
    fitted,
    make,
    p_value,
    replicates_of,
    surrogate_for,
    unbiased,
)

from gumtrace import estimators as E
from gumtrace.diagnostics import exact_gradient, exact_variance

KS = pytest.mark.parametrize("samples", [1, 2, 4])


UNBIASED = [name for name, cls in E.ESTIMATORS.items() if cls.unbiased]
CASES = [(e, d) for e in UNBIASED for d, dist in DISTS.items() if E.ESTIMATORS[e].supports(dist())]


@pytest.mark.parametrize(
    ("estimator", "name", "samples"),
    [(estimator, name, k) for estimator, name in CASES for k in ((2,) if name in LITERAL else (1, 2, 4))],
)
@pytest.mark.slow
def test_every_estimator(estimator, name, samples):
    """With all that it has learned fixed: training on the variance would take second derivatives here. Algorithms in
    Python are slow: they have one K, since an estimator treats its samples alike whatever the structure is."""
    if "surrogate" in E.ESTIMATORS[estimator].settings():
        made = fitted("linear", name, samples)
    else:
        made = make(estimator, DISTS[name](), samples=samples, temperature=0.7, scale=0.8).requires_grad_(False)
    assert unbiased(made, name)


@pytest.mark.parametrize("name", ["matching", "tree-ragged"])
def test_relax_with_a_matrix_critic(name):
    torch.manual_seed(0)
    assert unbiased(E.RELAX(E.MatrixCritic(hidden=8).double().requires_grad_(False), samples=2), name)


@pytest.mark.parametrize("kind", ["expfamily", "euclidean", "categorical", "binary"])
def test_rebar_with_every_subset_relaxation(kind):
    assert unbiased(
        E.REBAR(kind=kind, temperature=0.7, samples=1).double().requires_grad_(False), "subset-masked", 3000
    )


@KS
@pytest.mark.parametrize("kind", ["pairwise", "mlp"])
@pytest.mark.parametrize("name", ["subset-ragged", "tree-masked", "binary-ragged"])
@pytest.mark.slow
def test_every_surrogate(name, kind, samples):
    assert unbiased(fitted(kind, name, samples), name)


@pytest.mark.parametrize("kind", ["linear", "pairwise", "mlp"])
@pytest.mark.slow
def test_a_surrogate_that_keeps_learning(kind):
    """c changes between the chunks, by draws made before: their errors stay uncorrelated, and the z-test right."""
    dist, _ = case("tree")
    estimator = E.SurrogateREINFORCE(surrogate=surrogate_for(kind, dist), samples=2, extra=4)
    assert p_value(estimator, "tree", 20_000, chunk=200, learn=True) > FALSE_ALARM


@pytest.mark.parametrize("name", DISTS)
def test_no_case_is_blind(name):
    """Half a gradient, what an own baseline gives with K = 2, is seven standard errors off: p is 1e-11 or less."""
    dist, f = case(name)
    _, grad = exact_gradient(dist, f)
    alive = grad.abs() > 1e-9
    error = (exact_variance(dist, f, 2).trace[alive] / replicates_of(name, 2)).sqrt()
    assert (0.5 * grad[alive].abs() / error).max() > 7
