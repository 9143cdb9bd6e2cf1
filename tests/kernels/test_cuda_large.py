"""The Triton kernels that spread an item over several programs, on small items in smaller tiles, against those of the
CPU: on a GPU where there is one, else in the interpreter of Triton on the CPU. test_gpu_sizes.py has large items."""

import kernelcases
import pytest
import test_cuda as checks
import torch
from common import seeded
from kernelcases import DEVICE, FULL, arborescence, every, matching, on, spanning_tree

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import (
    arborescence_rows,
    arborescence_tiles,
    arborescence_trace,
    arborescence_turn,
    matching_rounds,
    matching_tiles,
    spanning_tree_ranks,
    spanning_tree_rounds,
    spanning_tree_sums,
    spanning_tree_tiles,
)
from gumtrace.kernels.cuda import ops as cuda

pytestmark = pytest.mark.device

poisoned, small_tiles = kernelcases.poisoned, kernelcases.small_tiles

GEOMETRIES = {
    "tree": spanning_tree(7),
    "tree-tiles": spanning_tree(19),
    "tree-fours": spanning_tree(20),
    "tree-two": spanning_tree(2),
    "tree-one": spanning_tree(1),
    "forest": spanning_tree(8, 3),
    "forest-tiles": spanning_tree(18, 5),
    "forest-bare": spanning_tree(6, 5),
    "arborescence": arborescence(7, 2),
    "arborescence-three": arborescence(3, 2),
    "arborescence-two": arborescence(2, 1),
    "arborescence-one": arborescence(1),
    "matching": matching(6, 6),
    "matching-wide": matching(5, 33),
    "matching-tall": matching(19, 3),
    "matching-one": matching(1, 1),
    "matching-none": matching(0, 3),
}
SEVERAL_TILES = ["tree-tiles", "forest-tiles", "matching-wide"]  # on a GPU, too
if FULL:
    GEOMETRIES["arborescence-tiles"] = arborescence(19, 2)
    SEVERAL_TILES.append("arborescence-tiles")
every_geometry = every(GEOMETRIES, SEVERAL_TILES)


def test_few_large_trees_are_shared(monkeypatch):
    monkeypatch.setattr(cuda.spanning_tree, "ONE_PROGRAM", 128)
    shared = {
        (n, items): cuda.spanning_tree._is_shared(spanning_tree(n), items)
        for n in (128, 129, 513)
        for items in (64, 192)
    }
    assert [where for where, is_shared in shared.items() if is_shared] == [(129, 64), (513, 64), (513, 192)]


@pytest.fixture(autouse=True)
def several_programs(monkeypatch):
    """For items of any size, with tiles that are smaller than they are. Reductions ask for 16 on a GPU."""
    side = 16 if DEVICE == "cuda" else 4
    monkeypatch.setattr(cuda.spanning_tree, "ONE_PROGRAM", 0)
    monkeypatch.setattr(spanning_tree_rounds, "TILE", side)
    monkeypatch.setattr(spanning_tree_ranks, "TILE", side)
    monkeypatch.setattr(spanning_tree_tiles, "SIDE", side)
    monkeypatch.setattr(spanning_tree_sums, "SIDE", side)
    monkeypatch.setattr(spanning_tree_sums, "FOLDED", side)
    monkeypatch.setattr(arborescence_turn, "ONE_PROGRAM", 0)
    monkeypatch.setattr(arborescence_turn, "SIDE", side)
    monkeypatch.setattr(arborescence_tiles, "ROWS", side)
    monkeypatch.setattr(arborescence_tiles, "COLS", side)
    monkeypatch.setattr(arborescence_rows, "SOURCES", side)
    monkeypatch.setattr(arborescence_rows, "CYCLES", 2)
    monkeypatch.setattr(cuda.matching, "ONE_PROGRAM", 0)
    monkeypatch.setattr(matching_rounds, "COLS", side)
    monkeypatch.setattr(matching_rounds, "ALONE", 20)  # so that some rows are left for the last launch
    monkeypatch.setattr(matching_rounds, "WAITING", side)
    monkeypatch.setattr(matching_tiles, "ROWS", side)
    monkeypatch.setattr(matching_tiles, "COLS", side)


@every_geometry("random", "ties", "masked", "wide")
@pytest.mark.slow
def test_traces(geometry, dtype, kind):
    checks.test_traces_are_the_same(geometry, dtype, kind)
    checks.test_sampling_is_the_trace_of_its_noise(geometry, dtype, kind)


@every_geometry("ties", "masked", "wide")
@pytest.mark.slow
def test_log_probs_and_gradients(geometry, dtype, kind):
    checks.test_log_probs_and_gradients(geometry, dtype, kind)


@every_geometry("random", "masked")
@pytest.mark.slow
def test_maps(geometry, dtype, kind):
    checks.test_maps(geometry, dtype, kind)
    checks.test_log_probs_and_gains_of_decisions(geometry, dtype, kind)


@every_geometry("masked", "wide")
@pytest.mark.slow
def test_conditional(geometry, dtype, kind):
    checks.test_conditional_gives_the_trace_back(geometry, dtype, kind)


@pytest.mark.parametrize("components", [1, 6])
def test_status_of_trees(components):
    checks.test_status_of_trees(components)


def test_trees_that_need_every_round():
    """On a path whose edges are worse the more often 2 divides them, parts join in pairs."""
    n = 16
    g = torch.full((n, n), -torch.inf)
    for v in range(1, n):
        g[v - 1, v] = -float(v & -v)
    g = g.view(1, -1)
    geometry = spanning_tree(n)
    theirs = cpu.trace(geometry, g, None)
    ours = cuda.trace(geometry, *on(DEVICE, g, None))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))
    assert (theirs[0] >= 0).all()
    x = torch.randn(1, n * n, generator=seeded(1))
    kernelcases.same(cuda.log_prob(geometry, *on(DEVICE, x, *theirs[:2]))[0], cpu.log_prob(geometry, x, *theirs[:2])[0])


@pytest.mark.parametrize("components", [1, 3])
def test_traces_that_no_run_gives(components):
    """A cycle, a loop, an edge twice, a pair below the diagonal: the guards around memory stay as they are, and what
    does not depend on the edges is finite."""
    n = 8
    geometry = spanning_tree(n, components)
    slots = geometry.winner_slots
    winners = torch.tensor(
        [[1, 2, 10, 1, 8, 0, 63], [9, 9, 9, 9, 9, 9, 9], [70, 1, 2, 3, 4, 5, 6], [7, 15, 23, 31, 39, 47, 999]],
        dtype=torch.int32,
    )[:, :slots].contiguous()
    links = torch.empty(4, 0, dtype=torch.int32)
    x = torch.randn(4, n * n, generator=seeded(1))
    here = on(DEVICE, x, winners, links)
    log_prob, kept = cuda.log_prob(geometry, *here)
    grad = cuda.log_prob_grad(geometry, *here, kept, torch.ones(4, device=DEVICE))
    assert log_prob.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_sums_of_trees_that_are_not_numbers(wrong):
    """They are added as integers, which know no such thing."""
    geometry = spanning_tree(8)
    x = torch.randn(1, 64, generator=seeded(1))
    winners, links, _ = cpu.trace(geometry, x, None)
    alpha, h = torch.zeros(1, 7), torch.ones(1, 64)
    h[0, winners[0, 3]] = wrong
    ours = cuda.to_decisions(geometry, *on(DEVICE, winners, links, alpha, x, h)).cpu()
    theirs = cpu.to_decisions(geometry, winners, links, alpha, x, h)
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    assert ours.isfinite().sum() == 3
    kernelcases.same(ours[:, 4:], theirs[:, 4:])


@pytest.mark.parametrize(("rounds", "turns"), [(1, 8), (5, 8), (1, 1), (1, 30)])  # 0 turns crash Triton 3.6
def test_matchings_where_rows_agree(rounds, turns, monkeypatch):
    """On what is best: one row a round finds its column, and all others are left."""
    monkeypatch.setattr(matching_rounds, "rounds_of", lambda n, m: rounds)
    monkeypatch.setattr(matching_rounds, "TURNS", turns)
    geometry = matching(12, 10)
    g = torch.arange(10.0).expand(12, 10) + torch.tensor([0.25, 0.0, 0.25]).repeat(4)[:, None]
    g = torch.stack([g, g.flip(0), g.flip(1)]).flatten(1)
    theirs = cpu.trace(geometry, g, None)
    ours = cuda.trace(geometry, *on(DEVICE, g, None))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


def test_status_of_matchings():
    geometry = matching(7, 5)
    g = torch.randn(4, 35, generator=seeded(1))
    g[1, 34], g[2, 0], g[3, 5:10] = torch.nan, torch.inf, -torch.inf
    theirs = cpu.trace(geometry, g, None)
    ours = cuda.trace(geometry, *on(DEVICE, g, None))
    assert theirs[2].tolist() == [0, 2, 2, 0]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


def test_status_of_arborescences():
    """Padding may hold no nan either; the diagonal and what leads to the root may."""
    geometry = arborescence(6, 1)
    g = torch.randn(5, 6, 6, generator=seeded(1))
    g[1, 2, 2] = g[1, 3, 1] = g[2, 5, 0] = torch.nan
    g[3, 2, 5], g[4, :, 3] = torch.inf, -torch.inf
    g = g.flatten(1)
    for sizes in (None, torch.tensor([6, 5, 4, 4, 6], dtype=torch.int32)):
        theirs = cpu.trace(geometry, g, sizes)
        ours = cuda.trace(geometry, *on(DEVICE, g, sizes))
        assert theirs[2].tolist() == [0, 0, 2, 2, 1]
        assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", ["random", "nested", "ties", "wide"])
def test_cycles_of_arborescences(kind, monkeypatch):
    """Many, and many components on the path; one program an item is left those with equal weights or too wide."""
    real, left = arborescence_trace.contract, []
    monkeypatch.setattr(arborescence_trace, "contract", lambda *args: (left.append(real(*args)), left[-1])[1])
    n, node = 24, torch.arange(24)
    g = torch.randn(6, n, n, generator=seeded(1))
    if kind == "nested":  # pairs in fours in eights
        g += sum(4.0 * (node // part == node[:, None] // part) for part in (2, 4, 8))
    g = {"ties": (2.0 * g).round(), "wide": 1e3 * g}.get(kind, g).flatten(1)
    geometry = arborescence(n, 5)
    theirs = cpu.trace(geometry, g, None)
    ours = cuda.trace(geometry, *on(DEVICE, g, None))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))
    assert (theirs[1] >= n).any(1).sum() > 3
    assert (left[0].sum() > 0) == (kind in ("ties", "wide"))


@pytest.mark.parametrize(
    "geometry",
    [spanning_tree(150), spanning_tree(150, 4), matching(140, 300), arborescence(140, 5)],
    ids=["tree", "forest", "matching", "arborescence"],
)
@pytest.mark.slow
def test_tiles_as_they_are(geometry, monkeypatch):
    monkeypatch.undo()  # what the fixtures of this file changed
    seed, grad = torch.tensor([3, 4], device=DEVICE), torch.randn(2, generator=seeded(3))
    x = torch.randn(2, geometry.keys, generator=seeded(1))
    x[:, ::3] = x[:, ::3].round()
    (here,) = on(DEVICE, x)
    winners, links, status = cuda.sample(geometry, here, None, 2, seed)
    theirs = cpu.trace(geometry, cuda.perturb(geometry, here, 2, seed).cpu(), None)
    assert all(torch.equal(a.cpu(), b) for a, b in zip((winners, links, status), theirs, strict=True))
    log_prob, kept = cuda.log_prob(geometry, here, winners, links)
    expected, parts = cpu.log_prob(geometry, x, *theirs[:2])
    kernelcases.same(log_prob, expected, rtol=1e-5, atol=1e-2)  # a sum of hundreds of decisions
    ours = cuda.log_prob_grad(geometry, here, winners, links, kept, *on(DEVICE, grad))
    kernelcases.same(ours, cpu.log_prob_grad(geometry, x, *theirs[:2], parts, grad), rtol=1e-3, atol=1e-5)
    g = cuda.conditional(geometry, here, None, winners, links, seed + 1)[0]
    assert torch.equal(cpu.trace(geometry, g.cpu(), None)[0], theirs[0])
