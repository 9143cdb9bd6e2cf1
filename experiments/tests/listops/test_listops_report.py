"""How ListOps is reported: the paper's numbers, and pictures of parses."""

import json

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import gumtrace as gt
from gumtrace_experiments import find
from gumtrace_experiments.listops import pictures
from gumtrace_experiments.listops.expressions import depths, parse
from gumtrace_experiments.listops.paper import RESULTS
from gumtrace_experiments.report.records import collect, load, save
from gumtrace_experiments.report.tables import build

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")
ListOps = find("listops")
TINY = ListOps.config_type(longest=12, depth=2, rounds=2, hidden=8, calls=24, train_size=10, test_size=10)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    data = ListOps.load(TINY, tmp_path_factory.mktemp("data"), torch.device("cpu"))
    return ListOps.build(TINY, data, torch.device("cpu"))


# --- the paper ---


def test_the_paper_stands_beside_runs_on_its_terms():
    columns = find("listops").report().columns
    assert [column.metric for column in columns] == ["accuracy", "precision", "recall"]
    assert [column.scale for column in columns] == [100] * 3
    usual, small = (find("listops").report().block(config.to_dict()) for config in (ListOps.config_type(), TINY))
    assert (usual.paper, usual.paper_train) == (RESULTS["test"], RESULTS["train"])
    assert usual.title == "expressions of 10 to 50 tokens"
    assert small.paper == small.paper_train == ()
    assert small.title.startswith("expressions of 10 to 12 tokens, depth = 2, calls = 24, hidden = 8, rounds = 2")
    assert usual.key < small.key
    for odd, words in ({"iterations": 100}, "iterations = 100"), ({"dropout": 0.2}, "dropout = 0.2"):
        other = find("listops").report().block(ListOps.config_type(**odd).to_dict())
        assert (other.paper, other.title) == ((), f"{usual.title}, {words}")
    easy = find("listops").report().block(ListOps.config_type(curriculum="12:500").to_dict())
    assert (easy.paper, easy.source, easy.title) == (
        usual.paper,
        "paper, no curriculum",
        f"{usual.title}, with a curriculum",
    )
    assert easy.key != usual.key
    assert easy == find("listops").report().block(ListOps.config_type(curriculum="12:250").to_dict())
    files = ListOps.config_type(original=True, depth=3, train_size=5)
    block = find("listops").report().block(files.to_dict())
    assert (block.paper, block.title) == ((), "original expressions of up to 50 tokens")
    assert block == find("listops").report().block(files.replace(depth=4).to_dict())  # it is of no meaning there


def test_train_and_test_each_have_a_table(tmp_path):
    config = ListOps.config_type().to_dict()
    for seed, share in enumerate((0.5, 0.7, 0.9)):
        found = {"accuracy": share, "precision": 0.2, "recall": 0.1}
        result = {"iteration": 500, "valid": found, "test": found, "seconds": 1.0}
        if seed < 2:  # the last one was trained before anybody asked
            result["train"] = {**found, "accuracy": share + 0.1}
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        about = {"experiment": "listops", "config": {**config, "seed": seed}, "machine": {}}
        (folder / "config.json").write_text(json.dumps(about))
        (folder / "result.json").write_text(json.dumps(result))
    (test, train), _ = build(collect([tmp_path]), find("listops").report(), "accuracy")
    assert train.title == f"On the training set, {test.title}"
    assert train.head == test.head
    names = ["SST", "E-REINFORCE+ †", "T-REINFORCE+ †", "RELAX †", "T-REINFORCE+ (K = 4) †"]
    for table in (test, train):
        assert [row[0].text for row in table.rows] == names
    assert [cell.text for cell in test.rows[2][1:4]] == ["paper", "87.34 ± 3.00", "91.97"]
    assert [cell.text for cell in train.rows[2][1:4]] == ["paper", "88.69 ± 3.02", "93.06"]
    assert [cell.text for cell in test.rows[-1][1:4]] == ["ours", "70.00 ± 20.00", "90.00"]
    assert [cell.text for cell in train.rows[-1][1:4]] == ["ours", "70.00 ± 14.14", "80.00"]
    assert [row[-2].text for row in test.rows] == ["–"] * 4 + ["3"]
    assert [row[-2].text for row in train.rows] == ["–"] * 4 + ["2"]
    save(tmp_path / "r.jsonl", collect([tmp_path]))
    assert build(load(tmp_path / "r.jsonl"), find("listops").report(), "accuracy")[0] == [test, train]


def test_the_paper_s_numbers():
    """Those that its text speaks of, and sums over the tables, to notice a slip of the finger."""
    means = {split: {row.estimator: [s.mean for s in row.spreads] for row in rows} for split, rows in RESULTS.items()}
    assert means["test"]["TraceREINFORCE"] == [87.34, 77.93, 61.10]
    assert means["train"]["StochasticSoftmax"] == [79.31, 57.15, 30.58]
    totals = {split: sum(x for row in rows for s in row.spreads for x in s) for split, rows in RESULTS.items()}
    assert totals == pytest.approx({"test": 1748.91, "train": 1760.32})
    assert list(means["test"]) == list(means["train"])


# --- pictures ---


class Sure(torch.nn.Module):
    """Knows the heads of all tokens but the last, and answers how many hang from the first."""

    def __init__(self, data):
        super().__init__()
        self.data, self.modes = data, []

    def posterior(self, items):
        self.modes.append(self.training)
        wanted = torch.where(torch.arange(12) == items.lengths[:, None] - 2, 1, items.heads)
        return gt.Arborescence(9.0 * (wanted[:, None, :] == torch.arange(12)[:, None]), lengths=items.lengths)

    def answer(self, items, structure):
        return torch.nn.functional.one_hot(structure[..., 0, :].sum(-1).long() % 10, 10)


def test_pictures(model, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: (self.canvas.draw(), kept.append(self)))
    sure = Sure(model.data)
    assert pictures.draw(sure, tmp_path / "found.png", count=3) == tmp_path / "found.png"
    assert sure.modes == [False]
    assert sure.training
    (figure,) = kept
    assert len(figure.axes) == 3
    depth = depths(sure.data.test.tokens.numpy()).tolist()  # 1 and 2
    chosen = [*[i for i, d in enumerate(depth) if d == 1][:2], depth.index(2)]  # each depth once, then the first again
    answers, trees = sure.data.test.answers[chosen], sure.data.test.heads[chosen]
    for ax, answer, tokens, heads in zip(figure.axes, answers, sure.data.test.tokens[chosen], trees, strict=True):
        n = int((tokens > 0).sum())
        arcs = [line for line in ax.lines if len(line.get_xdata()) > 1]
        assert len(arcs) == 2 * (n - 1)
        above = sorted(tuple(round(float(line.get_xdata()[end])) for end in (0, -1)) for line in arcs[: n - 1])
        assert above == sorted((int(heads[place]), place) for place in range(1, n))
        wrong = [line for line in arcs if line.get_color() == pictures.WRONG]
        assert all(line.get_linestyle() != "-" for line in wrong)
        assert all(max(line.get_ydata()) < 0 for line in wrong)
        assert pictures.RIGHT in {line.get_color() for line in arcs}
        guess = sum(round(float(line.get_xdata()[0])) == 0 for line in arcs[n - 1 :]) % 10  # below
        verdict = "right" if answer == guess else f"taken for {guess}"
        assert ax.get_title().startswith(f"value {answer}, {verdict}; ")


def test_single_digits_are_drawn_last():
    texts = ["3", "4", "[MIN 1 [MAX 2 3 ] ]", "5", "[MED 1 2 ]", "[MIN 3 4 ]"]
    rows = [parse(text).tokens for text in texts]
    tokens = np.stack([np.pad(row, (0, 8 - len(row))) for row in rows])
    assert pictures._of_all_depths(tokens, 2) == [4, 2]
    assert pictures._of_all_depths(tokens, 3) == [4, 5, 2]
    assert pictures._of_all_depths(tokens, 9) == [0, 1, 3, 4, 5, 2]


def test_a_picture_is_written(model, tmp_path):
    file = pictures.draw(model, tmp_path / "found.png", count=1, split="valid")
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 10_000
