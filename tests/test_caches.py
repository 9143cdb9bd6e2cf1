"""Cached data sets that are damaged, or not what they should be: for each experiment that generates its data."""

import pytest
import torch

from gumtrace.experiments.graph_layout import data as graph_layout
from gumtrace.experiments.listops import data as listops
from gumtrace.experiments.listops import sampling

SMALL = {
    graph_layout: {"frames": 3, "nodes": 5, "sizes": (40, 20, 10), "progress": False},
    listops: {"sizes": (40, 20, 10), "progress": False},
}


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch):
    """These sets are small."""
    monkeypatch.setattr(sampling, "CHUNK", 2000)


@pytest.fixture(params=SMALL, ids=lambda module: module.__name__.split(".")[-2])
def data(request):
    return request.param


@pytest.fixture
def load(data, tmp_path):
    return lambda **other: data.load(tmp_path, **SMALL[data], **other)


@pytest.fixture
def path(load, tmp_path):
    """Of the one file in the cache."""
    load()
    (path,) = tmp_path.iterdir()
    return path


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_half_a_file(load, path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=f"{path.name} cannot be used: it is damaged.* delete it"):
        load()


def test_a_file_of_something_else(load, path):
    path.write_text("positions of nodes\n")
    with pytest.raises(ValueError, match=r"damaged, or no file of torch\.save"):
        load()
    for other in (torch.zeros(3), {"weight": torch.zeros(3)}):
        torch.save(other, path)
        with pytest.raises(ValueError, match=r"holds something else.* delete it"):
            load()


def test_a_file_of_another_format(data, load, path, monkeypatch):
    monkeypatch.setattr(data, "FORMAT", data.FORMAT + 1)
    with pytest.raises(ValueError, match=f"its format {data.FORMAT - 1} should be {data.FORMAT}; delete it"):
        load()


def test_a_file_of_other_arguments(load, path):
    load(seed=1)
    (other,) = set(path.parent.iterdir()) - {path}
    other.replace(path)
    with pytest.raises(ValueError, match=r"its arguments .*'seed': 1.* should be .*'seed': 0.*; delete it"):
        load()


def test_a_write_that_fails_leaves_nothing(load, tmp_path, monkeypatch):
    def save(content, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        load()
    assert not list(tmp_path.iterdir())
