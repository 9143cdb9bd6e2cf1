"""Algorithms of one's own: what is refused, the two shipped examples, and the contract for whatever hooks say."""

import numpy as np
import pytest
import torch
import twins
from cases import generator
from torch.autograd import gradcheck, gradgradcheck

import gumtrace as gt
from gumtrace.recursions import CentreClustering, MaximalIndependentSet

FALSE_ALARM = 1e-6


class Race:
    """Four keys; the winner leaves. Hooks may be replaced."""

    def __init__(self, **hooks):
        self.__dict__.update(hooks)

    def start(self):
        return range(4), None

    def stop(self, K, R):
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        return K - set(winners), None


# What is refused ---------------------------------------------------------------------------------------


def late(good, bad):
    """A hook that goes wrong at the second step, when three keys are left."""
    return lambda K, *more: bad(K, *more) if len(K) == 3 else good(K, *more)


def whole(K, R):
    return [K]


def winner_leaves(K, R, winners):
    return K - set(winners), None


BROKEN = {  # hooks, and what the message must say; the noise is 3 > 2 > 1 > 0, so key 3 goes first and key 2 next
    "overlap": ({"split": lambda K, R: [K, {1}]}, "step 0: split .*key 1 "),
    "overlap later": ({"split": late(whole, lambda K, R: [{0}, K])}, "step 1: split .*key 0 "),
    "left out": ({"split": lambda K, R: [K - {2}]}, "step 0: split .*key 2"),
    "left out later": ({"split": late(whole, lambda K, R: [{0}, {2}])}, "step 1: split .*key 1"),
    "nothing left in": ({"split": lambda K, R: []}, "step 0: split .*key 0"),
    "invented by split": ({"split": lambda K, R: [K, {7}]}, "step 0: split .*key 7"),
    "split brings back": ({"split": late(whole, lambda K, R: [K, {3}])}, "step 1: split .*key 3"),
    "invented by map": ({"map": lambda K, R, w: ({9}, None)}, "step 0: map .*key 9"),
    "map brings back": ({"map": late(winner_leaves, lambda K, R, w: ({3}, None))}, "step 1: map .*key 3"),
    "nobody leaves": ({"map": lambda K, R, w: (K, None)}, "step 0: map .*key"),
    "nobody leaves later": ({"map": late(winner_leaves, lambda K, R, w: (K, None))}, "step 1: map .*key"),
    "never stops": ({"stop": lambda K, R: False}, "step 4: map .*key"),
    "start out of range": ({"start": lambda: (range(5), None)}, r"start\(\) .*key 4.* 4 keys"),
    "start below zero": ({"start": lambda: ([0, -1], None)}, r"start\(\) .*key -1"),
}
NO_KEYS = {
    "start of words": ({"start": lambda: (["a"], None)}, r"start\(\) .*'a'"),
    "start of None": ({"start": lambda: (None, None)}, r"start\(\) .*None"),
    "start of floats": ({"start": lambda: ([0.5, 1.5], None)}, r"start\(\) .*0.5"),
    "start without R": ({"start": lambda: range(4)}, r"start\(\)"),
    "split into keys": ({"split": lambda K, R: K}, "step 0: split .*0"),
    "split into words": ({"split": lambda K, R: [["b"]]}, "step 0: split .*'b'"),
    "split is None": ({"split": lambda K, R: None}, "step 0: split"),
    "map to a key": ({"map": lambda K, R, w: (3, None)}, "step 0: map .*3"),
    "map without R": ({"map": lambda K, R, w: K - set(w)}, "step 0: map"),
    "map is None": ({"map": lambda K, R, w: None}, "step 0: map"),
}
NOISE = torch.tensor([0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("what", BROKEN)
def test_broken_invariants_are_refused_at_once(what):
    hooks, message = BROKEN[what]
    with pytest.raises(ValueError, match=message):
        gt.Custom(NOISE, Race(**hooks))


@pytest.mark.parametrize("what", [w for w in BROKEN if "start" not in w])
def test_broken_invariants_are_refused_when_run(what):
    hooks, message = BROKEN[what]
    d = gt.Custom(NOISE, Race(**hooks), validate_args=False)
    with pytest.raises(ValueError, match=message):
        d.trace(NOISE)
    with pytest.raises(ValueError, match=r"step \d: .*key"):
        d.enumerate_traces()
    with pytest.raises(ValueError, match=r"step \d: .*key"):
        d.sample((100,))


@pytest.mark.parametrize("what", NO_KEYS)
def test_what_are_no_keys_is_refused(what):
    hooks, message = NO_KEYS[what]
    with pytest.raises((TypeError, ValueError), match=message):
        gt.Custom(NOISE, Race(**hooks))


def test_what_breaks_only_sometimes_is_refused_when_it_does():
    d = gt.Custom(NOISE, Race(map=lambda K, R, w: (K if w == [0] and len(K) == 4 else K - set(w), None)))
    with pytest.raises(ValueError, match="step 0: map"):
        d.trace(-NOISE)


@pytest.mark.parametrize("hook", ["start", "stop", "split", "map"])
def test_missing_hooks(hook):
    with pytest.raises(TypeError, match=rf"Custom.*Race.*{hook}"):
        gt.Custom(NOISE, Race(**{hook: None}))


@pytest.mark.parametrize("keys", [lambda K: list(K), lambda K: np.array(sorted(K)), lambda K: torch.tensor(sorted(K))])
def test_keys_may_come_in_any_collection(keys):
    hooks = Race(
        start=lambda: (keys(range(4)), None),
        split=lambda K, R: [keys(K)],
        map=lambda K, R, winners: (keys(K - set(winners)), None),
    )
    assert gt.Custom(NOISE, hooks).sample_trace().winners.sort().values.tolist() == [0, 1, 2, 3]


def test_adjacency_must_be_square():
    for example in (MaximalIndependentSet, CentreClustering):
        with pytest.raises(ValueError, match=r"square.*\(2, 3\)"):
            example(torch.zeros(2, 3))


# The two examples ---------------------------------------------------------------------------------------

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
def test_the_law_of_the_examples(algorithm):
    d = gt.Custom(LOGITS, algorithm)
    fit = gt.diagnostics.goodness_of_fit(d, 20_000, generator=generator(1))
    assert fit.impossible == 0
    assert fit.p_value > FALSE_ALARM
    report = gt.diagnostics.check_conditional(d, 10_000, generator=generator(2))
    assert report.broken == 0
    assert report.p_value > FALSE_ALARM


@examples
def test_the_law_is_tested_for_real(algorithm):
    """The same tests reject samples of slightly different logits."""
    d, other = (gt.Custom(x, algorithm) for x in (LOGITS, LOGITS + torch.tensor([0.3, 0, 0, 0, 0, 0])))
    d.sample_trace = other.sample_trace
    assert gt.diagnostics.goodness_of_fit(d, 20_000, generator=generator(1)).p_value < FALSE_ALARM


# Derivatives --------------------------------------------------------------------------------------------


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
    algorithm, x = twins.ChuLiuEdmonds(5), 1000 * torch.randn(5, 5, generator=generator())
    traces = gt.Custom(torch.zeros(5, 5), algorithm).sample_trace((100,), generator=generator())
    with pytest.warns(RuntimeWarning, match=r"Custom.conditional: \d+ of 100"):
        gt.Custom(x, algorithm).conditional(traces, generator=generator())


# Batches, masks, lengths ---------------------------------------------------------------------------------


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
    ours, fast = gt.Custom(x, twins.Matching(3, 4), event_dim=2), gt.Matching(x)
    assert (ours.batch_shape, ours.event_shape) == ((7,), (3, 4))
    noise = fast.perturb((5,), generator=generator())
    assert (ours.trace(noise).value == fast.trace(noise).value).all()
    log_probs = ours.trace_log_prob(ours.trace(noise)), fast.trace_log_prob(fast.trace(noise))
    torch.testing.assert_close(*log_probs)


def test_by_default_all_is_one_event():
    d = gt.Custom(torch.zeros(3, 4), twins.Matching(3, 4))
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


# Values -------------------------------------------------------------------------------------------------


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
    d = gt.Custom(NOISE, twins.Subset(4, 2))
    assert d.mode.tolist() == [0, 0, 1, 1]


# Size and ties -------------------------------------------------------------------------------------------


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
    for d in (gt.Custom(torch.zeros(3, 3), twins.ChuLiuEdmonds(3)), gt.Arborescence(torch.zeros(3, 3))):
        trace = d.trace(g)
        assert sorted(trace.winners[trace.winners >= 0].tolist()) == [1, 5, 7]
        assert trace.value.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_the_item_is_named():
    with pytest.raises(ValueError, match=r"Custom.*\(1,\)"):
        gt.Custom(torch.tensor([[0.0, 0, 0, 0], [0.0, torch.nan, 0, 0]]), Race(), event_dim=1)
