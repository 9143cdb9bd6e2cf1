"""Pictures of insertions: what is drawn where."""

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure

from gumtrace_experiments import find
from gumtrace_experiments.parentheses import insertion_pictures as pictures

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Insertion = find("parentheses-insertion")
TINY = Insertion.config_type(
    types=2, hidden=6, longest=6, width=8, layers=1, heads=2, calls=12, train_size=60, test_size=20, dropout=0.0
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Insertion.load(TINY, tmp_path_factory.mktemp("data"), CPU)


def test_a_token_is_in_the_row_of_its_step_and_in_the_last():
    ax = Figure().subplots()
    pictures._panel(ax, pictures._Item([0, 4, 5, 1], [0, 3, 1, 2], "title"), longest=6, steps=4)
    found = {(*text.get_position(), text.get_text()) for text in ax.texts if text.get_text()}
    steps = {(0, 0, "(0"), (3, -1, "0)"), (1, -2, "(2"), (2, -3, "2)")}
    assert found == steps | {(x, -4.5, text) for x, _, text in steps}
    assert ax.get_title() == "title"


def test_items_are_the_longest_of_the_split_in_their_orders(data):
    model = Insertion.build(TINY.replace(order="smart"), data, CPU).eval()
    items = pictures._of_data(model, 3, "test")
    assert [len(item.tokens) for item in items] == [6] * 3
    assert all(item.title == "test: the smart order" for item in items)
    assert all(sorted(item.order) == list(range(6)) for item in items)
    assert items[0].order[:2] != [0, 1] or items[0].tokens[0] + 1 == items[0].tokens[1]
    model = Insertion.build(TINY, data, CPU).eval()
    batch = data.test.batch(data.test.lengths.argsort(descending=True, stable=True)[:3])
    assert [item.order for item in pictures._of_data(model, 3, "test")] == model.posterior(batch).mode.tolist()


@pytest.mark.parametrize("order", ["left-to-right", "unsupervised"])
def test_a_picture_is_saved(order, data, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: drawn.append((self, path)))
    model = Insertion.build(TINY.replace(order=order), data, CPU).eval()
    assert model.draw(tmp_path / "a.png", 3, "valid") == tmp_path / "a.png"
    ((figure, path),) = drawn
    assert path == tmp_path / "a.png"
    assert len(figure.axes) == 6
    (caption,) = figure.texts
    assert ("the fixed order" in caption.get_text().replace("\n", " ")) == (order == "left-to-right")
