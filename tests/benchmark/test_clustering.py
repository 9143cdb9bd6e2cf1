"""The comparison of clusterings: its parts, a small run of it, and what the recorded one shows."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from common import seeded

spec = spec_from_file_location("clustering", Path(__file__).parents[2] / "benchmarks" / "clustering.py")
clustering = module_from_spec(spec)
spec.loader.exec_module(clustering)

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = clustering.Settings(train=4, test=3, points=20, steps=3, batch=2, samples=2)


def test_adjusted_rand_index():
    a = torch.tensor([0, 0, 1, 1, 2, 2])
    assert clustering.adjusted_rand(a, torch.tensor([2, 2, 0, 0, 1, 1])) == 1
    # By hand: 3 and 4 pairs of 15, 2 of them in both; by chance 3 · 4 / 15, at most (3 + 4) / 2.
    b = torch.tensor([0, 0, 1, 2, 2, 2])
    assert clustering.adjusted_rand(a, b) == pytest.approx((2 - 0.8) / (3.5 - 0.8))
    g = seeded()
    mean = np.mean([clustering.adjusted_rand(*torch.randint(3, (2, 60), generator=g)) for _ in range(200)])
    assert abs(mean) < 0.01


def test_k_means_finds_what_is_far_apart():
    labels = torch.arange(4).repeat(10)
    x = 50 * torch.eye(4)[labels] + torch.randn(40, 4, generator=seeded())
    assert clustering.adjusted_rand(clustering.k_means(x, 4, seeded()), labels) == 1


def test_links_are_kept_where_they_can_be():
    g = seeded()
    labels = torch.randint(3, (1, 20), generator=g)
    must, cannot = clustering.known_links(labels, 0.3, g)
    assert int(must.sum() + cannot.sum()) == round(0.3 * 190)
    assert not (must & (labels[:, :, None] != labels[:, None, :])).any()
    d = clustering.forest(torch.randn(1, 20, 2, generator=g), 3).constrained(must, cannot)
    found = clustering.linked_k_means(torch.randn(20, 2, generator=g), d.must_link[0], d.cannot_link[0], 3, g)
    assert torch.equal(found[:, None] == found, (found[:, None] == found) | d.must_link[0])
    alone = clustering.groups(must)[0]
    assert torch.equal((alone[:, None] == alone) & ~torch.eye(20, dtype=torch.bool), d.must_link[0])


def test_images_are_read(tmp_path):
    g = np.random.default_rng(0)
    sizes = {"train": 30, "test": 400}
    arrays = {f"{part}_images": g.integers(0, 256, (n, 28, 28), np.uint8) for part, n in sizes.items()}
    arrays |= {f"{part}_labels": g.integers(0, 10, n, np.uint8) for part, n in sizes.items()}
    np.savez(tmp_path / "mnist.npz", **arrays)
    sets = {name: draw for name, _, draw in clustering.data_sets(tmp_path, steps=2)}
    assert list(sets) == ["blobs", "digits", "MNIST embeddings"]
    x, labels = sets["digits"](300, seeded())
    assert x.shape == (300, 49)
    assert labels.max() < 10
    assert sets["MNIST embeddings"](300, seeded())[0].shape == (300, 16)


def test_a_small_run():
    records = list(clustering.measure("blobs", 5, clustering.blobs, 0, TINY))
    assert len({r.method for r in records}) == len(records) == 9
    assert all(-1 <= r.ari <= 1 for r in records)


def test_the_recorded_run():
    """Forests with a tenth of the links are ahead of k-means by more than chance, on all three data sets."""
    results = json.loads(clustering.RESULTS.read_text())
    found = clustering.means(results["records"])
    data = {name for _, name in found}
    assert len(data) == 3
    assert results["settings"]["known"] == 0.1
    for name in data:
        (ours, error), (theirs, other) = found["forest with links, learned", name], found["k-means", name]
        assert ours - theirs > 5 * (error + other)
    shown = clustering.table(results)
    assert shown.count("**") == 2 * 3
    assert "10% of the pairs" in shown
