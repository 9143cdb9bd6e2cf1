"""The fuzzer: its oracles are right, it finds faults and makes them small, and a minute of it finds none."""

import io
import re
from collections import Counter
from contextlib import redirect_stdout

import fuzz_workers
import numpy as np
import pytest
import torch

import gumtrace as gt
from gumtrace.estimators.score import ScoreEstimator
from gumtrace.fuzz import drawing, driver, laws, numbers, requests
from gumtrace.fuzz import estimators as fuzzed
from gumtrace.fuzz.__main__ import describe, main, table
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.driver import Settings, fuzz
from gumtrace.fuzz.jobs import ROUND, job, run
from gumtrace.fuzz.shrink import shrunk
from gumtrace.fuzz.structures import STRUCTURES
from gumtrace.fuzz.subject import Wrong

MINUTE = 60 * len(ROUND)  # cases: about a minute on one core
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def rng(*seed):
    return np.random.default_rng(seed)


def small(structure, seed=0):
    return drawing.draw_small(structure, rng(seed))


# Cases ---------------------------------------------------------------------------------------------


def _same(a, b):
    if isinstance(a, Case):
        return all(_same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return torch.equal(a.nan_to_num(9e9), b.nan_to_num(9e9)) if torch.is_tensor(a) else repr(a) == repr(b)


@pytest.mark.parametrize("index", [*range(len(ROUND)), 4001, 4002])
def test_a_case_is_a_function_of_seed_and_index(index):
    first, again = job(5, index), job(5, index)
    assert first.name == again.name
    assert _same(first.subject, again.subject)
    if first.subject != []:  # requests come later
        assert not all(_same(first.subject, job(seed, index).subject) for seed in (6, 7, 8))


def test_hostile_numbers_are_what_they_are_said_to_be():
    drawn = [numbers.hostile(rng(i), (4, 6), numbers.some_dtype(rng(i, 1), 100)) for i in range(400)]
    assert all(x.isfinite().all() for x in drawn)
    assert {x.dtype for x in drawn} == set(numbers.DTYPES)
    for what in (
        lambda x: (x == torch.finfo(x.dtype).min).any(),
        lambda x: ((x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)).any(),
        lambda x: (x.double().abs() == 1e30).any() or (x.abs() > 1e29).any(),
        lambda x: len(x.unique()) <= 5,
    ):
        assert sum(bool(what(x)) for x in drawn) > 10


def test_everything_is_drawn():
    """Sizes from 0, all batch shapes, masks, lengths, layouts, infeasible ones: among the first thousand."""
    cases = [job(0, i).subject for i in range(80 * len(ROUND)) if ROUND[i % len(ROUND)] in STRUCTURES]
    seen = Counter()
    for case in cases:
        seen[case.structure, "empty"] += 0 in case.key_shape
        seen[case.structure, "no items"] += case.items == 0
        seen[case.structure, f"{len(case.batch)} batch dimensions"] += 1
        seen[case.structure, "mask"] += case.mask is not None
        seen[case.structure, "lengths"] += case.lengths is not None
        seen[case.structure, "layout"] += case.layout != "plain"
        seen[case.structure, "refused"] += not (case.feasible & case.finite).all()
    assert all(seen[name, what] for name in STRUCTURES for _, what in seen if what not in ("refused", "lengths"))
    assert sum(seen[name, "refused"] for name in STRUCTURES) > 10
    assert sum(seen[name, "lengths"] for name in STRUCTURES) > 100


# Faults --------------------------------------------------------------------------------------------


def _found(name, count=40, seed=0):
    """The first failure of a job."""
    place = ROUND.index(name)
    for turn in range(count):
        if failures := run(seed, place + turn * len(ROUND)).failures:
            return failures[0]
    return None


def _printed(script):
    """What it prints, and the numbers in it."""
    with redirect_stdout(io.StringIO()) as out:
        exec(script, {})
    return out.getvalue()


@pytest.mark.slow
def test_a_wrong_tie_is_found_and_made_small(monkeypatch):
    """The larger key wins where two are equal."""
    right = gt.Permutation._trace_rows

    def wrong(self, rows, shape):
        trace = right(self, rows.flip(-1), shape)
        winners = torch.where(trace.choices < 0, -1, rows.shape[-1] - 1 - trace.choices)
        return type(trace)(trace.layout, winners, trace.links, trace.owner)

    monkeypatch.setattr(gt.Permutation, "_trace_rows", wrong)
    failure = _found("permutation")
    assert failure.check == "trace"
    assert len(failure.script.splitlines()) <= 12
    assert "noise = torch.tensor([0.0, 0.0])" in failure.script
    assert "tensor([1, 0])" in _printed(failure.script)  # with the fault
    monkeypatch.undo()
    assert "tensor([0, 1])" in _printed(failure.script)


def test_a_wrong_sign_is_found(monkeypatch):
    right = gt.traces.formula.trace_log_prob
    monkeypatch.setattr(gt.traces.formula, "trace_log_prob", lambda *args: -right(*args))
    failure = _found("subset")
    assert failure.check == "trace_log_prob"
    assert re.search(r"print\(d\.trace_log_prob\(trace\)\)", failure.script)
    _printed(failure.script)


def test_a_missing_mask_is_found(monkeypatch):
    """Keys below the diagonal race."""
    monkeypatch.setattr(gt.SpanningTree, "racing", property(lambda self: self._x.detach() > -torch.inf))
    assert _found("spanning-tree").check == "racing"


@pytest.mark.slow
def test_a_biased_estimator_is_found(monkeypatch):
    """However many estimators there are: the fault is in those with a score."""
    scores = [name for name, cls in gt.estimators.ESTIMATORS.items() if issubclass(cls, ScoreEstimator)]
    monkeypatch.setattr(fuzzed, "NAMES", scores)
    monkeypatch.setattr("gumtrace.estimators.score.advantage", lambda loss, leave_one_out: loss.abs())
    monkeypatch.setattr(fuzzed, "_refuses", lambda *args: None)
    failure = _found("estimators")
    assert "REINFORCE: gradient" in failure.check
    _printed(failure.script)


def test_a_wrong_law_is_found(monkeypatch):
    """Noise given a trace that is a little too wide keeps every trace."""
    right = gt.BinaryTree.conditional
    monkeypatch.setattr(gt.BinaryTree, "conditional", lambda self, *args, **more: right(self, *args, **more) - 0.1)
    case = small("binary-tree", 1)
    with pytest.raises(Wrong) as wrong:
        laws.laws(case, Counter())
    assert "law of conditional" in wrong.value.check


def test_an_answer_that_is_none_is_found(monkeypatch):
    def broken(request):
        raise KeyError(request.seed)

    monkeypatch.setattr(requests, "answer", broken)
    failure = _found("requests", numbers.SINGLE + 1)
    assert "KeyError" in failure.message
    assert "answer(read(" in failure.script


@every_structure
def test_shrinking_ends_at_something_small(structure):
    """Whatever the case, if it always fails nothing is left of it; what makes no sense any more is passed over."""
    case = drawing.draw(structure, rng(2), drawing.Sizes(0.0, 2000, 20, 200), torch.float32)

    def builds(other):
        try:
            return other.build() is not None
        except ValueError:
            return False

    tiny = shrunk(case, builds, None, 10)
    assert tiny.items <= 1
    assert tiny.mask is None
    assert tiny.lengths is None
    assert np.prod(tiny.key_shape) <= 1
    compile("\n".join(tiny.script()), "script", "exec")


# Workers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "how"),
    [(fuzz_workers.dying, "SIGSEGV"), (fuzz_workers.leaving, "exit 3"), (fuzz_workers.hanging, "took more than 2 s")],
)
@pytest.mark.slow
def test_a_worker_that_ends_is_reported_and_replaced(target, how, monkeypatch):
    monkeypatch.setattr(driver, "COMPILES", 2.0)
    summary = fuzz(Settings(seconds=None, cases=6, workers=1), target=target)
    assert sum(summary.cases.values()) == 6
    assert summary.total == 50
    (failure,) = summary.failures.values()
    assert failure.index == 2
    assert how in failure.name
    assert "how it came about" in failure.script
    words = describe(failure, 7, "cpu")
    assert "--seed 7 --replay 2" in words
    assert how in table(summary)


def test_the_command(capsys):
    assert main(["--replay", str(ROUND.index("requests") + 40 * len(ROUND))]) == 0
    assert "requests, 0 items, 0 failures" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--only", "nonsense"])
    assert "unknown part 'nonsense': choose from subset" in capsys.readouterr().err
    assert main(["--device", "nowhere"]) == 2


@pytest.mark.slow
def test_a_minute_of_it():
    """Bounded by cases, so that it is the same everywhere."""
    words = []
    summary = fuzz(
        Settings(seed=0, seconds=None, cases=MINUTE, workers=1),
        lambda failure: words.append(describe(failure, 0, "cpu")),
    )
    assert words == []
    assert summary.total > 100_000
    assert set(summary.cases) == set(ROUND)
