"""What the lab notes of the k-subset tasks say is so in the recorded runs."""

import kset_tables  # benchmarks/
from lab_notes import RESULTS

from gumtrace_experiments import find
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import collect


def notes(name):
    return " ".join((RESULTS / name / "NOTES.md").read_text().split())


def shown(name):
    """By estimator, the finished runs that the table shows."""
    found = choices(collect([RESULTS / name]), find(name).report(), find(name).selection_metric)
    return {choice.estimator: choice.group.finished for choice in found}


def rows(name):
    """By estimator, bias and standard deviation at the model that was measured."""
    (record,) = [r for r in kset_tables.load()["gradients"] if r["experiment"] == name]
    return {row["estimator"]: row for row in record["rows"]}, record["size"]


def test_what_the_notes_say_of_neighbours():
    assert "The rows of SST and of straight-through are the same to the last digit" in notes("kset-neighbours")
    runs = shown("kset-neighbours")
    soft, hard = ([run.result["test"] for run in runs[name]] for name in ("StochasticSoftmax", "StraightThrough"))
    assert soft == hard


def test_what_the_notes_say_of_features():
    text, runs = notes("kset-features"), shown("kset-features")
    assert "The two that differentiate the classifier are ahead of the two score functions" in text
    scores = {name: [run.result["test"]["accuracy"] for run in same] for name, same in runs.items()}
    relaxed, score = ("StochasticSoftmax", "StraightThrough"), ("TraceREINFORCE", "StructureREINFORCE")
    assert scores.keys() == {*relaxed, *score}
    assert min(x for name in relaxed for x in scores[name]) > max(x for name in score for x in scores[name])
    assert "several times as large as theirs" in text
    found, size = rows("kset-features")
    biased = [found[name] for name in ("StochasticSoftmax", "StraightThrough", "GumbelRao")]
    assert all(3 * row["chance"] < row["bias"] < size for row in biased)
    others = [row for row in found.values() if row not in biased]
    assert min(row["std"] for row in others) > 3 * max(row["std"] for row in biased)
    assert all(row["bias"] < 1.5 * row["chance"] for row in others)


def test_what_the_notes_say_of_the_autoencoder():
    text, runs = notes("kset-autoencoder"), shown("kset-autoencoder")
    assert "**ten epochs of the hundred** that I-MLE trains for, five seeds, eight estimators" in text
    assert [len(same) for same in runs.values()] == [5] * 8
    assert {run.config["iterations"] for same in runs.values() for run in same} == {6000}
    losses = {name: [run.result["test"]["loss"] for run in same] for name, same in runs.items()}
    means = {name: sum(found) / 5 for name, found in losses.items()}
    through, step = means["StraightThrough"], means["IMLE"]
    assert min(means.values()) == through
    assert f"straight-through is at {through:.1f}, Gumbel-Rao and SST within 1.1 of it" in text
    assert max(means["GumbelRao"], means["StochasticSoftmax"]) - through < 1.1
    assert f"adaptive I-MLE at {step:.1f}, and T-REINFORCE+, RELAX and REBAR between 80 and 83" in text
    assert all(80 < means[name] < 83 for name in ("TraceREINFORCE", "RELAX", "REBAR"))
    spread = {name: max(found) - min(found) for name, found in losses.items()}
    assert {name for name, width in spread.items() if width > 1} == {"NoiseREINFORCE"}
    noise = {name: sum(run.result["gradient_std"]["end"] for run in same) for name, same in runs.items()}
    ratio = noise["TraceREINFORCE"] / noise["StraightThrough"]
    assert f"has {ratio:.0f} times the standard deviation of straight-through's gradient at the end of training" in text
