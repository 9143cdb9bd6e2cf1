"""Var(X) <= Var(T) <= Var(E), exactly: by enumeration, with the noise integrated out."""

from itertools import product

import pytest
import torch
from cases import DISTS, FAST, LITERAL, small
from common import FALSE_ALARM, incidence, name_only, seeded
from unbiased import LOG_PROB, case

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import exact_gradient, exact_variance, gradients
from gumtrace.diagnostics.variance import score_given_trace

ESTIMATORS = {"noise": E.NoiseREINFORCE, "trace": E.TraceREINFORCE, "structure": E.StructureREINFORCE}
ONE_TO_ONE = [name for name in FAST if FAST[name]().one_to_one]
MANY_ORDERS = ["subset", "subset-masked", "matching", "tree", "tree-masked", "forest", "sparse", "arborescence-masked"]
KS = pytest.mark.parametrize("samples", [1, 2, 4])
SMALL = pytest.mark.parametrize(("name", "dist"), [item[:2] for item in small()], ids=name_only)
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@KS
@pytest.mark.parametrize("name", DISTS)
def test_each_forgets_some_variance(name, samples):
    """For every key; and the noise is always worse than the trace, where there is anything to estimate: with others to
    compare with, a loss that does not vary leaves no variance at all."""
    dist, f = case(name)
    exact = exact_variance(dist, f, samples)
    assert exact.noise.shape == dist.log_rates.shape
    slack = 1e-12 * exact.noise.max()
    assert (exact.structure <= exact.trace + slack).all()
    alive = exact.noise > slack
    assert (exact.trace[alive] < 0.99 * exact.noise[alive]).all()
    assert (alive <= dist.racing).all()
    assert samples > 1 or (alive == dist.racing).all()


@pytest.mark.parametrize("name", MANY_ORDERS)
def test_many_orders_are_worse_than_one(name):
    """Where a structure has several traces their order is noise: for every key, but for rounding."""
    dist, f = case(name)
    exact = exact_variance(dist, f)
    assert (exact.structure.sum() < 0.999 * exact.trace.sum()).all()
    assert (exact.structure < exact.trace)[dist.racing].all()


@pytest.mark.parametrize("name", ONE_TO_ONE)
def test_one_trace_for_each_structure(name):
    dist, f = case(name)
    exact = exact_variance(dist, f, 2)
    torch.testing.assert_close(exact.structure, exact.trace, **CLOSE)


@SMALL
def test_covariances_are_ordered(name, dist):
    """As matrices: every linear function of the gradient has the smaller variance, not only its entries. The means are
    the same, so second moments will do."""
    traces = dist.enumerate_traces()
    p = dist.trace_log_prob(traces).exp()
    loss = torch.randn(len(torch.unique(traces.value, dim=0)), generator=seeded(4), dtype=torch.float64)
    loss = loss[torch.unique(traces.value, dim=0, return_inverse=True)[1]]  # any function of the structure
    given = [given_trace(dist, trace) for trace in traces]
    score, spread = (torch.stack(x) for x in zip(*given, strict=True))  # (traces, keys), (traces, keys, keys)
    by_value = averaged_by_value(traces.value, p, score)
    for more, less in (
        (torch.einsum("t,tij->ij", p * loss.square(), spread) + moment(p, loss, score), moment(p, loss, score)),
        (moment(p, loss, score), moment(p, loss, by_value)),
    ):
        assert torch.linalg.eigvalsh(more - less).min() > -1e-12 * (1 + more.abs().max())


@SMALL
def test_the_score_of_the_trace_is_that_of_the_noise_averaged(name, dist):
    """E[∇ log p(G) | T] = ∇ log P(T): why forgetting the noise helps. By hand, from who raced in which decision."""
    traces = dist.enumerate_traces()
    score, spread = score_given_trace(dist, traces)
    for i, trace in enumerate(traces):
        mean, covariance = given_trace(dist, trace)
        torch.testing.assert_close(score[i].flatten(), mean, **CLOSE)
        torch.testing.assert_close(spread[i].flatten(), covariance.diagonal(), **CLOSE)


def given_trace(dist, trace):
    """Mean (keys,) and covariance (keys, keys) of 1 - λE given one trace: E = Aᵀ m, and fresh where no key won."""
    racing = dist.racing.flatten()
    rate = torch.where(racing, dist.log_rates.flatten().exp(), 0.0)
    raced = incidence(trace) * racing  # (decisions, keys)
    raced = raced[raced.any(1)]
    winners = trace.winners[trace.winners >= 0]
    fresh = racing.clone().index_fill(0, winners, False).double()
    mean_m = 1 / (raced @ rate)
    share = raced * rate * mean_m[:, None]  # mean, and standard deviation, of λ_k m_b
    return racing.double() - share.sum(0) - fresh, share.mT @ share + fresh.diag()


def moment(p, loss, score):
    return torch.einsum("t,ti,tj->ij", p * loss.square(), score, score)


def averaged_by_value(values, p, score):
    """The structure's score, once for each of its traces."""
    index = torch.unique(values, dim=0, return_inverse=True)[1]
    same = (index[:, None] == index).double() * p
    return same @ score / same.sum(1, keepdim=True)


@pytest.mark.parametrize("name", LOG_PROB)
@pytest.mark.slow
def test_the_variance_of_structures_is_that_of_their_log_prob(name):
    """The structure's score by `log_prob` in place of its traces' average."""
    dist, f = case(name)
    exact = exact_variance(dist, f)
    for index in product(*map(range, dist.batch_shape)):
        item = dist.item(index)
        values = gt.diagnostics.enumerate_values(item).outcomes
        x = item.log_rates.detach().expand(len(values), *item.key_shape).clone().requires_grad_()
        log_prob = item.with_log_rates(x).log_prob(values)
        (score,) = torch.autograd.grad(log_prob.sum(), x)
        whole = values.reshape(-1, *[1] * len(dist.batch_shape), *dist.event_shape)
        loss = f(whole.expand(-1, *dist.batch_shape, *dist.event_shape))[(slice(None), *index)]
        estimate = loss.view(-1, *[1] * len(item.key_shape)) * score
        p = log_prob.detach().exp()
        mean, square = torch.tensordot(p, estimate, 1), torch.tensordot(p, estimate.square(), 1)
        torch.testing.assert_close(exact.structure[index], square - mean.square(), rtol=1e-7, atol=1e-9)


@KS
@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("name", ["subset-ragged", "tree-masked"])
@pytest.mark.slow
def test_estimators_have_that_variance(name, kind, samples):
    """One false alarm in a million: the mean of squared errors against the exact variance, key by key."""
    dist, f = case(name)
    exact, (_, grad) = exact_variance(dist, f, samples), exact_gradient(dist, f)
    replicates = (5_000 if kind == "structure" else 20_000) // samples
    estimates = gradients(ESTIMATORS[kind](samples=samples, leave_one_out=samples > 1), dist, f, replicates, seeded(4))
    square = (estimates - grad)[..., dist.racing].square()
    error = square.std(0) / replicates**0.5
    z = (square.mean(0) - getattr(exact, kind)[dist.racing]) / error
    assert torch.special.erfc(z.abs().max() / 2**0.5) * z.numel() > FALSE_ALARM


def test_without_a_baseline_samples_are_averaged():
    dist, f = case("subset")
    one, four = exact_variance(dist, f), exact_variance(dist, f, 4, leave_one_out=False)
    torch.testing.assert_close(one.noise / 4, four.noise)
    with pytest.raises(ValueError, match="at least 2"):
        exact_variance(dist, f, 1, leave_one_out=True)


@pytest.mark.parametrize("name", LITERAL)
def test_float32_logits_are_enumerated_in_float64(name):
    dist, f = case(name)
    single = exact_variance(dist.with_log_rates(dist.log_rates.float()), f)
    torch.testing.assert_close(single.noise, exact_variance(dist, f).noise, rtol=1e-5, atol=1e-5)
    assert single.noise.dtype == torch.float64
