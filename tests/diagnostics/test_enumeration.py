"""Exact laws: traces sum to one, structures are the sums of their traces, and samples follow both."""

import pytest
import torch
from cases import small
from common import FALSE_ALARM, name_only, rebuild, seeded

import gumtrace as gt

CASES = pytest.mark.parametrize(("name", "dist"), [case[:2] for case in small(scale=1.5)], ids=name_only)
COUNTED = [(item.name, item.dist, item.traces) for item in small(scale=1.5)]


@pytest.mark.parametrize(("name", "dist", "traces"), COUNTED, ids=name_only)
def test_probabilities_sum_to_one(name, dist, traces):
    law = gt.diagnostics.enumerate_traces(dist)
    assert len(law) == traces
    assert law.total == pytest.approx(1, abs=1e-12)
    assert dist.support.check(law.outcomes.value).all()


@CASES
def test_enumerated_traces_differ(name, dist):
    traces = dist.enumerate_traces()
    for i in range(len(traces)):
        assert traces.equals(traces[i]).sum() == 1


@pytest.mark.parametrize(("name", "dist"), [c[:2] for c in small(scale=1.5) if c.dist.has_log_prob], ids=name_only)
def test_structure_log_prob_is_the_sum_over_traces(name, dist):
    law = gt.diagnostics.enumerate_values(dist)
    torch.testing.assert_close(dist.log_prob(law.outcomes), law.log_prob, atol=1e-10, rtol=1e-10)


@CASES
@pytest.mark.slow
def test_samples_follow_the_law(name, dist):
    report = gt.diagnostics.goodness_of_fit(dist, 1_000_000, generator=seeded(1))
    assert report.impossible == 0
    assert report.p_value > FALSE_ALARM


@CASES
@pytest.mark.slow
def test_float32_samples_follow_the_law(name, dist):
    report = gt.diagnostics.goodness_of_fit(rebuild(dist, dist.logits.float()), 1_000_000, generator=seeded(2))
    assert report.impossible == 0
    assert report.p_value > FALSE_ALARM


def test_goodness_of_fit_sees_a_wrong_law():
    """The test of the test: logits off by a tenth."""
    right = gt.SpanningTree(torch.zeros(4, 4))
    wrong = gt.SpanningTree(torch.zeros(4, 4).index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(0.1)))
    wrong.trace_log_prob = right.trace_log_prob
    assert gt.diagnostics.goodness_of_fit(wrong, 1_000_000, generator=seeded()).p_value < FALSE_ALARM


@pytest.mark.parametrize("masked", [(0, 1), (1, 2)])
def test_masked_graphs_lose_the_right_traces(masked):
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[masked] = False
    law = gt.diagnostics.enumerate_traces(gt.SpanningTree(torch.randn(4, 4, generator=seeded()), mask=mask))
    assert len(law) == 48  # K4 without an edge: 8 trees, 6 orders
    assert law.total == pytest.approx(1, abs=1e-5)


def test_a_batch_cannot_be_enumerated():
    with pytest.raises(ValueError, match="one item"):
        gt.Subset(torch.zeros(2, 3), 1).enumerate_traces()
