"""Pages that hold tables of recorded runs hold those of the runs in results/."""

import json
from pathlib import Path

import pytest

from gumtrace.cli.table import with_tables, written
from gumtrace.experiments import NAMES
from gumtrace.experiments.records import collect

ROOT = Path(__file__).parents[1]
PARTS = ("parts", "depths")  # recorded by benchmarks/listops_*.py
RECORDED = [name for name in NAMES if (ROOT / "results" / name).exists()]


@pytest.mark.parametrize("name", RECORDED)
def test_the_page_has_the_recorded_tables(name):
    page = (ROOT / "docs" / "experiments.md").read_text()
    assert with_tables(page, name, written(collect([ROOT / "results" / name]), name)) == page, (
        f"gumtrace table {name} --into docs/experiments.md"
    )


def starts(**config) -> list[list[float]]:
    """Scores of the starts of recorded graph-layout runs, seed by seed."""
    runs = (r for r in collect([ROOT / "results" / "graph-layout"]) if config.items() <= r.config.items())
    return [r.result["starts"] for r in runs if r.result and "starts" in r.result]


def behind(starts: list[list[float]]) -> list[float]:
    """How far each is behind the best of its seed."""
    return [max(scores) - x for scores in starts for x in scores]


def page() -> str:
    """In one line."""
    return " ".join((ROOT / "docs" / "experiments.md").read_text().split())


def test_what_the_page_says_of_starts():
    """Numbers in prose, counted once more."""
    ours = {"training": "teacher-forced", "estimator": "TraceREINFORCE"}
    forced = behind(starts(**ours, frames=10))
    poor = [far for far in forced if far > 300]
    assert f"of the {len(forced)} starts {len(poor)} were poor, and at least 700 nats behind" in page()
    assert min(poor) > 700
    longer = starts(**ours, frames=20, starts=4)
    assert (
        f"Of their {len(behind(longer))} starts {len([far for far in behind(longer) if far > 300])} were poor" in page()
    )
    assert sum(max(behind([scores])) > 300 for scores in longer) == 1  # all of one seed
    right = [
        r.result["test"]["precision"]
        for r in collect([ROOT / "results" / "graph-layout"])
        if r.result and {"frames": 20, "starts": 4}.items() <= r.config.items()
    ]
    assert f"all three seeds have {100 * min(right):.1f} % of the edges right, or more" in page()
    soft = behind(starts(training="teacher-forced", estimator="StochasticSoftmax"))
    assert f"none of its {len(soft)} starts was poor" in page()
    assert max(soft) < 300
    first, shown = (starts(training="unrolled", estimator="TraceREINFORCE", clip=clip) for clip in (0.0, 1.0))
    found = [[score > -2300 for score in scores] for scores in first]
    assert f"K = 8) {sum(map(sum, found))} of {sum(map(len, found))} starts was good" in page()
    assert sum(map(any, found)) == 1
    worst = min(map(min, shown))
    ahead = [[score - worst > 300 for score in scores] for scores in shown]
    assert f"Of them {sum(map(sum, ahead))} of {sum(map(len, ahead))} starts were at least 300 nats ahead" in page()
    assert all(map(any, ahead))


def test_what_the_page_says_of_budgets():
    shown = {
        (r.config["estimator"], r.config["training"]): r.config
        for r in collect([ROOT / "results/graph-layout"])
        if r.config["starts"] == 4
    }
    rare = {name for (name, _), config in shown.items() if config["evaluate_every"] == 1500}
    assert rare == {"StochasticSoftmax", "REBAR", "RELAX", "GumbelRao"}
    assert {config["evaluate_every"] for (name, _), config in shown.items() if name not in rare} == {500}
    assert {kind for kind, config in shown.items() if not config["clip"]} == {
        ("StochasticSoftmax", "teacher-forced"), ("TraceREINFORCE", "teacher-forced")
    }  # fmt: skip
    assert {3 * config["start_iterations"] for config in shown.values()} == {4500}
    assert "takes 4,500 updates more" in page()


def test_what_the_page_says_of_slower_decoders():
    """Of short runs from one start."""
    same = {"training": "unrolled", "estimator": "TraceREINFORCE", "starts": 1}
    tried = collect([ROOT / "results" / "tuning" / "graph-layout.jsonl"])
    runs = [r for r in tried if same.items() <= r.config.items()]
    fast, slow = (
        [r.curve["precision"][-1] > 0.6 for r in runs if is_slow == (0 < r.config["decoder_lr"] < r.config["lr"])]
        for is_slow in (False, True)
    )
    assert f"{sum(fast)} of {len(fast)} with a decoder that is as fast came above 60 % precision" in page()
    assert f"and {sum(slow)} of {len(slow)} with a slower one." in page()


def test_what_the_page_says_of_clipping_and_short_runs():
    tried = collect([ROOT / "results" / "tuning" / "graph-layout.jsonl"])
    forced = [r for r in tried if r.config["training"] == "teacher-forced"]
    trace = [r for r in forced if r.config["estimator"] == "TraceREINFORCE"]
    clipped, free = (
        [r.curve["precision"][-1] > 0.6 for r in trace if bool(r.config["clip"]) == on] for on in (True, False)
    )
    assert f"{sum(clipped)} of {len(clipped)} with clipped gradients came above 60 % precision" in page()
    starts_of_all = behind(starts(training="teacher-forced", estimator="TraceREINFORCE", frames=10, clip=0.0))
    good = sum(far < 300 for far in starts_of_all)
    assert (
        f"and {sum(free)} of {len(free)} without; but then {good} of the {len(starts_of_all)} starts above were good "
        "without." in page()
    )

    def scores(clip: float, **config) -> list[int]:
        same = {"iterations": 1500, "lr": 1e-3, "decoder_lr": 0.0, "clip": clip, **config}
        return [-round(r.result["valid"]["elbo"]) for r in forced if same.items() <= r.config.items()]

    soft = [scores(clip, estimator="StochasticSoftmax", temperature=1.0) for clip in (1.0, 0.0)]
    assert "with it SST was at −{} after 1500 iterations and −{} without".format(*soft[0], *soft[1]) in page()
    few = [scores(clip, estimator="TraceREINFORCE", samples=4) for clip in (1.0, 0.0)]
    assert "at −{} and −{} against −{} and −{}".format(*few[0], *few[1]) in page()
    (learned,) = scores(1.0, estimator="SurrogateREINFORCE", samples=4)
    assert f"`SurrogateREINFORCE` with K = 4 (on a CPU) was at −{learned}" in page()
    noise = {
        name: [r.result["gradient_std"]["end"] for r in forced if same.items() <= r.config.items()]
        for name in ("SurrogateREINFORCE", "TraceREINFORCE")
        if (same := {"estimator": name, "samples": 4, "clip": 1.0, "iterations": 1500})
    }
    assert min(noise["SurrogateREINFORCE"]) > max(noise["TraceREINFORCE"])
    full = {r.seed for r in collect([ROOT / "results" / "graph-layout"])}
    assert full & {r.seed for r in tried} == {0}  # the page says so


def test_what_the_page_says_of_unrolled_training():
    runs = [r for r in collect([ROOT / "results" / "graph-layout"]) if r.result and r.config["starts"] == 4]
    shown = {
        name: [r for r in runs if (r.config["training"], r.config["estimator"]) == ("unrolled", name)]
        for name in ("StochasticSoftmax", "RELAX", "TraceREINFORCE")
    }
    elbos = {name: [r.result["test"]["elbo"] for r in same] for name, same in shown.items()}
    best, second, _ = sorted((sum(x) / len(x) for x in elbos.values()), reverse=True)
    assert f"SST is {best - second:.0f} nats ahead of the others" in page()
    assert min(elbos["StochasticSoftmax"]) > -1192
    late = [r for r in shown["RELAX"] if max(r.result["starts"]) < -2400]
    assert len(late) == 2
    assert all(r.curve["precision"][r.curve["iteration"].index(3000)] > 0.82 for r in late)
    often = max(sum(kl is None or kl > 200 for kl in r.curve["kl"]) / len(r.curve["kl"]) for r in runs)
    assert often == pytest.approx(1 / 3, abs=0.03)
    wild = {  # at some evaluation single graphs have a huge KL
        (r.config["estimator"], r.config["training"])
        for r in runs
        if any(kl is None or kl > 1e3 for kl in r.curve["kl"])
    }
    assert wild == {(name, how) for name in ("TraceREINFORCE", "RELAX") for how in ("unrolled", "teacher-forced")}


def test_what_the_page_says_of_listops():
    """Told the parses, and by depth."""
    recorded = {name: json.loads((ROOT / "benchmarks/results" / f"listops-{name}.json").read_text()) for name in PARTS}
    told = recorded["parts"]["rows"][-1]
    assert f"{told['iterations']:,} iterations of {recorded['parts']['items']} expressions" in page()
    assert f"samples of the encoder {told['recall']:.2%} of the arguments".replace("%", " %") in page()
    assert f"the classifier is right for {told['accuracy']:.1%} of the validation".replace("%", " %") in page()
    trace, soft = (
        {run["config"]["seed"]: run for run in recorded["depths"]["runs"] if run["config"]["estimator"] == estimator}
        for estimator in ("TraceREINFORCE", "StochasticSoftmax")
    )
    shown = {r.seed for r in collect([ROOT / "results" / "listops"]) if r.config["estimator"] == "TraceREINFORCE"}
    assert trace.keys() == shown
    better = {
        seed: [row["depth"] for row in run["rows"] if row["told"] > row["accuracy"]] for seed, run in trace.items()
    }
    assert better == {1: [5], 2: [2, 3, 4, 5], 3: [5]}  # the best seed is 2
    assert {run["iteration"] for run in soft.values()} == {26_000, 27_000}  # the page says so
    assert all(row["told"] < row["accuracy"] for run in soft.values() for row in run["rows"])
    ahead = [sum(run["rows"][i]["right"] for run in soft.values()) for i in range(5)]
    behind = [sum(run["rows"][i]["right"] for run in trace.values()) for i in range(5)]
    assert [a > b for a, b in zip(ahead, behind, strict=True)] == [False, False, True, True, True]


def test_what_the_page_says_of_relaxed_trees():
    """How noisy their gradients are, and what clipping does to RELAX's short runs."""
    shown = {"training": "teacher-forced", "frames": 10, "starts": 4}
    runs = [r for r in collect([ROOT / "results" / "graph-layout"]) if r.result and shown.items() <= r.config.items()]

    def noise(estimator: str, moment: str) -> float:
        found = [r.result["gradient_std"][moment] for r in runs if r.config["estimator"] == estimator]
        return sum(found) / len(found)

    ratios = [noise("TraceREINFORCE", moment) / noise("StochasticSoftmax", moment) for moment in ("beginning", "end")]
    assert [round(ratio) for ratio in ratios] == [4, 6]
    assert "is a quarter of T-REINFORCE+'s at the beginning, and a sixth at the end" in page()
    tried = collect([ROOT / "results" / "tuning" / "graph-layout.jsonl"])
    same = {"training": "teacher-forced", "estimator": "RELAX", "samples": 8, "estimator_lr": 1e-3}
    found = {
        clip: sorted(
            -round(r.result["valid"]["elbo"]) for r in tried if {**same, "clip": clip}.items() <= r.config.items()
        )
        for clip in (1.0, 0.0)
    }
    assert "−{} and −{} with it, −{} and −{} without".format(*found[1.0], *found[0.0]) in page()


def test_what_the_page_says_of_other_estimators_of_listops():
    runs = [r for r in collect([ROOT / "results" / "listops"]) if r.result]
    accuracy = {
        name: sorted(r.result["test"]["accuracy"] for r in runs if r.config["estimator"] == name)
        for name in ("StochasticSoftmax", "RELAX", "REBAR", "TraceREINFORCE", "NoiseREINFORCE")
    }
    worst, *_, best = accuracy["RELAX"]
    assert f"Seeds of RELAX differ most, from {100 * worst:.1f} % to {100 * best:.1f} %." in page()
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
    assert f"{max(precision.values()):.1f} % of edges at best, on average, against 77.9 %" in page()
    assert max(r.result["seconds"] for r in runs if r.config["estimator"] == "TraceREINFORCE") < 4 * 60

    def edges(name: str) -> float:
        return sum(r.result["test"]["recall"] for r in runs if r.config["estimator"] == name)

    assert edges("StochasticSoftmax") < edges("TraceREINFORCE")


def test_what_the_page_says_of_the_treebank():
    runs = [r for r in collect([ROOT / "results" / "treebank"]) if r.result]
    crf, trace = (
        [r.result["test"]["uas"] for r in runs if r.config["estimator"] == name]
        for name in ("MatrixTreeCRF", "TraceLikelihood")
    )
    means = [sum(x) / len(x) for x in (crf, trace)]
    assert abs(means[0] - means[1]) < min(max(x) - min(x) for x in (crf, trace))
    (alone,) = [r for r in runs if r.config["estimator"] == "TraceREINFORCE" and not r.config["likelihood"]]
    assert (
        f"(K = {alone.config['samples']}, one seed) comes to {100 * alone.result['test']['uas']:.1f} % in as many"
        in page()
    )
    (beside,) = [r for r in runs if r.config["likelihood"]]
    assert beside.result["test"]["uas"] < means[1]
    assert {r.config["iterations"] for r in runs} == {4000}
    exact = [
        {r.seed: r.result["test"]["exact"] for r in runs if r.config["estimator"] == name}
        for name in ("MatrixTreeCRF", "TraceLikelihood")
    ]
    assert all(exact[0][seed] > exact[1][seed] for seed in (0, 1, 2))
