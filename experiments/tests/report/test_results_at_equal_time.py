"""Numbers in the prose of the lab notes on times, and on as many items as a relaxation has, are those of the runs."""

import json
from dataclasses import replace

import pytest
from lab_notes import RESULTS, ROOT, behind, notes

from gumtrace_experiments import find
from gumtrace_experiments.columns import Column
from gumtrace_experiments.report import equal_time
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.times import load


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("graph-layout", [("tf32", 128, 1), ("tf32", 16, 8), ("tf32", 128, 8)]),
        ("graph-layout", [("bfloat16", 128, 1), ("bfloat16", 128, 8), ("bfloat16", 128, 16)]),
        ("listops", [("tf32", 100, 1), ("tf32", 25, 4), ("tf32", 100, 4)]),
    ],
)
def test_what_the_notes_say_of_times(name, batches):
    """Of SST first, as they were clocked: in which precision, and items with structures of each."""
    records = json.loads((RESULTS / name / "times.json").read_text())["updates"]
    settings = [(r["setting"], r["ms"]) for r in records if r["setting"].get("training") != "unrolled"]
    batch = {(s["estimator"], s["precision"], s["calls"] // s["samples"], s["samples"]): ms for s, ms in settings}
    text = notes(name).partition("**Equal time.**")[2].partition("## ")[0]
    for estimator, about in zip(("StochasticSoftmax", *["TraceREINFORCE"] * 2), batches, strict=True):
        assert f"{batch[estimator, *about]:.2f}" in text


def test_what_the_notes_say_of_as_many_graphs():
    text = notes("graph-layout").partition("**As many graphs as SST.**")[2].partition("## ")[0]
    many = collect([RESULTS / "graph-layout" / "layout-10-items.jsonl"])
    same = {"estimator": "StochasticSoftmax", "training": "teacher-forced", "frames": 10, "clip": 0.0, "lr": 1e-3}
    soft = [r for r in collect([RESULTS / "graph-layout"]) if same.items() <= r.config.items()]
    assert (len(many), len(soft)) == (5, 3)
    batch = {tuple(r.config[name] for name in ("calls", "samples", "precision", "iterations")) for r in many}
    assert batch == {(2048, 16, "bfloat16", 50_000)}
    for runs, said in (
        (many, "at −{:.2f} on test with {:.1f} %"),
        (soft, "SST, three seeds, at −{:.2f} with {:.1f} %"),
    ):
        elbo, precision = (sum(r.result["test"][metric] for r in runs) / len(runs) for metric in ("elbo", "precision"))
        assert said.format(-elbo, 100 * precision) in text
        guide = (ROOT / "docs" / "choosing.md").read_text()
        assert (
            f"−{-elbo:.0f} nats and {100 * precision:.1f} %" in guide
            or f"−{-elbo:.0f} and {100 * precision:.1f} %" in guide
        )
    far = behind([r.result["starts"] for r in many])
    poor = sum(x >= 890 for x in far)
    assert f"{poor} of the {len(far)} starts were at least 890 nats behind the best of their seed" in text
    assert f"the others at most {max(x for x in far if x < 890):.0f}." in text
    for r in collect([RESULTS / "tuning" / "graph-layout-items.jsonl"]):
        for split in ("valid", "test"):
            found = r.result[split]
            assert f"−{-found['elbo']:.1f} and {100 * found['precision']:.1f} %" in text


def test_what_the_notes_say_of_equal_time():
    """At the end of the table, and after a minute; of SST also with the time of an update in bfloat16."""
    text = notes("graph-layout").partition("**Equal time.**")[2].partition("## ")[0]
    records, kind, times = collect([RESULTS / "graph-layout"]), find("graph-layout"), load([RESULTS / "graph-layout"])
    found = equal_time.entries(records, kind.report(), kind.selection_metric, times)
    soft, trace = (
        next(e for e in found if e.choice.name == name and e.choice.group.setting["training"] == "teacher-forced")
        for name in ("SST", "T-REINFORCE+")
    )

    def elbo(entry: equal_time.Entry, **change) -> str:
        values = replace(entry, **change).values(Column("elbo", "elbo"), "elbo")
        return f"−{-sum(values) / len(values):.1f}"

    assert f"at {elbo(trace, budget=60)} after a minute, when SST is at {elbo(soft, budget=60)}." in text
    assert [round(float(elbo(entry)[1:])) for entry in (soft, trace)] == [358, 358]
    assert "At the end of the table they are at −358, as is SST." in text
    quick = times.of("graph-layout", {**soft.choice.group.setting, "precision": "bfloat16"}, "NVIDIA H200")
    assert quick is not None
    lent = replace(quick, setting=soft.choice.group.setting)
    assert f"an update of it takes {quick.ms:.2f} ms" in text
    assert f"it would be at {elbo(soft, budget=60, time=lent)} after the same minute" in text
    saved = 3e-3 * (1500 - 750) * trace.time.ms
    assert round(saved) == 5  # seconds, the notes say


def test_what_the_notes_say_of_unrolled_updates():
    records = json.loads((RESULTS / "graph-layout" / "times.json").read_text())["updates"]
    ms = {
        r["setting"]["precision"]: r["ms"]
        for r in records
        if {"training": "unrolled", "calls": 1024, "samples": 8}.items() <= r["setting"].items()
    }
    told = f"takes {ms['bfloat16']:.2f} ms in bfloat16, and {ms['tf32']:.2f} in TF32"
    assert told in notes("graph-layout")
