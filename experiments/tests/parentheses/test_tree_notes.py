"""Numbers in the prose of the lab notes on parentheses are those of the data and of the runs."""

import re

import numpy as np
import torch
from lab_notes import RESULTS, ROOT, clocked, notes

from gumtrace_experiments.parentheses.data import best_perplexity, count_balanced, count_made, generate, load
from gumtrace_experiments.parentheses.orders import OrderConfig
from gumtrace_experiments.report.records import collect

NAME = "parentheses-tree"
LENGTHS = range(2, 21, 2)
RUNS = collect([RESULTS / NAME / "small-models-on-a-cpu.jsonl"])


def test_how_many_sequences_there_are():
    table = re.findall(r"^\| (\d+) \| (\S+) \| (\S+) \| (\S+) \|$", (RESULTS / NAME / "NOTES.md").read_text(), re.M)
    assert [int(types) for types, *_ in table] == [10, 20, 30, 40, 50]
    for types, *numbers in table:
        counts = (sum(count(int(types), length) for length in LENGTHS) for count in (count_made, count_balanced))
        made, balanced = (f"{count:.1e}".replace("e+", "e") for count in counts)
        assert numbers == [made, balanced, f"{best_perplexity(int(types)):.3f}"]
    made, balanced = (sum(count(10, length) for length in LENGTHS) for count in (count_made, count_balanced))
    assert round(balanced / made) in range(29, 35)
    assert "though one in thirty of the balanced ones is" in notes(NAME)


def test_what_the_notes_say_of_the_data(tmp_path):
    found = []
    for types in (10, 50):
        data = load(tmp_path, types)
        known = {tuple(row) for row in data.train.tokens.tolist()}
        share = sum(tuple(row) in known for row in data.test.tokens.tolist()) / len(data.test.lengths)
        found.append((f"{100 * share:.0f} %", f"{len(known):,}"))
    (some, count), (others, more) = found
    assert f"With 10 types {some} of the test set are in the training set, with 50 types {others}" in notes(NAME)
    assert f"The two have {count} and {more} different sequences to train with" in notes(NAME)
    shares = (int(number.replace(",", "")) / OrderConfig().generated for number in (count, more))
    most = [f"{100 * share:.1f} %" for share in shares]
    assert f"at most {most[0]} and {most[1]} can be old" in notes(NAME)
    guide = " ".join((ROOT / "docs" / "experiments.md").read_text().split())
    assert f"{count} (10 types) and {more} (50 types) different sequences" in guide
    assert f"at most {most[0]} and {most[1]} can be old" in guide


def test_few_sequences_have_more_old_ones(tmp_path):
    """Shares of the generator's own, as the guide has them, of one seed."""
    found = []
    for types in (10, 50):
        known = set(rows(load(tmp_path, types).train))
        made = list(dict.fromkeys(rows(generate(330_000, types, np.random.default_rng(1)))))
        found.append([f"{100 * sum(row in known for row in made[:n]) / n:.1f} %" for n in (3000, 200_000)])
    (few, many), (others, most) = found
    guide = " ".join((ROOT / "docs" / "experiments.md").read_text().split())
    assert f"{few} and {others} of the first 3,000 different ones, but {many} and {most} of 200,000" in guide


def rows(split):
    tokens = torch.where(split.racing, split.tokens, -1).short().numpy()
    return [row.tobytes() for row in tokens]


# --- the runs ---


def values(order, metric, estimator=None, types=None):
    """On test, of all seeds."""
    return [
        run.result["test"][metric]
        for run in RUNS
        if run.config["order"] == order
        and estimator in (None, run.config["estimator"])
        and types in (None, run.config["types"])
    ]


def ratios(order, suffix):
    pairs = zip(values(order, f"perplexity{suffix}"), values(order, "perplexity"), strict=True)
    return [100 * (alone / both - 1) for alone, both in pairs]


def test_what_was_run():
    assert {run.machine["device"] for run in RUNS} == {"cpu"}
    names = ("hidden", "longest", "iterations", "calls", "lr", "test_size", "bound_samples", "generated")
    assert {run.config["valid_bound_samples"] for run in RUNS} == {20}
    assert "by bounds with K = 20 trees (`--valid-bound-samples`, by default 50)" in notes(NAME)
    assert OrderConfig().valid_bound_samples == 50
    assert {tuple(run.config[name] for name in names) for run in RUNS} == {(64, 12, 1000, 100, 3e-3, 500, 100, 20_000)}
    assert {(run.config["types"], run.seed) for run in RUNS} == {(types, seed) for types in (10, 20) for seed in (0, 1)}
    assert len(RUNS) == 2 * 2 * 5


def test_what_the_notes_say_of_orders():
    for types in (10, 20):
        learned = values("semi-supervised", "new_correct", types=types)
        assert len(learned) == 4
        assert min(values("smart", "new_correct", types=types)) > max(learned)
        assert min(learned) > max(values("left-to-right", "new_correct", types=types))
    few = [100 * share for share in values("unsupervised", "new_correct")]
    assert f"Only {min(few):.0f} to {max(few):.0f} % of the sequences are new and correct" in notes(NAME)
    more = ratios("unsupervised", "_by_decoder")
    assert f"give {min(more):.0f} to {max(more):.0f} % more perplexity than the mixture" in notes(NAME)


def test_what_the_notes_say_of_time():
    times, updates = clocked(NAME), OrderConfig().iterations
    whole = [r["ms"] * updates / 1000 for r in times.values()]
    assert f"A run of {updates:,} updates is {min(whole):.0f} to {max(whole):.0f} seconds" in notes(NAME)
    relax, trace = (times["semi-supervised", name]["ms"] for name in ("RELAX", "TraceREINFORCE"))
    assert f"RELAX takes {relax / trace:.1f} times as long as T-REINFORCE+" in notes(NAME)
    assert all(0.3 < r["seconds"] < 0.6 for r in times.values())
    assert "The sequences of the final evaluation take half a second." in notes(NAME)
