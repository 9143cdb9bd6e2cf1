"""Soft subsets by the Triton kernels against the formulas in torch: on a GPU, else in the interpreter."""

import pytest
import torch
from common import seeded
from kernelcases import DEVICE
from softsubsets import check_membership, randn, two_derivatives

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import soft_subset
from gumtrace.relaxations import expfamily, subset

pytestmark = pytest.mark.device
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel does not write is nan."""
    for name in ("empty", "empty_like"):
        real = getattr(torch, name)
        poison = lambda *args, real=real, **kwargs: real(*args, **kwargs).fill_(torch.nan)  # noqa: E731
        monkeypatch.setattr(soft_subset.torch, name, poison)


def mixed(rows, d, scale, dtype):
    """Scores (rows, d), some keys idle, rows of ties among them, and k from none to all keys and more."""
    u = randn(rows, d, scale=scale, dtype=dtype)
    u[::5] = u[::5].round()
    u[1] = 0.0
    u[torch.rand(u.shape, generator=seeded(1)) < 0.2] = -torch.inf
    u[2] = -torch.inf
    return u, torch.arange(rows).remainder(d + 2)


@pytest.mark.parametrize("kind", soft_subset.KINDS)
@DTYPES
@pytest.mark.parametrize("scale", [0.0, 1.0, 500.0])
@pytest.mark.parametrize("d", [1, 21])
def test_shift(kind, dtype, scale, d):
    u, k = mixed(70, d, scale, dtype)
    z = soft_subset.subset_shift(kind, u.to(DEVICE), k.to(DEVICE)).cpu()
    expected = subset._search(u, k, min(int(k.max()), d), kind)
    assert (z.isneginf() == expected.isneginf()).all()
    assert (z.isposinf() == expected.isposinf()).all()
    x, expected = (subset._MAPS[kind][0](each) for each in (z, expected))
    torch.testing.assert_close(x, expected, atol=4 * torch.finfo(dtype).eps, rtol=0)
    check_membership(x, k.minimum(u.isfinite().sum(-1)))


@DTYPES
@pytest.mark.parametrize(("d", "k"), [(1, 1), (6, 3), (33, 7)])
def test_cumulants(dtype, d, k, monkeypatch):
    monkeypatch.setattr(soft_subset, "TILE", 16)  # keys on several programs
    u = randn(17, d, scale=2, dtype=dtype)
    sizes = torch.full((17,), k)
    p = subset._search(u, sizes, k, "binary").sigmoid()
    theta = expfamily.nodes(p, k, k)
    w = cpu.subset_weights(theta, p, sizes)
    x = cpu.subset_marginals(theta, p, w)
    g = expfamily._centred(randn(17, d, seed=1, dtype=dtype), x, sizes)
    on_device = [each.to(DEVICE) for each in (theta, p, sizes, w, x, g)]
    theta, p, sizes, w, x, g = on_device
    tolerance = {"atol": 200 * torch.finfo(dtype).eps, "rtol": 0}
    t = theta.to(dtype)
    torch.testing.assert_close(soft_subset.subset_weights(theta, p, sizes), w, **tolerance)
    torch.testing.assert_close(soft_subset.subset_marginals(theta, p, w), x, **tolerance)
    expected = expfamily._covariance(t, p, x, w, g)
    torch.testing.assert_close(soft_subset.subset_covariance(theta, p, x, w, g), expected, **tolerance)


@pytest.mark.parametrize("kind", subset.KINDS)
def test_relaxation_with_two_derivatives(kind, monkeypatch):
    """What a user gets."""
    u, k = mixed(30, 23, 2.0, torch.float64)
    k = k.minimum(u.isfinite().sum(-1))
    expected = two_derivatives(u, k, kind)
    if DEVICE == "cpu":  # in place of the CPU's own kernels
        for module in (expfamily, subset):
            monkeypatch.setattr(module, "own_kernel", lambda name, _: getattr(soft_subset, name, None))
    for ours, theirs in zip(two_derivatives(u, k, kind, DEVICE), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=300 * torch.finfo(u.dtype).eps, rtol=0)


def test_rows_beyond_the_range(monkeypatch):
    monkeypatch.setattr(soft_subset, "LONGEST", 4)
    assert soft_subset.subset_shift("binary", randn(2, 5), torch.tensor([1, 2])) is None
