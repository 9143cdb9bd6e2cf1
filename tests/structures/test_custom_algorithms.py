"""`Custom` with one algorithm for each item: against each of them alone."""

import copy

import pytest
import torch
from common import FALSE_ALARM, seeded
from torch.distributions import Independent

import gumtrace as gt
from gumtrace import diagnostics as D
from gumtrace import divergences as V
from gumtrace import estimators as E
from gumtrace.recursions import MaximalIndependentSet

PATH = torch.eye(4).roll(1, 0) * torch.tensor([0.0, 1.0, 1.0, 1.0])[:, None]
RING = torch.eye(4).roll(1, 0)


class First:
    """The first of `size` keys to arrive, and its number as the value."""

    def __init__(self, size):
        self.size = size

    def start(self):
        return range(self.size), None

    def stop(self, K, R):
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        return [], None

    def combine(self, X, K, R, winners):
        return torch.tensor(float(winners[0]))


GRAPHS = [MaximalIndependentSet(PATH), MaximalIndependentSet(RING), MaximalIndependentSet(torch.zeros(4, 4))]
FIRST = [First(4), First(2), First(3)]


def logits(*shape):
    return torch.randn(*shape, generator=seeded(2), dtype=torch.float64)


@pytest.mark.parametrize("algorithms", [GRAPHS, FIRST], ids=["indicators", "combined"])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_every_item_runs_its_own(algorithms, shape):
    x = logits(*shape, 3, 4)
    d = gt.Custom(x, algorithms, event_dim=1)
    noise = d.perturb((10,), generator=seeded())
    trace = d.trace(noise)
    log_prob = d.trace_log_prob(trace)
    assert log_prob.shape == (10, *shape, 3)
    for i, algorithm in enumerate(algorithms):
        alone = gt.Custom(x[..., i, :], algorithm, event_dim=1)
        own = alone.trace(noise[..., i, :])
        assert torch.equal(own.value, trace.value[..., i, *[slice(None)] * len(d.event_shape)])
        assert torch.equal(trace[..., i].value, own.value)
        torch.testing.assert_close(alone.trace_log_prob(own), log_prob[..., i], rtol=0, atol=0)
    assert d.trace(d.conditional(trace, generator=seeded())).equals(trace).all()


def test_the_last_dimension_is_the_batch_by_default():
    assert gt.Custom(logits(3, 4), GRAPHS).event_shape == (4,)
    assert gt.Custom(logits(5, 3, 4), GRAPHS, event_dim=1).batch_shape == (5, 3)
    one = gt.Custom(logits(1, 4), GRAPHS[:1])
    assert one.batch_shape == (1,)


def test_items_expansions_and_copies():
    d = gt.Custom(logits(3, 4), FIRST)
    for i, size in enumerate((4, 2, 3)):
        assert len(D.enumerate_traces(d.item((i,)))) == size
        assert abs(D.enumerate_traces(d.item((i,))).total - 1) < 1e-12
    wide = d.expand((5, 3))
    assert wide.sample((2,)).shape == (2, 5, 3)
    assert (wide.sample((200,), generator=seeded())[..., 1] < 2).all()
    assert torch.equal(copy.deepcopy(d).sample(generator=seeded()), d.sample(generator=seeded()))
    assert d.with_log_rates(logits(7, 3, 4)).sample().shape == (7, 3)


def test_estimates_are_unbiased():
    d = gt.Custom(logits(3, 4), FIRST)
    report = D.check_unbiased(E.TraceREINFORCE(samples=2), d, lambda x: x.square(), 2000, generator=seeded())
    assert report.p_value > FALSE_ALARM
    together = Independent(d, 1)
    report = D.check_unbiased(
        E.TraceREINFORCE(samples=2), together, lambda x: x.sum(-1).square(), 2000, generator=seeded()
    )
    assert report.p_value > FALSE_ALARM


def test_divergences():
    p = gt.Custom(logits(3, 4), FIRST)
    q = gt.Custom(torch.zeros(3, 4, dtype=torch.float64), FIRST)
    expected = [row[: a.size].log_softmax(-1) for row, a in zip(p.logits, FIRST, strict=True)]
    kl = torch.stack([(x.exp() * (x + torch.tensor(len(x)).log())).sum() for x in expected])
    torch.testing.assert_close(V.exact_kl(p, q), kl)
    with pytest.raises(ValueError, match="run different algorithms"):
        V.noise_kl(p, gt.Custom(q.logits, GRAPHS))


def test_traces_of_another_item():
    d = gt.Custom(logits(3, 4), FIRST)
    with pytest.raises(ValueError, match="holds numbers that are not keys or decisions"):
        d.trace_log_prob(d.sample_trace()[torch.tensor([2, 1, 0])])
    with pytest.raises(ValueError, match="belongs to another algorithm, First, First, First"):
        gt.Custom(logits(3, 4), GRAPHS).trace_log_prob(d.sample_trace())


def test_a_trace_that_was_written_into():
    trace = gt.Custom(logits(3, 4), FIRST).sample_trace()
    for number in (-1, 3):
        trace.links[0, -1] = number
        with pytest.raises(ValueError, match=r"the algorithm does not make this trace: .* it was written into"):
            _ = trace.value


def test_a_trace_of_an_algorithm_that_was_made_of_other_arguments():
    nodes = torch.zeros(4)
    everyone = gt.Custom(nodes, MaximalIndependentSet(torch.zeros(4, 4))).sample_trace((3,))
    assert everyone.winners.shape == (3, 4)
    complete = gt.Custom(nodes, MaximalIndependentSet(torch.ones(4, 4)))
    with pytest.raises(ValueError, match="the algorithm does not make this trace: it is of another one"):
        complete.trace_log_prob(everyone)
    again = gt.Custom(nodes, MaximalIndependentSet(torch.zeros(4, 4)))
    torch.testing.assert_close(again.trace_log_prob(everyone), torch.full((3,), 1 / 24).log())


def test_divergence_from_an_algorithm_that_cannot_make_all_runs():
    nodes = torch.zeros(4)
    everyone, one = (gt.Custom(nodes, MaximalIndependentSet(torch.full((4, 4), edge))) for edge in (0.0, 1.0))
    for kl in (V.trace_kl, V.exact_kl):
        assert kl(everyone, one) == torch.inf
    faster = gt.Custom(nodes + torch.arange(4), MaximalIndependentSet(torch.zeros(4, 4)))
    torch.testing.assert_close(
        V.exact_kl(everyone, gt.Custom(faster.logits, everyone.algorithm)), V.exact_kl(everyone, faster)
    )
    assert V.exact_kl(everyone, faster).isfinite()


class Reused(MaximalIndependentSet):
    """It writes every value into the same tensor; with a scale, values have a gradient."""

    def __init__(self, nodes, scale):
        super().__init__(torch.ones(nodes, nodes))
        self.buffer, self.scale = torch.zeros(nodes), scale

    def combine(self, X, K, R, winners):
        self.buffer.zero_()[winners] = 1
        return self.buffer if self.scale is None else self.buffer * self.scale


@pytest.mark.parametrize("scale", [None, torch.ones((), requires_grad=True)])
def test_values_are_copies_without_a_gradient(scale):
    d = gt.Custom(torch.zeros(4), Reused(4, scale))
    values = d.sample((200,))
    assert len(values.unique(dim=0)) == 4
    torch.testing.assert_close(d.mean, torch.full((4,), 0.25))
    assert not values.requires_grad
    assert not d.mode.requires_grad


def test_transforms_are_refused():
    algorithm = MaximalIndependentSet(torch.zeros(4, 4))
    estimate = lambda x: E.TraceREINFORCE()(gt.Custom(x, algorithm), lambda value: value[..., 0])  # noqa: E731
    with pytest.raises(NotImplementedError, match=r"Custom: torch\.func cannot transform its hooks"):
        torch.func.grad(estimate)(torch.zeros(4))
    draw = lambda x: gt.Custom(x, algorithm, validate_args=False).sample()  # noqa: E731
    with pytest.raises(NotImplementedError, match=r"Custom: torch\.func cannot transform its hooks"):
        torch.vmap(draw, randomness="different")(torch.zeros(3, 4))


class Moody(First):
    """Answers otherwise the second time."""

    def split(self, K, R):
        self.size += 1
        return [K] if self.size % 2 else [K, []]


class Two(First):
    def combine(self, X, K, R, winners):
        return torch.zeros(2)


@pytest.mark.parametrize(
    ("algorithms", "error", "message"),
    [
        (FIRST[:2], ValueError, r"2 algorithms do not fit the last dimension of batch shape \(3,\)"),
        ([*FIRST[:2], object()], TypeError, "the algorithm object has no method start"),
        ([*FIRST[:2], GRAPHS[0]], TypeError, "algorithm 2 has no method combine, and others have"),
        ([*FIRST[:2], Two(3)], ValueError, r"combine of algorithm 2 gives a value of shape \(2,\), algorithm 0 \(\)"),
        ([*FIRST[:2], First(5)], ValueError, r"start\(\) names key 4, but the event has 4 keys"),
        ([*FIRST[:2], Moody(4)], ValueError, "answered otherwise than before"),
    ],
)
def test_errors(algorithms, error, message):
    with pytest.raises(error, match=message):
        gt.Custom(logits(3, 4), algorithms).sample()
