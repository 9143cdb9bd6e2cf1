"""Structures describe themselves: what they name exists, the tests have them all, and no module asks for their type."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
from cases import CASES, COMPILED, DISTS, OPENING, RAGGED, small
from common import seeded

import gumtrace as gt
from gumtrace.benchmark import CASES as TIMED
from gumtrace.benchmark.cases import prepare
from gumtrace.explore.requests import STORIES
from gumtrace.fuzz.structures import STRUCTURES as FUZZED
from gumtrace.kernels.geometry import Geometry
from gumtrace.relaxations import has_relaxation
from gumtrace.structures.description import load

ALL = pytest.mark.parametrize("structure", gt.structures.ALL, ids=lambda structure: structure.__name__)
LIBRARY = Path(gt.__file__).parent
EXPERIMENTS = Path(__file__).parents[2] / "experiments" / "src" / "gumtrace_experiments"
NAMES = {*gt.structures.__all__, *(sizes.__name__ for sizes in get_args(Geometry))}
OWN = [LIBRARY / name for name in ("structures", "kernels", "traces")]  # its file, its kernels, the formula between


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
        "COMPILED": {type(build(torch.zeros(2, 4, 4))) for build in COMPILED.values()} | {gt.Custom},  # runs in Python
        "the fuzzer": {description.made for description in FUZZED.values()},
        "the benchmark": {type(timed(case)) for case in TIMED} | {gt.Custom},  # whose time is that of the hooks
    }
    if structure.story is not None:
        tables["OPENING"] = {type(build(torch.zeros(shape))) for shape, build in OPENING.values()}
    assert [name for name, built in tables.items() if structure not in built] == []


def timed(case):
    tiny = prepare(case.tiny, batch=None)
    return tiny.make(tiny.logits)


def test_every_story_opens_as_the_tests_say():
    assert OPENING.keys() == STORIES.keys()


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
    assert EXPERIMENTS.is_dir()
    asked = [
        f"{path}:{node.lineno}"
        for path in (*LIBRARY.rglob("*.py"), *EXPERIMENTS.rglob("*.py"))
        if not any(path.is_relative_to(folder) for folder in OWN)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _asks_for_a_type(node)
    ]
    assert asked == []


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ("isinstance(dist, gt.Subset)", True),
        ("issubclass(cls, (Custom, SparseSpanningTree))", True),
        ("isinstance(geometry, SubsetGeometry)", True),
        ("type(dist) is not BinaryTree", True),
        ("type(dist).__name__ == 'Matching'", True),
        ("dist._layout.geometry.code == 3", True),
        ("code in (1, trace.layout.geometry.code)", True),
        ("isinstance(dist, Structure)", False),
        ("dist.symmetric and name == 'subset'", False),
    ],
)
def test_what_asks_for_a_type(code, asks):
    assert any(_asks_for_a_type(node) for node in ast.walk(ast.parse(code))) == asks


def _asks_for_a_type(node: ast.AST) -> bool:
    """isinstance or a comparison with a structure's or a geometry's class or its name, or of a geometry's code."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        return bool(NAMES & set(re.findall(r"\w+", ast.unparse(node.args[1]))))
    if isinstance(node, ast.Compare):
        words = re.findall(r"[\w.]+", " ".join(ast.unparse(side) for side in (node.left, *node.comparators)))
        return any(word.endswith("geometry.code") or word.rpartition(".")[2] in NAMES for word in words)
    return False
