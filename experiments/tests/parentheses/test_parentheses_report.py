"""How models of parentheses are reported: rows by order, tables and a figure by the number of types, pictures."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from parentheses_runs import TINY, Tree

from gumtrace_experiments.parentheses.data import best_perplexity, load
from gumtrace_experiments.parentheses.paper import row
from gumtrace_experiments.report.curves import draw
from gumtrace_experiments.report.groups import choices
from gumtrace_experiments.report.records import Record
from gumtrace_experiments.report.tables import build

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def saved(monkeypatch):
    """Figures, drawn and not written."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: (self.canvas.draw(), kept.append(self)))
    return kept


def record(types, order, new, seed=0, **settings):
    config = Tree.config_type(types=types, order=order, seed=seed, **settings).to_dict()
    valid = {"log_likelihood": new - 3, "perplexity": 5.0 + types}
    learned = order in ("semi-supervised", "unsupervised")
    valid |= {"entropy": 2.0} if learned else {}
    kinds = dict.fromkeys(["wrong_empty", "wrong_unfinished", "wrong_unopened", "wrong_mismatched"], 0.0)
    test = {**valid, "new_correct": new, "old": 0.1, "reachable": new / 2, "wrong": 0.9 - new, **kinds}
    test |= {"wrong_unclosed": 0.9 - new, "smart_generated": 0.25} | ({"effective_samples": 37.0} if learned else {})
    curve = {"iteration": [500], **{name: [value] for name, value in valid.items()}}
    result = {"iteration": 500, "valid": valid, "test": test, "seconds": 1.0, "gradient_std": {}}
    return Record(Tree.name, config, {"device": "cpu"}, result, curve)


RECORDS = [
    *(record(types, order, new) for types in (10, 20) for order, new in (("left-to-right", 0.3), ("smart", 0.5))),
    *(record(10, "semi-supervised", new, seed) for seed, new in enumerate((0.4, 0.42))),
    record(10, "semi-supervised", 0.45, estimator="TraceREINFORCE"),
    record(10, "smart", 0.6, iterations=100),
]


def tables():
    return build(RECORDS, Tree.report(), Tree.selection_metric)[0]


def text(table):
    return [[cell.text for cell in line] for line in table.rows]


def test_rows_are_orders():
    shown = choices(RECORDS, Tree.report(), Tree.selection_metric)
    first = [choice.title for choice in shown if choice.block.title == "10 types of parentheses"]
    assert first == [
        "left-to-right",
        "smart",
        "semi-supervised, RELAX †",
        "semi-supervised, T-REINFORCE+ (K = 4) †",
    ]
    assert [choice.block.title for choice in shown][-1] == "10 types of parentheses, iterations = 100"
    assert row({"order": "unsupervised", "estimator": "RELAX", "samples": 1}) == (3, "unsupervised, RELAX †")


@pytest.mark.parametrize(
    "change", [{"bound_samples": 10}, {"valid_bound_samples": 10}, {"proposal_trees": 10}, {"proposal_share": 0.5}]
)
def test_other_bounds_are_not_compared(change):
    """They change what a perplexity is, so they are no settings of one row."""
    runs = [record(10, "semi-supervised", 0.4), record(10, "semi-supervised", 0.5, **change)]
    ((name, value),) = change.items()
    titles = [choice.block.title for choice in choices(runs, Tree.report(), Tree.selection_metric)]
    assert titles == ["10 types of parentheses", f"10 types of parentheses, {name} = {value}"]


def test_tables_by_types():
    new, old, perplexity, others, *_ = tables()
    assert new.title == "new and correct, %, by types of parentheses, hidden = 300, 10,000 iterations"
    assert new.head == ("order", "10 types", "20 types")
    assert text(new) == [
        ["left-to-right", "30.0", "30.0"],
        ["smart", "50.0", "50.0"],
        ["semi-supervised, RELAX", "41.0 ± 1.4", "–"],
        ["semi-supervised, T-REINFORCE+ (K = 4)", "45.0", "–"],
    ]
    assert [[cell.bold for cell in line] for line in new.rows][1] == [False, True, True]
    assert not any(cell.bold for line in old.rows for cell in line)  # neither more nor fewer are better
    assert text(perplexity)[-1] == ["the generator of the data", *(f"{best_perplexity(t):.3f}" for t in (10, 20))]
    assert text(others)[0] == ["10", "left-to-right", "15.0", "0.0", "0.0", "0.0", "0.0", "60.0", "25.0", "–"]
    assert text(others)[2][-2:] == ["25.0 ± 0.0", "37 ± 0"]


def test_one_number_of_types_has_no_table_by_types():
    found = build(RECORDS[:2], Tree.report(), Tree.selection_metric)[0]
    assert [table.title for table in found] == [
        "What else is known of the models",
        "10 types of parentheses",
    ]


def test_a_table_of_each_number_of_types():
    own = next(table for table in tables() if table.title == "10 types of parentheses")
    assert text(own)[0] == [
        "left-to-right",
        "ours",
        "30.0",
        "30.0",
        "10.0",
        "–",
        "15.000",
        "15.000",
        "–",
        "–",
        "1",
        "1",
    ]
    assert text(own)[2][-4:] == ["2.00 ± 0.00", "–", "2", "1"]


def test_the_figure_by_types(saved, tmp_path):
    files = draw(RECORDS, Tree.report(), Tree.selection_metric, tmp_path)
    assert [file.name for file in files] == ["perplexity.png", "entropy.png", "types.png", "types-2.png"]
    axes = saved[2].axes
    assert [ax.get_title() for ax in axes] == ["new and correct, %", "old, %", "perplexity"]
    smart = axes[0].containers[1]
    assert smart.get_label() == "smart"
    assert smart.lines[0].get_ydata().tolist() == pytest.approx([50, 50])
    assert not np.isfinite(smart.lines[2][0].get_segments()).any()  # one seed has no standard deviation
    assert not any(np.isfinite(cap.get_ydata(orig=False)).any() for cap in smart.lines[1])
    learned = axes[0].containers[2]
    (bar,) = learned.lines[2][0].get_segments()
    assert (bar[:, 1].mean(), bar[1, 1] - bar[0, 1]) == pytest.approx((41, 2 * 2**0.5))
    best = next(line for line in axes[2].lines if line.get_label() == "the generator of the data")
    assert best.get_ydata().tolist() == [best_perplexity(10), best_perplexity(20)]


@pytest.mark.parametrize("order", ["smart", "unsupervised"])
def test_pictures(order, saved, tmp_path):
    """A tree in each panel: an edge fewer than tokens, and a name for each."""
    config = TINY.replace(order=order)
    model = Tree.build(config, load(tmp_path, 2, 200, 40, 40, longest=8), "cpu")
    with torch.no_grad():
        model.decoder.out.bias[model.decoder.eos] += 1.0  # so that sequences come to an end
    model.draw(tmp_path / "found.png", count=3, split="valid")
    (figure,) = saved
    assert len(figure.axes) == 6
    for ax in figure.axes:
        tokens = len([label for label in ax.texts if label.get_text()])
        assert tokens == len(ax.collections) > 0
        assert len(ax.lines) == 2 * tokens - 1  # one to each name, and one to each parent
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[0] == ("valid set, smart" if order == "smart" else "valid set, encoder's mode")
    assert all(title.startswith("generated: ") for title in titles[1::2])
    assert model.training
    given = figure.axes[0]
    signs = [label.get_text() for label in given.texts if label.get_text()]
    assert all(sign[1] in "()" for sign in signs)
    assert 2 * len(signs) >= 8
