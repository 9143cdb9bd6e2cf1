"""Soft subsets on every path: the CPU kernels, the formulas in torch that other devices run, large batches, CUDA."""

import math

import pytest
import torch
from common import seeded
from softsubsets import check_membership, randn, two_derivatives
from torch.autograd import gradcheck, gradgradcheck

import gumtrace as gt
from gumtrace.kernels.cpu import ops
from gumtrace.relaxations import expfamily, subset
from gumtrace.relaxations.subset import KINDS, relax_subset

ALL = pytest.mark.parametrize("kind", KINDS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.mark.parametrize("kind", ["euclidean", "categorical", "binary"])
@DTYPES
@pytest.mark.parametrize("scale", [0.0, 1.0, 500.0])
def test_search_in_torch(kind, dtype, scale):
    u = randn(64, 30, scale=scale, dtype=dtype)
    u[torch.rand(u.shape, generator=seeded(1)) < 0.2] = -torch.inf
    k = torch.arange(64).remainder(29).minimum(u.isfinite().sum(-1))
    shape = subset._MAPS[kind][0]
    both = []
    for z in (ops.subset_shift(kind, u, k), subset._search(u, k, int(k.max()), kind)):
        both.append(shape(z))
        check_membership(both[-1], k)
    torch.testing.assert_close(*both, atol=4 * torch.finfo(dtype).eps, rtol=0)


@DTYPES
@pytest.mark.parametrize(("d", "k"), [(1, 1), (6, 3), (200, 12)])
def test_cumulants_in_torch(dtype, d, k):
    u = randn(17, d, scale=2, dtype=dtype)
    sizes = torch.full((17,), k)
    p = subset._shift(u, sizes, k, "binary").sigmoid()
    theta = expfamily.nodes(torch.empty(1, d, dtype=dtype), k, k)
    w = ops.subset_weights(theta, p, sizes)
    x = ops.subset_marginals(theta, p, w)
    g, h = (expfamily._centred(randn(17, d, seed=s, dtype=dtype), x, sizes) for s in (1, 2))
    tolerance = {"atol": 200 * torch.finfo(dtype).eps, "rtol": 0}
    t = theta.to(dtype)
    torch.testing.assert_close(expfamily._weights(t, p, sizes), w, **tolerance)
    torch.testing.assert_close(expfamily._marginals(t, p, w), x, **tolerance)
    torch.testing.assert_close(
        expfamily._covariance(t, p, x, w, g), ops.subset_covariance(theta, p, x, w, g), **tolerance
    )
    third = ops.subset_third_cumulant(theta, p, x, w, g, h)
    torch.testing.assert_close(expfamily._third_cumulant(t, p, x, w, g, h), third, **tolerance)


@ALL
@DTYPES
def test_without_kernels(monkeypatch, kind, dtype):
    """What other devices run gives the same, two derivatives included."""
    u = randn(30, 40, scale=2, dtype=dtype)
    u[torch.rand(u.shape, generator=seeded(1)) < 0.2] = -torch.inf
    k = torch.arange(30).minimum(u.isfinite().sum(-1))
    monkeypatch.setattr(expfamily, "CHUNK", 7 * 40 * 10)  # a few rows at a time
    results = []
    results.append(two_derivatives(u, k, kind))
    for module in (expfamily, subset):
        monkeypatch.setattr(module, "own_kernel", lambda name, device_type: None)
    results.append(two_derivatives(u, k, kind))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=300 * torch.finfo(dtype).eps, rtol=0)
    small = randn(3, 5, scale=1.5).requires_grad_()
    assert gradcheck(lambda u: relax_subset(u, 2, kind), small)
    assert gradgradcheck(lambda u: relax_subset(u, 2, kind), small)


@pytest.mark.parametrize(("d", "k"), [(3, 1), (50, 2), (350, 10), (350, 175), (2000, 50)])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_enough_nodes(d, k, scale):
    """Half as many nodes again change nothing; float32 takes fewer of them."""
    sizes = torch.full((4,), k)
    p = subset._shift(randn(4, d, scale=scale), sizes, k, "binary").sigmoid()
    results = []
    for dtype, more in ((torch.float32, 1.0), (torch.float64, 1.0), (torch.float64, 1.5)):
        m = math.ceil(more * len(expfamily.nodes(torch.empty(1, d, dtype=dtype), k, k)))
        theta = (torch.arange(m, dtype=torch.float64) + 0.5) * (math.pi / m)
        results.append(ops.subset_marginals(theta, p, ops.subset_weights(theta, p, sizes)))
    torch.testing.assert_close(results[0], results[2], atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(results[1], results[2], atol=1e-15, rtol=1e-13)


def test_large_batch():
    """The size that is timed: d = 350, k = 10, 1024 items, forward and backward, on more than one thread."""
    u = randn(1024, 350, dtype=torch.float32).requires_grad_()
    for kind in KINDS:
        x = relax_subset(u, 10, kind)
        check_membership(x, 10)
        (grad,) = torch.autograd.grad(x.square().sum(), u)
        assert grad.sum(-1).abs().max() < 1e-4
        torch.testing.assert_close(relax_subset(u[700:703], 10, kind), x[700:703])


@pytest.mark.parametrize("k", [3, torch.tensor([1, 2])])
def test_a_number_is_passed_on_as_one(k, monkeypatch):
    """To read a tensor is to synchronise with its device."""
    passed = []
    monkeypatch.setattr(subset, "relax_subset", lambda u, k, kind: passed.append(k) or u)
    d = gt.Subset(randn(2, 5), k)
    gt.relax(d, d.perturb(), 1.0)
    assert type(passed[0]) is type(k)


@ALL
@DTYPES
@pytest.mark.gpu
def test_cuda(kind, dtype):
    if not torch.cuda.is_available():
        pytest.skip("compares the CPU with a CUDA device, and there is none")
    u = randn(40, 60, scale=2, dtype=dtype)
    u[torch.rand(u.shape, generator=seeded(1)) < 0.2] = -torch.inf
    k = torch.arange(40).minimum(u.isfinite().sum(-1))
    for ours, theirs in zip(*(two_derivatives(u, k, kind, device) for device in ("cpu", "cuda")), strict=True):
        torch.testing.assert_close(ours, theirs, atol=300 * torch.finfo(dtype).eps, rtol=0)
