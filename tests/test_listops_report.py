"""How ListOps is reported: the paper's numbers, and pictures of parses."""

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure

import gumtrace as gt
from gumtrace.experiments import find
from gumtrace.experiments.listops import pictures
from gumtrace.experiments.listops.paper import RESULTS
from gumtrace.experiments.reporting import report

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
    columns = report("listops").columns
    assert [column.metric for column in columns] == ["accuracy", "precision", "recall"]
    assert [column.scale for column in columns] == [100] * 3
    usual, small = (report("listops").block(config.to_dict()) for config in (ListOps.config_type(), TINY))
    assert usual.paper == RESULTS["test"]
    assert usual.title == "expressions of 10 to 50 tokens"
    assert small.paper == ()
    assert small.title.startswith("expressions of 10 to 12 tokens, depth = 2, calls = 24, hidden = 8, rounds = 2")
    assert usual.key < small.key


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
    """Knows the heads of all tokens but the last."""

    def __init__(self, data):
        super().__init__()
        self.data, self.modes = data, []

    def posterior(self, items):
        self.modes.append(self.training)
        wanted = torch.where(torch.arange(12) == items.lengths[:, None] - 2, 1, items.heads)
        return gt.Arborescence(9.0 * (wanted[:, None, :] == torch.arange(12)[:, None]), lengths=items.lengths)

    def answer(self, items, structure):
        return torch.nn.functional.one_hot(torch.full_like(items.answers, 3), 10)


def test_pictures(model, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: (self.canvas.draw(), kept.append(self)))
    sure = Sure(model.data)
    assert pictures.draw(sure, tmp_path / "found.png", count=3) == tmp_path / "found.png"
    assert sure.modes == [False]
    assert sure.training
    (figure,) = kept
    assert len(figure.axes) == 3
    for ax, answer, tokens, heads in zip(
        figure.axes, sure.data.test.answers, sure.data.test.tokens, sure.data.test.heads, strict=False
    ):
        n = int((tokens > 0).sum())
        arcs = [line for line in ax.lines if len(line.get_xdata()) > 1]
        assert len(arcs) == 2 * (n - 1)
        above = sorted(tuple(round(float(line.get_xdata()[end])) for end in (0, -1)) for line in arcs[: n - 1])
        assert above == sorted((int(heads[place]), place) for place in range(1, n))
        wrong = [line for line in arcs if line.get_color() == pictures.WRONG]
        assert all(line.get_linestyle() != "-" for line in wrong)
        assert all(max(line.get_ydata()) < 0 for line in wrong)
        assert pictures.RIGHT in {line.get_color() for line in arcs}
        said = "right" if answer == 3 else "taken for 3"
        assert ax.get_title().startswith(f"value {answer}, {said}; ")


def test_a_picture_is_written(model, tmp_path):
    file = pictures.draw(model, tmp_path / "found.png", count=1, split="valid")
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 10_000
