"""Numbers in the prose of the lab notes on times, and on as many items as a relaxation has, are those of the runs."""

import json
from dataclasses import replace
from statistics import mean, stdev

from lab_notes import RESULTS, ROOT, behind, notes

from gumtrace_experiments import find
from gumtrace_experiments.columns import Column
from gumtrace_experiments.report import equal_time
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.times import load


def clocked(name: str, precision: str, items: int, samples: int, estimator: str = "TraceREINFORCE", **more) -> str:
    """Milliseconds of an update."""
    records = json.loads((RESULTS / name / "times.json").read_text())["updates"]
    same = {"estimator": estimator, "precision": precision, "calls": items * samples, "samples": samples, **more}
    (found,) = {f"{r['ms']:.2f}" for r in records if same.items() <= r["setting"].items()}
    return found


OF_SST = "graph-layout", "bfloat16", 128, 1, "StochasticSoftmax"


def test_what_the_notes_say_of_times():
    soft, few, *many = (
        clocked("graph-layout", *batch, training="teacher-forced", frames=10)
        for batch in (
            ("tf32", 128, 1, "StochasticSoftmax"),
            ("tf32", 16, 8),
            ("tf32", 128, 8),
            ("bfloat16", 128, 8),
            ("bfloat16", 128, 16),
        )
    )
    told = (
        "an update of SST took {} ms in TF32, and one of T-REINFORCE+ with eight structures for each of 16 graphs "
        "{} ms; with the 128 graphs of SST it is {} ms, and in bfloat16 {} ms, and with sixteen structures {} ms"
    )
    assert told.format(soft, few, *many) in notes("graph-layout")
    unrolled = [clocked("graph-layout", precision, 128, 8, training="unrolled") for precision in ("bfloat16", "tf32")]
    assert "takes {} ms in bfloat16, and {} in TF32; this has not".format(*unrolled) in notes("graph-layout")
    soft = clocked("listops", "tf32", 100, 1, "StochasticSoftmax")
    few, many = (clocked("listops", "tf32", items, 4) for items in (25, 100))
    told = (
        f"an update of SST took {soft} ms, one of T-REINFORCE+ with a quarter of its expressions and four structures "
    )
    assert told + f"of each {few} ms, and with as many expressions {many} ms" in notes("listops")
    relax, rebar = (clocked("listops", "tf32", 50, 2, name) for name in ("RELAX", "REBAR"))  # of 100 calls
    assert f"one of RELAX {relax} ms, and of REBAR {rebar} ms" in notes("listops")
    more, control = (f"{float(x) / float(few):.1f} times the time" for x in (many, relax))
    guide = (ROOT / "docs" / "choosing.md").read_text()
    assert f"four times the calls, and {more} of an update. SST, with" in guide
    assert f"both from one start, with {control}." in guide


def test_what_the_notes_say_of_listops_at_equal_time():
    records, kind, times = collect([RESULTS / "listops"]), find("listops"), load([RESULTS / "listops"])
    found = equal_time.entries(records, kind.report(), kind.selection_metric, times)
    found = {e.choice.name: e for e in found if e.choice.group.setting["curriculum"]}
    soft, trace = found["SST"], found["T-REINFORCE+"]
    assert trace.choice.group.setting["calls"] == 400
    assert trace.until == trace.choice.group.setting["iterations"]
    assert f"After {trace.budget:.1f} seconds of updates, when its training ends" in notes("listops")

    def values(entry: equal_time.Entry) -> list[dict[int, float]]:
        """Answers and edges, by seed."""
        found = [entry.values(Column(m, m, scale=100), kind.selection_metric) for m in ("accuracy", "precision")]
        return [dict(zip((r.seed for r in entry.choice.group.finished), x, strict=True)) for x in found]

    def means(found: list[dict[int, float]], seeds=range(1, 6)) -> list[str]:
        return [f"{mean(x[seed] for seed in seeds):.1f}" for x in found]

    ours, theirs = values(trace), values(soft)
    assert ours[0].keys() == set(range(1, 6))
    told = (
        "answers {} % on validation and has {} % of edges right over seeds 1 to 5. "
        "The same seeds of SST have {} and {} %"
    )
    assert told.format(*means(ours), *means(theirs)) in notes("listops")
    assert "Over all ten it is {} and {} %.".format(*means(theirs, range(1, 11))) in notes("listops")
    ahead = [sum(x[seed] > y[seed] for seed in x) for x, y in zip(ours, theirs, strict=True)]
    assert (ahead, "fewer answers and fewer edges in each of the five" in notes("listops")) == ([5, 5], True)
    whole = soft.time.seconds(soft.choice.group.setting["iterations"])
    later = values(replace(soft, budget=whole))
    told = f"after {whole:.1f} seconds, seeds 1 to 5 have {{}} and {{}} % on validation"
    assert told.format(*means(later)) in notes("listops")
    assert all(float(x) < float(y) for x, y in zip(means(later), means(ours), strict=True))
    begin = [3e-3 * e.time.ms * 5000 + 6 * e.time.ms for e in (soft, trace)]
    assert "begin after {:.0f} and {:.0f} seconds, when".format(*begin) in notes("listops")


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
    ours, theirs = ([r.result["test"]["elbo"] for r in runs] for runs in (many, soft))
    guide, results = ((ROOT / "docs" / name).read_text() for name in ("choosing.md", "results.md"))
    assert f"(−{-mean(ours):.0f} against −{-mean(theirs):.0f} nats)" in guide
    for runs, told in ((ours, "128 graphs comes to {} nats on test"), (theirs, "SST, which is biased, comes to {}")):
        assert told.format(f"−{-mean(runs):.1f} ± {stdev(runs):.1f}") in results
    trace, relaxed = clocked("graph-layout", "bfloat16", 128, 16), clocked(*OF_SST)
    assert abs(float(trace) / float(relaxed) - 1.25) < 0.01
    assert "1.25 times its time" in guide
    assert "1.25 times the time of an update" in results
    far = behind([r.result["starts"] for r in many])
    poor = sum(x >= 890 for x in far)
    assert f"{poor} of the {len(far)} starts were at least 890 nats behind the best of their seed" in text
    assert f"the others at most {max(x for x in far if x < 890):.0f}." in text
    shorter = {r.config["samples"]: r for r in collect([RESULTS / "tuning" / "graph-layout-items.jsonl"])}
    assert (list(shorter), {r.config["iterations"] for r in shorter.values()}) == ([8, 16], {25_000})
    found = [shorter[k].result[split] for split in ("valid", "test") for k in (8, 16)]
    numbers = [f"−{-x['elbo']:.1f} and {100 * x['precision']:.1f} %" for x in found]
    assert "came to {} with eight structures, and to {} with sixteen; on test {}, and {}.".format(*numbers) in text


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

    assert f"at {elbo(trace, budget=60)} on validation after a minute, when SST is at {elbo(soft, budget=60)}," in text
    assert [round(float(elbo(entry)[1:])) for entry in (soft, trace)] == [358, 358]
    assert f"both at −358 after {trace.budget:.1f} seconds, where the table stops" in text
    whole = [e.time.seconds(e.choice.group.setting["iterations"]) for e in (trace, soft)]
    ends = [round(float(elbo(e, budget=seconds)[1:])) for e, seconds in zip((trace, soft), whole, strict=True)]
    assert "those of SST, {:.0f} and {:.0f} seconds".format(*whole) in text
    assert "and at −{} and −{} when training ends".format(*ends) in text
    quick = times.of("graph-layout", {**soft.choice.group.setting, "precision": "bfloat16"}, "NVIDIA H200")
    assert quick is not None
    lent = replace(quick, setting=soft.choice.group.setting)
    assert f"an update of it takes {quick.ms:.2f} ms" in text
    assert f"it would be at {elbo(soft, budget=60, time=lent)} after the same minute" in text
    assert "Starts of 750 iterations, not 1,500, save five seconds" in text
    assert round(3e-3 * (1500 - 750) * trace.time.ms) == 5
    later = [(seconds, *(float(elbo(e, budget=seconds)[1:]) for e in (trace, soft))) for seconds in range(20, 101, 10)]
    assert all(ours < theirs for _, ours, theirs in later)  # nats below zero
    assert all(theirs - ours < 1 for seconds, ours, theirs in later if seconds >= 90)
    assert "ahead for the first 90 seconds" in text
    ahead = [
        float(elbo(soft, budget=seconds, time=lent)[1:]) < float(elbo(trace, budget=seconds)[1:])
        for seconds in range(20, int(trace.budget))
    ]
    assert not any(ahead[: 27 - 20])
    assert ahead[27 - 20]
    assert not ahead[46 - 20]
    assert all(ahead[47 - 20 :])
    told = "second by second now behind and now ahead from 27 to 46 seconds, and ahead from 47 seconds on"
    assert told in text
