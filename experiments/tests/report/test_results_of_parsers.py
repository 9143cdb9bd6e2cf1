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
    trace, soft = (
        {run["config"]["seed"]: run for run in recorded["depths"]["runs"] if run["config"]["estimator"] == estimator}
        for estimator in ("TraceREINFORCE", "StochasticSoftmax")
    )
    shown = {r.seed for r in collect([RESULTS / "listops"]) if r.config["estimator"] == "TraceREINFORCE"}
    assert trace.keys() == shown
    better = {
        seed: [row["depth"] for row in run["rows"] if row["told"] > row["accuracy"]] for seed, run in trace.items()
    }
    assert better == {1: [5], 2: [2, 3, 4, 5], 3: [5]}  # the best seed is 2
    assert {run["iteration"] for run in soft.values()} == {26_000, 27_000}  # the notes say so
    assert all(row["told"] < row["accuracy"] for run in soft.values() for row in run["rows"])
    ahead = [sum(run["rows"][i]["right"] for run in soft.values()) for i in range(5)]
    behind = [sum(run["rows"][i]["right"] for run in trace.values()) for i in range(5)]
    assert [a > b for a, b in zip(ahead, behind, strict=True)] == [False, False, True, True, True]


def test_what_the_notes_say_of_other_estimators_of_listops():
    runs = [r for r in collect([RESULTS / "listops"]) if r.result]
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
    assert accuracy["StochasticSoftmax"][-1] < 0.938  # the paper's best
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
