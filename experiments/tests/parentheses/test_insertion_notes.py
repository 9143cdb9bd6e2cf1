"""Numbers in the prose of the lab notes on insertions are those of the runs."""

import pytest
from lab_notes import RESULTS, clocked, notes

from gumtrace_experiments import find
from gumtrace_experiments.parentheses.data import best_perplexity
from gumtrace_experiments.report.records import collect

NAME = "parentheses-insertion"
SMALL = RESULTS / NAME / "small-models-on-a-cpu.jsonl"
RUNS = {(r.config["order"], r.config["estimator"], r.config["types"]): r for r in collect([SMALL])}
TYPES = (10, 30, 50)
SEMI = "semi-supervised"


def found(order, metric, estimator="TraceREINFORCE", types=10):
    """On test. Runs of fixed orders name an estimator and have none."""
    return RUNS[order, "RELAX" if order in ("smart", "left-to-right") else estimator, types].result["test"][metric]


def test_what_was_run():
    assert len(RUNS) == len(collect([SMALL])) == 3 * 3 + 2
    assert {(run.machine["device"], run.seed) for run in RUNS.values()} == {("cpu", 0)}
    names = ("layers", "width", "hidden", "iterations", "calls", "lr", "test_size", "bound_samples", "generated")
    settings = {tuple(run.config[name] for name in names) for run in RUNS.values()}
    assert settings == {(2, 64, 64, 1500, 100, 2e-3, 500, 100, 3000)}
    names = ("heads", "dropout", "schedule", "precision", "valid_bound_samples")
    assert {tuple(run.config[name] for name in names) for run in RUNS.values()} == {(4, 0.0, "cosine", "float32", 10)}
    assert "four heads and no dropout, the learning rate falls along a cosine" in notes(NAME)
    assert "by bounds with K = 10 orders (`--valid-bound-samples`, by default 50)" in notes(NAME)
    assert find(NAME).config_type().valid_bound_samples == 50


def test_what_the_notes_say_of_orders():
    for types in TYPES:
        smart, left, semi = (found(order, "new_correct", types=types) for order in ("smart", "left-to-right", SEMI))
        assert smart > left > semi
        smart, left, semi = (found(order, "perplexity", types=types) for order in ("smart", "left-to-right", SEMI))
        assert best_perplexity(types) < smart < min(left, semi)
        assert max(left, semi) < 1.05 * best_perplexity(types)
        assert 0.5 < found(SEMI, "smart_generated", types=types) < 2 / 3
        assert found(SEMI, "wrong_mismatched", types=types) > found(SEMI, "wrong", types=types) / 2
    modes = [100 * found(SEMI, "smart_modes", types=types) for types in TYPES]
    assert f"most likely one of at least {int(min(modes))} % of the test sequences" in notes(NAME)
    entropies = [found(SEMI, "entropy", types=types) for types in TYPES]
    assert f"leaves {min(entropies):.1f} to {max(entropies):.1f} nats open" in notes(NAME)
    config = RUNS[SEMI, "TraceREINFORCE", 10].config
    share = config["supervision"] / (1 - config["supervision"])
    assert (1 + share) * config["calls"] / config["samples"] == pytest.approx(27.8, abs=0.1)  # of 100 sequences
    unknown = config["train_size"] * (1 - config["supervision"])
    assert config["iterations"] * config["calls"] / config["samples"] / unknown == pytest.approx(2, abs=0.1)


def test_what_the_notes_say_of_estimators():
    relax, trace = (100 * found(SEMI, "new_correct", name) for name in ("RELAX", "TraceREINFORCE"))
    entropy = found(SEMI, "entropy", "RELAX")
    assert f"{relax:.0f} % new and correct against {trace:.0f} %, {entropy:.0f} nats of entropy" in notes(NAME)
    noise = {name: RUNS[SEMI, name, 10].result["gradient_std"] for name in ("RELAX", "TraceREINFORCE")}
    assert f"is {noise['RELAX']['beginning']:.0f} at the beginning" in notes(NAME)
    assert round(noise["RELAX"]["end"] / noise["TraceREINFORCE"]["end"]) == 6
    assert found("unsupervised", "wrong") > 0.5


def test_what_the_notes_say_of_time():
    times, updates = clocked(NAME), find(NAME).config_type().iterations
    whole = [r["ms"] * updates / 1000 for r in times.values()]
    assert f"A run of {updates:,} updates is {min(whole):.0f} to {max(whole):.0f} seconds" in notes(NAME)
    relax, trace = (times[SEMI, name]["ms"] for name in ("RELAX", "TraceREINFORCE"))
    assert f"RELAX takes {relax / trace:.1f} times as long as T-REINFORCE+" in notes(NAME)
    assert all(1 < r["seconds"] < 2 for r in times.values())
    assert "The sequences of the final evaluation take one to two seconds." in notes(NAME)
