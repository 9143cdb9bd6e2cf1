"""The data of the graph layout experiment: frames against networkx, trees against their law, the cache."""

import sys

import networkx as nx
import numpy as np
import pytest
import torch

from gumtrace_experiments.graph_layout import data
from gumtrace_experiments.graph_layout.data import Layouts, generate, layout_step, load, random_trees, simulate

SMALL = {"frames": 3, "nodes": 5, "sizes": (40, 20, 10), "progress": False}


def by_networkx(start, tree, frames):
    """(frames, n, 2): `spring_layout` called once a frame."""
    graph = nx.from_numpy_array(tree.numpy())
    position, found = dict(enumerate(start.numpy())), []
    for _ in range(frames):
        position = nx.spring_layout(
            graph, pos=position, iterations=1, threshold=1e-10, center=(0, 0), scale=1, dim=2, method="force"
        )
        found.append(np.stack([position[node] for node in range(len(start))]))
    return torch.from_numpy(np.stack(found))


def agrees(start, trees, frames=10):
    expected = torch.stack([by_networkx(*item, frames) for item in zip(start, trees, strict=True)])
    found = simulate(start, trees, frames)
    # Coordinates are of order one. Rounding errors grow with the frames: to 2e-12 in the tenth, on 1000 trees.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layout_step(start, trees), expected[:, 0], rtol=1e-12, atol=1e-13)


def starts(count, nodes, seed=0):
    return torch.randn(count, nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("nodes", [2, 5, 10])
def test_frames_are_those_of_networkx(nodes):
    agrees(starts(30, nodes), random_trees(30, nodes, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("graph", [nx.star_graph(9), nx.path_graph(10), nx.complete_graph(10), nx.empty_graph(10)])
def test_graphs_of_other_kinds(graph):
    adjacency = torch.from_numpy(nx.to_numpy_array(graph)).expand(3, -1, -1)
    agrees(starts(3, 10), adjacency)


def test_starts_far_out_and_off_the_centre():
    trees = random_trees(3, 6, torch.Generator().manual_seed(1))
    agrees(starts(3, 6) * torch.tensor([0.01, 1, 100])[:, None, None] + 50, trees)


def test_nodes_in_one_place():
    start = starts(4, 6)
    start[:2, 3] = start[:2, 1]  # two of them
    start[2, 3] = start[2, 1] + 1e-3  # nearer than the least distance that counts
    start[3] = 0  # all: there is nothing to scale by
    trees = torch.from_numpy(nx.to_numpy_array(nx.path_graph(6))).expand(4, -1, -1)
    agrees(start, trees)
    assert simulate(start, trees, 2)[3].eq(0).all()


def test_a_push_too_weak_for_a_whole_step():
    """Node 0 stands where the forces of its two neighbours almost cancel."""
    start = torch.tensor([[[1e-4, 0.0], [0.5, 0.0], [-0.5, 0.0]]], dtype=torch.float64)
    agrees(start, torch.tensor([[[0, 1, 1], [1, 0, 0], [1, 0, 0]]]), frames=1)


def test_a_sequence_does_not_depend_on_its_batch():
    start, trees = starts(100, 10), random_trees(100, 10, torch.Generator().manual_seed(1))
    whole = simulate(start, trees, 10)
    for size in (1, 7, 64):
        pieces = [simulate(*piece, 10) for piece in zip(start.split(size), trees.split(size), strict=True)]
        assert torch.cat(pieces).equal(whole)  # to the last bit


def test_simulation_leaves_its_arguments_alone():
    start, trees = starts(3, 5), random_trees(3, 5)
    kept = start.clone(), trees.clone()
    simulate(start, trees, 2)
    layout_step(start, trees)
    assert start.equal(kept[0])
    assert trees.equal(kept[1])


def test_trees_span():
    trees = random_trees(200, 10, torch.Generator().manual_seed(0))
    assert trees.shape == (200, 10, 10)
    assert all(nx.is_tree(nx.from_numpy_array(tree.numpy())) for tree in trees)
    assert trees.equal(trees.mT)


def test_trees_have_the_law_of_minimum_spanning_trees():
    """Of four nodes: the second edge meets the first in 4 of 5 cases, and then 1 of 3 edges makes a star. Uniformly
    drawn trees would be stars in 1 of 4 cases, nine standard errors away. All edges are alike. False alarm: less than
    one in 100 000."""
    count = 60_000
    trees = random_trees(count, 4, torch.Generator().manual_seed(0)).double()
    stars = trees.sum(-1).eq(3).any(-1).double().mean().item()
    assert abs(stars - 4 / 15) < 4.9 * (4 / 15 * 11 / 15 / count) ** 0.5
    edges = trees.mean(0)[torch.triu_indices(4, 4, 1).unbind()]  # (6,)
    assert (edges - 1 / 2).abs().max() < 4.9 * (1 / 4 / count) ** 0.5


def test_shapes_and_types():
    layouts = generate(**SMALL)
    for split, size in zip((layouts.train, layouts.valid, layouts.test), SMALL["sizes"], strict=True):
        assert split.positions.shape == (size, 3, 5, 2)
        assert split.positions.dtype == torch.float32
        assert split.trees.shape == (size, 5, 5)
        assert split.trees.dtype == torch.bool


def test_frames_follow_from_each_other_by_the_trees_of_their_split():
    layouts = generate(**SMALL)
    scale, shift = scaling(layouts)
    for split in (layouts.train, layouts.valid, layouts.test):
        position = (split.positions.double() - shift) / scale
        after = layout_step(position[:, 0], split.trees)
        assert (after - position[:, 1]).abs().max() < 1e-4  # float32; another tree moves nodes by a tenth


def scaling(layouts):
    """What has become of a frame's largest coordinate, which was 1, and of its mean, which was 0."""
    frames = layouts.train.positions.double()
    shift = frames.mean().item()
    return (frames - shift).abs().max().item(), shift


def test_training_set_sets_the_scale():
    """Large sets reach -1 and 1 before they are scaled. This one, a single sequence of two frames, does not."""
    layouts = generate(frames=2, nodes=5, sizes=(1, 200, 200), seed=3, progress=False)
    assert layouts.train.positions.min() == -1
    assert layouts.train.positions.max() == 1
    scale, shift = scaling(layouts)
    assert scale > 1.1
    for split in (layouts.train, layouts.valid, layouts.test):
        frames = split.positions.double() - shift
        torch.testing.assert_close(frames.mean(-2), torch.zeros(len(frames), 2, 2).double(), rtol=0, atol=1e-6)
        largest = frames.abs().amax((-2, -1))
        torch.testing.assert_close(largest, torch.full_like(largest, scale), rtol=0, atol=1e-6)


def everything(layouts: Layouts):
    return [tensor for split in (layouts.train, layouts.valid, layouts.test) for tensor in split]


def same(first: Layouts, second: Layouts):
    return all(a.equal(b) for a, b in zip(everything(first), everything(second), strict=True))


def test_a_seed_gives_the_same_data_whatever_the_chunks(monkeypatch):
    first = generate(**SMALL)
    assert same(first, generate(**SMALL))
    assert not same(first, generate(**SMALL, seed=1))
    for chunk in (1, 70, 400):  # coordinates, ten a sequence
        monkeypatch.setattr(data, "CHUNK", chunk)
        assert same(first, generate(**SMALL))


def test_splits_differ():
    layouts = generate(frames=2, nodes=5, sizes=(10, 10, 10), progress=False)
    splits = (layouts.train, layouts.valid, layouts.test)
    sequences = torch.cat([split.positions for split in splits]).flatten(1)
    assert len(sequences.unique(dim=0)) == 30
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not splits[a].trees.equal(splits[b].trees)


def test_progress_is_for_terminals(capsys, monkeypatch):
    generate(**{**SMALL, "progress": True})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    generate(**SMALL)
    assert capsys.readouterr().err == ""
    generate(**{**SMALL, "progress": True})
    assert "70/70" in capsys.readouterr().err


def test_moves_to_a_device():
    assert all(tensor.device.type == "meta" for tensor in everything(generate(**SMALL).to("meta")))


def test_cache_is_read_back(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "folder"
    first = load(folder, **SMALL)
    assert same(first, generate(**SMALL))
    assert len(list(folder.iterdir())) == 1
    other = load(folder, **{**SMALL, "sizes": np.array(SMALL["sizes"])}, seed=np.int64(1))
    assert not same(first, other)
    monkeypatch.setattr(data, "generate", None)  # nothing is made again
    assert same(first, load(folder, **SMALL))
    assert same(other, load(str(folder), **SMALL, seed=1))
    with pytest.raises(TypeError, match=r"must be an integer, got 40\.5"):  # not rounded to a file that is there
        load(folder, **{**SMALL, "sizes": (40.5, 20, 10)})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"frames": 1}, "frames must be at least 2, got 1"),
        ({"nodes": 1}, "nodes must be at least 2, got 1"),
        ({"sizes": (5, 5)}, "three positive numbers"),
        ({"sizes": (5, 5, 0)}, "three positive numbers"),
    ],
)
def test_arguments_that_make_no_sense(wrong, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        generate(**wrong)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "folder", **wrong)
    assert not (tmp_path / "folder").exists()
