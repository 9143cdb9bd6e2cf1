"""The Triton kernels against those of the CPU: on a GPU where there is one, else in Triton's interpreter on the CPU."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import (
    BATCH,
    DEVICE,
    FULL,
    SAMPLES,
    SCALES,
    arborescence,
    cpu_traces,
    every_geometry,
    on,
    permutation,
    rates,
    same,
    sizes_of,
    spanning_tree,
    subset,
)

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import (
    arborescence_trace,
    spanning_tree_trace,
    subset_long,
    subset_select,
    subset_trace,
)
from gumtrace.kernels.cuda import ops as cuda

pytestmark = pytest.mark.device

poisoned, small_tiles = kernelcases.poisoned, kernelcases.small_tiles


@every_geometry("random", "ties", "masked")
@pytest.mark.slow
def test_traces_are_the_same(geometry, dtype, kind):
    g, sizes, (winners, links, status) = cpu_traces(geometry, kind, dtype)
    ours = cuda.trace(geometry, *on(DEVICE, g, sizes))
    for mine, theirs in zip(ours, (winners, links, status), strict=True):
        assert torch.equal(mine.cpu(), theirs)


@every_geometry("masked")
@pytest.mark.slow
def test_sampling_is_the_trace_of_its_noise(geometry, dtype, kind):
    x, sizes = on(DEVICE, rates(geometry, kind, dtype), sizes_of(geometry, kind))
    seed = torch.tensor([3, 4], device=DEVICE)
    fused = cuda.sample(geometry, x, sizes, SAMPLES * BATCH, seed)
    apart = cuda.trace(geometry, cuda.perturb(geometry, x, SAMPLES * BATCH, seed), sizes)
    assert all(torch.equal(a, b) for a, b in zip(fused, apart, strict=True))


@every_geometry("masked", "wide")
@pytest.mark.slow
def test_log_probs_and_gradients(geometry, dtype, kind):
    x = rates(geometry, kind, dtype)
    _, _, (winners, links, _) = cpu_traces(geometry, kind, dtype)
    log_prob, kept = cpu.log_prob(geometry, x, winners, links)
    ours = cuda.log_prob(geometry, *on(DEVICE, x, winners, links))
    same(ours[0], log_prob)
    assert ours[1].dtype == dtype
    log_totals = cuda.log_totals(geometry, *on(DEVICE, x, winners, links))
    same(
        log_totals,
        cpu.log_totals(geometry, x, winners, links),
        atol=1e-5 if dtype == torch.float32 else 1e-9,
        rtol=1e-6,
    )
    grad = torch.randn(SAMPLES * BATCH, generator=seeded(5), dtype=dtype)
    expected = cpu.log_prob_grad(geometry, x, winners, links, kept, grad)
    same(cuda.log_prob_grad(geometry, *on(DEVICE, x, winners, links, ours[1], grad)), expected)


@pytest.mark.parametrize("geometry", [subset(45, 20), permutation(45)], ids=["subset", "permutation"])
@pytest.mark.parametrize("dtype", [torch.float32] if FULL else [torch.float32, torch.float64], ids=lambda x: str(x)[6:])
@pytest.mark.slow
def test_rows_longer_than_a_block(geometry, dtype, monkeypatch):
    monkeypatch.setattr(subset_trace, "IN_REGISTERS", 32)
    monkeypatch.setattr(subset_trace, "MANY", 1)
    monkeypatch.setattr(subset_select, "CHUNK", 16)  # too few for 20 winners, which are sorted
    monkeypatch.setattr(cuda.subset, "BLOCK", 16)
    for kind in SCALES if FULL else ["masked"]:
        every_operator(geometry, dtype, kind)


SEVERAL = {"subset": subset(70, 8), "subset-many": subset(100, 20), "permutation": permutation(45)}
if not FULL:  # a GPU has them in test_gpu_sizes.py: with these blocks, which no user meets, each takes 15 s to compile
    SEVERAL |= {"subset-none": subset(45, 0), "subset-one": subset(45, 1)}


@pytest.mark.parametrize("geometry", SEVERAL.values(), ids=SEVERAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.slow
def test_rows_for_several_programs(geometry, dtype, monkeypatch):
    monkeypatch.setattr(subset_trace, "IN_REGISTERS", 32)
    monkeypatch.setattr(subset_select, "CHUNK", 128 if geometry.keys == 100 else 32)
    monkeypatch.setattr(subset_select, "SMALL_CHUNK", 16)
    for name, length in {"SHORT": 32, "BLOCK": 16, "STEPS": 8}.items():
        monkeypatch.setattr(subset_long, name, length)
    for kind in SCALES if FULL else ["masked"]:
        every_operator(geometry, dtype, kind)


def every_operator(geometry, dtype, kind):
    test_traces_are_the_same(geometry, dtype, kind)
    test_sampling_is_the_trace_of_its_noise(geometry, dtype, kind)
    test_log_probs_and_gradients(geometry, dtype, kind)
    test_maps(geometry, dtype, kind)
    test_conditional_gives_the_trace_back(geometry, dtype, kind)


@every_geometry("masked")
@pytest.mark.slow
def test_maps(geometry, dtype, kind):
    """The bilinear maps behind second derivatives."""
    x = rates(geometry, kind, dtype).repeat(SAMPLES, 1)
    _, _, (winners, links, _) = cpu_traces(geometry, kind, dtype)
    totals = cpu.log_totals(geometry, x, winners, links)
    h = torch.randn(totals.shape, generator=seeded(6), dtype=dtype)
    near = 1e-4 if dtype == torch.float32 and kind != "wide" else 2e-3 if dtype == torch.float32 else 1e-8
    expected = cpu.to_keys(geometry, winners, links, -totals, x, h)
    same(cuda.to_keys(geometry, *on(DEVICE, winners, links, -totals, x, h)), expected, near, near)
    h = torch.randn(x.shape, generator=seeded(7), dtype=dtype)
    expected = cpu.to_decisions(geometry, winners, links, -totals, x, h)
    same(cuda.to_decisions(geometry, *on(DEVICE, winners, links, -totals, x, h)), expected, near, near)
    racing = x > -torch.inf  # of the others one side says nothing, the other what they would have shared
    expected = cpu.log_spread(geometry, winners, links, -totals)
    same(cuda.log_spread(geometry, *on(DEVICE, winners, links, -totals)).cpu()[racing], expected[racing], near, near)


@every_geometry("masked")
@pytest.mark.slow
def test_log_probs_and_gains_of_decisions(geometry, dtype, kind):
    x, (_, _, (winners, links, _)) = rates(geometry, kind, dtype), cpu_traces(geometry, kind, dtype)
    gains = torch.randn(x.shape, generator=seeded(6), dtype=dtype)
    near = 1e-4 if dtype == torch.float32 and kind != "wide" else 2e-3 if dtype == torch.float32 else 1e-8
    expected = cpu.decisions(geometry, x, gains, winners, links)[0]
    same(cuda.decisions(geometry, *on(DEVICE, x, gains, winners, links))[0], expected, near, near)


@every_geometry("masked", "wide")
@pytest.mark.slow
def test_conditional_gives_the_trace_back(geometry, dtype, kind):
    x, sizes = rates(geometry, kind, dtype), sizes_of(geometry, kind)
    seed = torch.tensor([8, 9], device=DEVICE)
    here = on(DEVICE, x, sizes)
    winners, links, _ = cuda.sample(geometry, *here, SAMPLES * BATCH, seed)
    g, totals, z, failed = cuda.conditional(geometry, *here, winners, links, seed + 1)
    same(totals, cpu.log_prob(geometry, x, winners.cpu(), links.cpu())[1].sum(-2), atol=1e-5, rtol=1e-6)
    assert not failed.any()
    again = cpu.trace(geometry, g.cpu(), sizes)
    assert torch.equal(again[0], winners.cpu())
    assert torch.equal(again[1], links.cpu())
    grad = torch.randn(g.shape, generator=seeded(11), dtype=dtype)
    expected = cpu.conditional_grad(geometry, x, *(t.cpu() for t in (winners, links, totals, z, g)), grad)
    ours = cuda.conditional_grad(geometry, here[0], winners, links, totals, z, g, grad.to(DEVICE))
    near = 1e-4 if dtype == torch.float32 else 1e-8
    same(ours, expected, near, near)


@pytest.mark.parametrize("kind", ["random", "ties", "masked"])
def test_arborescence_edges(kind):
    geometry = arborescence(9, 2)
    _, _, (winners, links, _) = cpu_traces(geometry, kind, torch.float32)
    ours = cuda.arborescence_edges(geometry, *on(DEVICE, winners, links))
    assert torch.equal(ours.cpu(), cpu.arborescence_edges(geometry, winners, links))


@pytest.mark.parametrize("kernel", ["cpu", "cuda"])
def test_weights_of_a_wide_item_that_nearly_tie(kernel):
    """0 ⇄ 4 is a cycle, entered from 3 at 0 with weight 1 - e^-1e-37 and at 4 with 0: the difference is not lost."""
    noise = torch.full((5, 5), -torch.inf)
    noise[1, 2] = noise[1, 3] = noise[3, 0] = 0.0
    noise[0, 4] = noise[3, 4] = -5.0  # equal weights were decided by G, for 3 → 0
    noise[4, 0], noise[2, 0] = 1e-37, -1e30  # the second makes the item too wide for E itself
    geometry, g = arborescence(5, 1), noise.view(1, -1)
    winners = cpu.trace(geometry, g, None)[0] if kernel == "cpu" else cuda.trace(geometry, *on(DEVICE, g, None))[0]
    assert winners[0, :6].tolist() == [20, -1, 7, 8, 4, 19]


@pytest.mark.slow
def test_arborescences_that_lost_their_trace_are_drawn_anew():
    geometry = arborescence(34, 3)  # a tile wider than a warp
    x = rates(geometry, "random", torch.float32, rows=2)
    seed = torch.tensor([8, 9], device=DEVICE)
    (here,) = on(DEVICE, x)
    winners, links, _ = cuda.sample(geometry, here, None, 2, seed)
    g, totals, z, failed = cuda.conditional(geometry, here, None, winners, links, seed + 1)
    good, good_z = g.clone(), z.clone()
    g[1] = torch.nan
    cuda.arborescence.redraw(geometry, here, None, winners, links, seed + 1, g, totals, z, failed)
    assert not failed.any()
    assert torch.equal(g[0], good[0])
    assert torch.equal(z[0], good_z[0])
    assert not torch.equal(g[1], good[1])
    again = cpu.trace(geometry, g.cpu(), None)
    assert torch.equal(again[0], winners.cpu())
    assert torch.equal(again[1], links.cpu())
    held = winners.cpu() >= 0  # a winner's G is the sum of the minima on its way
    shared = cpu.log_spread(geometry, winners.cpu(), links.cpu(), z.cpu()).gather(1, winners.cpu().long().clamp(min=0))
    same(g.cpu().gather(1, winners.cpu().long().clamp(min=0))[held], -shared[held].float())


def test_trees_wider_than_a_warp():
    """There the last nodes are drawn for in a smaller tile, and a lane holds several nodes."""
    geometry = spanning_tree(40, 2)
    x, sizes = torch.randn(2, geometry.keys, generator=seeded(1)), torch.tensor([40, 20], dtype=torch.int32)
    here = on(DEVICE, x, sizes)
    seed = torch.tensor([3, 4], device=DEVICE)
    trace = cuda.sample(geometry, *here, 2, seed)
    theirs = cpu.trace(geometry, cuda.perturb(geometry, here[0], 2, seed).cpu(), sizes)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(trace, theirs, strict=True))
    log_prob, kept = cuda.log_prob(geometry, here[0], *trace[:2])
    expected, parts = cpu.log_prob(geometry, x, *theirs[:2])
    same(log_prob, expected)
    grad = torch.ones(2)
    expected = cpu.log_prob_grad(geometry, x, *theirs[:2], parts, grad)
    same(cuda.log_prob_grad(geometry, here[0], *trace[:2], kept, grad.to(DEVICE)), expected)


@pytest.mark.parametrize("components", [1, 6])
def test_status_of_trees(components):
    """Not a number among pairs, padding included, but nowhere else; too few nodes; a graph in two parts."""
    n = 8
    geometry = spanning_tree(n, components)
    g = torch.randn(7, n, n, generator=seeded(1))
    g[0, 0, 0] = g[1, 7, 3] = g[2, 0, 1] = g[3, 2, 7] = torch.nan
    g[4, 6, 7] = torch.inf
    g[5:, :4, 4:] = -torch.inf
    g = g.flatten(1)
    for sizes in (None, torch.tensor([8, 1, 2, 5, 5, 8, 0], dtype=torch.int32)):
        winners, _, status = cpu.trace(geometry, g, sizes)
        ours = cuda.trace(geometry, *on(DEVICE, g, sizes))
        assert torch.equal(ours[2].cpu(), status)
        assert torch.equal(ours[0].cpu(), winners)


@pytest.mark.slow
def test_programs_take_items_in_turns(monkeypatch):
    monkeypatch.setattr(arborescence_trace, "_resident", lambda device: 2)
    geometry = arborescence(6, 4)
    test_traces_are_the_same(geometry, torch.float32, "masked")
    test_log_probs_and_gradients(geometry, torch.float32, "masked")
    test_conditional_gives_the_trace_back(geometry, torch.float32, "masked")


@pytest.mark.parametrize("geometry", [spanning_tree(5), spanning_tree(6, 3)], ids=["tree", "forest"])
@pytest.mark.slow
def test_trees_narrower_than_a_tile(geometry, monkeypatch):
    monkeypatch.setattr(spanning_tree_trace, "SMALLEST", 16)
    for kind in ("random", "masked"):
        test_log_probs_and_gradients(geometry, torch.float32, kind)
        test_maps(geometry, torch.float32, kind)
        test_conditional_gives_the_trace_back(geometry, torch.float32, kind)
