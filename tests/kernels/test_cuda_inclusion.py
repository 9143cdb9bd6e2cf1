"""Inclusion probabilities by the Triton kernels against those of the CPU: on a GPU, else in the interpreter."""

import pytest
import torch
from common import seeded
from kernelcases import DEVICE

import gumtrace as gt
from gumtrace.kernels.cpu import inclusion as cpu
from gumtrace.kernels.cuda import inclusion as kernels
from gumtrace.structures import inclusion

pytestmark = pytest.mark.device


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel does not write is nan."""
    real = torch.empty

    def empty(*args, **kwargs):
        out = real(*args, **kwargs)
        return out.fill_(torch.nan) if out.is_floating_point() else out

    monkeypatch.setattr(kernels.torch, "empty", empty)


@pytest.fixture
def by_triton(monkeypatch):
    """Where there is no GPU, in place of the CPU's own kernels; the interpreter takes its time for each program."""
    if DEVICE == "cpu":
        monkeypatch.setattr(inclusion, "own_kernel", lambda name, _: getattr(kernels, name, None))
        monkeypatch.setattr(kernels, "FEW", 32)
        monkeypatch.setattr(kernels, "POINTS", 32)  # of the 96 in float64


def mean_and_slope(x, k, v, device="cpu"):
    x = x.to(device).requires_grad_()
    mean = gt.Subset(x, k.to(device)).mean
    (slope,) = torch.autograd.grad(mean, x, v.to(device))
    return mean.detach().cpu(), slope.cpu()


@pytest.mark.parametrize(("scale", "rows"), [(1.0, 5), (10.0, 2)])
def test_as_on_the_cpu(scale, rows, request, monkeypatch):
    generator = seeded()
    x, v = (torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    x, k = scale * x, torch.tensor([1, 6, 3, 2, 0])
    x[3, 2:4] = -torch.inf
    expected = mean_and_slope(x, k, v)
    request.getfixturevalue("by_triton")
    monkeypatch.setattr(kernels, "SCRATCH", rows * kernels._numbers(7, 6, 96, True))
    seen, real = [], kernels._launch
    monkeypatch.setattr(kernels, "_launch", lambda y, *args: seen.append(len(y)) or real(y, *args))
    for ours, theirs in zip(mean_and_slope(x, k, v, DEVICE), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-14, rtol=1e-12)
    assert seen == ([5, 5] if rows == 5 else [4, 1, 2, 2, 1])  # probabilities need half of the memory


def test_several_tiles_of_keys_and_roots(monkeypatch):
    """Against the walk over keys and back, at the 48 points of float32."""
    d, k = 70, torch.tensor([5, 3])
    for name, size in (("LONGEST", 16), ("FEW", 16), ("KEYS", 16)):
        monkeypatch.setattr(kernels, name, size)
    assert kernels.ROOTS < kernels._roots(d, 5) < d / 2  # and the count can be beyond them
    x, v = (torch.randn(2, d, generator=seeded(4), dtype=torch.float64) for _ in range(2))
    x[1] *= 20
    pivot, shift, width = inclusion._interval(x, torch.full((2,), d), k, 5, 18.0)
    args, rule = (x - pivot + shift, width, k), inclusion._rule(48, 18.0, x)
    expected = *cpu.subset_probs(*args, 5, *rule), cpu.subset_pairs(*args, 5, rule.places, v)
    args, rule, v = [a.to(DEVICE) for a in args], [a.to(DEVICE) for a in rule], v.to(DEVICE)
    found = *kernels.subset_probs(*args, 5, *rule), kernels.subset_pairs(*args, 5, rule[0], v)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-14, rtol=1e-12)


def test_as_many_roots_as_the_count_needs():
    """Of half a circle: those of all keys, or e^-39 of the chances beyond them."""
    assert kernels._roots(7, 6) == 4
    assert [kernels._roots(10**5, k) for k in (1, 10, 50, 1000)] == [12, 28, 64, 648]


def test_items_that_would_not_fit_into_memory_are_left_to_torch(by_triton, monkeypatch):
    assert kernels.subset_probs_serves(10**7, 100, 48)
    assert not kernels.subset_probs_serves(10**8, 100, 48)
    monkeypatch.setattr(kernels, "LARGEST", 1)
    monkeypatch.setattr(inclusion._Kernel, "apply", lambda *_: pytest.fail("the kernel was asked"))
    x = torch.zeros(2, 5, dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(gt.Subset(x, 2).mean, torch.full_like(x, 0.4))


@pytest.mark.usefixtures("by_triton")
def test_two_derivatives():
    x = torch.randn(1, 4, generator=seeded(3), dtype=torch.float64).to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gt.Subset(x, 2).mean, x)
    assert torch.autograd.gradgradcheck(lambda x: gt.Subset(x, 2).mean, x)
