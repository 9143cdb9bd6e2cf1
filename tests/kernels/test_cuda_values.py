"""Values of traces by the Triton kernels: 0/1 over the keys, and permutations."""

import pytest
import torch
from common import seeded
from kernelcases import DEVICE, LARGE, matching, on, permutation, spanning_tree, subset

import gumtrace as gt
from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import arrangement as arrangements
from gumtrace.kernels.cuda import indicator as indicators
from gumtrace.kernels.cuda import ops as cuda

pytestmark = pytest.mark.device


@pytest.mark.parametrize("chunk", [16, 1 << 16])
def test_indicators(chunk, monkeypatch):
    monkeypatch.setattr(indicators, "CHUNK", chunk)
    free = gt.ConstrainedForest(torch.zeros(5, 5), components=2)._layout.geometry
    graphs = matching(4, 6), matching(0, 3), spanning_tree(7), spanning_tree(1), free
    for geometry in (subset(21, 5), subset(5, 0), *graphs):
        x = torch.randn(3, geometry.keys, generator=seeded(1))
        winners = cpu.trace(geometry, x, None)[0]
        winners[1, 2:] = -1
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.bool):
            ours = cuda.indicator(geometry, *on(DEVICE, winners), dtype)
            assert ours.dtype == dtype
            assert torch.equal(ours.cpu(), cpu.indicator(geometry, winners, dtype))


def some_winners(d: int, items: int = 5) -> torch.Tensor:
    """All keys race, some, none; the last two items are no traces."""
    x = torch.randn(items, d, generator=seeded(d))
    x[1:-2:2, ::2] = x[2] = -torch.inf
    winners = cpu.trace(permutation(d), x, None)[0]
    winners[-2:] = torch.randint(-3, d + 3, (2, d), generator=seeded(1))
    winners[-1:, :1] = 2**31 - 1
    return winners


@pytest.mark.parametrize("block", [16, 1024])
@pytest.mark.parametrize("longest", [8, 1 << 14])
def test_arrangements(block, longest, monkeypatch):
    monkeypatch.setattr(arrangements, "BLOCK", block)
    monkeypatch.setattr(arrangements, "LONGEST", longest)
    for d in (0, 1, 5, 40):
        winners = some_winners(d)
        expected = cpu.arrangement(permutation(d), winners)
        ours = cuda.arrangement(permutation(d), *on(DEVICE, winners))
        assert ours.dtype == expected.dtype == torch.int64
        assert torch.equal(ours.cpu(), expected)
        assert expected.numel() == 0 or (expected.min() >= 0 and expected.max() <= d)  # what is no key becomes d
        for row, value in zip(winners[:3].tolist(), expected[:3].tolist(), strict=True):
            order = iter(row)
            assert value == [next(order) if key in row else key for key in range(d)]


@LARGE
@pytest.mark.parametrize("d", [3000, 20000])
def test_arrangements_of_several_warps(d):
    winners = some_winners(d, items=400)
    expected = cpu.arrangement(permutation(d), winners)
    assert torch.equal(cuda.arrangement(permutation(d), *on(DEVICE, winners)).cpu(), expected)


@pytest.mark.parametrize("written", [-1, -5, 4, 2**31 - 1])
def test_a_trace_that_was_written_into_has_a_value(written):
    for matrix in (False, True):
        trace = gt.Permutation(torch.zeros(3, 4, device=DEVICE), matrix=matrix).sample_trace()
        trace.choices[0, 0] = written
        value = trace.value.cpu()
        assert value.shape == (3, 4, 4) if matrix else (3, 4)
        assert value.min() >= 0
