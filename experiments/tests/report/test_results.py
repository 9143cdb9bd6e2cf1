"""Lab notes hold the tables of the runs beside them, and numbers in the prose on graph layout are those of the runs."""

import json
import re

import pytest
from lab_notes import RESULTS, ROOT, behind, notes

from gumtrace_experiments import find, names
from gumtrace_experiments.commands.table import with_tables, written
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.times import load

RECORDED = [name for name in names() if (RESULTS / name).exists()]


@pytest.mark.parametrize("name", RECORDED)
def test_notes_have_the_recorded_tables(name):
    notes = (RESULTS / name / "NOTES.md").read_text()
    assert with_tables(notes, name, written(collect([RESULTS / name]), find(name), load([RESULTS / name]))) == notes, (
        f"gumtrace table {name} --into experiments/results/{name}/NOTES.md"
    )


def starts(**config) -> list[list[float]]:
    """Scores of the starts of recorded graph-layout runs, seed by seed."""
    runs = (r for r in collect([RESULTS / "graph-layout"]) if config.items() <= r.config.items())
    return [r.result["starts"] for r in runs if r.result and "starts" in r.result]


def test_what_the_notes_say_of_starts():
    """Numbers in prose, counted once more."""
    ours = {"training": "teacher-forced", "estimator": "TraceREINFORCE"}
    forced = behind(starts(**ours, frames=10, samples=8))
    poor = [far for far in forced if far > 300]
    assert f"of the {len(forced)} starts {len(poor)} were poor, and at least 700 nats behind" in notes()
    assert min(poor) > 700
    longer = starts(**ours, frames=20, starts=4)
    poor = sum(far > 300 for far in behind(longer))
    assert f"Of the {len(behind(longer))} starts of T-REINFORCE+ {poor} were poor, all of one seed" in notes()
    assert sum(max(behind([scores])) > 300 for scores in longer) == 1
    right = [
        r.result["test"]["precision"]
        for r in collect([RESULTS / "graph-layout"])
        if r.result and {"frames": 20, "starts": 4}.items() <= r.config.items()
    ]
    assert f"all seeds have {100 * min(right):.1f} % of the edges right, or more" in notes()
    longer = starts(training="teacher-forced", estimator="StochasticSoftmax", frames=20)
    assert "Of the 12 starts of SST 3 were poor, one of each seed" in notes()
    assert [sum(far > 300 for far in behind([scores])) for scores in longer] == [1, 1, 1]
    soft = behind(starts(training="teacher-forced", estimator="StochasticSoftmax", frames=10))
    assert f"none of its {len(soft)} starts, in two settings, was poor" in notes()
    assert max(soft) < 300
    first, shown = (starts(training="unrolled", estimator="TraceREINFORCE", clip=clip) for clip in (0.0, 1.0))
    found = [[score > -2300 for score in scores] for scores in first]
    assert f"K = 8) {sum(map(sum, found))} of {sum(map(len, found))} starts was good" in notes()
    assert sum(map(any, found)) == 1
    worst = min(map(min, shown))
    ahead = [[score - worst > 300 for score in scores] for scores in shown]
    assert f"Of them {sum(map(sum, ahead))} of {sum(map(len, ahead))} starts were at least 300 nats ahead" in notes()
    assert all(map(any, ahead))


def test_what_the_notes_say_of_budgets():
    """Of the settings in the tables."""
    runs = collect([RESULTS / "graph-layout"])
    found = choices(runs, find("graph-layout").report(), find("graph-layout").selection_metric)
    shown = {(c.estimator, c.block.title): c.group.setting for c in found}
    assert {setting["starts"] for setting in shown.values()} == {4}
    (many,) = [shown.pop(key) for key, setting in list(shown.items()) if setting["calls"] == 2048]
    assert f"and {3 * many['start_iterations']:,} in the table with 2048 calls" in notes()
    assert f"with 2048 calls every {many['evaluate_every']}," in notes()
    assert (many["estimator"], many["clip"]) == ("TraceREINFORCE", 0.0)
    rare = {name for (name, _), setting in shown.items() if setting["evaluate_every"] == 1500}
    assert rare == {"StochasticSoftmax", "REBAR", "RELAX", "GumbelRao"}
    assert {setting["evaluate_every"] for (name, _), setting in shown.items() if name not in rare} == {500}
    free = {(name, s["training"], s["frames"]) for (name, _), s in shown.items() if not s["clip"]}
    assert free == {("TraceREINFORCE", "teacher-forced", t) for t in (10, 20)} | {
        ("StochasticSoftmax", "teacher-forced", 10)
    }
    assert {3 * setting["start_iterations"] for setting in shown.values()} == {4500}
    assert "takes 4,500 updates more" in notes()


def test_what_the_notes_say_of_slower_decoders():
    """Of short runs from one start."""
    same = {"training": "unrolled", "estimator": "TraceREINFORCE", "starts": 1}
    tried = collect([RESULTS / "tuning" / "graph-layout.jsonl"])
    runs = [r for r in tried if same.items() <= r.config.items()]
    fast, slow = (
        [r.curve["precision"][-1] > 0.6 for r in runs if is_slow == (0 < r.config["decoder_lr"] < r.config["lr"])]
        for is_slow in (False, True)
    )
    assert f"{sum(fast)} of {len(fast)} with a decoder that is as fast came above 60 % precision" in notes()
    assert f"and {sum(slow)} of {len(slow)} with a slower one." in notes()


def test_what_the_notes_say_of_short_runs():
    tried = collect([RESULTS / "tuning" / "graph-layout.jsonl"])
    full = collect([RESULTS / "graph-layout"])
    assert {r.seed for r in full} & {r.seed for r in tried} == {0}  # the notes say so

    def has_scores(text: str, *settings: dict) -> bool:
        """With scores on validation, in the order of seeds."""
        scores = []
        for setting in settings:
            same = {"schedule": "cosine", "temperature": 1.0, "decoder_lr": 0.0, "seed": 100, **setting}
            for seed in (100, 101):
                same["seed"] = seed
                scores += [-round(r.result["valid"]["elbo"]) for r in tried if same.items() <= r.config.items()]
        return text.count("{}") == len(scores) and text.format(*scores) in notes()

    forced = {"training": "teacher-forced", "iterations": 1500, "estimator": "StochasticSoftmax"}
    assert has_scores(
        "at −{} after 1500 iterations against −{}",
        forced | {"lr": 2e-3, "clip": 1.0},
        forced | {"lr": 1e-3, "clip": 0.0},
    )
    trace = forced | {"estimator": "TraceREINFORCE", "lr": 1e-3}
    late = {"samples": 4, "clip": 0.1}
    assert has_scores("at −{} and −{} against −{} and −{}", trace | late, trace | {"samples": 8, "clip": 0.0})
    unrolled = forced | {"training": "unrolled", "temperature": 0.5, "decoder_lr": 3e-4, "clip": 1.0}
    assert has_scores("(−{} and −{}, against −{} and −{})", unrolled | {"lr": 2e-3}, unrolled | {"lr": 1e-3})
    rebar = forced | {"estimator": "REBAR", "iterations": 2500, "lr": 1e-3, "clip": 1.0, "learn_temperature": False}
    assert has_scores("(−{} and −{}, against −{} and −{})", rebar | {"samples": 2}, rebar | {"samples": 1})
    rao = forced | {"estimator": "GumbelRao", "temperature": 0.25, "clip": 1.0}
    assert has_scores("(−{}, against −{})", rao | {"lr": 2e-3}, rao | {"lr": 1e-3})
    ends = []
    for same in ({"estimator": "StochasticSoftmax", "lr": 2e-3, "training": "teacher-forced"}, trace | late):
        same = {**same, "frames": 10, "iterations": 50_000}
        elbos = [r.result["test"]["elbo"] for r in full if same.items() <= r.config.items()]
        assert len(elbos) == 3
        ends.append(sum(elbos) / 3)
    far = behind(starts(training="teacher-forced", estimator="TraceREINFORCE", **late))
    assert f"of the starts of that T-REINFORCE+ {sum(x > 300 for x in far)} of {len(far)} were poor" in notes()
    assert "they came to −{:.1f} and −{:.1f} on test".format(*(-x for x in ends)) in notes()


def test_what_the_notes_say_of_surrogates():
    file = RESULTS / "tuning" / "graph-layout.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]  # all: one config ran on two machines
    learned = [row for row in rows if row["config"]["estimator"] == "SurrogateREINFORCE"]
    (alone,) = [row["result"]["valid"] for row in learned if row["machine"]["device"] == "cpu"]
    assert f"was at −{-alone['elbo']:.0f} on a CPU" in notes()
    assert sorted(row["config"]["samples"] for row in learned if row["result"]["valid"]["complement"] == 1) == [4, 8]
    same = {"estimator": "TraceREINFORCE", "samples": 4, "clip": 1.0, "iterations": 1500, "lr": 1e-3}
    noise = [r.result["gradient_std"]["end"] for r in collect([file]) if same.items() <= r.config.items()]
    few = [row["result"]["gradient_std"]["end"] for row in learned if row["config"]["samples"] == 4]
    assert min(few) > max(noise)


def test_what_the_notes_say_of_unrolled_training():
    runs = [r for r in collect([RESULTS / "graph-layout"]) if r.result and r.config["starts"] == 4]
    shown = {
        name: [r for r in runs if (r.config["training"], r.config["estimator"]) == ("unrolled", name)]
        for name in ("StochasticSoftmax", "RELAX", "TraceREINFORCE")
    }
    elbos = {name: [r.result["test"]["elbo"] for r in same] for name, same in shown.items()}
    best, second, _ = sorted((sum(x) / len(x) for x in elbos.values()), reverse=True)
    assert f"SST is {best - second:.0f} nats ahead of the next" in notes()
    assert min(elbos["StochasticSoftmax"]) > -1192
    late = [r for r in shown["RELAX"] if max(r.result["starts"]) < -2400]
    assert len(late) == 2
    assert all(r.curve["precision"][r.curve["iteration"].index(3000)] > 0.82 for r in late)
    trace = [r.curve["kl"] for r in runs if r.config["estimator"] == "TraceREINFORCE"]
    often = max(sum(kl is None or kl > 200 for kl in curve) / len(curve) for curve in trace)
    assert often == pytest.approx(1 / 3, abs=0.03)
    wild = {  # at some evaluation single graphs have a huge KL
        (r.config["estimator"], r.config["training"])
        for r in runs
        if any(kl is None or kl > 1e3 for kl in r.curve["kl"])
    }
    both = {(name, how) for name in ("TraceREINFORCE", "RELAX") for how in ("unrolled", "teacher-forced")}
    assert wild == both | {("REBAR", "unrolled")}


def test_what_the_notes_say_of_rebar():
    same = {"training": "unrolled", "estimator": "REBAR"}
    runs = {r.seed: r for r in collect([RESULTS / "graph-layout"]) if same.items() <= r.config.items()}
    assert [score > -2300 for scores in starts(**same) for score in scores].count(True) == 1
    assert "of its 12 starts one was good" in notes()
    poor = [runs[seed].result["test"]["precision"] for seed in (0, 2)]
    stay = f"the other seeds stay at {poor[0]:.0%} precision, and at the complement's {poor[1]:.0%}"
    assert stay.replace("%", " %") in notes()
    lost = runs[0]
    finite = [(x, i) for x, i in zip(lost.curve["elbo"], lost.curve["iteration"], strict=True) if x is not None]
    assert max(i for _, i in finite) == 30_000
    best, iteration = max(finite)
    assert f"−{-best:.0f} at iteration {iteration:,}, is lost" in notes()
    assert lost.result["iteration"] == lost.curve["iteration"][-1]
    assert f"the ELBO on validation from −∞ to −{-lost.result['valid']['elbo']:.0f}." in notes()


def test_what_the_notes_say_of_relaxed_trees():
    """How noisy their gradients are, and what clipping does to RELAX's short runs."""
    shown = {"training": "teacher-forced", "frames": 10, "starts": 4, "clip": 0.0, "calls": 128}
    runs = [r for r in collect([RESULTS / "graph-layout"]) if r.result and shown.items() <= r.config.items()]

    def noise(estimator: str, moment: str) -> float:
        found = [r.result["gradient_std"][moment] for r in runs if r.config["estimator"] == estimator]
        return sum(found) / len(found)

    ratios = [noise("TraceREINFORCE", moment) / noise("StochasticSoftmax", moment) for moment in ("beginning", "end")]
    assert [round(ratio) for ratio in ratios] == [4, 6]
    assert "is a quarter of T-REINFORCE+'s at the beginning, and a sixth at the end" in notes()
    tried = collect([RESULTS / "tuning" / "graph-layout.jsonl"])
    same = {"training": "teacher-forced", "estimator": "RELAX", "samples": 8, "estimator_lr": 1e-3}
    found = {
        clip: sorted(
            -round(r.result["valid"]["elbo"]) for r in tried if {**same, "clip": clip}.items() <= r.config.items()
        )
        for clip in (1.0, 0.0)
    }
    assert "−{} and −{} with it, −{} and −{} without".format(*found[1.0], *found[0.0]) in notes()


def test_pictures_that_make_does_not_renew_are_named():
    """With the commands that do."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("\n### What `make results` leaves\n")[2].partition("\n## ")[0]
    curves = {c.metric for name in RECORDED for c in find(name).report().columns if c.axis is not None}
    curves |= {f"{metric}-seconds" for metric in curves}
    renewed = {f"{name}.png" for name in curves} | set(re.findall(r"[\w-]+\.png", (ROOT / "Makefile").read_text()))
    assert {file.name for file in RESULTS.glob("*/*.png")} - renewed == set(re.findall(r"`([\w-]+\.png)`", section))
    folder = ROOT / "experiments" / "benchmarks"
    for name in ("listops_depths", "listops_original"):
        assert f"`python experiments/benchmarks/{name}.py RUN ..." in section
        assert (folder / f"{name}.py").exists()
        assert (folder / "results" / f"{name.replace('_', '-')}.json").exists()


def test_recorded_experiments_are_among_the_results():
    docs = ROOT / "docs"
    page = (docs / "results.md").read_text(encoding="utf-8")
    for folder in RESULTS.iterdir():
        if folder.name != "tuning":
            assert f"```{{recorded}} {folder.name}\n" in page
            shown = (docs / "notes" / f"{folder.name}.md").read_text(encoding="utf-8")
            assert f"{{include}} ../../experiments/results/{folder.name}/NOTES.md\n" in shown
