"""Numbers in the prose of the lab notes on learning to explain are those of the runs."""

from lab_notes import RESULTS, notes

from gumtrace_experiments import find
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import collect

L2X = find("l2x")
RUNS = collect([RESULTS / "l2x" / "movie-reviews-on-a-cpu.jsonl"])
SHOWN = {choice.estimator: choice for choice in choices(RUNS, L2X.report(), L2X.selection_metric)}
TUNED = ("TraceREINFORCE", "NoiseREINFORCE", "StochasticSoftmax", "StraightThrough")
BASELINES = ("RandomSubset", "FirstTokens", "FullText")


def values(estimator, metric, split="test"):
    return [record.result[split][metric] for record in SHOWN[estimator].group.finished]


def mean(estimator, metric, split="test"):
    found = values(estimator, metric, split)
    return sum(found) / len(found)


def test_what_was_run():
    assert set(SHOWN) == {*TUNED, *BASELINES}
    for name, choice in SHOWN.items():
        tried = {group.setting["lr"] for group in choice.tried}
        assert tried == ({2e-3, 5e-3} if name in TUNED else {5e-3})
        assert all(len(group.finished) == 3 for group in choice.tried)
        assert choice.group.setting["lr"] == 5e-3
    assert {(r.config["model"], r.config["chosen"], r.config["iterations"]) for r in RUNS} == {("simple", 10, 400)}
    assert {r.machine["device"] for r in RUNS} == {"cpu"}
    assert "the larger one was better on validation for all four" in notes("l2x")


def test_what_the_notes_say_of_estimators():
    ahead = sorted(TUNED, key=lambda name: mean(name, "mse"))
    assert ahead[-1] == "NoiseREINFORCE"
    assert min(values("NoiseREINFORCE", "mse")) > max(x for name in ahead[:-1] for x in values(name, "mse"))
    errors = [mean(name, "mse") for name in ahead]
    seeds = max(max(values(name, "mse")) - min(values(name, "mse")) for name in ahead[:-1])
    assert errors[2] - errors[0] < seeds
    explained = [100 * mean(name, "explained") for name in ("NoiseREINFORCE", "FullText")]
    others = [100 * mean(name, "explained") for name in ahead[:-1]]
    assert (
        f"{min(others):.0f} to {max(others):.0f} % of the variance, E-REINFORCE+ {explained[0]:.0f} % and the full "
        f"text {explained[1]:.0f} %"
    ) in notes("l2x")
    assert min(others) > explained[1] / 2
    assert all(mean(name, "mse") > 0.235 for name in ("RandomSubset", "FirstTokens"))
    noise = {name: [r.result["gradient_std"] for r in SHOWN[name].group.finished] for name in TUNED}
    ratios = [
        sum(x[moment] for x in noise["NoiseREINFORCE"]) / sum(x[moment] for x in noise["TraceREINFORCE"])
        for moment in ("beginning", "half-way", "end")
    ]
    assert [round(ratio) for ratio in (min(ratios), max(ratios))] == [8, 10]  # eight to ten times
    precision = {name: 100 * mean(name, "precision") for name in SHOWN}
    best = [precision[name] for name in ahead[:-1]]
    assert (
        f"{min(best):.0f} to {max(best):.0f} % of the tokens they choose are marked, against "
        f"{precision['RandomSubset']:.0f} % of random ones and {precision['FirstTokens']:.0f} % of the first"
    ) in notes("l2x")
    apart = max(max(values(name, "precision")) - min(values(name, "precision")) for name in ahead[:-1])
    assert f"seeds of one estimator are up to {100 * apart:.0f} points apart" in notes("l2x")


def test_what_the_notes_say_of_overfitting():
    """On the training set the full text leaves next to nothing to explain."""
    assert f"explains {100 * mean('FullText', 'explained', 'train'):.0f} % on the training set" in notes("l2x")
    assert min(record.result["iteration"] for record in SHOWN["FirstTokens"].group.finished) == 40
