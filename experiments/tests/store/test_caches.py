"""Cached data sets that are damaged, or not what they should be: for each experiment that generates its data."""

from functools import partial

import pytest
import torch

from gumtrace_experiments.graph_layout import data as graph_layout
from gumtrace_experiments.listops import data as listops
from gumtrace_experiments.listops import sampling
from gumtrace_experiments.store.archives import unpacked

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


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(data, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "generate", lambda *_, **__: pytest.fail("it was made"))
    (tmp_path / "data").write_text("")
    with pytest.raises(ValueError, match=f"cannot write into {tmp_path / 'data'}: it is a file; choose another --data"):
        data.load(tmp_path / "data", **SMALL[data])


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_half_a_file(load, path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=f"{path.name} cannot be used: it is damaged.* delete it"):
        load()


def test_a_file_of_something_else(load, path):
    path.write_text("positions of nodes\n")
    with pytest.raises(ValueError, match=r"damaged, or was not written by torch\.save"):
        load()
    for other in (torch.zeros(3), {"weight": torch.zeros(3)}):
        torch.save(other, path)
        with pytest.raises(ValueError, match=r"holds something else.* delete it"):
            load()


def test_a_file_of_another_format(data, load, path, monkeypatch):
    monkeypatch.setattr(data, "FORMAT", data.FORMAT + 1)
    with pytest.raises(ValueError, match=f"its format must be {data.FORMAT}, got {data.FORMAT - 1}; delete it"):
        load()


def test_a_file_of_other_arguments(load, path):
    load(seed=1)
    (other,) = set(path.parent.iterdir()) - {path}
    other.replace(path)
    with pytest.raises(ValueError, match=r"its arguments must be .*'seed': 0.*, got .*'seed': 1.*; delete it"):
        load()


def test_a_write_that_fails_leaves_nothing(load, tmp_path, monkeypatch):
    def save(content, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        load()
    assert not list(tmp_path.iterdir())


def change(split, name, make):
    return lambda content: content[split].update({name: make(content[split].get(name))})


CACHES = {
    (graph_layout, "no split"): lambda content: content.pop("valid"),
    (graph_layout, "another split"): lambda content: content.update(valid=[]),
    (graph_layout, "no trees"): lambda content: content["train"].pop("trees"),
    (graph_layout, "other frames"): change("train", "positions", lambda x: x[:, 1:].clone()),
    (graph_layout, "float64"): change("test", "positions", lambda x: x.double()),
    (graph_layout, "stretched"): change("train", "positions", lambda x: torch.zeros(()).expand(x.shape)),
    (graph_layout, "nowhere"): change("train", "positions", lambda x: x.to("meta")),
    (graph_layout, "nan"): change("valid", "positions", lambda x: x.mul(torch.nan)),
    (graph_layout, "arguments of tensors"): lambda content: content.update(arguments=torch.ones(3)),
    (listops, "a token that there is not"): change("train", "tokens", lambda x: x.fill_(255)),
    (listops, "too long"): change("train", "lengths", lambda x: x + 100),
    (listops, "no digit"): change("valid", "answers", lambda x: x - 10),
    (listops, "a head outside"): change("test", "heads", lambda x: x + 50),
    (listops, "other integers"): change("test", "heads", lambda x: x.long()),
}


@pytest.mark.parametrize("case", CACHES, ids=lambda case: case[1])
def test_data_sets_that_nobody_would_write(case, tmp_path):
    load = partial(case[0].load, tmp_path, **SMALL[case[0]])
    made, again = load(), load()
    for one, other in ((made.train, again.train), (made.valid, again.valid), (made.test, again.test)):
        assert all(map(torch.equal, one, other))
    (path,) = tmp_path.iterdir()
    content = unpacked(path.read_bytes())
    CACHES[case](content)
    torch.save(content, path)
    with pytest.raises(
        ValueError, match=rf"{path.name} cannot be used: .*; delete it, and it will be made again"
    ) as error:
        load()
    assert len(str(error.value).splitlines()) == 1


def test_a_wrong_checksum(load, path):
    """One bit of some number."""
    content = bytearray(path.read_bytes())
    numbers = next(iter(unpacked(content)["train"].values())).numpy().tobytes()
    content[content.index(numbers) + len(numbers) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it is damaged"):
        load()
