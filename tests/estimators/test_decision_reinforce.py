"""Credit per decision: unbiased for every structure, and less noise than T-REINFORCE+.
False alarms of the statistical tests: one in a million for each; seeds are fixed."""

import pytest
import torch
from cases import DISTS, FAST, LITERAL
from common import FALSE_ALARM, incidence, seeded
from decision_terms import OBJECTIVES, by_gains
from faulty_estimators import FaultyDecision
from unbiased import replicates_of

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import check_unbiased, exact_gradient, gradients

REPLICATES = 20_000  # of a faulty estimator and its original


def p_value(estimator, name, kind, replicates):
    dist = DISTS[name]()
    made = OBJECTIVES[kind](dist)
    return check_unbiased(estimator, dist, made, replicates, on="trace", generator=seeded(9)).p_value


# Bias ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "samples"),
    [(name, kind, k) for name in DISTS for kind in OBJECTIVES for k in ((2,) if name in LITERAL else (1, 2, 4, 8))],
)
@pytest.mark.slow
def test_unbiased(name, kind, samples):
    estimator = E.DecisionREINFORCE(samples=samples, leave_one_out=samples > 1)
    assert p_value(estimator, name, kind, replicates_of(name, samples)) > FALSE_ALARM


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", FAST)
def test_no_case_is_blind(name, kind):
    """Half a gradient, what an own baseline gives with K = 2, is six standard errors of T-REINFORCE+ off."""
    dist = FAST[name]()
    made = OBJECTIVES[kind](dist)
    _, grad = exact_gradient(dist, made, on="trace")
    std = gradients(E.TraceREINFORCE(samples=2), dist, made, 500, seeded(3), on="trace").std(0)
    alive = grad.abs() > 1e-9
    assert (0.5 * grad[alive].abs() / (std[alive] / replicates_of(name, 2) ** 0.5)).max() > 6


FAULTS = [
    ("subset", "terms", "own baseline"),
    ("subset", "terms", "terms before it"),
    ("subset", "terms", "no term of its own"),
    ("subset", "gains", "own baseline"),
    ("subset", "gains", "own term twice"),
    ("tree-ragged", "gains", "own term twice"),
    ("binary", "terms", "order of a chain"),
    ("binary", "terms", "own baseline"),
    ("binary", "gains", "baseline that knows the winner"),
    ("arborescence-ragged", "terms", "no term of its own"),
    ("arborescence-ragged", "terms", "baseline that knows the winner"),
]


@pytest.mark.parametrize(("name", "kind", "fault"), FAULTS)
@pytest.mark.slow
def test_a_broken_copy_fails(name, kind, fault):
    """With the settings, replicates and seed with which the original passes."""
    assert p_value(FaultyDecision(fault=fault, samples=2), name, kind, REPLICATES) < FALSE_ALARM


@pytest.mark.parametrize(("name", "kind"), sorted({fault[:2] for fault in FAULTS}))
@pytest.mark.slow
def test_the_original_passes(name, kind):
    assert p_value(FaultyDecision(fault=None, samples=2), name, kind, REPLICATES) > FALSE_ALARM


def test_without_its_fault_a_copy_is_the_original():
    dist = DISTS["subset"]()
    one, other = (
        gradients(estimator, dist, by_gains(dist), 50, seeded(1), on="trace")
        for estimator in (E.DecisionREINFORCE(samples=2), FaultyDecision(fault=None, samples=2))
    )
    assert torch.equal(one, other)


def test_one_decision_with_gains_has_no_noise():
    """The mean over all keys is all there is."""
    dist, gains = gt.Subset(torch.randn(6, generator=seeded(), dtype=torch.float64), 1), torch.arange(6.0)
    made = E.DecisionGains(gains)
    found = gradients(E.DecisionREINFORCE(samples=2), dist, made, 3, seeded(1), on="trace")
    torch.testing.assert_close(found, exact_gradient(dist, made, on="trace")[1].expand(3, 6))


# Variance ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_half_the_noise_for_the_discounted_gain_of_a_ranking():
    """DCG@10 of 100 items, K = 8, on 2000 estimates: the error of a ratio is about 1 %."""
    relevance = 2.0 ** torch.randint(0, 5, (100,), generator=seeded(0)).double() - 1
    dist = gt.Subset(torch.randn(100, generator=seeded(1), dtype=torch.float64), 10)
    dcg = E.DecisionGains(-relevance, 1 / torch.arange(2.0, 12.0).log2())
    terms = E.DecisionTerms(lambda trace: dcg.split(trace)[0])
    plain, to_go, exact = (
        gradients(estimator(samples=8), dist, f, 2000, seeded(2), on="trace").var(0).sum().sqrt()
        for estimator, f in ((E.TraceREINFORCE, dcg), (E.DecisionREINFORCE, terms), (E.DecisionREINFORCE, dcg))
    )
    assert to_go < 0.65 * plain
    assert exact < 0.55 * plain


def test_the_length_of_a_spanning_tree_has_less_noise():
    dist = gt.SpanningTree(torch.randn(10, 10, generator=seeded(1), dtype=torch.float64))
    length = E.DecisionGains(torch.rand(10, 10, generator=seeded(2), dtype=torch.float64))
    plain, ours = (
        gradients(estimator(samples=4), dist, length, 1000, seeded(3), on="trace").var(0).sum().sqrt()
        for estimator in (E.TraceREINFORCE, E.DecisionREINFORCE)
    )
    assert ours < 0.8 * plain


# Decisions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DISTS)
def test_decisions_one_by_one(name):
    """Against a softmax over the racing keys, written out."""
    dist = DISTS[name]()
    trace = dist.sample_trace((3,), generator=seeded(4))
    gains = torch.randn(dist.log_rates.shape, generator=seeded(5), dtype=torch.float64)
    log_prob, means = dist._decision_gains(trace, gains)
    torch.testing.assert_close(log_prob, dist.decision_log_prob(trace))
    torch.testing.assert_close(log_prob.sum(-1), dist.trace_log_prob(trace))
    rows = dist.log_rates.expand(*trace.shape, *dist.key_shape).reshape(trace.shape.numel(), -1)
    flat = gains.expand(*trace.shape, *dist.key_shape).reshape(rows.shape)
    winners = trace.winners.reshape(len(rows), -1)
    for i, (x, gain) in enumerate(zip(rows, flat, strict=True)):
        one = gt.traces.trace.Trace(trace.layout, trace.rows()[0][i], trace.rows()[1][i])
        racing = incidence(one).bool()  # (decisions, keys)
        for b in (winners[i] >= 0).nonzero().flatten().tolist():
            chance = torch.where(racing[b], x, -torch.inf).softmax(-1)
            torch.testing.assert_close(log_prob.reshape(len(rows), -1)[i, b], chance[winners[i, b]].log())
            torch.testing.assert_close(means.reshape(len(rows), -1)[i, b], chance @ gain)


@pytest.mark.parametrize("name", FAST)
def test_derivatives_of_decisions(name):
    dist = FAST[name]()
    trace = dist.sample_trace((2,), generator=seeded(4))
    gains = torch.randn(dist.log_rates.shape, generator=seeded(5), dtype=torch.float64)
    x = torch.where(dist.racing, dist.log_rates, 0.0).requires_grad_()
    keep = dist.racing

    def both(x):
        at = dist.with_log_rates(torch.where(keep, x, 0.0))
        return torch.cat([part.flatten() for part in at._decision_gains(trace, gains)])

    assert torch.autograd.gradcheck(both, x)
    assert torch.autograd.gradgradcheck(both, x)


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_large_logits(scale):
    x = (scale * torch.randn(3, 6, generator=seeded(1), dtype=torch.float64)).requires_grad_()
    dist = gt.Permutation(x)
    log_prob, means = dist._decision_gains(dist.sample_trace((4,), generator=seeded(2)), torch.arange(6.0))
    assert (log_prob <= 0).all()
    assert ((means >= 0) & (means <= 5)).all()
    (log_prob.sum() + means.sum()).backward()
    assert x.grad.isfinite().all()
