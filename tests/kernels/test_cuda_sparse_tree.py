"""Trees of graphs given by their edges on CUDA, where they change their way: several blocks, chunks, long chains of
components. On a GPU where there is one, else in Triton's interpreter. Other tests of kernels have small ones too."""

import kernelcases
import pytest
import test_cuda
import torch
from common import seeded
from kernelcases import DEVICE, graphs, on, same, sparse

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import boruvka, sparse_tree
from gumtrace.kernels.cuda import ops as cuda
from gumtrace.kernels.geometry import sparse_tree as sparse_geometry

pytestmark = pytest.mark.device

poisoned = kernelcases.poisoned


@pytest.fixture
def many_blocks(monkeypatch):
    monkeypatch.setattr(boruvka, "BLOCK", 16)
    monkeypatch.setattr(boruvka, "CLIMBERS", 8)
    monkeypatch.setattr(sparse_tree, "BLOCK", 4)  # more blocks than one scan of blocks has lanes
    monkeypatch.setattr(sparse_tree, "CHUNK", 80)


@pytest.mark.parametrize(
    "geometry",
    [sparse(11, 9), sparse(11, 9, 4), graphs(2, (11, 9), (3, 0), (17, 20))],
    ids=["tree", "forest", "graphs"],
)
@pytest.mark.slow
def test_several_blocks_and_chunks(geometry, many_blocks):
    test_cuda.test_traces_are_the_same(geometry, torch.float32, "ties")
    test_cuda.test_sampling_is_the_trace_of_its_noise(geometry, torch.float32, "masked")
    test_cuda.test_log_probs_and_gradients(geometry, torch.float32, "masked")
    test_cuda.test_conditional_gives_the_trace_back(geometry, torch.float32, "masked")


@pytest.mark.parametrize("rising", [True, False])
def test_long_chains_of_components(rising):
    """A path whose edges come one after the other: in the first round every node joins the next."""
    nodes = 600  # two jumps, of 15 hops each, would not reach the end
    path = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)]).int()
    far = torch.tensor([[0, nodes // 3, 7], [nodes - 1, nodes // 2, 9]], dtype=torch.int32)
    geometry = sparse_geometry(nodes, 1, torch.cat([path, far], 1))
    g = torch.arange(geometry.keys, dtype=torch.float32)[None] * (1 if rising else -1)
    g[:, -3:] = -1e6
    winners, _, status = cpu.trace(geometry, g, None)
    ours = cuda.trace(geometry, *on(DEVICE, g), None)
    assert torch.equal(ours[0].cpu(), winners)
    assert status.item() == ours[2].item() == 0
    removal, steps = boruvka.removals(geometry, *ours[:2])
    assert steps.item() == nodes - 1
    step = torch.empty(nodes - 1, dtype=torch.int32)
    step[winners[0].long()] = torch.arange(nodes - 1, dtype=torch.int32)
    ways = [step, step.max()[None], step[nodes // 3 : nodes // 2].max()[None], step[7:9].max()[None]]
    assert torch.equal(removal[0].cpu(), torch.cat(ways))


@pytest.mark.parametrize("components", [1, 3])
def test_status(components):
    """In two parts, of too few nodes, not a number where no key races."""
    ends = torch.tensor([[0, 1, 2, 3, 4, 2, 0, 3], [1, 2, 0, 4, 5, 2, 1, 5]], dtype=torch.int32)  # two triangles
    geometry = sparse_geometry(6, components, torch.cat([ends, torch.tensor([[2], [3]])], 1).int())
    g = torch.randn(6, geometry.keys, generator=seeded(3))
    g[1, -1] = -torch.inf  # the bridge
    g[2, 5] = torch.nan  # a loop
    g[3, 4] = torch.inf
    g[4] = -torch.inf
    g[5, 3:] = -torch.inf
    for sizes in (None, torch.tensor([6, 6, 6, 6, 2, 3], dtype=torch.int32)):
        theirs = cpu.trace(geometry, g, sizes)
        ours = cuda.trace(geometry, *on(DEVICE, g, sizes))
        for mine, expected in zip(ours, theirs, strict=True):
            assert torch.equal(mine.cpu(), expected)
    assert 1 in theirs[2]


def test_status_of_graphs():
    """Each by its own graph: connected or not, without nodes, with fewer nodes than trees."""
    geometry = graphs(2, (5, 4), (1, 0), (2, 0))
    g = torch.randn(6, geometry.keys, generator=seeded(3))
    g[3, 0] = torch.nan
    g[0] = -torch.inf
    graph = torch.tensor([0, 1, 2, 0, 2, 0], dtype=torch.int32)
    theirs = cpu.trace(geometry, g, graph)
    ours = cuda.trace(geometry, *on(DEVICE, g, graph))
    for mine, expected in zip(ours, theirs, strict=True):
        assert torch.equal(mine.cpu(), expected)
    assert theirs[1].flatten().tolist() == [0, 1, 2, -1, 2, 0]
    assert theirs[2].tolist() == [1, 1, 0, 2, 0, 0]


@pytest.mark.slow
def test_random_graphs():
    """Joining steps against union-find, which lists keys by them."""
    for seed in range(4 if DEVICE == "cpu" else 50):
        nodes = int(torch.randint(2, 60, (), generator=seeded(seed)))
        geometry = sparse(nodes, 2 * nodes, 1 + seed % 3 if nodes > 3 else 1)
        g = torch.randn(2, geometry.keys, generator=seeded(seed)).mul(2).round()
        winners, links, _ = cpu.trace(geometry, g, None)
        assert torch.equal(cuda.trace(geometry, *on(DEVICE, g), None)[0].cpu(), winners)
        removal = boruvka.removals(geometry, *on(DEVICE, winners, links))[0].cpu()
        for row, expected in zip(removal, winners, strict=True):
            racing = cpu.racing_keys(geometry, expected, expected.new_empty(0))
            for step, keys in enumerate(racing):
                assert (row >= step).nonzero().flatten().tolist() == sorted(keys.tolist())


@pytest.mark.slow
def test_random_batches_of_graphs(monkeypatch):
    """Of any size, one without edges among them, in chunks that end anywhere."""
    monkeypatch.setattr(sparse_tree, "CHUNK", 300)
    for seed in range(6 if DEVICE == "cpu" else 50):
        sizes = [(n, n * extra) for n, extra in torch.randint(1, 12, (4, 2), generator=seeded(seed)).tolist()]
        geometry = graphs(1 + seed % 2, *sizes, (1, 0))
        graph = torch.randperm(5, generator=seeded(seed), dtype=torch.int32)
        x = torch.randn(5, geometry.keys, generator=seeded(seed), dtype=torch.float64)
        g = (x.repeat(3, 1) + torch.randn(15, geometry.keys, generator=seeded(seed + 1))).mul(4).round()
        expected = cpu.trace(geometry, g, graph)
        ours = cuda.trace(geometry, *on(DEVICE, g, graph))
        for mine, theirs in zip(ours, expected, strict=True):
            assert torch.equal(mine.cpu(), theirs)
        log_prob, parts = cpu.log_prob(geometry, x, *expected[:2])
        found, kept = cuda.log_prob(geometry, *on(DEVICE, x), *ours[:2])
        same(found, log_prob, 1e-11, 1e-11)
        grad = torch.randn(15, generator=seeded(seed), dtype=torch.float64)
        slope = cuda.log_prob_grad(geometry, *on(DEVICE, x), *ours[:2], kept, *on(DEVICE, grad))
        same(slope, cpu.log_prob_grad(geometry, x, *expected[:2], parts, grad), 1e-10, 1e-10)
