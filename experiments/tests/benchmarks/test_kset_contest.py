"""The k-subset contest in small: times, runs, gradients, and the tables that are made of them."""

import json
import math
from contextlib import nullcontext
from types import SimpleNamespace

import kset_contest  # benchmarks/
import kset_gradients
import kset_tables
import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace.diagnostics import exact_gradient
from gumtrace_experiments import find
from gumtrace_experiments.kset.data import load
from gumtrace_experiments.kset.task import Problem
from gumtrace_experiments.report.records import Record, collect

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
SMALL = {"digits": "synthetic", "synthetic_size": 60, "width": 8, "calls": 24, "evaluate_every": 2, "extra": 8}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """What is written goes to a folder of its own."""
    file = tmp_path / "kset.json"
    for module, name, value in (
        (kset_contest, "RESULTS", file),
        (kset_contest, "ROOT", tmp_path),
        (kset_gradients, "WARM_UP", 2),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(kset_contest, "UPDATES", 1)
    monkeypatch.setattr(kset_contest, "SECONDS", 0.0)
    return file


def test_fast_updates_are_clocked_for_longer(monkeypatch):
    """Fifty of them would be a tenth of a second, in which anything may happen on a machine."""
    seen, kind, config = [], SimpleNamespace(build=lambda *_: None), SimpleNamespace(set_precision=nullcontext)
    monkeypatch.setattr(kset_contest, "Run", lambda *_, **__: None)
    for ms, updates in ((2.0, 150), (100.0, 10)):
        seen.clear()
        monkeypatch.setattr(kset_contest, "_clocked", lambda run, updates, ms=ms: seen.append(updates) or ms)
        assert kset_contest.clock(kind, config, None, CPU) == ms
        assert seen == [10, 10, *[updates] * kset_contest.REPEATS]


def test_every_estimator_that_takes_subsets_is_a_rival():
    assert kset_contest.rivals() == [n for n, c in gt.estimators.ESTIMATORS.items() if n in kset_contest.rivals()]
    others = {"DecisionREINFORCE", "UnorderedREINFORCE"}  # which the notes name
    assert gt.estimators.ESTIMATORS.keys() - set(kset_contest.rivals()) == others
    for task in kset_contest.TASKS:
        for name in kset_contest.rivals():
            kset_contest.config_of(task, name, {})  # none is refused


@pytest.mark.slow
def test_a_contest(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(kset_contest.TASKS, "small", ("kset-neighbours", {**SMALL, "candidates": 12, "subset_size": 3}))
    monkeypatch.setattr(kset_contest, "rivals", lambda: ["TraceREINFORCE", "StraightThrough"])
    short = {"iterations": 4}
    chosen = ["TraceREINFORCE", "StraightThrough"]
    contest = kset_contest.Contest("small", chosen, [0, 1], tmp_path, CPU, tmp_path / "runs", short, 2, 20)
    contest.run()
    runs = collect([tmp_path / "results" / "kset-neighbours" / "small-short.jsonl"])
    assert [(run.config["estimator"], run.seed) for run in runs] == [(e, s) for e in reversed(chosen) for s in (0, 1)]
    found = json.loads(results.read_text())
    assert [r["setting"]["estimator"] for r in found["updates"]] == chosen
    assert all(r["ms"] > 0 for r in found["updates"])
    (measured,) = found["gradients"]
    assert [row["estimator"] for row in measured["rows"]] == chosen
    scores = {(r.config["estimator"], r.seed): r.result["valid"]["accuracy"] for r in runs if r.result}
    assert scores[measured["setting"]["estimator"], measured["seed"]] == max(scores.values())
    contest.run()  # nothing is done again
    assert json.loads(results.read_text()) == found

    text = kset_tables.equal_time("kset-neighbours", found, runs)
    assert text.startswith("**Equal calls and equal time, 3 neighbours of 12, 2 dimensions, made-up digits")
    assert text.count("\n| T-REINFORCE+ (K = 4) † |") == text.count("\n| Straight-through |") == 1
    text = kset_tables.gradients("kset-neighbours", found)
    assert "from the exact gradient" in text
    assert text.count("\n| Straight-through (K = 12) |") == 1


def test_where_memory_does_not_suffice_the_others_continue(results, tmp_path, monkeypatch, capsys):
    def full(kind, runs, **options):
        if any(config.estimator == "TraceREINFORCE" for config, _ in runs):
            raise torch.OutOfMemoryError("out of memory")
        trained.extend(config.estimator for config, _ in runs)

    trained = []
    monkeypatch.setattr(kset_contest, "train_all", full)
    chosen = ["TraceREINFORCE", "StraightThrough"]
    contest = kset_contest.Contest("neighbours", chosen, [0, 1], tmp_path, CPU, tmp_path / "runs", beside=2)
    contest.run(["train"])
    assert "neighbours: TraceREINFORCE is left out: out of memory" in capsys.readouterr().err
    assert trained == ["StraightThrough"] * 2
    with pytest.raises(SystemExit, match="none of TraceREINFORCE, StraightThrough has been trained"):
        contest.run(["measure"])


def test_commands_beside_each_other_keep_what_the_others_found(tmp_path):
    first, second = (kset_contest.Found(tmp_path / "kset.json") for _ in range(2))

    def slow():
        second.add("updates", {"setting": "B"}, lambda: {"ms": 2.0})
        return {"ms": 1.0}

    first.add("updates", {"setting": "A"}, slow)
    assert [(r["setting"], r["ms"]) for r in first.content["updates"]] == [("B", 2.0), ("A", 1.0)]
    first.add("updates", {"setting": "B"}, lambda: pytest.fail("it is known"))


def test_equal_time_by_hand():
    """The first makes an update in 10 ms and the second in 25: of its four, one when the first has made its four."""
    Features = find("kset-features")

    def record(estimator, seed, accuracy):
        config = Features.config_type(estimator=estimator, iterations=4, seed=seed).to_dict()
        curve = {"iteration": [1, 2, 3, 4], "accuracy": accuracy, "cross_entropy": [1.0] * 4}
        result = {"iteration": 4, "valid": {"accuracy": max(accuracy)}, "test": {"accuracy": 0.5}}
        return Record(Features.name, config, {"device": "cpu"}, result, curve)

    runs = [
        record("StraightThrough", 0, [0.1, 0.3, 0.4, 0.2]),
        record("TraceREINFORCE", 0, [0.2, 0.5, 0.6, 0.8]),
        record("TraceREINFORCE", 1, [0.4, 0.5, 0.9, 0.8]),
    ]
    machine = {"cpu": "X1", "device": "cpu", "threads": 1, "torch": "2.99", "date": "2030-01-02"}
    times = {"StraightThrough": 10.0, "TraceREINFORCE": 25.0}
    settings = {run.config["estimator"]: run.setting for run in runs}
    updates = [
        {"experiment": Features.name, "setting": settings[name], "ms": ms, "machine": machine, "device": "cpu"}
        for name, ms in times.items()
    ]
    text = kset_tables.equal_time(Features.name, {"updates": updates}, runs)
    assert "| Straight-through | 10 | 40.00 | 40.00 | 4 |" in text
    assert "| T-REINFORCE+ (K = 4) † | 25 | 85.00 ± 7.07 | 30.00 ± 14.14 | 1 |" in text
    assert "X1, 1 thread, torch 2.99, 2030-01-02" in text


# --- gradients ---


def test_the_gradient_of_a_linear_loss_is_exact():
    logits = torch.randn(2, 5, generator=seeded()).masked_fill(torch.eye(2, 5).bool(), -torch.inf)
    weights = torch.randn(2, 5, generator=seeded())
    dist = gt.Subset(logits, 2)
    problem = Problem(dist, lambda value: (value * weights).sum(-1), weights)
    _, exact = exact_gradient(dist, problem.objective)
    torch.testing.assert_close(kset_gradients.linear_gradient(problem), exact, atol=1e-9, rtol=1e-6)


@pytest.mark.slow
def test_bias_is_told_from_chance(monkeypatch):
    """T-REINFORCE+ has none. A straight-through gradient at a high temperature has."""
    data = load("", "synthetic", 1, 60)
    Autoencoder = find("kset-autoencoder")
    monkeypatch.setattr(kset_gradients, "LONG", 1)
    config = Autoencoder.config_type(**SMALL, rows=3, columns=5, subset_size=2, logit_scale=1.0, temperature=3.0)
    model = Autoencoder.build(config, data, CPU)
    configs = {name: config.replace(estimator=name) for name in ("TraceREINFORCE", "StraightThrough")}
    found = kset_gradients.gradients_at(model, configs, items=3, replicates=2000)
    trace, through = found["rows"]
    assert trace["calls"] == through["calls"] == kset_gradients.CALLS
    assert found["target_error"] > 0
    assert trace["chance"] == pytest.approx(math.hypot(trace["std"] / math.sqrt(2000), found["target_error"]))
    # 45 entries: a ratio of mean squares whose standard deviation is about 0.2.
    assert 0.4 < (trace["bias"] / trace["chance"]) ** 2 < 2.0
    assert through["bias"] > 5 * through["chance"]
    assert through["std"] < trace["std"]
