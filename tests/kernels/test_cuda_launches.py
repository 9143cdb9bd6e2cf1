"""How the Triton kernels are launched: scratch memory, grids, redraws, and noise that depends on the seed and the
position alone. On a GPU where there is one, else in Triton's interpreter on the CPU."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, arborescence, on, permutation, spanning_tree

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import ops as cuda
from gumtrace.kernels.cuda import sampling, spanning_tree_trace, subset_trace
from gumtrace.kernels.geometry import DEVICE_ATTEMPTS

pytestmark = pytest.mark.device

poisoned, small_tiles = kernelcases.poisoned, kernelcases.small_tiles


@pytest.mark.parametrize("n", [4, 5, 10])
def test_scratch_of_small_trees(n, monkeypatch):
    """As wide as the tree, though tiles are as wide as a warp: a gradient takes three times its log-rates at most."""
    monkeypatch.setattr(spanning_tree_trace, "SMALLEST", 32)
    geometry, real, taken = spanning_tree(n), torch.empty, []

    def empty(*size, **options):
        taken.append(real(*size, **options))
        return taken[-1]

    x = torch.randn(2, geometry.keys, generator=seeded(1))
    winners, links, _ = on(DEVICE, *cpu.trace(geometry, x, None))
    (x,) = on(DEVICE, x)
    monkeypatch.setattr(torch, "empty", empty)
    _, kept = cuda.log_prob(geometry, x, winners, links)
    assert sum(t.nbytes for t in taken) <= 2.3 * x.nbytes
    taken.clear()
    cuda.log_prob_grad(geometry, x, winners, links, kept, torch.ones(2, device=DEVICE))
    assert sum(t.nbytes for t in taken) <= 3.0 * x.nbytes


def test_long_rows_are_sorted_a_few_at_a_time(monkeypatch):
    """Torch's sort takes several times what it sorts."""
    monkeypatch.setattr(subset_trace, "IN_REGISTERS", 32)
    monkeypatch.setattr(subset_trace, "MANY", 1)
    real, rows = subset_trace._sort_rows, []
    monkeypatch.setattr(subset_trace, "_sort_rows", lambda g, *rest: (rows.append(len(g)), real(g, *rest)))
    seed = torch.tensor([1, 2], device=DEVICE)
    cuda.sample(permutation(40), torch.zeros(2, 40, device=DEVICE), None, 34, seed)
    assert max(rows) == 34 // 8
    assert sum(rows) == 34


def test_noise_is_a_function_of_all_of_the_seed():
    x, geometry = torch.zeros(2, 5, device=DEVICE), permutation(5)
    seeds = [[3, 4], [3 + 2**40, 4], [2, 4], [3, 5], [3, 4 + 2**40]]
    drawn = [cuda.perturb(geometry, x, 2, torch.tensor(seed, device=DEVICE)) for seed in seeds]
    for i, one in enumerate(drawn):
        assert all(not torch.isclose(one, other).any() for other in drawn[:i])


def test_noise_of_long_rows():
    """By blocks, of all items or of some: always the same."""
    geometry, seed = permutation(2100), torch.tensor([1, 2], device=DEVICE)
    x = torch.randn(2, 2100, generator=seeded(1)).to(DEVICE)
    every, some = cuda.perturb(geometry, x, 5, seed), torch.zeros(2, 2100, device=DEVICE)
    sampling.perturb(geometry, x, seed, some, 3)
    assert every.isfinite().all()
    assert torch.equal(every[3:], some)
    assert len((every - x[[0, 1, 0, 1, 0]]).unique()) > 0.99 * every.numel()


def test_grids_have_one_axis(monkeypatch):
    """The others end at 65,535 programs: fewer than a row of 10^8 keys needs."""
    grids = []

    class Launch:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *args, **options: None

    monkeypatch.setattr(sampling, "_perturb", Launch())
    x = torch.zeros(1).expand(3, 10**8)
    sampling.perturb(permutation(10**8), x, torch.zeros(2, dtype=torch.int64), x)
    assert grids == [(3 * -(-(10**8) // 1024),)]


def test_draws_of_an_arborescence_are_counted(monkeypatch):
    real, draws = cuda.arborescence.down, []
    monkeypatch.setattr(cuda.arborescence, "down", lambda *args: (draws.append(args), real(*args)))
    geometry = arborescence(3)
    x = torch.zeros(1, 9, device=DEVICE)
    trace = cuda.trace(geometry, x, None)[:2]
    cuda.conditional(geometry, x, None, *trace, torch.tensor([1, 2], device=DEVICE))
    assert len(draws) == DEVICE_ATTEMPTS
