"""The data of the ListOps experiment: the splits and the cache."""

import sys

import networkx as nx
import numpy as np
import pytest
import torch
from listops_oracle import rewritten

from gumtrace_experiments.listops import data, sampling
from gumtrace_experiments.listops.data import ListOps, generate, load
from gumtrace_experiments.listops.expressions import depths, evaluate, parse, unparse
from gumtrace_experiments.listops.sampling import SAMPLED

SMALL = {"sizes": (40, 20, 10), "progress": False}


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch):
    """These sets are small."""
    monkeypatch.setattr(sampling, "CHUNK", 2000)


def splits(made: ListOps):
    return made.train, made.valid, made.test


def everything(made: ListOps):
    return [tensor for split in splits(made) for tensor in split]


def same(first: ListOps, second: ListOps):
    return all(a.equal(b) for a, b in zip(everything(first), everything(second), strict=True))


def texts(split):
    return [unparse(tokens) for tokens in split.tokens]


@pytest.mark.parametrize("sizes", [(40, 20, 10), (13, 7, 1)])
def test_as_many_of_every_depth(sizes):
    for split, size in zip(splits(generate(sizes=sizes, progress=False)), sizes, strict=True):
        counts = np.bincount(depths(split.tokens.numpy()), minlength=6)
        assert counts[0] == 0
        assert counts.sum() == size
        assert counts[1:].max() - counts[1:].min() <= 1


def test_shapes_and_types():
    for split, size in zip(splits(generate(**SMALL)), SMALL["sizes"], strict=True):
        assert split.tokens.shape == split.heads.shape == (size, 50)
        assert split.lengths.shape == split.answers.shape == (size,)
        assert [tensor.dtype for tensor in split] == [torch.uint8, torch.int64, torch.int64, torch.int16]


def test_nothing_else_is_kept():
    """A tensor may be a view of a larger one, which would go into the cache with it."""
    for tensor in everything(generate(**SMALL)):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_expressions_are_what_they_should_be():
    """Lengths, operators, values and heads, all from the text."""
    for split in splits(generate(sizes=(200, 50, 50), progress=False)):
        for text, tokens, length, answer, head in zip(texts(split), *split, strict=True):
            words = text.split()
            assert 10 <= len(words) == length <= 50
            assert tokens[length:].eq(0).all()
            assert set(words) <= {*"0123456789", "]", *SAMPLED}
            assert answer == rewritten(text) == evaluate(tokens)
            assert head[:length].tolist() == parse(text).heads.tolist()
            assert head[length:].eq(-2).all()
            edges = [(h, place) for place, h in enumerate(head[:length].tolist())]
            assert edges.pop(0) == (-1, 0)
            assert nx.is_arborescence(nx.DiGraph(edges))


def test_other_lengths_and_depths():
    for split in splits(generate(sizes=(20, 10, 10), lengths=(7, 9), depths=(2, 1), progress=False)):
        assert split.tokens.shape[1] == 9
        assert split.lengths.min() >= 7
        assert set(depths(split.tokens.numpy())) == {1, 2}


def test_no_expression_comes_twice():
    """Of length 4 there are 300, so few that they would."""
    made = generate(sizes=(100, 100, 80), lengths=(4, 4), depths=(1,), progress=False)
    assert len({text for split in splits(made) for text in texts(split)}) == 280


def test_depths_are_mixed():
    found = depths(generate(sizes=(500, 5, 5), progress=False).train.tokens.numpy())
    assert set(found[:50]) == {1, 2, 3, 4, 5}  # false alarm: less than one in 10 000
    assert set(found[-50:]) == {1, 2, 3, 4, 5}


def test_a_seed_gives_the_same_data():
    first = generate(**SMALL)
    assert same(first, generate(**SMALL))
    other = generate(**SMALL, seed=1)
    assert not {*texts(first.train)} & {*texts(other.train)}  # not the same in another order


def test_a_depth_does_not_depend_on_the_others():
    every, alone = generate(sizes=(20, 1, 1), progress=False), generate(sizes=(4, 1, 1), depths=(3,), progress=False)
    assert {text for text in texts(every.train) if parse(text).depth == 3} == set(texts(alone.train))


def test_progress_is_for_terminals(capsys, monkeypatch):
    generate(**{**SMALL, "progress": True})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    generate(**SMALL)
    assert capsys.readouterr().err == ""
    generate(**{**SMALL, "progress": True})
    assert "70/70" in capsys.readouterr().err


def test_moves_to_a_device():
    assert all(tensor.device.type == "meta" for tensor in everything(generate(**SMALL).to("meta")))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": (5, 5)}, "three positive numbers"),
        ({"sizes": (5, 5, 0)}, "three positive numbers"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"lengths": (10,)}, "the least and the greatest one"),
        ({"lengths": (50, 10)}, "the least and the greatest one"),
        ({"lengths": (0, 50)}, "the least and the greatest one"),
        ({"lengths": (10, 15)}, "depth 5 needs at least 16 tokens, got lengths up to 15"),
        ({"depths": ()}, "different positive numbers"),
        ({"depths": (0, 1)}, "different positive numbers"),
        ({"depths": (1, 2, 1)}, "different positive numbers"),
    ],
)
def test_arguments_that_make_no_sense(wrong, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        generate(**wrong)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "folder", **wrong)
    assert not (tmp_path / "folder").exists()


def test_cache_is_read_back(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "folder"
    first = load(folder, **SMALL)
    assert same(first, generate(**SMALL))
    assert len(list(folder.iterdir())) == 1
    other = load(folder, **{**SMALL, "sizes": np.array(SMALL["sizes"])}, seed=np.int64(1), lengths=[10, 50])
    assert not same(first, other)
    monkeypatch.setattr(data, "generate", None)  # nothing is made again
    assert same(first, load(folder, **SMALL))
    assert same(other, load(str(folder), **SMALL, seed=1))


def test_every_argument_has_a_file_of_its_own(tmp_path):
    for other in ({}, {"seed": 1}, {"sizes": (40, 20, 11)}, {"lengths": (11, 50)}, {"depths": (1, 2)}):
        load(tmp_path, **{**SMALL, **other})
    assert len(list(tmp_path.iterdir())) == 5
