"""What the lab notes on parentheses say is so in the recorded runs."""

from statistics import mean

import pytest
from lab_notes import RESULTS

from gumtrace_experiments.report.records import collect

TYPES = (10, 20, 30, 40, 50)
LEFT, SMART, TRACE, RELAX, ONE = "left-to-right", "smart", "TraceREINFORCE, 4", "RELAX, 4", "RELAX, 1"
WHEN = ("beginning", "half-way", "end")


def notes(name):
    return " ".join((RESULTS / name / "NOTES.md").read_text().split())


def rows(name, file):
    """By order, or by estimator and K where there is one; then by the number of types."""
    found = {}
    for run in collect([RESULTS / name / file]):
        config = run.config
        own = config["order"] if run.result["test"].get("entropy") is None else None
        found.setdefault(own or f"{config['estimator']}, {config['samples']}", {}).setdefault(
            config["types"], []
        ).append(run)
    return found


def means(runs, metric):
    return {
        row: {t: mean(r.result["test"][metric] for r in same) for t, same in by.items()} for row, by in runs.items()
    }


@pytest.fixture(scope="module")
def trees():
    return rows("parentheses-tree", "all-types.jsonl")


def test_every_cell_has_three_seeds(trees):
    assert trees.keys() == {LEFT, SMART, TRACE, RELAX, ONE}
    assert all([run.seed for run in by[t]] == [0, 1, 2] for by in trees.values() for t in TYPES)
    configs = [run.config for by in trees.values() for same in by.values() for run in same]
    assert {(c["calls"], c["iterations"], c["lr"], c["schedule"], c["bound_samples"]) for c in configs} == {
        (400, 2500, 2e-3, "cosine", 1000)
    }
    assert {(c["order"] == "semi-supervised" and c["estimator"] == "RELAX", c["clip"]) for c in configs} == {
        (True, 1.0), (False, 0.0)
    }  # fmt: skip


def test_orders_of_trees(trees):
    new, text = (
        {row: {t: 100 * x for t, x in by.items()} for row, by in means(trees, "new_correct").items()},
        notes("parentheses-tree"),
    )
    assert all(new[SMART][t] >= new[TRACE][t] >= new[LEFT][t] for t in TYPES)
    assert (
        f"{new[LEFT][10]:.0f} % of what a model generates is new and correct with 10 types, and {new[LEFT][50]:.0f} %"
        in text
    )
    assert f"In smart order it is {new[SMART][10]:.0f} and {new[SMART][50]:.0f} %, and semi-supervised with" in text
    assert f"T-REINFORCE+ {new[TRACE][10]:.0f} and {new[TRACE][50]:.0f} %, a little behind" in text
    ahead = {t: new[RELAX][t] - new[SMART][t] for t in TYPES}
    assert max(abs(x) for x in ahead.values()) < 0.7
    assert [t for t in TYPES if ahead[t] > 0] == [10, 20, 30, 50]
    perplexity = means(trees, "perplexity")
    assert all(max(perplexity[row][t] for row in (TRACE, RELAX)) < 1.011 * perplexity[SMART][t] for t in TYPES)
    assert all(1.02 < perplexity[LEFT][t] / perplexity[SMART][t] < 1.07 for t in TYPES)
    assert all(0.008 < x < 0.0135 for by in means(trees, "old").values() for x in by.values())


def test_estimators_of_trees(trees):
    new, perplexity = means(trees, "new_correct"), means(trees, "perplexity")
    more = [100 * (new[RELAX][t] - new[TRACE][t]) for t in TYPES]
    assert 0.45 < min(more) < max(more) < 1.05
    assert all(1 < perplexity[RELAX][t] / perplexity[TRACE][t] < 1.007 for t in TYPES)
    assert all(new[ONE][t] < min(new[TRACE][t], new[RELAX][t]) for t in TYPES[1:])
    assert all(run.result["iteration"] == 500 for t in TYPES[2:] for run in trees[ONE][t])
    first, *_, last = (mean(run.curve["perplexity"][i] for run in trees[ONE][50]) for i in range(5))
    assert f"with 50 types, a perplexity of {first:.1f} then, and {last:.1f} at the end" in notes("parentheses-tree")
    noise = {
        row: {when: [mean(r.result["gradient_std"][when] for r in trees[row][t]) for t in TYPES] for when in WHEN}
        for row in (TRACE, RELAX, ONE)
    }
    for when in WHEN[1:]:
        assert all(a < b for a, b in zip(noise[RELAX][when], noise[TRACE][when], strict=True))
    assert all(90 < a / b < 170 for a, b in zip(noise[ONE]["beginning"], noise[TRACE]["beginning"], strict=True))


def test_encoders_of_trees(trees):
    for row in (TRACE, RELAX, ONE):
        for t in TYPES:
            assert mean(run.curve["entropy"][-1] for run in trees[row][t]) < 0.2
            for run in trees[row][t]:
                test = run.result["test"]
                assert 0.999 < test["perplexity_by_encoder"] / test["perplexity"] < 1.001
    learned = {row: trees[row] for row in (TRACE, RELAX, ONE)}
    alone, mixed = means(learned, "perplexity_by_decoder"), means(learned, "perplexity")
    decoders = [alone[row][t] / mixed[row][t] for row in learned for t in TYPES]
    assert 1.03 < min(decoders) < max(decoders) < 1.06
    assert all(x > 0.99 for row in (TRACE, RELAX) for x in means(learned, "smart_modes")[row].values())


@pytest.fixture(scope="module")
def insertions():
    return rows("parentheses-insertion", "all-types.jsonl")


def test_every_cell_of_insertions_has_three_seeds(insertions):
    assert insertions.keys() == {LEFT, SMART, TRACE, RELAX}
    assert all(sorted(run.seed for run in by[t]) == [0, 1, 2] for by in insertions.values() for t in TYPES)
    configs = [run.config for by in insertions.values() for same in by.values() for run in same]
    assert {(c["calls"], c["iterations"], c["lr"], c["schedule"], c["bound_samples"]) for c in configs} == {
        (400, 2500, 2e-3, "cosine", 1000)
    }
    assert {(c["order"] == "semi-supervised" and c["estimator"] == "RELAX", c["clip"]) for c in configs} == {
        (True, 1.0), (False, 0.0)
    }  # fmt: skip


def test_orders_of_insertions(insertions):
    new, text = (
        {row: {t: 100 * x for t, x in by.items()} for row, by in means(insertions, "new_correct").items()},
        notes("parentheses-insertion"),
    )
    assert all(new[SMART][t] >= new[TRACE][t] >= new[LEFT][t] for t in TYPES)
    assert (
        f"{new[LEFT][10]:.0f} % of what a model generates is new and correct with 10 types, and {new[LEFT][50]:.0f} %"
        in text
    )
    assert f"In smart order it is {new[SMART][10]:.0f} and {new[SMART][50]:.0f} %, and semi-supervised with" in text
    assert f"T-REINFORCE+ {new[TRACE][10]:.0f} and {new[TRACE][50]:.0f} %" in text
    ahead = {t: new[RELAX][t] - new[SMART][t] for t in TYPES}
    assert max(abs(ahead[t]) for t in TYPES[:-1]) < 0.4
    assert [t for t in TYPES if ahead[t] > 0] == [10, 20, 40]
    assert new[LEFT][50] < new[RELAX][50] < new[SMART][50]
    perplexity = means(insertions, "perplexity")
    semi = [perplexity[row][t] / perplexity[SMART][t] for row in (TRACE, RELAX) for t in TYPES]
    assert 1 - 0.0195 < min(semi) < max(semi) < 1.0045
    assert all(1.003 < perplexity[LEFT][t] / perplexity[SMART][t] < 1.0455 for t in TYPES)
    assert all(0.008 < x < 0.0135 for by in means(insertions, "old").values() for x in by.values())


def test_overfitting_of_insertions(insertions):
    for row in (LEFT, SMART):
        assert all(run.result["iteration"] in (500, 1000) for t in TYPES[2:] for run in insertions[row][t])
        assert all(run.curve["perplexity"][-1] > 17 for run in insertions[row][50])
    rises = [r.curve["perplexity"][-1] / min(r.curve["perplexity"]) for k in (TRACE, RELAX) for r in insertions[k][50]]
    assert 1.03 < min(rises) < mean(rises) < max(rises) < 1.06

    config = insertions[TRACE][50][0].config
    seen = config["iterations"] * config["calls"] / config["samples"] / (1 - config["supervision"])
    assert 13.5 < seen / config["train_size"] < 14.5
    assert max(run.result["test"]["perplexity"] for run in insertions[SMART][50]) == pytest.approx(12.48, abs=0.005)


def test_estimators_of_insertions(insertions):
    new, perplexity = means(insertions, "new_correct"), means(insertions, "perplexity")
    more = [100 * (new[RELAX][t] - new[TRACE][t]) for t in TYPES]
    assert 0.15 < min(more) < max(more) < 2.45
    assert all(1.0005 < perplexity[TRACE][t] / perplexity[RELAX][t] < 1.0105 for t in TYPES)


def test_encoders_of_insertions(insertions):
    runs = [(row, run) for row in (TRACE, RELAX) for same in insertions[row].values() for run in same]
    late = [(row, run) for row, run in runs if run.curve["entropy"][0] > 11]
    assert (len(runs), len(late), sum(row == TRACE for row, _ in late)) == (30, 7, 2)
    for _, run in runs:
        assert run.result["test"]["smart_modes"] > 0.95
        assert run.result["test"]["effective_samples"] > 700
        kept = run.curve["entropy"][-1]
        assert 0.7 < kept < 2.75 if run.curve["entropy"][0] > 11 else 0.05 < kept < 0.35
