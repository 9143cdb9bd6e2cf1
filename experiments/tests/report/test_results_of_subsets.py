"""What the lab notes of the k-subset tasks say is so in the recorded runs."""

from statistics import mean, stdev

import kset_contest  # benchmarks/
import kset_tables
from lab_notes import RESULTS

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import collect

UNBIASED = {name for name, cls in ESTIMATORS.items() if cls.unbiased}
CLOSE = ("StraightThrough", "GumbelRao", "IMLE")


def notes(name):
    return " ".join((RESULTS / name / "NOTES.md").read_text().split())


def shown(name, **settings):
    """By estimator, the finished runs that the table shows, of the block with these settings."""
    runs = [run for run in collect([RESULTS / name]) if settings.items() <= run.config.items()]
    found = choices(runs, find(name).report(), find(name).selection_metric)
    return {choice.estimator: choice.group.finished for choice in found}


def by_estimator(runs, metric):
    return {name: [run.result["test"][metric] for run in same] for name, same in runs.items()}


def rows(name):
    """By estimator, bias and standard deviation at the model that was measured."""
    (record,) = [r for r in kset_tables.load()["gradients"] if r["experiment"] == name]
    return {row["estimator"]: row for row in record["rows"]}, record["size"]


def times(name):
    return [record for record in kset_tables.load()["updates"] if record["experiment"] == name]


def test_what_the_notes_say_of_a_hundred_epochs():
    text = notes("kset-autoencoder")
    runs = [run for run in collect([RESULTS / "kset-autoencoder"]) if run.config["iterations"] == 60_000]
    losses = {
        schedule: [run.result["test"]["loss"] for run in runs if run.config["schedule"] == schedule]
        for schedule in ("cosine", "constant")
    }
    assert [len(found) for found in losses.values()] == [5, 3]
    cosine, constant = (f"{mean(found):.2f} ± {stdev(found):.2f}" for found in losses.values())
    assert f"end at {constant} on test with a constant learning rate (three seeds), and at {cosine} with a" in text
    assert max(losses["constant"]) < 60.21


def test_what_the_notes_say_of_ten_epochs():
    text, runs = notes("kset-autoencoder"), shown("kset-autoencoder", iterations=6000)
    assert runs.keys() == set(kset_contest.rivals())
    losses = by_estimator(runs, "loss")
    means = {name: mean(found) for name, found in losses.items()}
    best, through = means["GumbelRao"], means["StraightThrough"]
    assert min(means.values()) == best
    assert f"Gumbel-Rao is at {best:.1f}, straight-through level with it at {through:.1f}" in text
    assert through - best < stdev(losses["GumbelRao"])
    assert max(means[name] for name in ("StochasticSoftmax", "MarginalStraightThrough")) - best < 1.4
    exact = means["StructureREINFORCE"]
    assert f"adaptive I-MLE at {means['IMLE']:.1f}, X-REINFORCE+ at {exact:.1f}, and T-REINFORCE+, RELAX," in text
    assert f"unbiased ones by {means['TraceREINFORCE'] - exact:.1f}: the score of the set" in text
    clocked = {r["setting"]["estimator"]: r["ms"] for r in times("kset-autoencoder")}
    assert round(clocked["StructureREINFORCE"] / clocked["TraceREINFORCE"]) == 10
    assert "make an update ten times as long" in text
    assert all(80 < means[name] < 83 for name in ("TraceREINFORCE", "RELAX", "SurrogateREINFORCE", "REBAR"))
    assert {name for name, found in losses.items() if max(found) - min(found) > 1.1} == {"NoiseREINFORCE"}
    noise = {name: mean(run.result["gradient_std"]["end"] for run in same) for name, same in runs.items()}
    ratio = noise["TraceREINFORCE"] / noise["StraightThrough"]
    assert f"has {ratio:.0f} times the standard deviation of straight-through's gradient at the end of training" in text
    nats = {name: mean(found) for name, found in by_estimator(runs, "kl").items()}
    marginal = nats["MarginalStraightThrough"]
    assert f"Marginal ST, {marginal:.0f} nats, and of I-MLE, {nats['IMLE']:.0f}, where straight-through" in text
    assert f"spends {nats['StraightThrough']:.0f}. For" in text
    assert min(nats.values()) == marginal
    assert (
        f"For {means['MarginalStraightThrough'] - through:.1f} more in the loss Marginal ST is ahead of all in" in text
    )
    bounds = {name: mean(found) for name, found in by_estimator(runs, "bound").items()}
    assert min(bounds, key=lambda name: bounds[name]) == "MarginalStraightThrough"


def test_what_the_notes_say_of_features():
    text, runs = notes("kset-features"), shown("kset-features")
    assert runs.keys() == set(kset_contest.rivals())
    scores = by_estimator(runs, "accuracy")
    means = {name: 100 * mean(found) for name, found in scores.items()}
    relaxed = [means[name] for name in means.keys() - UNBIASED]
    others = {name: means[name] for name in means.keys() & UNBIASED - {"NoiseREINFORCE"}}
    assert len(relaxed) == 5
    entropies = {name: mean(found) for name, found in by_estimator(runs, "cross_entropy").items()}
    assert min(entropies, key=lambda name: entropies[name]) == "MarginalStraightThrough"
    drawn = {name: means[name] - 100 * mean(found) for name, found in by_estimator(runs, "accuracy_sampled").items()}
    assert max(drawn.keys() - UNBIASED, key=lambda name: drawn[name]) == "MarginalStraightThrough"
    assert f"it reads {min(relaxed):.1f} to {max(relaxed):.1f} % of the digits" in text
    assert f"the unbiased ones {min(others.values()):.1f} to {max(others.values()):.1f} %" in text
    assert means["NoiseREINFORCE"] < min(others.values())
    for name in others:
        assert means[name] - means["TraceREINFORCE"] < 100 * (stdev(scores[name]) + stdev(scores["TraceREINFORCE"]))
    found, size = rows("kset-features")
    assert all(found[name]["bias"] > 0.95 * size for name in ("StochasticSoftmax", "MarginalStraightThrough"))
    assert all(0.5 * size < found[name]["bias"] < 0.75 * size for name in CLOSE)
    assert all(row["std"] > 9.9 * size for name, row in found.items() if name in UNBIASED)
    assert all(3 * size < found[name]["std"] < 4 * size for name in CLOSE)
    soft, marginal = (found[name]["std"] / size for name in ("StochasticSoftmax", "MarginalStraightThrough"))
    assert f"those of SST and Marginal ST are {soft:.1f} and {marginal:.1f} of it" in text
    table = kset_tables.TABLES["kset-features-time"]().splitlines()
    cells = [line.split("|") for line in table if line.startswith("|") and "±" in line]
    then = {row[1].strip(): float(row[4].split()[0]) for row in cells}
    assert f"T-REINFORCE+ is {max(then.values()) - then['T-REINFORCE+ (K = 4) †']:.1f} points behind the best" in text
    assert all(row["bias"] < 1.5 * row["chance"] for name, row in found.items() if name in UNBIASED)


def test_what_the_notes_say_of_neighbours():
    text, runs = notes("kset-neighbours"), shown("kset-neighbours")
    assert runs.keys() == set(kset_contest.rivals())
    assert "The rows of SST and of straight-through are the same to the last digit" in text
    soft, hard = ([run.result["test"] for run in runs[name]] for name in ("StochasticSoftmax", "StraightThrough"))
    assert soft == hard
    means = {name: 100 * mean(found) for name, found in by_estimator(runs, "accuracy").items()}
    assert max(means, key=lambda name: means[name]) == "IMLE"
    assert means["IMLE"] - means["MarginalStraightThrough"] < 0.5
    assert max(means.keys() & UNBIASED, key=lambda name: means[name]) == "StructureREINFORCE"
    assert abs(means["RELAX"] - means["TraceREINFORCE"]) < 1
    one = [run for run in collect([RESULTS / "kset-neighbours"]) if run.config["estimator"] == "RELAX"]
    one = [100 * run.result["test"]["accuracy"] for run in one if run.config["samples"] != 4]
    assert f"before its critic has learned, ends at {mean(one):.0f} %" in text
    assert all(means[name] < 61 for name in ("REBAR", "NoiseREINFORCE"))
    noise = {name: mean(run.result["gradient_std"]["half-way"] for run in same) for name, same in runs.items()}
    assert noise["REBAR"] < 1e-4 * noise["RELAX"]
    spread = [100 * run.result["test"]["accuracy"] for run in runs["SurrogateREINFORCE"]]
    assert f"Surrogate differs by {max(spread) - min(spread):.0f} points between seeds" in text
    found, size = rows("kset-neighbours")
    assert found["MarginalStraightThrough"]["bias"] < 1e-6 * size
    biased = {name: row["bias"] for name, row in found.items() if name not in UNBIASED}
    assert max(biased, key=lambda name: biased[name]) == "IMLE"
