"""Structures describe themselves: what they name exists, the tests have them all, and no module asks for their type."""

import ast
from pathlib import Path

import pytest
import torch
from cases import CASES, DISTS, RAGGED, small
from common import seeded

import gumtrace as gt
from gumtrace.fuzz.structures import STRUCTURES as FUZZED
from gumtrace.relaxations import has_relaxation
from gumtrace.structures.description import load

ALL = pytest.mark.parametrize("structure", gt.structures.ALL, ids=lambda structure: structure.__name__)
SOURCE = Path(gt.__file__).parent
NAMES = {structure.__name__ for structure in gt.structures.ALL}
OWN = ("structures", "kernels", "traces")  # a structure's file, its kernels, and the formula between them


@ALL
def test_what_it_names_exists(structure):
    names = [structure.drawing, structure.panel] + ([structure.story] if structure.story else [])
    assert all(callable(load(name)) for name in names)


@ALL
def test_the_tests_have_it(structure):
    tables = {
        "CASES": {type(case()) for case in CASES},
        "DISTS": {type(build()) for build in DISTS.values()},
        "small": {type(item.dist) for item in small()} | {gt.Custom},  # which is the judge there
        "RAGGED": {type(build(torch.zeros([3] * dims))) for dims, build in RAGGED.values()} | {gt.Custom},
        "the fuzzer": {description.made for description in FUZZED.values()},
    }
    assert [name for name, built in tables.items() if structure not in built] == []


@pytest.mark.parametrize("name", DISTS)
def test_what_it_says_of_itself_is_so(name):
    dist = DISTS[name]()
    value = dist.sample()
    if dist.has_log_prob:
        assert dist.log_prob(value).shape == dist.batch_shape
    else:
        with pytest.raises(NotImplementedError):
            dist.log_prob(value)
    if dist.symmetric:
        assert value.equal(value.mT)
    for kind in dist.relaxations if has_relaxation(dist) else ():
        assert gt.relax(dist, dist.perturb(), 0.5, kind).shape == value.shape
    assert dist.mismatch(dist) is None


@pytest.mark.parametrize("name", DISTS)
def test_entries_of_a_value_say_all_of_it(name):
    """Values that agree in them are the same, and each of them differs somewhere."""
    dist = DISTS[name]()
    entries = dist.value_entries()
    if entries is None:
        return
    values = dist.sample((500,), generator=seeded()).flatten(-len(dist.event_shape)).flatten(0, -2)
    chosen = values[:, entries]
    assert len(torch.unique(values, dim=0)) == len(torch.unique(chosen, dim=0))
    if not name.endswith(("ragged", "masked")):
        assert (chosen != chosen[0]).any(0).all()


def test_no_type_is_asked_for_elsewhere():
    asked = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in OWN
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _asks_for_a_type(node)
    ]
    assert asked == []


def _asks_for_a_type(node: ast.AST) -> bool:
    """isinstance or a comparison with a structure's class, or `.kind` of a geometry compared with a number of it."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        return bool(NAMES & set(ast.unparse(node.args[1]).replace(".", " ").replace(",", " ").strip("()").split()))
    if isinstance(node, ast.Compare):
        sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
        return any(side.endswith("geometry.kind") or side.rpartition(".")[2] in NAMES for side in sides)
    return False
