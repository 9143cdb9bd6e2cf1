"""Colours of estimators: one for each, in all figures, that every kind of colour vision tells apart."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from fake_runs import write_run

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find
from gumtrace_experiments.report.colours import looks
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import collect

# Of linear RGB: what is seen without one kind of cones (Machado, Oliveira and Fernandes 2009)
VISION = {
    "all": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
# From linear RGB to Oklab, whose distances are about those that are seen
LMS = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
OKLAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def shown(folder, experiment="graph-layout", **settings):
    write_run(folder, experiment=experiment, **settings)
    report = find(experiment).report()
    return choices(collect([folder], experiment=experiment), report, "elbo")


@pytest.fixture
def every(tmp_path):
    """A choice for each estimator, in one block."""
    return [choice for name in ESTIMATORS for choice in shown(tmp_path / name, estimator=name)]


def seen(colour, vision):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return OKLAB @ np.cbrt(LMS @ np.clip(VISION[vision] @ linear, 0, 1))


@pytest.mark.parametrize("vision", VISION)
def test_estimators_can_be_told_apart(every, vision):
    colours = {name: look["color"] for name, look in looks(every).items()}
    assert len(colours) == len(ESTIMATORS)
    close = {
        (a, b): distance
        for a, b in combinations(colours, 2)
        if (distance := np.linalg.norm(seen(colours[a], vision) - seen(colours[b], vision))) < 0.04
    }
    assert not close


def test_a_colour_does_not_depend_on_the_others(every):
    whole = looks(every)
    for choice in every:
        assert looks([choice]) == {choice.name: whole[choice.name]}
        assert whole[choice.name]["linestyle"] == "-"


def test_experiments_agree(tmp_path):
    for name in ("StochasticSoftmax", "TraceREINFORCE", "RELAX", "REBAR"):
        found = [looks(shown(tmp_path / name / e, e, estimator=name)) for e in ("graph-layout", "listops", "l2x")]
        assert len({look["color"] for one in found for look in one.values()}) == 1


def test_relaxations_of_one_estimator_differ_in_their_dashes(tmp_path):
    kinds = ("binary", "categorical", "euclidean")
    several = [
        c for k in kinds for c in shown(tmp_path / k, "l2x", estimator="StochasticSoftmax", kind=k, training="simple")
    ]
    found = looks(several)
    assert list(found) == ["SST, binary", "SST, categorical", "SST, euclidean"]
    assert len({look["color"] for look in found.values()}) == 1
    assert len({str(look["linestyle"]) for look in found.values()}) == 3


def test_rows_that_are_not_of_an_estimator_have_colours_of_their_own(tmp_path):
    """Fixed orders need none, whatever their configs say."""
    (one,) = shown(tmp_path)
    (likelihood,) = shown(tmp_path / "likelihood", "treebank", estimator="TraceLikelihood")
    rows = [(0, "left-to-right"), (1, "smart"), (2, "semi-supervised, T-REINFORCE+ (K = 4) †")]
    first, second, learned = looks([replace(one, row=row) for row in rows]).values()
    assert learned == looks([one])[one.name]
    assert len({first["color"], second["color"], learned["color"]}) == 3
    estimators = {look["color"] for look in looks([one]).values()}
    assert looks([likelihood])[likelihood.name]["color"] not in estimators
