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
    others = [run for run in runs if run["config"]["estimator"] != "TraceREINFORCE"]
    soft, relax = (
        [run for run in others if (run["config"]["estimator"], run["config"].get("curriculum")) == kind]
        for kind in (("StochasticSoftmax", None), ("RELAX", "12:500"))
    )
    assert {run["iteration"] for run in soft} == {26_000, 27_000}  # the notes say so
    runs = [run for run in runs if run not in others]
    few, many, relabelled = (
        {
            run["config"]["seed"]: run
            for run in runs
            if (run["config"]["calls"], run["config"].get("relabel", 0)) == kind
        }
        for kind in ((100, 0), (400, 0), (400, 0.3))
    )
    assert (few.keys(), many.keys()) == (set(range(1, 11)), set(range(1, 6)))
    assert (relabelled.keys(), len(runs), len(relax), len(soft)) == (many.keys(), 22, 5, 3)
    assert min(run["rows"][1]["right"] for run in relabelled.values()) > 0.99
    assert "at most 3 in 100,000 are as good" in notes("listops")
    assert max(run["rows"][1]["as good"] for run in relabelled.values()) <= 3e-5
    fifth = min(100 * run["rows"][4]["right"] for run in relabelled.values())
    assert f"and {fifth:.1f} % or more are right at the fifth" in notes("listops")
    assert {run["config"]["starts"] for run in (*few.values(), *many.values())} == {4}
    assert all(run["rows"][-1]["told"] > run["rows"][-1]["accuracy"] for run in (*runs, *relax))
    assert all(run["rows"][-1]["told"] < run["rows"][-1]["accuracy"] for run in soft)
    shares = [100 * run["rows"][1]["as good"] for same in (few, many) for run in same.values()]
    told = f"{min(shares):.0f} to {max(shares):.0f} % of the arguments of the second level hang so"
    assert told in notes("listops")

    def good(same: dict, level: int) -> str:
        shares = [100 * (row["right"] + row["as good"]) for run in same.values() for row in [run["rows"][level - 1]]]
        return f"{min(shares):.0f} to {max(shares):.0f} %"

    second, fifth = ([good(same, level) for same in (few, many)] for level in (2, 5))
    told = (
        "right or as good are {} of the arguments of the second level with 25, and {} with 100; "
        "of the fifth {}, and {}."
    )
    assert told.format(*second, *fifth) in notes("listops")
    astray = {
        (calls, seed, row["depth"]): 100 * (row["digit"] + row["bracket"])
        for calls, same in ((100, few), (400, many))
        for seed, run in same.items()
        for row in run["rows"]
    }
    assert {key for key, share in astray.items() if share >= 0.5} == {(100, 2, level) for level in (1, 2, 3)}
    shares = [f"{astray[100, 2, level]:.1f}" for level in (1, 2, 3)]
    assert "except in seed 2 of the ten: {}, {} and {} % of the first three".format(*shares) in notes("listops")


def test_what_the_notes_say_of_original_files():
    folder = ROOT / "experiments" / "benchmarks" / "results"
    runs = json.loads((folder / "listops-original.json").read_text())["runs"]
    relabelled, more = (
        [run for run in runs if run["config"].get("relabel") and run["config"]["calls"] == calls]
        for calls in (100, 400)
    )
    assert [(run["config"]["seed"], run["config"]["starts"]) for run in relabelled] == [(1, 1), (2, 1)]
    assert [(run["config"]["seed"], run["config"]["starts"]) for run in more] == [(seed, 4) for seed in range(1, 6)]
    relax = sorted(
        100 * min(x["right"] + x["as_good"] for x in run["files"].values())
        for run in runs
        if run["config"]["estimator"] == "RELAX"
    )
    assert f"Of RELAX they are {relax[0]:.1f} % or more, and 99.0 % or more in four of five" in notes("listops")
    assert (len(relax), relax[1] >= 99.0) == (5, True)
    trace = [run for run in runs if run["config"]["estimator"] == "TraceREINFORCE"]
    runs = [run for run in trace if not run["config"].get("relabel")]
    assert {run["config"]["starts"] for run in runs} == {4}
    few, many = (
        sorted(
            min(x["right"] + x["as_good"] for x in run["files"].values())
            for run in runs
            if run["config"]["calls"] == calls
        )
        for calls in (100, 400)
    )
    assert (len(few), len(many)) == (10, 5)
    told = (
        f"Right or as good are {100 * few[0]:.1f} % of the arguments or more in all three files with 25 expressions "
        "a batch, 98.9 % or more in nine of ten seeds, and 99.7 % or more with 100."
    )
    assert told in notes("listops")
    assert few[0] < 0.989 <= few[1]
    assert many[0] >= 0.997

    def means(metric: str) -> dict[str, list[float]]:
        """By file, with 25 expressions a batch and with 100."""
        return {
            name: [sum(same) / len(same) for calls in (100, 400) if (same := found(name, metric, calls))]
            for name in runs[0]["files"]
        }

    def found(name: str, metric: str, calls: int) -> list[float]:
        return [100 * run["files"][name][metric] for run in runs if run["config"]["calls"] == calls]

    assert [max(x) < 80 for x in means("precision").values()] == [True, False, True]
    shares = [x for name, both in means("as_good").items() if name != "test_d5c.tsv" for x in both]
    assert f"{min(shares):.0f} to {max(shares):.0f} % of the arguments of these two hang" in notes("listops")
    assert all(x["precision"] > 0.99 for run in relabelled + more for x in run["files"].values())
    ten, five = ([run for run in runs if run["config"]["calls"] == calls] for calls in (100, 400))

    def shown(same: list[dict], metric: str) -> list[str]:
        return [f"{100 * sum(run['files'][name][metric] for run in same) / len(same):.1f}" for name in runs[0]["files"]]

    told = (
        "On the three original files {}, {} and {} % of their edges are right, and {}, {} and {} % of the answers, "
        "which were {}, {} and {} % without it."
    )
    both = (*shown(more, "precision"), *shown(more, "accuracy"), *shown(five, "accuracy"))
    assert told.format(*both) in notes("listops")
    edges, answers, others = shown(relabelled, "precision"), shown(relabelled, "accuracy"), shown(ten, "accuracy")
    assert "on the three original files, {}, {} and {} % are right".format(*edges) in notes("listops")
    assert "Answers there are no better: {}, {} and {} %".format(*answers) in notes("listops")
    assert "against {}, {} and {} % of ten models".format(*others) in notes("listops")


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
