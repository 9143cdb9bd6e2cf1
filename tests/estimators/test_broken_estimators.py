"""check_unbiased finds what is wrong: broken copies of each unbiased estimator fail it where the original passes."""

import faulty_estimators as faulty
import pytest
import torch
from cases import DISTS
from common import FALSE_ALARM, seeded
from unbiased import case, critic_for, fitted, p_value, unbiased

from gumtrace import estimators as E
from gumtrace.diagnostics import gradients


def frozen(estimator):
    return estimator.double().requires_grad_(False)


def learned(cls, **settings):
    """With the c of a surrogate that was trained for a while and is fixed."""
    return cls(surrogate=fitted("pairwise", "subset", 4).surrogate, samples=2, extra=4, **settings).eval()


def critic():
    return critic_for(case("subset")[0])


ORIGINALS = {
    "noise": ("tree", lambda: E.NoiseREINFORCE(samples=2)),
    "trace": ("tree", lambda: E.TraceREINFORCE(samples=2)),
    "structure": ("subset", lambda: E.StructureREINFORCE(samples=2)),
    "unordered": ("binary", lambda: E.UnorderedREINFORCE(samples=3)),
    "relax": ("subset", lambda: frozen(E.RELAX(critic(), samples=2))),
    "rebar": ("subset", lambda: frozen(E.REBAR(samples=2, temperature=0.7, scale=1.5))),
    "surrogate": ("subset", lambda: learned(E.SurrogateREINFORCE)),
    "surrogate that learns": (
        "subset",
        lambda: E.SurrogateREINFORCE(surrogate=faulty.EachItsOwn(), samples=2, extra=4),
    ),
}
COPIES = {
    "noise": lambda fault: faulty.FaultyNoise(fault=fault, samples=2),
    "trace": lambda fault: faulty.FaultyTrace(fault=fault, samples=2),
    "structure": lambda fault: faulty.FaultyStructure(fault=fault, samples=2),
    "unordered": lambda fault: faulty.FaultyUnordered(fault=fault, samples=3),
    "relax": lambda fault: frozen(faulty.FaultyRELAX(fault=fault, critic=critic(), samples=2)),
    "rebar": lambda fault: frozen(faulty.FaultyREBAR(fault=fault, samples=2, temperature=0.7, scale=1.5)),
    "surrogate": lambda fault: learned(faulty.FaultySurrogate, fault=fault),
    "surrogate that learns": lambda fault: faulty.FaultySurrogate(
        fault=fault, surrogate=faulty.EachItsOwn(), samples=2, extra=4
    ),
}
FAULTS = {
    "noise": ["own baseline", "not detached", "other noise"],
    "trace": ["own baseline", "scale", "other trace"],
    "structure": ["own baseline", "one order", "other structure"],
    "unordered": ["own baseline", "equal weights", "own probabilities", "no rest"],
    "relax": ["own baseline", "no conditional noise", "no noise", "shift", "other trace"],
    "rebar": ["own baseline", "no conditional noise", "no noise", "shift", "other trace", "scale in the weight only"],
    "surrogate": ["own baseline", "no extra term", "sign of the extra term", "own baseline of the extra term"],
    "surrogate that learns": ["fits first"],
}
REPLICATES = {"structure": 10_000, "relax": 10_000, "rebar": 10_000}


def p_of(estimator, kind):
    return p_value(estimator, ORIGINALS[kind][0], REPLICATES.get(kind, 20_000), learn=True)


@pytest.mark.parametrize("kind", ORIGINALS)
@pytest.mark.slow
def test_the_original_passes(kind):
    assert p_of(ORIGINALS[kind][1](), kind) > FALSE_ALARM


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind in FAULTS for fault in FAULTS[kind]])
@pytest.mark.slow
def test_a_broken_copy_fails(kind, fault):
    """With the settings, replicates and seed with which the original passes."""
    assert p_of(COPIES[kind](fault), kind) < FALSE_ALARM


@pytest.mark.parametrize("name", DISTS)
@pytest.mark.slow
def test_a_wrong_derivative_of_the_conditional_noise_is_found(name):
    """For each structure, with no more runs than `test_relax` makes."""
    estimator = frozen(faulty.FaultyRELAX(fault="shift", critic=critic_for(case(name)[0]), samples=2))
    assert not unbiased(estimator, name, 8000)


@pytest.mark.parametrize("kind", ORIGINALS)
def test_without_its_fault_a_copy_is_the_original(kind):
    """Twice, for those that learn."""
    name, original = ORIGINALS[kind]
    dist, f = case(name)
    estimators = original(), COPIES[kind](None)
    for seed in range(2):
        one, other = (gradients(estimator, dist, f, 50, seeded(seed)) for estimator in estimators)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
