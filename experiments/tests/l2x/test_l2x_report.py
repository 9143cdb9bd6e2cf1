"""How learning to explain is reported: tables in the paper's layout, pictures of reviews, and the commands."""

import math
from itertools import pairwise

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from review_files import beer_folder, eraser_folder

import gumtrace as gt
from gumtrace_experiments import find, train
from gumtrace_experiments.commands import main
from gumtrace_experiments.l2x import pictures
from gumtrace_experiments.l2x.paper import RESULTS, SIZES, TRAINING
from gumtrace_experiments.report import curves
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import Record, collect
from gumtrace_experiments.report.tables import build

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
L2X = find("l2x")
REPORT = L2X.report()
TINY = L2X.config_type(
    reviews="synthetic", synthetic_size=40, longest=12, chosen=3, calls=12, iterations=2, evaluate_every=2
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return L2X.load(TINY, tmp_path_factory.mktemp("data"), CPU)


def record(mse, precision=0.5, **settings):
    """A run that is done, with these test metrics."""
    config = L2X.config_type(**settings).to_dict()
    metrics = {"mse": mse, "precision": precision, "explained": 1 - 4 * mse, "mse_of_samples": mse}
    result = {"iteration": 40, "valid": metrics, "test": metrics, "train": metrics, "seconds": 1.0, "gradient_std": {}}
    curve = {"iteration": [40, 80], **{name: [value, value] for name, value in metrics.items()}}
    return Record("l2x", config, {"device": "cpu", "cpu": "X", "torch": "2"}, result, curve, False)


# --- tables ---


def test_the_paper_s_numbers():
    """All aspects, models and k have the paper's four estimators; two numbers that its text can be checked by."""
    assert len(RESULTS) == 8
    assert len(TRAINING) == 2
    for rows in (*RESULTS.values(), *TRAINING.values()):
        assert list(rows) == ["StochasticSoftmax", "NoiseREINFORCE", "TraceREINFORCE", "RELAX"]
    assert all(len(numbers) == 12 for rows in RESULTS.values() for numbers in rows.values())
    assert all(len(numbers) == 6 for rows in TRAINING.values() for numbers in rows.values())
    block = REPORT.block(L2X.config_type(reviews="beer", aspect="palate", model="complex", chosen=15).to_dict())
    trace = next(row for row in block.paper if row.estimator == "TraceREINFORCE")
    mse, precision, explained = trace.spreads
    assert (mse.mean, mse.std, precision.mean, precision.std) == (2.82, 0.06, 40.4, 1.8)
    assert math.isnan(explained.mean)
    assert (trace.seeds, trace.settings) == (16, 25)
    assert block.paper_train == ()
    aroma = REPORT.block(L2X.config_type(reviews="beer", chosen=10).to_dict())
    assert [(row.spreads[0].mean, row.spreads[0].std) for row in aroma.paper_train][2] == (2.93, 0.19)
    assert math.isnan(aroma.paper_train[2].spreads[1].mean)


@pytest.mark.parametrize(
    ("settings", "title", "paper"),
    [
        ({}, "movie reviews, simple model, k = 10", 0),
        ({"model": "complex", "chosen": 5}, "movie reviews, complex model, k = 5", 0),
        ({"iterations": 77}, "movie reviews, simple model, k = 10, iterations = 77", 0),
        ({"reviews": "beer"}, "aroma of beers, simple model, k = 10", 4),
        ({"reviews": "beer", "iterations": 77}, "aroma of beers, simple model, k = 10", 4),
        ({"reviews": "beer", "aspect": "taste", "chosen": 15}, "taste of beers, simple model, k = 15", 4),
        ({"reviews": "beer", "chosen": 7}, "aroma of beers, simple model, k = 7", 0),
        ({"reviews": "beer", "original": False}, "aroma of beers, simple model, k = 10, original = False", 0),
        ({"reviews": "synthetic"}, "made-up reviews, no real language, simple model, k = 10", 0),
    ],
)
def test_which_runs_stand_in_one_table(settings, title, paper):
    block = REPORT.block(L2X.config_type(**settings).to_dict())
    assert block.title == title
    assert len(block.paper) == paper


def test_the_paper_s_layout():
    """One table for each model, with all k side by side, ours below the paper's; then each k alone."""
    records = [
        record(mse + 0.01 * seed, mse / 2, seed=seed, reviews="beer", chosen=k, estimator=name, **more)
        for k, mse in ((5, 0.4), (10, 0.3))
        for seed in (0, 1)
        for name, more in (("TraceREINFORCE", {}), ("StochasticSoftmax", {"kind": "binary"}), ("FullText", {}))
    ]
    records.append(record(0.2, 0.9, reviews="beer", chosen=10, estimator="StochasticSoftmax"))
    tables, _ = build(records, REPORT, "explained")
    wide = tables[0]
    assert wide.title == "aroma of beers, simple model, k = 5, 10"
    assert wide.head == (
        "estimator",
        "by",
        "MSE × 100, k = 5",
        "subset precision, %, k = 5",
        "MSE × 100, k = 10",
        "subset precision, %, k = 10",
        "seeds",
    )
    rows = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in wide.rows}
    assert list(rows) == [
        ("SST", "paper"),
        ("E-REINFORCE+ †", "paper"),
        ("T-REINFORCE+ †", "paper"),
        ("RELAX †", "paper"),
        ("SST, binary", "ours"),
        ("T-REINFORCE+ †", "ours"),
        ("Full text", "ours"),
        ("SST, expfamily", "ours"),
    ]
    assert rows["T-REINFORCE+ †", "paper"] == ["3.79 ± 0.13", "30.5 ± 2.2", "3.14 ± 0.16", "31.0 ± 2.9", "16"]
    assert rows["SST, binary", "ours"] == ["40.50 ± 0.71", "20.0 ± 0.0", "30.50 ± 0.71", "15.0 ± 0.0", "2"]
    assert rows["SST, expfamily", "ours"] == ["–", "–", "20.00", "90.0", "1"]
    bold = [cell.text for row in wide.rows for cell in row if cell.bold]
    assert bold == ["3.60 ± 0.10", "30.5 ± 2.2", "3.14 ± 0.16", "90.0"]  # the lowest errors, the highest shares
    titles = [table.title for table in tables[1:]]
    assert titles[0] == "aroma of beers, simple model, k = 5"
    assert "aroma of beers, simple model, k = 10" in titles
    alone, _ = build([r for r in records if r.config["chosen"] == 5], REPORT, "explained")
    assert alone[0].title == "aroma of beers, simple model, k = 5"


def test_relaxations_have_rows_and_lines_of_their_own(tmp_path):
    records = [
        record(0.1 * (1 + place), chosen=10, estimator=estimator, kind=kind)
        for place, kind in enumerate(gt.Subset.relaxations)
        for estimator in ("StochasticSoftmax", "TraceREINFORCE")
    ]
    found = choices(records, REPORT, "explained")
    names = [choice.name for choice in found]
    assert names == [*(f"SST, {kind}" for kind in sorted(gt.Subset.relaxations)), "T-REINFORCE+"]
    assert [len(choice.tried) for choice in found] == [1] * 4 + [4]  # a relaxation is no matter of T-REINFORCE+
    files = curves.draw(records, REPORT, "explained", tmp_path)
    assert [file.name for file in files] == ["mse.png", "precision.png", "explained.png"]
    figure = curves._figure(found, REPORT.columns[0], 0, {})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names


def test_sizes_are_the_paper_s():
    assert SIZES == (5, 10, 15)


def test_baselines_are_rows_of_the_table(tmp_path):
    for estimator in ("FullText", "RandomSubset", "FirstTokens", "TraceREINFORCE"):
        train(L2X, TINY.replace(estimator=estimator), tmp_path / estimator, progress=False)
    tables, _ = build(collect([tmp_path]), REPORT, "explained")
    assert tables[0].title.startswith("made-up reviews, no real language, simple model, k = 3, calls = 12")
    names = [row[0].text for row in tables[0].rows]
    assert names == ["T-REINFORCE+ (K = 4) †", "Random subset", "First tokens", "Full text"]
    assert tables[1].title.startswith("On the training set")


# --- pictures ---


@pytest.mark.parametrize("source", ["synthetic", "beer"])
def test_pictures(source, data, tmp_path, monkeypatch):
    """Every token is there; those that people marked have a background, chosen ones a box that says whether it is
    right. Of beer reviews it shows the annotated ones."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: (self.canvas.draw(), kept.append(self)))
    config = TINY
    if source == "beer":
        config = TINY.replace(reviews="beer", original=False, longest=20)
        data = L2X.load(config, beer_folder(tmp_path), CPU)
    model = L2X.build(config, data, CPU)
    modes = []

    def distribution(batch, words, generator=None):
        """The first marked token, and then the first ones of the review."""
        modes.append(model.training)
        first = batch.marked.float().argmax(-1, keepdim=True)
        places = torch.arange(words.shape[1])
        return gt.Subset(torch.where(places == first, 99.0, -1.0 * places), 3, lengths=batch.lengths)

    monkeypatch.setattr(model, "distribution", distribution)
    pictures.draw(model, tmp_path / "found.png", count=4)
    assert modes == [False]
    assert model.training
    (figure,) = kept
    assert len(figure.axes) == 4
    titles = [ax.get_title("left") for ax in figure.axes]
    ratings = [float(title.split("rated ")[1].split(",")[0]) for title in titles]
    assert [rating > 0.5 for rating in ratings].count(True) == 2
    for ax in figure.axes:
        words = tuple(text.get_text() for text in ax.texts if text.get_text())
        (review,) = [review for review in data.texts["annotated"] if review.tokens == words]
        inside = {place for start, end in review.spans for place in range(start, end)}
        backs = [patch for patch in ax.patches if type(patch) is Rectangle]
        assert len(backs) == len(inside)
        boxes = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
        chosen = list(dict.fromkeys([min(inside), 0, 1, 2]))[:3]
        right = len(inside & set(chosen))
        filled = matplotlib.colors.to_rgba(pictures.RIGHT)
        assert len(boxes) == 3
        assert sum(box.get_facecolor() == filled for box in boxes) == right
        assert f"{right} of the 3 chosen tokens are marked by people" in ax.get_title("left")


def test_lines_are_as_wide_as_the_page():
    tokens = (*(f"{'word' * (1 + i % 5)}{i}" for i in range(300)), "$x_1$", "y" * 100)
    words = pictures._laid_out(tokens)
    assert [word.text for word in words[:-1]] == list(tokens[:-1])
    assert words[-1].text == "y" * 25 + "…"
    for before, after in pairwise(words):
        if before.line == after.line:
            assert after.x >= before.x + before.width
        else:
            assert (after.x, after.line) == (0, before.line + 1)
            assert before.x + before.width + after.width > 0.9 * pictures._WIDTH - after.width
    assert max(word.x + word.width for word in words) <= pictures._WIDTH


# --- the command ---


def test_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    eraser_folder(tmp_path / "files")
    beer_folder(tmp_path / "files")
    few = ["--calls", "12", "--iterations", "4", "--evaluate-every", "2", "--chosen", "3", "--longest", "20"]
    assert main(["train", "l2x", "--smoke", *few, "--synthetic-size", "40"]) == 0
    assert "made-up reviews to train with, and no real language" in capsys.readouterr().err
    assert main(["train", "l2x", *few, "--data", "files", "--model", "complex"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["train", "l2x", *few, "--reviews", "beer", "--data", "files"]) == 2
    assert "annotations.json is not the original" in capsys.readouterr().err
    beer = ["--reviews", "beer", "--no-original", "--aspect", "aroma", "--data", "files"]
    assert main(["train", "l2x", *few, *beer]) == 0
    assert main(["table", "l2x"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "movie reviews, complex model, k = 3" in shown
    assert "aroma of beers, simple model, k = 3" in shown
    assert "gumtrace train l2x --estimator TraceREINFORCE --calls 12" in shown
    (seed,) = tmp_path.glob("runs/l2x/*model=complex*/seed-0")
    assert main(["plot", "l2x", "--run", str(seed), "--count", "2"]) == 2
    assert "complete-movies-data.tar.xz not found in data" in capsys.readouterr().err
    assert main(["plot", "l2x", "--run", str(seed), "--count", "2", "--data", "files"]) == 0
    assert (tmp_path / "plots" / "l2x" / "found.png").read_bytes().startswith(b"\x89PNG")
    assert main(["train", "l2x", "--reviews", "beer"]) == 2
    assert "The beer reviews were withdrawn by their owner" in capsys.readouterr().err
