"""Soft subsets: inside the polytope, the very points they are defined to be, with exact derivatives, at any scale."""

import math
from itertools import combinations

import pytest
import torch
from common import seeded
from softsubsets import check_membership, randn
from torch.autograd import gradcheck, gradgradcheck

from gumtrace.relaxations.subset import KINDS, relax_subset

ALL = pytest.mark.parametrize("kind", KINDS)
SEPARABLE = pytest.mark.parametrize("kind", ["euclidean", "categorical", "binary"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SIZES = [(1, 0), (1, 1), (2, 1), (5, 0), (5, 2), (5, 5), (7, 6), (40, 3), (40, 38), (350, 10), (350, 200)]


def by_enumeration(u, k):
    """Marginals of P(S) ∝ e^{Σ_S u}, from all k-subsets."""
    subsets = torch.zeros(math.comb(len(u), k), len(u), dtype=u.dtype)
    for i, keys in enumerate(combinations(range(len(u)), k)):
        subsets[i, list(keys)] = 1
    return torch.softmax(subsets @ u, 0) @ subsets


def by_log_polynomial(u, k):
    """The same as the gradient of the log of the elementary symmetric polynomial, in the log domain."""
    u = u.detach().requires_grad_()
    e = torch.cat((u.new_zeros(1), u.new_full((k,), -1e300)))
    for i in range(len(u)):
        e = torch.cat((e[:1], torch.logaddexp(e[1:], e[:-1] + u[i])))
    return torch.autograd.grad(e[k], u)[0]


# Values ------------------------------------------------------------------------------------------


@ALL
@DTYPES
@pytest.mark.parametrize(("d", "k"), SIZES)
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0, 100.0, 1e6])
def test_membership(kind, dtype, d, k, scale):
    u = randn(9, d, scale=scale, dtype=dtype)
    check_membership(relax_subset(u, k, kind), k)
    check_membership(relax_subset(u.round(), k, kind), k)  # many ties


@ALL
@DTYPES
def test_ragged_and_masked(kind, dtype):
    """Each row alone, and without the keys that do not race, gives the same."""
    u = randn(3, 8, 6, scale=2, dtype=dtype)
    u[torch.rand(u.shape, generator=seeded(1)) < 0.3] = -torch.inf
    u[0, 0] = -torch.inf
    k = torch.randint(0, 7, (3, 8), generator=seeded(2)).minimum(u.isfinite().sum(-1))
    x = relax_subset(u, k, kind)
    check_membership(x, k)
    assert (x[u.isneginf()] == 0).all()
    for row, size, soft in zip(u.flatten(0, 1), k.flatten().tolist(), x.flatten(0, 1), strict=True):
        racing = row.isfinite()
        torch.testing.assert_close(soft[racing], relax_subset(row[racing], size, kind))
    torch.testing.assert_close(relax_subset(u, k.clamp(max=1)[1], kind)[2], relax_subset(u[2], k.clamp(max=1)[1], kind))


@pytest.mark.parametrize(("d", "k"), [(d, k) for d in (1, 2, 4, 7, 10) for k in range(d + 1)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 40.0])
def test_expfamily_against_enumeration(d, k, scale):
    u = randn(d, scale=scale, seed=d).requires_grad_()
    x, exact = relax_subset(u, k), by_enumeration(u, k)
    torch.testing.assert_close(x, exact, atol=1e-14, rtol=1e-12)
    weights = randn(d, seed=3)
    grads = [torch.autograd.grad(value @ weights, u, create_graph=True)[0] for value in (x, exact)]
    torch.testing.assert_close(*grads, atol=1e-13, rtol=1e-11)
    again = [torch.autograd.grad(grad.square().sum(), u)[0] for grad in grads]
    torch.testing.assert_close(*again, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(relax_subset(u.float(), k), exact.float(), atol=3e-6, rtol=0)  # 40 is rounded to 2e-6


@pytest.mark.parametrize(("d", "k"), [(60, 1), (60, 25), (60, 59), (250, 120)])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_expfamily_against_polynomials(d, k, scale):
    u = randn(d, scale=scale)
    torch.testing.assert_close(relax_subset(u, k), by_log_polynomial(u, k), atol=1e-13, rtol=1e-10)


@SEPARABLE
@pytest.mark.parametrize(("d", "k"), [(2, 1), (5, 2), (40, 3), (40, 38), (350, 100)])
@pytest.mark.parametrize("scale", [0.0, 0.3, 2.0])  # wider, and 1 - x has no digits left to check with
def test_optimality(kind, d, k, scale):
    """x maximises a concave objective: no corner of the polytope lies further up the gradient than x itself."""
    u = randn(6, d, scale=scale)
    x = relax_subset(u, k, kind)
    gradient = {
        "euclidean": lambda: u - x,
        "categorical": lambda: u - x.log(),
        "binary": lambda: u - x.log() + (1 - x).log(),
    }[kind]()
    gap = gradient.topk(k).values.sum(-1) - (gradient * x).sum(-1)
    assert (gap.abs() < 1e-9).all()


@ALL
@DTYPES
def test_cold_limit(kind, dtype):
    """u / τ for τ towards 0: the top k, at last exactly."""
    u = randn(50, 30, dtype=dtype)
    k = torch.arange(50) % 30 + 1
    hard = torch.zeros_like(u)
    for row, size, value in zip(u, k.tolist(), hard, strict=True):
        value[row.topk(size).indices] = 1
    errors = [(relax_subset(u / t, k, kind) - hard).abs().amax(-1).mean() for t in (3, 1, 0.3, 0.1, 0.03, 0.01)]
    assert errors == sorted(errors, reverse=True)
    assert torch.equal(relax_subset(u / 1e-7, k, kind).round(decimals=6), hard)


@ALL
@DTYPES
def test_ties_share(kind, dtype):
    u = torch.tensor([3.0, 1.0, 1.0, 1.0, -4.0], dtype=dtype) * 400
    expected = torch.tensor([1, 1 / 3, 1 / 3, 1 / 3, 0], dtype=dtype)
    torch.testing.assert_close(relax_subset(u, 2, kind), expected)
    torch.testing.assert_close(relax_subset(torch.full_like(u, -7e4), 2, kind), torch.full_like(u, 0.4))


@ALL
def test_corners(kind):
    """No k, all of them, fewer than k, none that race: constants, with gradient 0."""
    u = torch.tensor([[1.0, 2.0, 2.0], [5.0, -torch.inf, 5.0], [-torch.inf] * 3, [0.0, -torch.inf, -torch.inf]])
    for k, expected in ((0, torch.zeros_like(u)), (3, u.isfinite().float())):
        u.requires_grad_()
        x = relax_subset(u, k, kind)
        assert torch.equal(x, expected)
        (grad,) = torch.autograd.grad(x @ torch.tensor([1.0, -2.0, 3.0]), u, torch.ones(4), create_graph=True)
        assert torch.equal(grad, torch.zeros_like(u))
        assert torch.equal(torch.autograd.grad(grad.square().sum(), u)[0], torch.zeros_like(u))
    x = relax_subset(u, torch.tensor([3, 2, 0, 1]), kind)
    assert torch.equal(x, u.isfinite().float())


@ALL
@pytest.mark.parametrize("k", [3, 5, 8])
def test_fewer_keys_race_than_are_asked_for(kind, k):
    """Also where the quadrature of expfamily has several nodes, which few keys do not need."""
    u = torch.full((3, 50), -torch.inf, dtype=torch.float64)
    u[:2, :2] = torch.tensor([1.0, -2.0])
    u[2] = torch.linspace(0, 1, 50)
    u.requires_grad_()
    x = relax_subset(u, k, kind)
    torch.testing.assert_close(x[:2], u[:2].isfinite().double(), atol=4e-16, rtol=0)
    torch.testing.assert_close(x[2].sum(), torch.tensor(float(k), dtype=torch.float64))
    (grad,) = torch.autograd.grad((x * torch.arange(50.0)).sum(), u)
    assert grad[:2].abs().max() < 1e-14


@ALL
def test_empty(kind):
    assert relax_subset(torch.zeros(0, 4), 2, kind).shape == (0, 4)
    assert relax_subset(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.long), kind).shape == (2, 0, 4)
    assert relax_subset(torch.zeros(3, 0), 0, kind).shape == (3, 0)


# Derivatives -------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize(("d", "k"), [(1, 1), (2, 1), (6, 3), (9, 2), (9, 8)])
def test_derivatives(kind, d, k):
    u = randn(3, d, scale=1.5, seed=d).requires_grad_()
    assert gradcheck(lambda u: relax_subset(u, k, kind), u)
    assert gradgradcheck(lambda u: relax_subset(u, k, kind), u)


@ALL
def test_derivatives_ragged_and_masked(kind):
    racing = torch.rand(5, 7, generator=seeded(4)) < 0.8
    k = torch.tensor([0, 1, 2, 3, 9]).minimum(racing.sum(-1))

    def relaxed(u):
        return relax_subset(torch.where(racing, u, -torch.inf), k, kind)

    u = randn(5, 7, scale=1.5).requires_grad_()
    assert gradcheck(relaxed, u)
    assert gradgradcheck(relaxed, u)


@pytest.mark.parametrize("kind", ["expfamily", "categorical", "binary"])
def test_third_derivatives(kind):
    u = randn(2, 5, scale=1.5).requires_grad_()

    def slope(u):
        return torch.autograd.grad(relax_subset(u, 2, kind).square().sum(), u, create_graph=True)[0]

    assert gradgradcheck(slope, u)


@ALL
def test_gradients_of_float32(kind):
    """Those of float64 to rounding, with and without a graph."""
    u = randn(20, 100, scale=2).float().requires_grad_()
    g = randn(20, 100, seed=1).float()
    (grad,) = torch.autograd.grad(relax_subset(u, 12, kind), u, g)
    (same,) = torch.autograd.grad(relax_subset(u, 12, kind), u, g, create_graph=True)
    (exact,) = torch.autograd.grad(relax_subset(u.double(), 12, kind), u, g.double())
    torch.testing.assert_close(grad, same)
    torch.testing.assert_close(grad, exact, atol=3e-6, rtol=1e-4)


@ALL
@DTYPES
@pytest.mark.parametrize("scale", [500.0, 1e4, 1e9])
@pytest.mark.parametrize(("d", "k"), [(2, 1), (12, 5), (350, 10), (350, 349)])
def test_extremes(kind, dtype, scale, d, k):
    """Values and two derivatives are finite, whatever is spread, tied, clustered or masked."""
    spread = scale * (2 * torch.rand(4, d, generator=seeded(5), dtype=dtype) - 1)
    clusters = spread.sign() * scale + randn(4, d, dtype=dtype)
    masked = spread.clone()
    masked[:, 0] = -torch.inf
    rows = torch.cat((spread, clusters, spread.sign() * scale, masked)).requires_grad_()
    x = relax_subset(rows, k, kind)
    check_membership(x, k)
    g = randn(*rows.shape, seed=1, dtype=dtype)
    (grad,) = torch.autograd.grad(x, rows, g, create_graph=True)
    (again,) = torch.autograd.grad(grad, rows, g)
    assert grad.isfinite().all()
    assert again.isfinite().all()
    assert (grad[-4:, 0] == 0).all()
    assert (again[-4:, 0] == 0).all()
    assert (grad.sum(-1).abs() < 1e-4).all()  # a shift of all u changes nothing


# Errors --------------------------------------------------------------------------------------------


def test_errors():
    u = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="unknown kind 'soft': choose from expfamily, euclidean, categorical, binary"):
        relax_subset(u, 1, "soft")
    with pytest.raises(ValueError, match="between 0 and the number of keys 3, got 4"):
        relax_subset(u, 4)
    with pytest.raises(ValueError, match="got -1"):
        relax_subset(u, torch.tensor([1, -1]))
    with pytest.raises(ValueError, match=r"k \(3,\) does not fit scores \(2, 3\)"):
        relax_subset(u, torch.tensor([1, 1, 1]))
    with pytest.raises(TypeError, match=r"torch\.float32"):
        relax_subset(u, torch.tensor([1.0, 1.0]))
