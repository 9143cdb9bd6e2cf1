"""`on="trace"`: objectives that get the trace in place of the structure. Statistical tests: one false alarm in a
million, fixed seeds."""

import pytest
import torch
from cases import DISTS
from common import FALSE_ALARM, seeded
from torch.distributions import Independent
from unbiased import ANY, SMOOTH, batched_objective, make, replicates_of

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import check_unbiased, exact_gradient, gradient_statistics
from gumtrace.structures.joint import as_structure

NO_LOG_PROB = gt.Arborescence(torch.zeros(12, 12))
IN_ORDER = [name for name in ANY if E.ESTIMATORS[name].supports(NO_LOG_PROB)]  # the others score the structure alone


def of_winners(trace):
    """Depends on the order of choice, which no value shows."""
    weights = torch.arange(1.0, trace.winners.shape[-1] + 1, dtype=torch.float64)
    return ((trace.winners + 1).double() @ weights).square() / 50 + 1.0


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_it_is_the_same_estimate(name, batch):
    """An objective that looks at the value of the trace: the same draws, loss and gradients as one of the value."""
    logits = torch.randn(*batch, 4, 4, generator=seeded(1), dtype=torch.float64).requires_grad_()
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    dist, shapes = gt.SpanningTree(logits), []

    def on_value(x):
        return scale * batched_objective(x, 2)

    def on_trace(trace):
        shapes.append(trace.shape)
        return on_value(trace.value)

    found = []
    for f, on in ((on_value, "value"), (on_trace, "trace")):
        loss = make(name, dist)(dist, f, on=on, generator=seeded(2))
        found.append([loss, *torch.autograd.grad(loss.sum(), [logits, scale])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert shapes == [(3, *batch)]


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("case", ["subset-ragged", "tree-masked", "arborescence-ragged", "binary", "custom-set-ragged"])
@pytest.mark.slow
def test_unbiased_for_objectives_of_the_order(name, case):
    dist = DISTS[case]()
    estimator = make(name, dist, samples=2, extra=4).requires_grad_(False)
    report = check_unbiased(
        estimator, dist, of_winners, replicates_of(case, 2), on="trace", chunk=1000, generator=seeded(9)
    )
    assert report.p_value > FALSE_ALARM


def test_structure_reinforce_takes_objectives_of_the_set():
    dist = DISTS["subset-masked"]()
    report = check_unbiased(
        E.StructureREINFORCE(), dist, lambda t: t.winners.double().prod(-1), 3000, on="trace", generator=seeded(9)
    )
    assert report.p_value > FALSE_ALARM


def test_the_exact_gradient_of_ragged_recursions():
    """Items whose runs differ in length are packed together; each keeps its own losses."""
    dist = DISTS["custom-set-ragged"]()
    value, grad = exact_gradient(dist, of_winners, on="trace")
    for i in range(2):
        alone = exact_gradient(dist.item((i,)), of_winners, on="trace")
        torch.testing.assert_close((value[i], grad[i]), alone)
    of_values = exact_gradient(dist, lambda t: batched_objective(t.value, 1), on="trace")
    torch.testing.assert_close(of_values, exact_gradient(dist, lambda x: batched_objective(x, 1)))


def test_embeddings_are_gathered_by_winners():
    """Top-k without `topk` of a mask: the same loss as the product with the 0/1 value."""
    logits, table = torch.randn(8, 20, generator=seeded()), torch.randn(20, 5, generator=seeded(1))
    dist = gt.Subset(logits, 4)
    found = [
        E.TraceREINFORCE()(dist, f, on=on, generator=seeded(2))
        for f, on in (
            (lambda x: (x @ table).norm(dim=-1), "value"),
            (lambda t: table[t.winners].sum(-2).norm(dim=-1), "trace"),
        )
    ]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ANY)
def test_without_gradients(name):
    dist = gt.Subset(torch.zeros(3, 5, dtype=torch.float64), 2)
    estimator = make(name, dist)
    with torch.no_grad():
        loss = estimator(dist, lambda t: t.winners.double().sum(-1), on="trace", generator=seeded(1))
    torch.testing.assert_close(loss, dist.sample_trace((3,), generator=seeded(1)).winners.double().sum(-1).mean(0))


@pytest.mark.parametrize("name", ANY)
def test_the_objective_may_write_into_it(name):
    logits = torch.zeros(5, dtype=torch.float64, requires_grad=True)

    def writes(trace):
        loss = trace.winners.double().sum(-1)
        trace.choices.zero_()
        return loss

    grads = []
    for f in (lambda trace: trace.winners.double().sum(-1), writes):
        dist = gt.Subset(logits, 2)
        loss = make(name, dist)(dist, f, on="trace", generator=seeded(1))
        grads.append(torch.autograd.grad(loss, logits))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("grad", [True, False])
def test_estimators_that_differentiate_refuse(name, grad):
    dist = gt.Subset(torch.zeros(5), 2)
    with torch.set_grad_enabled(grad), pytest.raises(ValueError, match=f"{name}: it differentiates.*TraceREINFORCE"):
        make(name, dist)(dist, lambda t: t.winners.sum(-1), on="trace")


def test_refusals():
    dist = gt.Subset(torch.zeros(3, 5), 2)
    with pytest.raises(ValueError, match=r"on must be .* got 'winners'"):
        E.TraceREINFORCE()(dist, lambda t: t, on="winners")
    with pytest.raises(ValueError, match=r"shape \(4, 3\), for traces of shape \(4, 3\); got shape \(4, 3, 2\)"):
        E.TraceREINFORCE()(dist, lambda t: t.winners, on="trace")

    class OfValues(E.Estimator):
        def surrogate_loss(self, dist, objective, context, generator):
            return self.evaluate(dist, objective, dist.sample((1,))), torch.zeros(())

    with pytest.raises(TypeError, match="OfValues evaluates the objective at values"):
        OfValues()(dist, lambda t: t.winners.sum(-1), on="trace")


def test_tables_of_estimators_take_them():
    dist = gt.Subset(torch.zeros(4, dtype=torch.float64), 2)
    table = gradient_statistics({"T": E.TraceREINFORCE(samples=2)}, dist, of_winners, 200, on="trace", warm_up=1)
    assert table[0].calls == 2
    assert table[0].bias < 6 * table[0].bias_error


@pytest.mark.parametrize("name", IN_ORDER)
def test_several_structures_with_one_loss(name):
    """`Independent`: the trace has the dimensions of an item's structures behind those of the batch."""
    dist = Independent(gt.Subset(torch.randn(2, 2, 3, generator=seeded(), dtype=torch.float64), 2), 1)

    def load(trace):
        assert trace.shape[-1] == 2
        return (trace.winners[..., 0] - trace.winners[..., 1]).sum(-1).square().double()

    estimator = make(name, as_structure("test", dist), samples=2).requires_grad_(False)
    report = check_unbiased(estimator, dist, load, 4000, on="trace", generator=seeded(9))
    assert report.p_value > FALSE_ALARM


@pytest.mark.filterwarnings("ignore")  # what torch.compile says of torch's own code
def test_it_compiles():
    def loss(x):
        d = gt.Subset(x, 2, validate_args=False)
        return E.TraceREINFORCE()(d, lambda trace: trace.winners.double().sum(-1), on="trace").sum()

    x = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    torch.compile(loss, fullgraph=True, backend="aot_eager")(x).backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0
