"""What estimators say of themselves is what they do: for every one that is registered, by name."""

import ast
import copy
import inspect
from pathlib import Path

import pytest
import torch
from common import FALSE_ALARM, seeded
from unbiased import case, critic_for, make, p_value

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import gradients

ROOT = Path(__file__).parents[2]
EVERY = pytest.mark.parametrize("name", E.ESTIMATORS)
STRUCTURES = ["subset", "permutation", "matching", "tree", "forest", "sparse", "arborescence", "binary", "custom-set"]


class Watched:
    """An objective that counts the structures it is evaluated at, an item, and notes which required a gradient."""

    def __init__(self, objective):
        self.objective, self.calls, self.soft = objective, 0, False

    def __call__(self, value):
        self.calls += len(value)
        self.soft |= value.requires_grad
        return self.objective(value)


def watch(name, samples):
    dist, f = case("subset")
    dist = gt.Subset(dist.logits.requires_grad_(), dist.k)
    watched = Watched(f)
    make(name, dist, samples=samples)(dist, watched, generator=seeded(1)).backward()
    return watched


# The registry --------------------------------------------------------------------------------------


def test_the_registry_has_every_public_estimator():
    public = [getattr(E, name) for name in E.__all__ if isinstance(getattr(E, name), type)]
    assert set(E.ESTIMATORS.values()) == {cls for cls in public if issubclass(cls, E.Estimator)} - {E.Estimator}
    assert all(cls.__name__ == name for name, cls in E.ESTIMATORS.items())


def test_labels_are_different_and_have_no_comma():
    """Tables write variants of one estimator as `label, variant`."""
    labels = [cls.label for cls in E.ESTIMATORS.values()]
    assert len(set(labels)) == len(labels)
    assert not any("," in label for label in labels)


def left_out_by_name(source):
    """Lines with a list that is made of `ESTIMATORS` and leaves some out by their names."""
    lists = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for made in (node for node in ast.walk(ast.parse(source)) if isinstance(node, lists)):
        for loop in made.generators:
            key = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
            for test in (
                node for condition in loop.ifs for node in ast.walk(condition) if isinstance(node, ast.Compare)
            ):
                by_name = ast.unparse(test.left) == ast.unparse(key) and isinstance(test.ops[0], ast.NotEq | ast.NotIn)
                if by_name and "ESTIMATORS" in ast.unparse(loop.iter):
                    yield test.lineno


def test_no_list_leaves_an_estimator_out_by_its_name():
    """An attribute, a setting or `supports` tells what does not fit, so that the next estimator falls into place."""
    assert list(left_out_by_name('[name for name in E.ESTIMATORS if name not in ("RELAX",)]')) == [1]
    assert list(left_out_by_name('[n for n, cls in ESTIMATORS.items() if cls.unbiased and n != "RELAX"]')) == [1]
    files = [
        path
        for folder in ("src", "tests", "experiments", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*.py")
    ]
    sources = {path: path.read_text(encoding="utf-8") for path in files}
    users = {path: source for path, source in sources.items() if "ESTIMATORS" in source}
    assert len(users) > 20
    assert [f"{path.name}:{line}" for path, source in users.items() for line in left_out_by_name(source)] == []


# Attributes are true -------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("samples", [1, 3])
def test_calls_per_sample(name, samples):
    assert watch(name, samples).calls == samples * E.ESTIMATORS[name].calls_per_sample


@EVERY
def test_those_that_differentiate_evaluate_at_values_with_a_gradient(name):
    assert watch(name, 2).soft == E.ESTIMATORS[name].differentiates


@EVERY
@pytest.mark.slow
def test_unbiased_or_not_by_enumeration(name):
    """One that says it is biased is far off the exact gradient, with the runs that others pass with."""
    estimator = make(name, case("subset")[0], samples=2).requires_grad_(False)
    assert (p_value(estimator, "subset", 6000) > FALSE_ALARM) == estimator.unbiased


@EVERY
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.slow
def test_it_works_for_the_structures_it_supports_and_for_no_others(name, structure):
    dist, f = case(structure)
    estimator = make(name, dist)
    if estimator.supports(dist):
        assert gradients(estimator, dist, f, 2, seeded(1)).isfinite().all()
    else:
        with pytest.raises((NotImplementedError, ValueError)):
            gradients(estimator, dist, f, 2, seeded(1))


def test_supports_asks_for_this_size():
    tree = gt.SpanningTree(torch.zeros(30, 30))
    assert not E.StructureREINFORCE.supports(tree)  # too many orders to sum over
    assert E.StochasticSoftmax.supports(tree)
    assert not E.StochasticSoftmax.supports(gt.Permutation(torch.zeros(3)))  # not a matrix


# Settings ------------------------------------------------------------------------------------------

MEANING = {"samples": 3, "leave_one_out": False, "temperature": 0.25, "kind": "euclidean", "scale": 2.5}
MEANING |= {"learn_temperature": False, "extra": 7, "draws": 5, "step": 0.3, "adaptive": True}


@EVERY
def test_settings_are_keywords(name):
    cls = E.ESTIMATORS[name]
    kinds = {p.name: p.kind for p in inspect.signature(cls).parameters.values()}
    assert {kind for setting, kind in kinds.items() if setting != "critic"} == {inspect.Parameter.KEYWORD_ONLY}
    critic = [critic_for(gt.Subset(torch.zeros(4), 2))] * ("critic" in kinds)
    with pytest.raises(TypeError, match=rf"{name}: settings are keywords \(samples=.*\), got 4 by position"):
        cls(*critic, 4)
    with pytest.raises(TypeError, match=rf"{name}: settings are keywords \(samples=.*\), got n_samples="):
        cls(*critic, n_samples=4)


def test_a_critic_must_be_callable():
    with pytest.raises(TypeError, match="RELAX: the critic must be a module, got 4"):
        E.RELAX(4)


@EVERY
def test_one_name_has_one_meaning(name):
    """Each setting is an attribute of that name, of the given value, and shown."""
    cls = E.ESTIMATORS[name]
    estimator = cls.from_settings(MEANING, critic=lambda: E.VectorCritic(4))
    shown = estimator.extra_repr()
    for setting, default in cls.settings().items():
        value = getattr(estimator, setting)
        if not isinstance(value, torch.nn.Module):  # those are shown by torch
            expected = MEANING.get(setting, default)
            assert (value.item() if torch.is_tensor(value) else value) == expected
            assert f"{setting}={expected!r}" in shown
    assert repr(estimator).startswith(f"{name}(")


def test_repr():
    assert repr(E.TraceREINFORCE()) == "TraceREINFORCE(samples=4, leave_one_out=True)"
    rebar = "REBAR(samples=4, leave_one_out=True, temperature=0.5, kind=None, scale=1, learn_temperature=True)"
    assert repr(E.REBAR()) == rebar
    assert repr(E.SurrogateREINFORCE(extra=9)).splitlines()[1].strip() == "samples=4, extra=9"


def test_repr_shows_what_was_learned():
    rebar = E.REBAR()
    with torch.no_grad():
        rebar.scale.fill_(0.75)
        rebar.log_temperature.fill_(0.0)
    assert "temperature=1, kind=None, scale=0.75" in repr(rebar)


@EVERY
def test_estimators_with_a_score_have_four_samples_by_default(name):
    cls = E.ESTIMATORS[name]
    assert cls.settings()["samples"] == (4 if cls.unbiased else 1)


@EVERY
def test_settings_of_others_are_ignored_and_their_modules_not_made(name):
    made = []

    def critic():
        made.append(1)
        return E.VectorCritic(4)

    estimator = E.ESTIMATORS[name].from_settings({**MEANING, "of another": 1}, critic=critic)
    assert type(estimator) is E.ESTIMATORS[name]
    assert len(made) == ("critic" in estimator.settings())


@EVERY
def test_estimators_can_be_copied(name):
    estimator = make(name, case("subset")[0])
    assert repr(copy.deepcopy(estimator)) == repr(estimator)


def test_keys_of_a_state_are_those_of_recorded_runs():
    states = {name: list(make(name, case("subset")[0]).state_dict()) for name in E.ESTIMATORS}
    assert states["REBAR"] == ["log_temperature", "scale"]
    assert states["IMLE"] == ["factor", "changed"]
    assert all(key.startswith("critic.") for key in states["RELAX"])
    assert all(key.startswith("fitted.") for key in states["SurrogateREINFORCE"])
    assert states["SurrogateREINFORCE"]
