"""Algorithms of one's own that break the rules are refused, at once or when they do, and the message says where."""

import pytest
import torch
from races import NOISE, Race

import gumtrace as gt
from gumtrace.recursions import CentreClustering, MaximalIndependentSet


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
    "never stops": ({"stop": lambda K, R: False}, "step 4: stop returned False, though no key is left"),
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


WRITTEN = [
    (list.append, list, len),
    (set.add, set, len),
    (lambda R, w: R.update({w: 0}), dict, len),
    (lambda R, w: R.add_(w), lambda: torch.zeros(1), float),
    (lambda R, w: R[0].append(w), lambda: ([],), lambda R: len(R[0])),
]


@pytest.mark.parametrize(("write", "fresh", "read"), WRITTEN)
def test_a_hook_that_writes_into_R_is_refused_where_combine_sees_it(write, fresh, read):
    """Without a combine that looks at it, nobody is misled."""

    def mapped(K, R, winners):
        write(R, winners[0])
        return K - set(winners), R

    hooks = {"start": lambda: (range(4), fresh()), "map": mapped}
    gt.Custom(NOISE, Race(**hooks))
    gt.Custom(NOISE, Race(**hooks, combine=lambda X, K, R, w: 0.0))
    sees = lambda X, K, R, w: (0.0 if X is None else 10.0 * X) + read(R)  # noqa: E731
    with pytest.raises(ValueError, match=r"Custom: combine answered otherwise .* must not write into R"):
        gt.Custom(NOISE, Race(**hooks, combine=sees))
    kept = lambda K, R, winners: (K - set(winners), R)  # noqa: E731
    gt.Custom(NOISE, Race(start=hooks["start"], map=kept, combine=sees))


def test_what_a_hook_writes_for_the_combine_of_its_own_step_is_no_fault():
    def split(K, R):
        R["left"] = len(K)
        return [K]

    d = gt.Custom(
        NOISE,
        Race(
            start=lambda: (range(4), {}),
            split=split,
            map=lambda K, R, winners: (K - set(winners), {}),
            combine=lambda X, K, R, w: [R.get("left", 0)] + ([] if X is None else X),
        ),
    )
    assert d.sample().tolist() == [4, 3, 2, 1]


def test_a_combine_that_needs_what_later_steps_write_is_refused():
    def mapped(K, R, winners):
        R["last"] = winners[0]
        return K - set(winners), R

    hooks = {"start": lambda: (range(4), {}), "map": mapped}
    with pytest.raises(ValueError, match=r"Custom: combine answered otherwise .* must not write into R"):
        gt.Custom(NOISE, Race(**hooks, combine=lambda X, K, R, w: {0: 1.0}[R["last"]]))


def test_combine_without_a_value():
    with pytest.raises(TypeError, match="Custom: combine returned None; it must return a tensor or numbers"):
        gt.Custom(NOISE, Race(combine=lambda X, K, R, w: None))


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


def test_adjacency_must_be_square():
    for example in (MaximalIndependentSet, CentreClustering):
        with pytest.raises(ValueError, match=r"square.*\(2, 3\)"):
            example(torch.zeros(2, 3))


def test_the_item_is_named():
    with pytest.raises(ValueError, match=r"Custom.*\(1,\)"):
        gt.Custom(torch.tensor([[0.0, 0, 0, 0], [0.0, torch.nan, 0, 0]]), Race(), event_dim=1)


def test_an_algorithm_is_an_object():
    with pytest.raises(TypeError, match=r"Custom: the algorithm must be an object, not a class: Race\(\)"):
        gt.Custom(NOISE, Race)


def test_values_of_several_shapes():
    def first_and_more(X, K, R, winners):
        return torch.zeros(1 + winners[0])

    d = gt.Custom(torch.zeros(20, 4), Race(combine=first_and_more), event_dim=1, validate_args=False)
    with pytest.raises(ValueError, match=r"Custom: combine returned values of shapes \(\d,\) and \(\d,\)"):
        d.sample()
