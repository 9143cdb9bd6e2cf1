"""Numbers in the prose on ListOps with short expressions first, and with several starts, are those of the runs."""

from statistics import mean, stdev

from lab_notes import RESULTS, ROOT, means_of, notes, others, percent_of

from gumtrace_experiments.report.records import collect

FAMILIES = {"NoiseREINFORCE": "E-REINFORCE+", "RELAX": "RELAX", "StochasticSoftmax": "SST", "REBAR": "REBAR"}


def _with_a_curriculum(name: str) -> tuple[dict, dict]:
    """By seed: from one start, and from the best of four."""
    one, four = (
        {r.seed: r for r in collect([RESULTS / "listops" / f"{name}{more}.jsonl"])} for more in ("", "-starts")
    )
    settings = [{(r.config["curriculum"], r.config["starts"]) for r in runs.values()} for runs in (one, four)]
    assert settings == [{("12:500", 1)}, {("12:500", 4)}]
    assert one.keys() == four.keys()
    return one, four


def test_what_the_notes_say_of_a_curriculum():
    text = notes("listops")
    (one, four), (more_one, more_four) = map(_with_a_curriculum, ("listops", "listops-items"))
    assert (len(four), len(more_four)) == (10, 5)
    answers, edges = means_of(four)
    more_answers, more_edges = means_of(more_four)
    assert f"answers {answers} % and has {edges} % of edges right, on average over ten seeds" in text
    assert f"**{more_answers} % of answers and {more_edges} % of edges** over five seeds" in text
    assert min(percent_of(more_four, "accuracy")) > 93.8  # the paper's best
    assert min(percent_of(more_four, "precision")) > 82.4
    before = "On average it was {} % of answers and {} % of edges, and {} and {} % with 100 expressions."
    assert before.format(*means_of(one), *means_of(more_one)) in text

    def ends(runs) -> list[str]:
        lists = (percent_of(runs, metric) for metric in ("accuracy", "precision"))
        return [f"{end(x):.1f}" for x in lists for end in (min, max)]

    def falls(before, after) -> list[str]:
        return [f"{stdev(percent_of(runs, 'precision')):.1f}" for runs in (before, after)]

    told = (
        "The ten end between {} and {} % of answers and {} and {} % of edges, and the standard deviation of precision "
        "falls from {} points to {}; the five end between {} and {} % and {} and {} %, "
        "and it falls from {} points to {}."
    )
    assert told.format(*ends(four), *falls(one, four), *ends(more_four), *falls(more_one, more_four)) in text
    best = max(more_one.values(), key=lambda r: r.result["test"]["accuracy"]).result["test"]
    assert f"the best run had {100 * best['accuracy']:.1f} and {100 * best['precision']:.1f} % before" in text
    assert best["precision"] > max(r.result["test"]["precision"] for r in more_four.values())
    apart = [
        {s for s, r in runs.items() if abs(r.result["test"]["precision"] - r.result["test"]["recall"]) > 1e-3}
        for runs in (one, more_one, four, more_four)
    ]
    assert apart == [{8}, {4}, set(), set()]  # what hangs from a bracket counts for recall alone
    poor = [100 * runs[s].result["test"]["accuracy"] for runs, s in ((one, 8), (more_one, 4))]
    assert "and end at {:.1f} and {:.1f} % of answers. Seeds 9 and 10 find the parse".format(*poor) in text
    guide = (ROOT / "docs" / "choosing.md").read_text()
    assert f"25 expressions answer {answers} %, and for each of 100\nexpressions {more_answers} %" in guide
    results = (ROOT / "docs" / "results.md").read_text()
    assert f"the same seeds; {answers} and {edges} with ten)" in results
    assert f"in place of 25: {more_answers} and {more_edges} (seeds 1 to 5);" in results


def test_what_the_notes_say_of_noise_with_a_curriculum():
    runs = others("NoiseREINFORCE", samples=4)
    assert {(r.config["curriculum"], r.config["starts"], r.config["classifier_lr"]) for r in runs.values()} == {
        ("12:500", 1, 0.0)
    }
    assert len(runs) == 5
    told = "five seeds answer {} % and have {} % of edges right on average"
    assert told.format(*means_of(runs)) in notes("listops")
    ends = [f"{end(percent_of(runs, metric)):.1f}" for metric in ("accuracy", "precision") for end in (min, max)]
    assert "from {} to {} % of answers, and from {} to {} % of edges".format(*ends) in notes("listops")
    one, _ = _with_a_curriculum("listops")
    noise, trace = (mean(r.result["gradient_std"]["half-way"] for r in same.values()) for same in (runs, one))
    assert f"is {noise / trace:.0f} times that of T-REINFORCE+ from one start" in notes("listops")
    more = others("NoiseREINFORCE", samples=10)
    assert ({r.config["classifier_lr"] for r in more.values()}, more.keys()) == ({1e-3}, runs.keys())
    assert "1e-3 for the classifier, the same five seeds have {} and {} %".format(*means_of(more)) in notes("listops")
    assert [float(x) < float(y) for x, y in zip(means_of(more), means_of(runs), strict=True)] == [True, True]


def test_what_is_said_of_the_same_seeds_with_and_without_a_curriculum():
    before = collect([RESULTS / "listops" / "expressions-of-10-to-50-tokens.jsonl"])
    first = {
        name: {r.seed: r for r in before if r.config["estimator"] == name} for name in ("TraceREINFORCE", *FAMILIES)
    }
    assert {frozenset(runs) for runs in first.values()} == {frozenset({1, 2, 3})}
    trace = first.pop("TraceREINFORCE")
    one, four = ({s: runs[s] for s in trace} for runs in _with_a_curriculum("listops"))
    found = [means_of(runs) for runs in (trace, one, four)]
    told = (
        "T-REINFORCE+ has {} % of answers and {} % of edges without it, {} and {} % with it from one start, "
        "and {} and {} % with four starts."
    )
    assert told.format(*(x for pair in found for x in pair)) in notes("listops")
    for name, before in first.items():
        after = others(name, samples=before[1].config["samples"])
        starts = "four starts" if name == "StochasticSoftmax" else "one start"
        told = f"{FAMILIES[name]} has {{}} and {{}} % without it, and {{}} and {{}} % with it from {starts}"
        pairs = means_of(before), means_of({s: after[s] for s in before})
        assert told.format(*(x for pair in pairs for x in pair)) in notes("listops")
    results = (ROOT / "docs" / "results.md").read_text()
    assert "from {} and {} to {} and {} (seeds 1 to 3 both times);".format(*found[0], *found[1]) in results
    assert "15,000 updates or 30 % more: {} and {} (the same".format(*found[2]) in results
    assert {3 * r.config["start_iterations"] / r.config["iterations"] for r in four.values()} == {0.3}


def test_what_the_notes_say_of_starts():
    text = notes("listops")
    scores = {}
    for name, starts, known in (("listops", 40, 16), ("listops-items", 20, 10)):
        one, four = _with_a_curriculum(name)
        scores[name] = {s: r.result["starts"] for s, r in four.items()}
        early = {s: r.curve["accuracy"][r.curve["iteration"].index(5000)] for s, r in one.items()}
        assert {s: x[0] for s, x in scores[name].items()} == early
        first = {s for s, x in scores[name].items() if x[0] == max(x)}
        assert sum(map(len, scores[name].values())) == starts
        assert 2 * len(four) - len(first) == known
        assert {s for s in four if one[s].result["test"] == four[s].result["test"]} == first
        spent = {(r.config["iterations"], 3 * r.config["start_iterations"]) for r in four.values()}
        assert spent == {(50_000, 15_000)}
        if name == "listops":
            assert len(first) == 4
            tests = [[100 * r[s].result["test"]["accuracy"] for s in four if s not in first] for r in (one, four)]
            gains = [b - a for a, b in zip(*tests, strict=True)]
            assert f"the others gained between {min(gains):.1f} and {max(gains):.1f} points of accuracy" in text
            six, slow = (100 * runs[s].result["test"]["accuracy"] for runs, s in ((four, 6), (one, 10)))
        else:
            taken, left = (100 * runs[4].result["test"]["accuracy"] for runs in (four, one))
    few, many = ([100 * x for same in scores[name].values() for x in same] for name in scores)
    assert f"scores after 5,000 iterations range from {min(few):.0f} to {max(few):.0f} %." in text
    low, *others = sorted(many)
    told = f"one is at {low:.1f} %, and the others at {others[0]:.1f} to {others[-1]:.1f} %"
    assert f"With 100 and without `--relabel`, {told}" in text
    assert sum(x < 60 for x in few) == 8
    first = {s: 100 * x[0] for s, x in scores["listops"].items()}
    assert {s for s, x in first.items() if x < 60} == {8, 9}
    assert f"seed 6 continued with had {100 * max(scores['listops'][6]):.1f} %, and ended at {six:.1f} %" in text
    assert f"the slow one had {first[10]:.1f} %, and ended at {slow:.1f} %" in text
    best, other = (100 * x for x in (max(scores["listops-items"][4]), scores["listops-items"][4][0]))
    assert f"{best:.1f} % for the start that was taken, which ended at {taken:.1f} %" in text
    assert f"and {other:.1f} % for the one that ends at {left:.1f} %" in text
