"""Images of the k-subset tasks: files that are whole and files that are not, and made-up digits."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from gumtrace_experiments.kset.data import PIXELS, load
from gumtrace_experiments.kset.synthetic import generate

FOLDER = os.environ.get("GUMTRACE_MNIST")


def arrays(train=40, test=12):
    """As MNIST has them, sorted by digit; the first pixel says which image it is."""
    rng = np.random.default_rng(0)
    made = {}
    for part, count in (("train", train), ("test", test)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        images[:, 0, 0], images[:, 0, 1] = np.arange(count), 255
        made |= {f"{part}_images": images, f"{part}_labels": np.sort(np.arange(count) % 10).astype(np.uint8)}
    return made


def written(folder, content, name="mnist.npz"):
    np.savez_compressed(folder / name, **content)
    return folder / name


def test_a_file_is_shuffled_and_split_always_alike(tmp_path):
    made = arrays()
    written(tmp_path, made)
    data = load(tmp_path, "mnist", valid_size=10, synthetic_size=1)
    assert [len(split.labels) for split in (data.train, data.valid, data.test)] == [30, 10, 12]
    which = torch.cat([data.train.images[:, 0], data.valid.images[:, 0]])
    assert sorted(which.tolist()) == list(range(40))
    assert which.tolist() != list(range(40))
    labels = torch.cat([data.train.labels, data.valid.labels])
    assert labels.tolist() == made["train_labels"][which.numpy()].tolist()  # images keep their digits
    images = torch.cat([data.train.images, data.valid.images]).numpy()
    np.testing.assert_array_equal(images, made["train_images"].reshape(40, PIXELS)[which.numpy()])
    np.testing.assert_array_equal(data.test.images.numpy(), made["test_images"].reshape(12, PIXELS))
    again = load(tmp_path, "mnist", valid_size=10, synthetic_size=1)
    assert torch.equal(again.train.images, data.train.images)
    batch = data.train.batch(torch.tensor([3, 5]))
    torch.testing.assert_close(batch.images, data.train.images[[3, 5]] / 255)
    assert batch.images.max() == 1
    assert torch.equal(torch.cat([part.labels for part in data.test.chunks(5)]), data.test.labels)


def changed(**changes):
    return lambda made: {**made, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: {k: v for k, v in made.items() if k != "test_labels"}, "has no test_labels: expected the arrays"),
        (
            changed(train_images=np.zeros((40, 784), np.uint8)),
            r"train_images must be uint8 of shape \(n, 28, 28\), got uint8 of shape \(40, 784\)",
        ),
        (changed(train_images=np.zeros((40, 28, 28), np.float32)), "train_images must be uint8 .* got float32"),
        (changed(test_images=np.zeros((0, 28, 28), np.uint8)), "test_images must be uint8"),
        (changed(test_images=np.uint8(3)), r"test_images must be uint8 .* of shape \(\)"),
        (changed(train_labels=np.zeros(39, np.uint8)), "train_labels must be 40 whole numbers, .* got uint8"),
        (changed(train_labels=np.zeros(40)), "train_labels must be 40 whole numbers, one for each image, got float64"),
        (changed(test_labels=np.full(12, 10)), "test_labels must be digits, got 10 to 10"),
        (changed(test_labels=np.full(12, -1)), "test_labels must be digits, got -1 to -1"),
        (changed(test_images=np.ones((12, 28, 28), np.uint8)), "test_images must have grey values up to 255, got at"),
    ],
)
def test_a_file_of_something_else_is_refused(change, message, tmp_path):
    path = written(tmp_path, change(arrays()))
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path, "mnist", 10, 1)
    assert str(path) in str(error.value)


def test_a_damaged_file_is_refused(tmp_path):
    whole = written(tmp_path, arrays()).read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes(255 - x for x in whole[middle : middle + 40]) + whole[middle + 40 :]
    np.save(tmp_path / "single.npy", np.zeros(3))
    single = (tmp_path / "single.npy").read_bytes()
    for content in (b"", b"no archive", whole[:-100], whole[:middle], flipped, single):
        (tmp_path / "mnist.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"mnist.npz is damaged, or no .npz file"):
            load(tmp_path, "mnist", 10, 1)


def test_pickles_are_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    written(tmp_path, {**arrays(), "test_labels": np.array([Bomb()], object)})
    with pytest.raises(ValueError, match=r"mnist.npz is damaged, or no .npz file"):
        load(tmp_path, "mnist", 10, 1)
    assert not (tmp_path / "executed").exists()


def test_a_missing_file_and_too_large_a_validation_set(tmp_path):
    with pytest.raises(
        ValueError, match=r"mnist.npz not found. .*--data, or train on made-up digits with --digits syn"
    ):
        load(tmp_path, "mnist", 10, 1)
    written(tmp_path, arrays())
    with pytest.raises(ValueError, match="valid_size must be less than the 40 images"):
        load(tmp_path, "mnist", 40, 1)


def test_made_up_digits(tmp_path, capsys):
    data = load(tmp_path, "synthetic", valid_size=10, synthetic_size=400)
    assert [len(split.labels) for split in (data.train, data.valid, data.test)] == [400, 100, 100]
    assert "400 made-up digits to train with" in capsys.readouterr().err
    assert sorted(set(data.train.labels.tolist())) == list(range(10))
    assert data.train.images.max() > 200
    assert not torch.equal(data.valid.images, data.test.images)
    # An 8 has all bars, a 1 has two of them.
    ink = data.train.images.sum(-1, dtype=torch.float32)
    assert ink[data.train.labels == 8].mean() > 2 * ink[data.train.labels == 1].mean()
    images, labels = (torch.stack(pair) for pair in zip(*(made(seed) for seed in (0, 0, 1)), strict=True))
    assert torch.equal(images[0], images[1])
    assert not torch.equal(labels[0], labels[2])


def made(seed):
    return generate(20, torch.Generator().manual_seed(seed))


@pytest.mark.skipif(FOLDER is None, reason="needs MNIST: GUMTRACE_MNIST=FOLDER")
def test_mnist():
    data = load(FOLDER or "", "mnist", 5000, 1)
    assert [len(split.labels) for split in (data.train, data.valid, data.test)] == [55_000, 5_000, 10_000]
    assert data.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    first = data.train.labels[:1000].bincount(minlength=10)
    assert first.min() > 50  # it is shuffled
