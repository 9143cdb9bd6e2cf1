"""Diagnostics of gradient estimators: what they report, and what they must leave alone."""

import copy

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import (
    TooManyTraces,
    check_unbiased,
    exact_gradient,
    exact_variance,
    gradient_statistics,
    gradients,
    statistics,
)
from gumtrace.diagnostics.p_values import smallest
from gumtrace.recursions import MaximalIndependentSet

pytestmark = pytest.mark.usefixtures("one_thread")
LARGE = gt.SpanningTree(torch.zeros(10, 10))


def small():
    return gt.Subset(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), 2)


def first(x):
    return x[..., 0]


class Spoilt(E.TraceREINFORCE):
    """Now and then a gradient is not a number, or infinite."""

    def __init__(self, value):
        super().__init__(samples=2)
        self.value = value

    def forward(self, dist, objective, context=None, *, generator=None):
        loss = super().forward(dist, objective, context, generator=generator)
        return loss + torch.where(torch.arange(len(loss)) == 3, self.value, 0.0) * dist.log_rates[..., 0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_is_wrong(value):
    assert check_unbiased(E.TraceREINFORCE(samples=2), small(), first, 100, generator=seeded()).p_value > 1e-6
    assert check_unbiased(Spoilt(value), small(), first, 100, generator=seeded()).p_value == 0


def test_a_p_value_that_is_not_a_number_is_zero():
    assert smallest(torch.tensor([0.5, torch.nan]), 2) == 0
    assert smallest(torch.tensor([0.5, 0.75]), 2) == 1
    assert smallest(torch.tensor([]), 1) == 1


@pytest.mark.parametrize("report", [check_unbiased, lambda e, *args: gradient_statistics({"T": e}, *args)])
@pytest.mark.parametrize(("replicates", "error"), [(1, ValueError), (0, ValueError), (2.5, TypeError)])
def test_two_replicates_at_least(report, replicates, error):
    with pytest.raises(error, match="replicates must be"):
        report(E.TraceREINFORCE(samples=2), small(), first, replicates)


def test_mean_and_table():
    table = gradient_statistics(
        {"T": E.TraceREINFORCE(samples=4), "long name": E.REBAR(samples=2)}, small(), first, 400, generator=seeded(1)
    )
    _, exact = exact_gradient(small(), first)
    for row in table:
        assert row.mean.shape == (3,)
        assert row.bias == pytest.approx((row.mean - exact).square().mean().sqrt().item())
    lines = str(table).splitlines()
    assert lines[0].split() == ["estimator", "mean", "std", "bias", "by", "chance", "calls", "ms"]
    assert lines[1].split()[0] == "T"
    assert lines[1].split()[2] == f"{table[0].std:.3g}"
    assert lines[2].startswith("long name")
    assert len({len(line) for line in lines}) == 1
    (row,) = gradient_statistics({"T": E.TraceREINFORCE(samples=4)}, small(), first, 10, exact=False)
    assert row.bias is None
    assert "–" in str(statistics.GradientTable([row]))


def test_time_is_the_median_of_all_calls_but_the_first(monkeypatch):
    """The first may compile something; another may be interrupted."""
    lengths = iter([100.0, 1.0, 50.0, 1.0, 2.0, 3.0])
    now = [0.0]

    def clock():
        return now[0]

    def slow(*args, **kwargs):
        now[0] += next(lengths, 0.0)
        return gradients(*args, **kwargs)

    monkeypatch.setattr(statistics.time, "perf_counter", clock)
    monkeypatch.setattr(statistics, "gradients", slow)
    (row,) = gradient_statistics({"T": E.TraceREINFORCE(samples=4)}, small(), first, 10)
    assert row.seconds == 2.0
    assert row.calls == 4


@pytest.mark.parametrize(
    "estimator", [lambda: E.REBAR(samples=2).double(), lambda: E.SurrogateREINFORCE(samples=2, extra=4)]
)
def test_warming_up_leaves_no_gradients(estimator):
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    estimator = estimator()
    kept = [torch.ones_like(p) for p in estimator.parameters()]
    for p, grad in zip(estimator.parameters(), kept, strict=True):
        p.grad = grad
    before = copy.deepcopy(estimator.state_dict())
    gradient_statistics({"e": estimator}, small(), lambda x: scale * x[..., 0].square(), 10, warm_up=3)
    assert scale.grad is None
    assert all(p.grad is grad for p, grad in zip(estimator.parameters(), kept, strict=True))
    assert any(
        (before[name].shape != x.shape) or (before[name] != x).any() for name, x in estimator.state_dict().items()
    )


@pytest.mark.parametrize("report", [check_unbiased, lambda e, *args: gradient_statistics({"S": e}, *args)])
def test_measuring_does_not_teach(report):
    estimator = E.SurrogateREINFORCE(samples=2, extra=4)
    estimator(small(), first)
    before = copy.deepcopy(estimator.state_dict())
    report(estimator, small(), first, 20)
    torch.testing.assert_close(estimator.state_dict(), before, rtol=0, atol=0)
    assert estimator.training
    check_unbiased(estimator, small(), first, 20, learn=True)
    assert estimator.surrogate.gram[0, 0] + len(estimator.surrogate.waiting) > before["fitted.gram"][0, 0]


@pytest.mark.parametrize("report", [check_unbiased, lambda e, *args: gradient_statistics({"S": e}, *args, exact=False)])
def test_modes_come_back_after_an_error(report):
    estimator = E.SurrogateREINFORCE(samples=2, extra=4)
    estimator.surrogate.eval()  # a part may be in another mode

    def broken(x):
        if x.dim() > 2:  # not while it is enumerated
            raise KeyError("no such objective")
        return x[..., 0]

    with pytest.raises(KeyError, match="no such objective"):
        report(estimator, small(), broken, 20)
    assert estimator.training
    assert not estimator.surrogate.training


@pytest.mark.parametrize(
    "dist",
    [LARGE, gt.Custom(torch.zeros(12), MaximalIndependentSet(torch.zeros(12, 12))), gt.Permutation(torch.zeros(30, 7))],
    ids=["tree", "custom", "batch"],
)
def test_what_is_too_large_to_enumerate_is_told(dist, monkeypatch):
    monkeypatch.setattr(gt.diagnostics.enumeration, "MOST_TRACES", 1000)  # of the whole batch
    f = lambda x: x.double().flatten(-len(dist.event_shape)).sum(-1)  # noqa: E731
    for call in (exact_gradient, exact_variance, lambda *args: check_unbiased(E.TraceREINFORCE(samples=2), *args)):
        with pytest.raises(TooManyTraces, match="more than 1,000 traces"):
            call(dist, f)
    estimators = {"T": E.TraceREINFORCE(samples=2)}
    with pytest.raises(ValueError, match=r"exact=False .* exact=None"):
        gradient_statistics(estimators, dist, f, 2)
    for exact in (False, None):
        (row,) = gradient_statistics(estimators, dist, f, 2, exact=exact)
        assert row.bias is None
    (row,) = gradient_statistics(estimators, small(), first, 2, exact=None)
    assert row.bias is not None


def test_the_most_traces_are_still_enumerated(monkeypatch):
    monkeypatch.setattr(gt.diagnostics.enumeration, "MOST_TRACES", 6)
    exact_gradient(gt.Permutation(torch.zeros(3)), lambda x: x[..., 0].double())


@pytest.mark.parametrize("call", [exact_gradient, exact_variance])
@pytest.mark.parametrize("f", [lambda x: x, lambda x: x.mean(), lambda x: x[..., 0].sum(-1), lambda x: 1.0])
def test_the_objective_must_return_one_loss_for_each_trace_and_item(call, f):
    with pytest.raises(ValueError, match="one loss for each sample and item"):
        call(gt.Subset(torch.zeros(2, 3), 1), f)


def test_context_reaches_the_estimator():
    """(replicates, *batch, c), as the batch then is; and objectives that read it see what they see in training."""
    context = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    dist = gt.Subset(torch.randn(2, 3, generator=seeded(), dtype=torch.float64), 1)
    critic = E.VectorCritic(3, hidden=8, context=2).double()
    f = lambda x: x[..., 0] * context[:, 0] + x[..., 1].square()  # noqa: E731
    seen = []

    class Spy(E.RELAX):
        def forward(self, dist, objective, context=None, *, generator=None):
            seen.append((dist.batch_shape, context))
            return super().forward(dist, objective, context, generator=generator)

    report = check_unbiased(Spy(critic, samples=2), dist, f, 500, context=context, generator=seeded(1))
    assert report.p_value > 1e-6
    spy = {"R": Spy(critic, samples=2)}
    (row,) = gradient_statistics(spy, dist, f, 20, context=context, warm_up=1, generator=seeded(1))
    assert row.mean.shape == (2, 3)
    for batch_shape, given in seen:
        assert given.shape == (*batch_shape, 2)
        assert (given == context).all()
    assert len(seen) == 1 + 1 + 6 + 1


def test_estimators_that_know_of_no_context_need_none():
    def plain(dist, objective, generator=None):
        return E.TraceREINFORCE(samples=2)(dist, objective, generator=generator)

    assert check_unbiased(plain, small(), first, 500, generator=seeded(1)).p_value > 1e-6


@pytest.mark.parametrize("given", [E.TraceREINFORCE(samples=2), [E.TraceREINFORCE(samples=2)]])
def test_estimators_without_names_are_told(given):
    message = f'gradient_statistics: estimators need names, {{"name": estimator}}, got {type(given).__name__}'
    with pytest.raises(TypeError, match=message):
        gradient_statistics(given, small(), first, 2)


def test_estimators_may_be_a_dict_of_modules():
    estimators = torch.nn.ModuleDict({"T": E.TraceREINFORCE()})
    assert [row.name for row in gradient_statistics(estimators, small(), first, 2)] == ["T"]
