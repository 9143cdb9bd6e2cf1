"""Algorithms of one's own: the two shipped examples, and the contract for whatever hooks say."""

import numpy as np
import pytest
import reference_algorithms as reference
import torch
from cases import generator
from common import FALSE_ALARM
from races import NOISE, Race
from torch.autograd import gradcheck, gradgradcheck

import gumtrace as gt
from gumtrace.recursions import CentreClustering, MaximalIndependentSet

# The two examples -------------------------------------------------------------------------------------

GRAPH = torch.zeros(6, 6)  # 0 - 1 - 2 and 3 - 4 - 5: two parts that race at once
GRAPH[[0, 1, 3, 4], [1, 2, 4, 5]] = 1
LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.0, 1.5, -0.4], dtype=torch.float64)
EXAMPLES = [MaximalIndependentSet(GRAPH), CentreClustering(GRAPH)]
examples = pytest.mark.parametrize("algorithm", EXAMPLES, ids=lambda a: type(a).__name__)


def random_graph(n, seed):
    near = torch.rand(n, n, generator=generator(seed)) < 0.3
    return near | near.T | torch.eye(n, dtype=torch.bool)


@pytest.mark.parametrize("seed", range(5))
def test_independent_sets_are_independent_and_maximal(seed):
    near = random_graph(12, seed)
    sets = gt.Custom(torch.zeros(12), MaximalIndependentSet(near)).sample((200,), generator=generator())
    chosen_near = sets @ near.float()  # how many chosen nodes are a node or its neighbours
    assert (chosen_near[sets == 1] == 1).all()
    assert (chosen_near >= 1).all()
    assert len(sets.unique(dim=0)) > 1


@pytest.mark.parametrize("seed", range(5))
def test_centres_are_near(seed):
    near = random_graph(12, seed)
    centres = gt.Custom(torch.zeros(12), CentreClustering(near)).sample((200,), generator=generator())
    assert near[torch.arange(12), centres].all()
    assert (centres.gather(-1, centres) == centres).all()  # a centre is its own
    assert len(centres.unique(dim=0)) > 1


@examples
def test_enumeration_of_the_examples(algorithm):
    d = gt.Custom(LOGITS, algorithm)
    law = gt.diagnostics.enumerate_traces(d)
    assert len(law) == (9 if isinstance(algorithm, CentreClustering) else 38)  # by hand: 3 * 3, and 2 + 12 + 24
    assert law.total == pytest.approx(1, abs=1e-12)
    assert gt.diagnostics.enumerate_values(d).total == pytest.approx(1, abs=1e-12)


@examples
@pytest.mark.slow
def test_the_law_of_the_examples(algorithm):
    d = gt.Custom(LOGITS, algorithm)
    fit = gt.diagnostics.goodness_of_fit(d, 20_000, generator=generator(1))
    assert fit.impossible == 0
    assert fit.p_value > FALSE_ALARM
    report = gt.diagnostics.check_conditional(d, 10_000, generator=generator(2))
    assert report.broken == 0
    assert report.p_value > FALSE_ALARM


@examples
@pytest.mark.slow
def test_the_law_is_tested_for_real(algorithm):
    """The same tests reject samples of slightly different logits."""
    d, other = (gt.Custom(x, algorithm) for x in (LOGITS, LOGITS + torch.tensor([0.3, 0, 0, 0, 0, 0])))
    d.sample_trace = other.sample_trace
    assert gt.diagnostics.goodness_of_fit(d, 20_000, generator=generator(1)).p_value < FALSE_ALARM


# Derivatives ------------------------------------------------------------------------------------------


@examples
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck], ids=lambda f: f.__name__)
def test_derivatives(algorithm, check):
    x = torch.stack([LOGITS, LOGITS.flip(0)]).requires_grad_()
    trace = gt.Custom(x, algorithm, event_dim=1).sample_trace((3,), generator=generator())
    assert check(lambda x: gt.Custom(x, algorithm, event_dim=1).trace_log_prob(trace), x)
    assert check(lambda x: gt.Custom(x, algorithm, event_dim=1).conditional(trace, generator=generator()), x)


@examples
def test_conditional_gives_the_trace_back(algorithm):
    d = gt.Custom(5 * LOGITS.float().expand(20, 6), algorithm, event_dim=1)
    trace = d.sample_trace((100,), generator=generator())
    assert d.trace(d.conditional(trace, generator=generator())).equals(trace).all()


def test_a_trace_too_improbable_to_come_back_is_told():
    """As the built-in arborescence does: silence would be a wrong E | T."""
    algorithm, x = reference.ChuLiuEdmonds(5), 1000 * torch.randn(5, 5, generator=generator())
    traces = gt.Custom(torch.zeros(5, 5), algorithm).sample_trace((100,), generator=generator())
    with pytest.warns(RuntimeWarning, match=r"Custom.conditional: \d+ of 100"):
        gt.Custom(x, algorithm).conditional(traces, generator=generator())


# Batches, masks, lengths ------------------------------------------------------------------------------


@examples
def test_a_batch_is_its_items(algorithm):
    x = torch.randn(2, 3, 6, generator=generator())
    batch = gt.Custom(x, algorithm, event_dim=1)
    noise = batch.perturb((4,), generator=generator())
    traces = batch.trace(noise)
    assert (batch.batch_shape, traces.value.shape) == ((2, 3), (4, 2, 3, 6))
    for i in range(2):
        for j in range(3):
            one = gt.Custom(x[i, j], algorithm)
            trace = one.trace(noise[:, i, j])
            assert (trace.value == traces[:, i, j].value).all()
            assert trace.equals(traces[:, i, j]).all()
            torch.testing.assert_close(one.trace_log_prob(trace), batch.trace_log_prob(traces)[:, i, j])


def test_events_of_two_dimensions():
    x = torch.randn(7, 3, 4, generator=generator())
    ours, fast = gt.Custom(x, reference.Matching(3, 4), event_dim=2), gt.Matching(x)
    assert (ours.batch_shape, ours.event_shape) == ((7,), (3, 4))
    noise = fast.perturb((5,), generator=generator())
    assert (ours.trace(noise).value == fast.trace(noise).value).all()
    log_probs = ours.trace_log_prob(ours.trace(noise)), fast.trace_log_prob(fast.trace(noise))
    torch.testing.assert_close(*log_probs)


def test_by_default_all_is_one_event():
    d = gt.Custom(torch.zeros(3, 4), reference.Matching(3, 4))
    assert (d.batch_shape, d.event_shape) == ((), (3, 4))
    assert d.sample().sum() == 3


@pytest.mark.parametrize("by", ["mask", "lengths", "-inf"])
def test_who_does_not_race_is_not_there(by):
    """Leaving nodes out gives the algorithm on the graph without them."""
    x, inside = LOGITS.expand(2, 6).clone(), torch.arange(6).expand(2, 6) < 3
    options = {"mask": {"mask": inside}, "lengths": {"lengths": torch.tensor([3, 3])}, "-inf": {}}[by]
    if by == "-inf":
        x[~inside] = -torch.inf
    for example in (MaximalIndependentSet, CentreClustering):
        part = gt.Custom(x, example(GRAPH), event_dim=1, **options)
        alone = gt.Custom(LOGITS[:3], example(GRAPH[:3, :3]))
        noise = part.perturb((50,), generator=generator())
        assert noise[..., 3:].isneginf().all()
        trace, trace_alone = part.trace(noise), alone.trace(noise[:, 0, :3])
        value = trace.value[:, 0]
        assert (value[:, :3] == trace_alone.value).all()
        assert (value[:, 3:] == (0 if example is MaximalIndependentSet else -1)).all()
        torch.testing.assert_close(part.trace_log_prob(trace)[:, 0], alone.trace_log_prob(trace_alone))


def test_lengths_differ_by_item():
    d = gt.Custom(torch.zeros(3, 5), Race(start=lambda: (range(5), None)), event_dim=1, lengths=[5, 2, 0])
    trace = d.sample_trace()
    assert (trace.winners >= 0).sum(-1).tolist() == [5, 2, 0]
    torch.testing.assert_close(d.trace_log_prob(trace).exp(), torch.tensor([1 / 120, 1 / 2, 1.0]))


# Keys and values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [lambda K: list(K), lambda K: np.array(sorted(K)), lambda K: torch.tensor(sorted(K))])
def test_keys_may_come_in_any_collection(keys):
    hooks = Race(
        start=lambda: (keys(range(4)), None),
        split=lambda K, R: [keys(K)],
        map=lambda K, R, winners: (keys(K - set(winners)), None),
    )
    assert gt.Custom(NOISE, hooks).sample_trace().winners.sort().values.tolist() == [0, 1, 2, 3]


class Depths(Race):
    """The value of a key is the step at which it won, in a tensor of another shape and type than the logits."""

    def combine(self, X, K, R, winners):
        X = torch.zeros(2, 2, dtype=torch.int16) if X is None else X + 1
        X.view(-1)[[k for k in range(4) if k not in K or k in winners]] = 0
        return X


def test_combine_may_give_any_tensor():
    d = gt.Custom(torch.zeros(3, 4), Depths(), event_dim=1)
    trace = d.trace(NOISE.expand(2, 3, 4))
    assert (d.event_shape, trace.value.shape, trace.value.dtype) == ((2, 2), (2, 3, 2, 2), torch.int16)
    assert trace.value[1, 2].tolist() == [[3, 2], [1, 0]]
    assert (trace[0, 1].value == trace.value[0, 1]).all()
    with pytest.raises(NotImplementedError, match="combine"):
        d.support  # noqa: B018


@pytest.mark.parametrize("value", [5, 2.5, True, [1, 2], np.arange(3), torch.tensor(4)], ids=repr)
def test_combine_may_give_what_can_be_a_tensor(value):
    algorithm = Race()
    algorithm.combine = lambda X, K, R, winners: value
    for d in (gt.Custom(torch.zeros(2, 4), algorithm, event_dim=1), gt.Custom(torch.zeros(4), algorithm)):
        drawn = d.sample()
        assert d.event_shape == torch.as_tensor(value).shape
        assert drawn.shape == d.batch_shape + d.event_shape
        torch.testing.assert_close(drawn, torch.as_tensor(value).expand(drawn.shape))


def test_the_default_value_marks_winners():
    d = gt.Custom(NOISE, reference.Subset(4, 2))
    assert d.mode.tolist() == [0, 0, 1, 1]


# Size and ties ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_thousand_levels():
    n = 2000
    algorithm = Race(start=lambda: (range(n), None))
    algorithm.combine = lambda X, K, R, winners: torch.zeros(1) if X is None else X + 1
    d = gt.Custom(torch.arange(n, 0.0, -1.0), algorithm, validate_args=False)
    trace = d.trace(d.logits)
    assert trace.winners.tolist() == list(range(n))
    assert trace.value == n - 1
    want = gt.Permutation(d.logits)
    torch.testing.assert_close(d.trace_log_prob(trace), want.trace_log_prob(want.trace(d.logits)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ties_go_to_the_smaller_key(dtype):
    d = gt.Custom(torch.zeros(4, dtype=dtype), Race())
    assert d.trace(torch.zeros(4)).winners.tolist() == [0, 1, 2, 3]
    assert d.trace(torch.tensor([1.0, 2.0, 1.0, 2.0])).winners.tolist() == [1, 3, 0, 2]
    assert d.trace(torch.tensor([0.0, -0.0, 5.0, -0.0])).winners.tolist() == [2, 0, 1, 3]
    assert d.trace(torch.tensor([-1e4, 1e4, 1e4, -1e4])).winners.tolist() == [1, 2, 0, 3]


def test_ties_after_a_subtraction():
    """1 and 2 make a cycle, and both ways in cost the same when the cycle's own edges are taken off."""
    g = torch.tensor([[0.0, -1.0, -1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for d in (gt.Custom(torch.zeros(3, 3), reference.ChuLiuEdmonds(3)), gt.Arborescence(torch.zeros(3, 3))):
        trace = d.trace(g)
        assert sorted(trace.winners[trace.winners >= 0].tolist()) == [1, 5, 7]
        assert trace.value.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
