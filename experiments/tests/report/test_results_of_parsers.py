"""Numbers in the prose of the lab notes on ListOps and the treebank are those of the runs."""

import json

from lab_notes import RESULTS, ROOT, notes

from gumtrace_experiments.report.records import collect

PARTS = ("parts", "depths")  # recorded by benchmarks/listops_*.py


def test_what_the_notes_say_of_listops():
    """Told the parses, and by depth."""
    folder = ROOT / "experiments" / "benchmarks" / "results"
    recorded = {name: json.loads((folder / f"listops-{name}.json").read_text()) for name in PARTS}
    supervised = recorded["parts"]["rows"][-1]
    assert f"{supervised['iterations']:,} iterations of {recorded['parts']['items']} expressions" in notes("listops")
    assert f"samples of the encoder {supervised['recall']:.2%} of the arguments".replace("%", " %") in notes("listops")
    right = f"the classifier is right for {supervised['accuracy']:.1%} of the validation".replace("%", " %")
    assert right in notes("listops")
    runs = recorded["depths"]["runs"]
    soft = [run for run in runs if run["config"]["estimator"] == "StochasticSoftmax"]
    assert {run["iteration"] for run in soft} == {26_000, 27_000}  # the notes say so
    few, many = (
        {run["config"]["seed"]: run for run in runs if run not in soft and run["config"]["calls"] == calls}
        for calls in (100, 400)
    )
    assert (few.keys(), many.keys()) == (set(range(1, 11)), set(range(1, 6)))
    worse = [
        {s for s, run in same.items() if run["rows"][-1]["told"] < run["rows"][-1]["accuracy"]} for same in (few, many)
    ]
    assert worse == [{8, 10}, {4}]
    assert all(run["rows"][-1]["told"] < run["rows"][-1]["accuracy"] for run in soft)
    as_good = [sum(run["rows"][1]["as good"] for run in same.values()) / len(same) for same in (few, many)]
    assert f"{100 * as_good[1]:.0f} to {int(100 * as_good[0] + 0.5)} % of the arguments hang so" in notes("listops")
    good = [
        {s: row["right"] + row["as good"] for s, run in many.items() if s != 4 and (row := run["rows"][i])}
        for i in (1, 4)
    ]
    assert sum(round(100 * x) == 98 for x in good[0].values()) == 3
    assert f"and still {100 * min(good[1].values()):.0f} to {100 * max(good[1].values()):.0f} % of the fifth" in notes(
        "listops"
    )


def test_what_the_notes_say_of_original_files():
    folder = ROOT / "experiments" / "benchmarks" / "results"
    runs = json.loads((folder / "listops-original.json").read_text())["runs"]
    least = {
        (run["config"]["calls"], run["config"]["seed"]): min(x["right"] + x["as_good"] for x in run["files"].values())
        for run in runs
    }
    counts = [sum(x >= 0.989 for (c, _), x in least.items() if c == calls) for calls in (400, 100)]
    assert (counts, len(runs)) == ([3, 5], 15)
    precise = [sum(run["files"][name]["precision"] for run in runs) / 15 for name in runs[0]["files"]]
    assert [x < 0.8 for x in precise] == [True, False, True]


def test_what_the_notes_say_of_a_curriculum():
    few, many = (
        {r.seed: r for r in collect([RESULTS / "listops" / f"{name}.jsonl"])} for name in ("listops", "listops-items")
    )
    assert {(r.config["curriculum"], r.config["starts"]) for r in (*few.values(), *many.values())} == {("12:500", 1)}

    def percent(runs, metric):
        return [100 * r.result["test"][metric] for r in runs]

    def ends(runs):
        lists = (percent(runs, metric) for metric in ("accuracy", "precision"))
        return " and ".join(f"{min(x):.1f} and {max(x):.1f} %" for x in lists)

    text = notes("listops")
    (answers, edges), (more_answers, more_edges) = (
        [sum(x) / len(x) for x in (percent(runs.values(), m) for m in ("accuracy", "precision"))]
        for runs in (few, many)
    )
    assert f"answers {answers:.1f} % and has {edges:.1f} % of edges right, on average over ten seeds" in text
    assert f"**{more_answers:.1f} % of answers and {more_edges:.1f} % of edges** over five seeds" in text
    found = [r for s, r in few.items() if s not in (8, 9, 10)]
    assert f"Seven of the ten end between {ends(found).replace(' % and', ' % of answers and', 1)} of edges" in text
    assert f"four of these end between {ends([r for s, r in many.items() if s != 4])}" in text
    together = [r.seed for r in few.values() if abs(r.result["test"]["precision"] - r.result["test"]["recall"]) < 1e-3]
    assert len(together) == 9
    early = {s: r.curve["accuracy"][r.curve["iteration"].index(5000)] for s, r in few.items()}
    order = sorted(early, key=early.__getitem__)
    assert order[:2] == [9, 8]
    assert [round(100 * early[s]) for s in (order[-4], order[-1], 9, 8)] == [73, 76, 52, 59]
    last = percent([few[s] for s in order[-4:]], "accuracy")
    assert f"and end between {min(last):.1f} and {max(last):.1f} %" in text
    guide = (ROOT / "docs" / "choosing.md").read_text()
    assert f"25 items answers {answers:.1f} % of the expressions" in guide
    assert f"as a relaxation has, {more_answers:.1f} %" in guide


def test_what_the_notes_say_of_other_estimators_of_listops():
    runs = [r for r in collect([RESULTS / "listops" / "expressions-of-10-to-50-tokens.jsonl"]) if r.result]
    accuracy = {
        name: sorted(r.result["test"]["accuracy"] for r in runs if r.config["estimator"] == name)
        for name in ("StochasticSoftmax", "RELAX", "REBAR", "TraceREINFORCE", "NoiseREINFORCE")
    }
    worst, *_, best = accuracy["RELAX"]
    assert f"Seeds of RELAX differ most, from {100 * worst:.1f} % to {100 * best:.1f} %." in notes("listops")
    spread = {name: x[-1] - x[0] for name, x in accuracy.items()}
    assert max(spread, key=spread.__getitem__) == "RELAX"
    assert min(spread, key=spread.__getitem__) == "StochasticSoftmax"
    assert accuracy["StochasticSoftmax"][0] > max(x[-1] for name, x in accuracy.items() if name != "StochasticSoftmax")
    mean = {name: 100 * sum(x) / len(x) for name, x in accuracy.items()}
    paper = {"StochasticSoftmax": 78.42, "TraceREINFORCE": 87.34, "RELAX": 79.60, "NoiseREINFORCE": 60.25}
    assert [name for name, x in paper.items() if mean[name] > x] == ["StochasticSoftmax", "TraceREINFORCE", "RELAX"]
    precision = {
        name: 100 * sum(found) / len(found)
        for name in accuracy
        if (found := [r.result["test"]["precision"] for r in runs if r.config["estimator"] == name])
    }
    assert f"{max(precision.values()):.1f} % of edges at best, on average, against 77.9 %" in notes("listops")
    assert max(r.result["seconds"] for r in runs if r.config["estimator"] == "TraceREINFORCE") < 4 * 60

    def edges(name: str) -> float:
        return sum(r.result["test"]["recall"] for r in runs if r.config["estimator"] == name)

    assert edges("StochasticSoftmax") < edges("TraceREINFORCE")


def test_what_the_notes_say_of_the_treebank():
    runs = [r for r in collect([RESULTS / "treebank"]) if r.result]
    crf, trace = (
        [r.result["test"]["uas"] for r in runs if r.config["estimator"] == name]
        for name in ("MatrixTreeCRF", "TraceLikelihood")
    )
    means = [sum(x) / len(x) for x in (crf, trace)]
    assert abs(means[0] - means[1]) < min(max(x) - min(x) for x in (crf, trace))
    (alone,) = [r for r in runs if r.config["estimator"] == "TraceREINFORCE" and not r.config["likelihood"]]
    assert (
        f"(K = {alone.config['samples']}, one seed) comes to {100 * alone.result['test']['uas']:.1f} % in as many"
        in notes("treebank")
    )
    (beside,) = [r for r in runs if r.config["likelihood"]]
    assert beside.result["test"]["uas"] < means[1]
    assert {r.config["iterations"] for r in runs} == {4000}
    exact = [
        {r.seed: r.result["test"]["exact"] for r in runs if r.config["estimator"] == name}
        for name in ("MatrixTreeCRF", "TraceLikelihood")
    ]
    assert all(exact[0][seed] > exact[1][seed] for seed in (0, 1, 2))
