"""Hooks of one's own algorithm that depend on chance, on the noise or on earlier calls are found out, by name."""

import random

import pytest
import torch
from races import NOISE, Race

import gumtrace as gt

MESSAGE = r"Custom: .*(depend on their arguments alone|depends on more than its arguments)"


class Fickle(Race):
    """Every hook may draw lots, the same ones in each test."""

    def __init__(self, **hooks):
        super().__init__(**hooks)
        self.lots = random.Random(3)


def random_split(self):
    return lambda K, R: [K] if len(K) < 2 or self.lots.random() < 0.5 else [{min(K)}, K - {min(K)}]


def random_map(self):
    return lambda K, R, winners: (K - set(winners) - set(sorted(K)[: self.lots.randrange(3)]), None)


def random_stop(self):
    return lambda K, R: not K or (len(K) < 4 and self.lots.random() < 0.5)


def counting_split(self):
    """Reads how often it was called, ever."""
    calls = []

    def split(K, R):
        calls.append(None)
        return [K] if len(calls).bit_count() % 2 or len(K) < 2 else [{min(K)}, K - {min(K)}]

    return split


def remembering_map(self):
    """Carries a list from one run to the next."""
    dropped = []

    def map(K, R, winners):
        dropped.extend(winners)
        return (K - set(winners) if len(dropped) < 4 else frozenset()), None

    return map


FICKLE = {
    "split": random_split,
    "map": random_map,
    "stop": random_stop,
    "split ": counting_split,
    "map ": remembering_map,
}


def fickle(what):
    algorithm = Fickle()
    setattr(algorithm, what.strip(), FICKLE[what](algorithm))
    return algorithm


@pytest.mark.parametrize("what", FICKLE)
def test_found_out_when_it_is_made_or_on_the_first_call(what):
    with pytest.raises(ValueError, match=rf"Custom: {what.strip()} \(step \d\) .*depend on their arguments alone"):
        gt.Custom(NOISE, fickle(what)).sample_trace((50,))


@pytest.mark.parametrize("what", FICKLE)
def test_enumeration_and_conditional_name_it_without_checks(what):
    """Other noise may show what the first run did not."""
    with pytest.raises(ValueError, match=MESSAGE):
        gt.Custom(NOISE, fickle(what), validate_args=False).enumerate_traces()
    d = gt.Custom(NOISE, fickle(what), validate_args=False)
    with pytest.raises(ValueError, match=MESSAGE):
        d.conditional(d.sample_trace((200,)))


def test_a_random_combine_is_found_out():
    lots = random.Random(0)
    with pytest.raises(ValueError, match=r"Custom: combine .*arguments alone"):
        gt.Custom(NOISE, Race(combine=lambda X, K, R, winners: torch.tensor(lots.random())))


def test_a_hook_that_reads_the_noise_is_found_out():
    """Nobody hands it over, but an object may hold on to it."""
    seen = torch.zeros(4)
    algorithm = Race(split=lambda K, R: [K] if seen[0] > 0 or len(K) < 2 else [{min(K)}, K - {min(K)}])
    d = gt.Custom(NOISE, algorithm)
    seen.fill_(1.0)
    trace = d.trace(NOISE)
    seen.fill_(-1.0)
    with pytest.raises(ValueError, match=MESSAGE):
        d.conditional(trace)


def test_honest_hooks_pass():
    d = gt.Custom(torch.zeros(3, 4), Race(), event_dim=1)
    assert d.conditional(d.sample_trace((5,))).isfinite().all()
    values = Race(combine=lambda X, K, R, winners: torch.tensor(float("nan")))  # nan is as equal as any answer
    assert gt.Custom(NOISE, values).sample().isnan()
