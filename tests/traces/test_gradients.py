"""Derivatives of log P(T) and of G | T, once and twice: against finite differences, composed ones, and extremes."""

import pytest
import torch
from cases import small
from common import name_only, rebuild, seeded
from torch.autograd import gradcheck, gradgradcheck

import gumtrace as gt

SMALL = small(scale=1.5)
CASES = pytest.mark.parametrize(("name", "dist"), [case[:2] for case in SMALL], ids=name_only)
LITERAL = pytest.mark.parametrize(("name", "dist", "algorithm"), [case[:3] for case in SMALL], ids=name_only)


def some_traces(dist):
    return dist.sample_trace((3,), generator=seeded(1))


def on_racing(dist, noise):
    return noise[..., dist.racing]


@CASES
def test_log_prob(name, dist):
    trace = some_traces(dist)
    logits = dist.logits.clone().requires_grad_()

    def log_prob(x):
        return rebuild(dist, x).trace_log_prob(trace)

    assert gradcheck(log_prob, logits)
    assert gradgradcheck(log_prob, logits)


@CASES
def test_decision_log_totals(name, dist):
    trace = some_traces(dist)
    logits = dist.logits.clone().requires_grad_()

    def totals(x):
        return rebuild(dist, x).decision_log_totals(trace)

    assert gradcheck(totals, logits)
    assert gradgradcheck(totals, logits)


@CASES
def test_conditional(name, dist):
    trace = some_traces(dist)
    logits = dist.logits.clone().requires_grad_()

    def noise(x):
        return on_racing(dist, rebuild(dist, x).conditional(trace, generator=seeded(2)))

    assert gradcheck(noise, logits)
    assert gradgradcheck(noise, logits)


@LITERAL
@pytest.mark.slow
def test_literal_recursion(name, dist, algorithm):
    """Custom has the same gradients, through its own forest of groups."""
    literal = gt.Custom(dist.logits.clone().requires_grad_(), algorithm)
    trace = literal.sample_trace((3,), generator=seeded(1))
    noise_seed = seeded(2).initial_seed()

    def both(x):
        d = gt.Custom(x, algorithm)
        noise = d.conditional(trace, generator=seeded(noise_seed))
        return d.trace_log_prob(trace), on_racing(dist, noise)

    assert gradcheck(both, literal.logits)
    assert gradgradcheck(both, literal.logits)


@CASES
def test_log_prob_gradient_against_the_formula(name, dist):
    """won - Σ_b A[b, k] λ_k / Λ_b, with the incidence written out."""
    from common import incidence

    logits = dist.logits.clone().requires_grad_()
    trace = dist.sample_trace(generator=seeded(3))
    (grad,) = torch.autograd.grad(rebuild(dist, logits).trace_log_prob(trace), logits)
    A = incidence(trace) * dist.racing.flatten()
    rates = torch.where(dist.racing, logits, -torch.inf).flatten().detach().exp()
    totals = A @ rates
    won = torch.zeros_like(rates)
    won[trace.winners[trace.winners >= 0]] = 1
    expected = won - torch.nan_to_num(A / totals[:, None] * rates).sum(0)
    torch.testing.assert_close(grad.flatten(), expected, atol=1e-12, rtol=1e-12)


@CASES
def test_first_derivatives_are_the_same_with_a_graph(name, dist):
    """The fused kernel, and the composition that create_graph takes."""
    trace = some_traces(dist)
    logits = dist.logits.clone().requires_grad_()
    d = rebuild(dist, logits)
    weights = torch.randn(3, *dist.logits.shape, generator=seeded(4), dtype=torch.float64)
    noise = d.conditional(trace, generator=seeded(5))
    total = d.trace_log_prob(trace).dot(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    total = total + torch.where(noise.isneginf(), 0.0, noise * weights).sum()
    (fused,) = torch.autograd.grad(total, logits, retain_graph=True)
    (composed,) = torch.autograd.grad(total, logits, create_graph=True)
    torch.testing.assert_close(fused, composed)


@CASES
def test_float32_gradients_are_those_of_float64(name, dist):
    trace = some_traces(dist)
    grads = []
    for dtype in (torch.float32, torch.float64):
        logits = dist.logits.to(dtype).requires_grad_()
        grads.append(torch.autograd.grad(rebuild(dist, logits).trace_log_prob(trace).sum(), logits)[0])
    torch.testing.assert_close(grads[0].double(), grads[1], atol=1e-5, rtol=1e-5)


@CASES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_logits_are_finite(name, dist, dtype):
    """±10⁴ in one item: every log-probability, draw and derivative is a number."""
    g = seeded(6)
    logits = (2e4 * torch.rand(dist.logits.shape, generator=g) - 1e4).to(dtype).requires_grad_()
    d = rebuild(dist, logits)
    trace = d.sample_trace((50,), generator=g)
    log_prob = d.trace_log_prob(trace)
    noise = on_racing(dist, d.conditional(trace, generator=g))
    assert log_prob.isfinite().all()
    assert noise.isfinite().all()
    (grad,) = torch.autograd.grad(log_prob.sum() + noise.sum(), logits, create_graph=True)
    assert grad.isfinite().all()
    assert torch.autograd.grad(grad.square().sum(), logits)[0].isfinite().all()
    everything = dist.enumerate_traces()  # the most unlikely ones too
    assert d.trace_log_prob(everything).isfinite().all()
    assert (d.trace_log_prob(everything) <= 1e-2).all()


@CASES
def test_score_has_mean_zero(name, dist):
    """Σ_T P(T) ∇ log P(T) = 0, exactly, by enumeration."""
    logits = dist.logits.clone().requires_grad_()
    d = rebuild(dist, logits)
    log_prob = d.trace_log_prob(d.enumerate_traces())
    (grad,) = torch.autograd.grad((log_prob.detach().exp() * log_prob).sum(), logits)
    torch.testing.assert_close(grad, torch.zeros_like(grad), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["subset", "permutation", "matching", "tree", "binary"])
def test_structure_log_prob(name):
    dist = {case[0]: case[1] for case in SMALL}[name]
    value = dist.sample((2,), generator=seeded(7))
    logits = dist.logits.clone().requires_grad_()

    def log_prob(x):
        return rebuild(dist, x).log_prob(value)

    assert gradcheck(log_prob, logits)
    assert gradgradcheck(log_prob, logits)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_log_probabilities_may_be_written_into(shape):
    """They are no views made inside a function of autograd."""
    logits = torch.zeros(4, 4, requires_grad=True)
    d = gt.SpanningTree(logits)
    log_prob = d.trace_log_prob(d.sample_trace(shape))
    log_prob += 1
    log_prob.sum().backward()
    assert logits.grad is not None
