"""The measurement of gradient noise: small runs of it, and what the recorded one shows."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace.diagnostics import exact_gradient, gradient_statistics
from gumtrace.toy import problem

spec = spec_from_file_location("variance", Path(__file__).parents[2] / "benchmarks" / "variance.py")
variance = module_from_spec(spec)
spec.loader.exec_module(variance)

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = variance.Settings(warm_up=3, replicates=20, reference=100, extra=8)
RECORDS = [variance.Record(**r) for r in json.loads(variance.RESULTS.read_text())["records"]]


@pytest.mark.parametrize("structure", variance.STRUCTURES)
@pytest.mark.slow
def test_every_estimator_is_measured(structure):
    p = problem(structure, size=8 if structure == "subset" else 4)
    for objective in variance.OBJECTIVES:
        records = {r.estimator: r for r in variance.measure(p, objective, TINY)}
        assert records.keys() == variance.applicable(p, objective, TINY).keys()
        assert records["T-REINFORCE+"].ratio == 1
        for name, r in records.items():
            per_sample = variance.described(name).calls_per_sample
            assert r.calls == per_sample * round(8 / per_sample)
            assert r.std > 0
            assert r.ratio == pytest.approx(r.std / records["T-REINFORCE+"].std * (r.calls / 8) ** 0.5)


def test_objectives():
    """One has a gradient; the other is 0 or 1, as often the one as the other."""
    p = problem("spanning-tree")
    smooth, rough = variance.objectives(p).values()
    x = p.dist.sample((2000,), generator=seeded(1)).requires_grad_()
    assert smooth(x).requires_grad
    assert not rough(x).requires_grad
    assert set(rough(x).tolist()) == {0.0, 1.0}
    assert abs(rough(x).mean() - 0.5) < 0.05


def test_reference_is_near_the_exact_gradient():
    p = problem("subset", size=8)
    f = variance.objectives(p)["smooth"]
    settings = variance.Settings(reference=20_000)
    mean, error = variance.long_mean(p, f, settings, seeded(3))
    _, exact = exact_gradient(p.dist, f)
    assert 0.3 * error < variance.rms(mean - exact) < 3 * error


def test_a_given_target_stands_for_the_exact_gradient():
    dist = gt.Subset(torch.tensor([0.0, 1.0, 2.0]), 2)
    f, estimator = lambda x: x[..., 0], {"T": gt.estimators.TraceREINFORCE(samples=2)}
    _, target = exact_gradient(dist, f)
    (enumerated,) = gradient_statistics(estimator, dist, f, 300, generator=seeded(1))
    (given,) = gradient_statistics(estimator, dist, f, 300, target=target, generator=seeded(1))
    assert given.bias == enumerated.bias
    (shifted,) = gradient_statistics(estimator, dist, f, 300, target=target + 10, generator=seeded(1))
    assert shifted.bias == pytest.approx(10, rel=0.1)


def test_figure_of_the_recorded_run(tmp_path):
    variance.figure(RECORDS, tmp_path / "variance.png")
    assert (tmp_path / "variance.png").stat().st_size > 10_000


def test_recorded_run_is_complete():
    cells = {(r.structure, r.objective): set() for r in RECORDS}
    for r in RECORDS:
        cells[r.structure, r.objective].add(r.estimator)
    for structure in variance.STRUCTURES:
        for objective in variance.OBJECTIVES:
            builds = variance.applicable(problem(structure), objective, variance.Settings())
            assert cells[structure, objective] == builds.keys()


def test_recorded_unbiased_estimators_are_unbiased():
    """The mean of squares over dozens of keys is near what chance gives."""
    for r in RECORDS:
        if variance.described(r.estimator).unbiased:
            assert r.bias < 1.5 * r.bias_error, (r.structure, r.objective, r.estimator)


@pytest.mark.parametrize("structure", variance.STRUCTURES)
def test_half_of_the_noise_is_gone(structure):
    """At equal calls and a smooth objective, the best unbiased estimator has at most half the std of T-REINFORCE+."""
    smooth = [r for r in RECORDS if r.structure == structure and r.objective == "smooth"]
    assert min(r.ratio for r in smooth if variance.described(r.estimator).unbiased) <= 0.5
