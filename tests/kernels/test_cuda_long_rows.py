"""Top-k of long rows by rounds of selection, and sums over them in several programs, against the kernels of the CPU: on
a GPU where there is one, else in Triton's interpreter on the CPU, with short rows that count as long."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, RECORDED, on, permutation, same, subset

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import ops as cuda
from gumtrace.kernels.cuda import subset_long, subset_select, subset_trace
from gumtrace.kernels.geometry import NOT_A_NUMBER, OK, STUCK

pytestmark = pytest.mark.device

poisoned, small_tiles = kernelcases.poisoned, kernelcases.small_tiles

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@pytest.fixture
def chunks(monkeypatch):
    """Of 16 keys, or 128 where many are to be selected."""
    monkeypatch.setattr(subset_trace, "IN_REGISTERS", 32)
    monkeypatch.setattr(subset_select, "CHUNK", 128)
    monkeypatch.setattr(subset_select, "SMALL_CHUNK", 16)


def assert_selected(geometry, g, sizes=None, status=None):
    expected = cpu.trace(geometry, g, sizes)
    assert subset_select.serves(geometry.k)
    for ours, theirs in zip(cuda.trace(geometry, *on(DEVICE, g, sizes)), expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)
    if status is not None:
        assert expected[2].tolist() == status


@every_dtype
@pytest.mark.parametrize(("d", "k"), [(40, 1), (200, 1), (150, 4), (129, 20), (300, 32)])
def test_ties_go_by_key(d, k, dtype, chunks):
    """All keys equal; few values; zeros of both signs; more keys on the threshold than there is room for."""
    g = torch.randn(6, d, generator=seeded(1), dtype=dtype)
    g[0] = 1.5
    g[1] = (2 * g[1]).round()
    g[2] = torch.where(g[2] > 0, 0.0, -0.0)
    g[3], g[3, d // 2] = -2.0, -1.0
    g[4] = g[4].sort().values  # the winners are in one chunk
    assert_selected(subset(d, k), g)


@every_dtype
def test_keys_that_do_not_race_and_numbers_that_are_none(dtype, chunks):
    g = torch.randn(9, 150, generator=seeded(1), dtype=dtype)
    g[0, :148] = g[1, 3:] = g[2, 4:] = g[3] = -torch.inf
    g[4, 149] = g[5, 0] = torch.nan
    g[6, 20] = torch.inf
    g[7, 3] = -torch.tensor(torch.nan)
    g[8, :] = torch.nan
    wrong = [NOT_A_NUMBER] * 5
    assert_selected(subset(150, 4), g, status=[STUCK, STUCK, OK, STUCK, *wrong])
    sizes = torch.tensor([2, 4, 0, 0, 0, 1, 2, 3, 4], dtype=torch.int32)
    assert_selected(subset(150, 4), g, sizes, status=[OK, STUCK, OK, OK, *wrong])
    assert_selected(subset(150, 0), g, status=[OK, OK, OK, OK, *wrong])


@every_dtype
@pytest.mark.parametrize("k", [3, 40])
def test_many_items_read_few_rows(k, dtype, monkeypatch, chunks):
    """Selected in rounds for a small k and sorted by torch for a large one, with k of each row."""
    monkeypatch.setattr(subset_trace, "MANY", 1)
    geometry, seed = subset(90, k), torch.tensor([5, 6], device=DEVICE)
    x, sizes = on(DEVICE, torch.randn(2, 90, generator=seeded(1), dtype=dtype), torch.tensor([k, 2]).int())
    ours = cuda.sample(geometry, x, sizes, 18, seed)
    g = cuda.perturb(geometry, x, 18, seed).cpu()
    for mine, theirs in zip(ours, cpu.trace(geometry, g, sizes.cpu()), strict=True):
        assert torch.equal(mine.cpu(), theirs)


def test_rounds_end(chunks):
    """Every number of keys that is left leads to fewer, and to one chunk at last."""
    for k in range(1, 33):
        for left in range(33, 700):
            while (count := -(-left // subset_select._width(left, k))) > 1:
                assert count * k < left
                left = count * k
            assert subset_select._width(left, k) >= k


@pytest.mark.parametrize("mode", ["random", "wide"])
@pytest.mark.filterwarnings("ignore:overflow encountered in multiply")  # numpy's: winners as losers, overwritten then
def test_blocks_of_any_width_give_the_same_sums(mode, monkeypatch):
    """Rates from e^-9000 to e^9000, winners in the last block or in none."""
    x = torch.randn(3, 45, generator=seeded(1)) * (3000.0 if mode == "wide" else 1.0)
    for geometry in (subset(45, 9), permutation(45)):
        winners, links, _ = cpu.trace(geometry, x, None)
        winners[1, 5:] = -1
        expected, parts = cpu.log_prob(geometry, x, winners, links)
        slope = torch.tensor([1.0, -2.0, 0.5])
        to_logits = cpu.log_prob_grad(geometry, x, winners, links, parts, slope)
        for block, steps in ((8, 2), (16, 64), (64, 4)):
            for name, length in {"SHORT": 0, "BLOCK": block, "STEPS": steps}.items():
                monkeypatch.setattr(subset_long, name, length)
            ours, kept = cuda.log_prob(geometry, *on(DEVICE, x, winners, links))
            same(ours, expected)
            same(cuda.log_prob_grad(geometry, *on(DEVICE, x, winners, links), kept, slope.to(DEVICE)), to_logits)


def test_a_step_takes_little_memory_and_no_vector_of_zeros_and_ones(monkeypatch):
    """With the true sizes: no more than 1.2 times the log-rates beyond them and their gradient."""
    geometry, real, taken = subset(9000, 100), (torch.empty, torch.zeros), []

    def counted(make):
        return lambda *size, **options: (taken.append(make(*size, **options)), taken[-1])[1]

    (x,) = on(DEVICE, torch.randn(2, 9000, generator=seeded(1)))
    monkeypatch.setattr(torch, "empty", counted(real[0]))
    monkeypatch.setattr(torch, "zeros", counted(real[1]))
    seed = torch.tensor([1, 2], device=DEVICE)
    winners, links, status = cuda.sample(geometry, x, None, 2, seed)
    _, kept = cuda.log_prob(geometry, x, winners, links)
    grad = cuda.log_prob_grad(geometry, x, winners, links, kept, torch.ones(2, device=DEVICE))
    assert status.tolist() == [OK, OK]
    whole = [t for t in taken if t.numel() >= x.numel()]
    assert len(whole) == 1
    assert whole[0].data_ptr() == grad.data_ptr()
    assert sum(t.nbytes for t in taken) <= 1.2 * x.nbytes + grad.nbytes


LARGE = {"vocabulary": (131072, 64), "million": (10**6, 1000), "sorted": (50000, 5000), "most": (20000, 2048)}


@RECORDED
@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("name", [*LARGE, "permutation"])
def test_long_rows_in_a_graph_are_as_on_the_cpu(name, dtype):
    geometry = permutation(100000) if name == "permutation" else subset(*LARGE[name])
    seed = torch.tensor([3, 4], device=DEVICE)
    for kind in ("random", "equal", "wide"):
        x = torch.randn(2, geometry.keys, generator=seeded(1), dtype=dtype) * (1000.0 if kind == "wide" else 1.0)
        if kind == "equal":
            x = torch.zeros_like(x)
        there, slope = x.to(DEVICE), torch.tensor([1.0, -0.5], dtype=dtype, device=DEVICE)
        g = cuda.perturb(geometry, there, 2, seed)
        if kind == "equal":
            g = there  # no noise either: every key is on the threshold

        def step(g=g, there=there, slope=slope, kind=kind):
            found = cuda.trace(geometry, g, None)
            if kind != "equal":
                found = cuda.sample(geometry, there, None, 2, seed)
            log_prob, kept = cuda.log_prob(geometry, there, *found[:2])
            return *found, log_prob, cuda.log_prob_grad(geometry, there, *found[:2], kept, slope)

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            winners, _, status, log_prob, grad = step()
        graph.replay()
        theirs = cpu.trace(geometry, g.cpu(), None)
        assert torch.equal(winners.cpu(), theirs[0]), kind
        assert torch.equal(status.cpu(), theirs[2]), kind
        expected, parts = cpu.log_prob(geometry, x, *theirs[:2])
        torch.testing.assert_close(log_prob.cpu(), expected, rtol=1e-5, atol=1e-2)
        expected = cpu.log_prob_grad(geometry, x, *theirs[:2], parts, slope.cpu())
        torch.testing.assert_close(grad.cpu(), expected, rtol=1e-3, atol=1e-4)
