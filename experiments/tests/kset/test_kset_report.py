"""How the k-subset tasks are reported: tables beside what others print, pictures, and the commands that make them."""

import math

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from gumtrace_experiments import find, train
from gumtrace_experiments.commands import main
from gumtrace_experiments.kset.data import load
from gumtrace_experiments.report.records import Record, collect
from gumtrace_experiments.report.tables import build

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Autoencoder, Features, Neighbours = (find(f"kset-{task}") for task in ("autoencoder", "features", "neighbours"))
SMALL = {"digits": "synthetic", "synthetic_size": 60, "width": 8, "calls": 24, "iterations": 2, "evaluate_every": 2}


@pytest.fixture(scope="module")
def data():
    return load("", "synthetic", 1, 60)


@pytest.fixture
def saved(monkeypatch):
    """Figures, drawn and not written."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: (self.canvas.draw(), kept.append(self)))
    return kept


# --- tables ---


def record(loss, **settings):
    config = Autoencoder.config_type(estimator="StraightThrough", **settings).to_dict()
    metrics = {"objective": -loss, "loss": loss, "cross_entropy": loss - 1, "kl": 100.0, "bound": loss + 99}
    result = {"iteration": 600, "valid": metrics, "test": metrics, "seconds": 1.0, "gradient_std": {}}
    curve = {"iteration": [600], **{name: [value] for name, value in metrics.items()}}
    return Record(Autoencoder.name, config, {"device": "cpu"}, result, curve)


@pytest.mark.parametrize(
    ("settings", "title", "published"),
    [
        ({}, "20 subsets of 10 out of 20 keys, logits × 5", "60.21"),
        ({"iterations": 600, "logit_scale": 1.0}, "logits × 1, short runs of 600 updates", "79.86"),
        ({"iterations": 1800}, "logits × 5, short runs of 1,800 updates", "70.80"),
        ({"iterations": 2400}, "short runs of 2,400 updates", None),
        ({"iterations": 601}, "short runs of 601 updates", None),
        ({"kl": "noise", "kl_weight": 1.0}, "logits × 5, kl = noise, kl_weight = 1.0", None),
        ({"rows": 10, "columns": 10, "subset_size": 5}, "10 subsets of 5 out of 10 keys, logits × 5", None),
        ({"digits": "synthetic"}, "made-up digits, no handwriting", None),
        ({"digits": "letters"}, "images of letters", None),
    ],
)
def test_the_published_loss_is_beside_runs_like_it(settings, title, published):
    tables, notes = build(
        [record(61.5, **settings), record(62.5, **settings, seed=1)], Autoencoder.report(), "objective"
    )
    assert tables[0].title.endswith(title)
    rows = [[cell.text for cell in row] for row in tables[0].rows]
    assert rows[-1][:4] == ["Straight-through (K = 10)", "ours", "62.00 ± 0.71", "61.50"]
    if published is None:
        assert len(rows) == 1
    else:
        assert rows[0][:6] == ["Adaptive I-MLE", "its repository", published, published, "–", "–"]
    assert tables[0].head[2] == "I-MLE's loss"
    assert "chosen by objective on validation" in notes[0]


def test_other_images_and_budgets_have_a_table_of_their_own():
    for task in (Features, Neighbours):
        block = task.report().block
        usual = task.config_type()
        assert block(usual.to_dict()).key == ()
        assert block(usual.replace(synthetic_size=7, lr=0.1, samples=2).to_dict()).key == ()
        for odd in ({"iterations": 7}, {"digits": "synthetic"}, {"subset_size": 3}, {"calls": 64}):
            assert block(usual.replace(**odd).to_dict()).key != ()
    block = Features.report().block
    assert block(Features.config_type(selector="instance").to_dict()).title == "50 pixels, one choice for each image"
    assert block(Features.config_type().to_dict()).title == "50 pixels, one choice for all images"
    title = Neighbours.report().block(Neighbours.config_type(iterations=2000).to_dict()).title
    assert title == "10 neighbours of 128, 2 dimensions, short runs of 2,000 updates"


# --- pictures ---


def shown(ax):
    return ax.images[0].get_array().data


def test_pictures_of_codes(data, saved, tmp_path):
    config = Autoencoder.config_type(**SMALL, rows=3, columns=5, subset_size=2)
    model = Autoencoder.build(config, data, CPU)
    assert model.draw(tmp_path / "a.png", 4, "test") == tmp_path / "a.png"
    (figure,) = saved
    axes = np.reshape(figure.axes, (3, 4))
    for place, (image, code, made) in enumerate(axes.T):
        np.testing.assert_allclose(shown(image), data.test.images[place].reshape(28, 28) / 255, rtol=1e-6)
        assert shown(code).shape == (3, 5)
        assert (shown(code).sum(-1) == 2).all()
        with torch.no_grad():
            expected = model.decoder(torch.tensor(shown(code)).flatten()).sigmoid()
        np.testing.assert_allclose(shown(made).ravel(), expected, rtol=1e-5)
    assert model.training


@pytest.mark.parametrize("selector", ["global", "instance"])
def test_pictures_of_pixels(selector, data, saved, tmp_path):
    model = Features.build(Features.config_type(**SMALL, subset_size=9, selector=selector), data, CPU)
    if selector == "global":
        with torch.no_grad():
            model.selector.logits.copy_(torch.arange(784.0))  # the largest are the last
    model.draw(tmp_path / "a.png", 3, "valid")
    (figure,) = saved
    same = int(selector == "global")
    axes = np.reshape(figure.axes, (2, 3 + same))
    marks = [ax.collections[0].get_offsets().data for ax in (axes[1, 0], *axes[0, 1:])] if same else []
    for points in marks:
        assert {(int(x), int(y)) for x, y in points} == {(x, 27) for x in range(19, 28)}
    for place in range(3):
        above, below = axes[:, place + same]
        image = data.valid.images[place].reshape(28, 28).numpy() / 255
        np.testing.assert_allclose(shown(above), image, rtol=1e-6)
        kept = np.zeros((28, 28))
        for x, y in above.collections[0].get_offsets().data.astype(int):
            kept[y, x] = 1
        assert kept.sum() == 9
        np.testing.assert_allclose(shown(below), image * kept, rtol=1e-6)
        assert above.get_title().startswith("read as ")


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_pictures_of_the_plane(dimensions, data, saved, tmp_path):
    config = Neighbours.config_type(**SMALL, candidates=12, subset_size=3, dimensions=dimensions)
    model = Neighbours.build(config, data, CPU)
    model.draw(tmp_path / "a.png", 3, "test")
    (figure,) = saved
    (ax,) = figure.axes
    with torch.no_grad():
        points = model.encoder(data.test.images / 255)
    for digit, dots in enumerate(ax.collections):
        own = points[data.test.labels == digit]
        second = own[:, 1] if dimensions > 1 else torch.zeros(len(own))
        np.testing.assert_allclose(dots.get_offsets().data.reshape(-1, 2), torch.stack([own[:, 0], second], -1))
    assert len(ax.collections) == 10


# --- the commands ---


@pytest.mark.slow
def test_commands(tmp_path, capsys, monkeypatch, data):
    """One command each; a run on a file, and one on made-up digits without it."""
    monkeypatch.chdir(tmp_path)
    few = ["--width", "8", "--calls", "24", "--iterations", "4", "--evaluate-every", "2", "--synthetic-size", "60"]
    for task in (Autoencoder, Features, Neighbours):
        assert main(["train", task.name, "--smoke", *few]) == 0
        assert "made-up digits to train with, and no handwriting" in capsys.readouterr().err
        assert main(["table", task.name]) == 0
        assert "made-up digits, no handwriting" in " ".join(capsys.readouterr().out.split())
        (seed,) = tmp_path.glob(f"runs/{task.name}/*/seed-0")
        assert main(["plot", task.name, "--run", str(seed), "--count", "2"]) == 0
        assert (tmp_path / "plots" / task.name / "found.png").read_bytes().startswith(b"\x89PNG")
        assert main(["plot", task.name, "--out", "curves"]) == 0
        capsys.readouterr()
    assert main(["train", "kset-features", *few]) == 2
    assert "mnist.npz not found" in capsys.readouterr().err
    arrays = {}
    for part, split in (("train", data.train), ("test", data.test)):
        arrays |= {f"{part}_images": split.images.reshape(-1, 28, 28).numpy(), f"{part}_labels": split.labels.numpy()}
    np.savez_compressed(tmp_path / "mnist.npz", **arrays)
    options = ["--data", str(tmp_path), "--valid-size", "20"]
    assert main(["train", "kset-features", *few, *options]) == 0
    assert capsys.readouterr().err == ""


def test_a_record_has_finite_numbers(tmp_path):
    config = Autoencoder.config_type(**SMALL, rows=3, columns=5, subset_size=2)
    train(Autoencoder, config, tmp_path, progress=False)
    (found,) = collect([tmp_path])
    assert found.result is not None
    assert all(math.isfinite(x) for split in ("valid", "test") for x in found.result[split].values())
    assert {column.metric for column in Autoencoder.report().columns} <= found.result["test"].keys()
