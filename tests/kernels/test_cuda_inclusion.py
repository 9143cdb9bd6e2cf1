"""Inclusion probabilities by the Triton kernels against those of the CPU: on a GPU, else in the interpreter."""

import pytest
import torch
from common import seeded
from kernelcases import DEVICE

import gumtrace as gt
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
    """Where there is no GPU, in place of the CPU's own kernels."""
    if DEVICE == "cpu":
        monkeypatch.setattr(inclusion, "own_kernel", lambda name, _: getattr(kernels, name, None))


def mean_and_slope(x, k, v, device="cpu"):
    x = x.to(device).requires_grad_()
    mean = gt.Subset(x, k.to(device)).mean
    (slope,) = torch.autograd.grad(mean, x, v.to(device))
    return mean.detach().cpu(), slope.cpu()


@pytest.mark.parametrize(("scale", "turns"), [(1.0, False), (10.0, True)])
def test_as_on_the_cpu(scale, turns, request, monkeypatch):
    generator = seeded()
    x, v = (torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    x, k = scale * x, torch.tensor([1, 6, 3, 2, 0])
    x[3, 2:4] = -torch.inf
    expected = mean_and_slope(x, k, v)
    request.getfixturevalue("by_triton")
    if turns:  # two items at a time
        monkeypatch.setattr(kernels, "SCRATCH", 2 * 7 * 6 * 96)
    for ours, theirs in zip(mean_and_slope(x, k, v, DEVICE), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-14, rtol=1e-12)


def test_items_that_would_not_fit_into_memory_are_left_to_torch(by_triton, monkeypatch):
    assert kernels.subset_probs_serves(784, 50, 48)
    assert not kernels.subset_probs_serves(10**5, 100, 48)
    monkeypatch.setattr(kernels, "SCRATCH", 1)
    monkeypatch.setattr(inclusion._Kernel, "apply", lambda *_: pytest.fail("the kernel was asked"))
    x = torch.zeros(2, 5, dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(gt.Subset(x, 2).mean, torch.full_like(x, 0.4))


@pytest.mark.usefixtures("by_triton")
def test_two_derivatives():
    x = torch.randn(1, 4, generator=seeded(3), dtype=torch.float64).to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: gt.Subset(x, 2).mean, x)
    assert torch.autograd.gradgradcheck(lambda x: gt.Subset(x, 2).mean, x)
