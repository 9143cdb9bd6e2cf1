"""Soft matchings: against Sinkhorn's own iteration, closed forms, assignments and hard structures."""

import itertools

import pytest
import torch
from common import seeded
from scipy.optimize import linear_sum_assignment
from torch.autograd import gradcheck, gradgradcheck
from treesums import INF, uniform

import gumtrace as gt
from gumtrace.relaxations.sinkhorn import _balanced, _bordered, newton, sinkhorn


def iterated(u, steps=3000):
    """Sinkhorn's iteration itself, with one more row for the columns that are left over."""
    n, m = u.shape[-2:]
    log_rows = torch.zeros(n, dtype=u.dtype)
    if m > n:
        u = torch.cat([u, torch.zeros_like(u[..., :1, :])], -2)
        log_rows = torch.cat([log_rows, torch.tensor([m - n], dtype=u.dtype).log()])
    for _ in range(steps):
        u = u - u.logsumexp(-1, keepdim=True) + log_rows[:, None]
        u = u - u.logsumexp(-2, keepdim=True)
    return u.exp()[..., :n, :]


@pytest.mark.parametrize("span", [1, 8])
@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 2, 2), (3, 4, 4), (3, 2, 5), (3, 1, 4), (3, 6, 7)])
def test_equals_the_limit_of_sinkhorns_iteration(shape, span):
    u = uniform(*shape, span=span)
    torch.testing.assert_close(sinkhorn(u), iterated(u), rtol=0, atol=1e-10)


def test_derivatives_equal_those_of_sinkhorns_iteration():
    u = uniform(3, 4, span=2.0).requires_grad_()
    first, second = (torch.randn(3, 4, generator=seeded(i), dtype=torch.float64) for i in range(2))
    found = []
    for f in (sinkhorn, lambda x: iterated(x, steps=100)):
        slope = torch.autograd.grad(f(u), u, first, create_graph=True)[0]
        found.append((slope, torch.autograd.grad(slope, u, second)[0]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("span", [1, 50, 500, 1e5])
def test_two_by_two_in_closed_form(span):
    u = uniform(50, 2, 2, span=span).requires_grad_()
    stay = ((u[:, 0, 0] + u[:, 1, 1] - u[:, 0, 1] - u[:, 1, 0]) / 2).sigmoid()
    expected = torch.stack([stay, 1 - stay, 1 - stay, stay], -1).reshape(50, 2, 2)
    x = sinkhorn(u)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-12 + 1e-14 * span)
    weight = torch.randn(50, 2, 2, generator=seeded(), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), u)[0] for y in (x, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11 + 1e-14 * span)


@pytest.mark.parametrize("span", [5, 60, 500])
def test_has_the_form_of_an_optimum(span):
    """log X - u is a sum of a row's and a column's number: checked where entries are not lost in rounding errors."""
    u = uniform(20, 6, 6, span=span)
    x = sinkhorn(u)
    rest = x.log() - u
    for a, b, c, d in itertools.product(range(5), range(1, 6), range(5), range(1, 6)):
        cross = rest[:, a, c] + rest[:, b, d] - rest[:, a, d] - rest[:, b, c]
        corners = torch.stack([x[:, a, c], x[:, b, d], x[:, a, d], x[:, b, c]]).amin(0)
        assert cross[corners > 1e-4].abs().le(1e-7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("span", [3, 60, 500, 1e5])
@pytest.mark.parametrize("shape", [(8, 12, 12), (8, 9, 14), (8, 1, 6)])
def test_inside_the_polytope(shape, span, dtype):
    u = uniform(*shape, span=span).to(dtype)
    x = sinkhorn(u)
    slack = 1e-5 if dtype == torch.float32 else 1e-12
    assert x.dtype == dtype
    assert (x >= 0).all()
    assert (x.sum(-1) - 1).abs().le(slack).all()
    assert (x.sum(-2) <= 1 + slack).all()


@pytest.mark.parametrize("shape", [(10, 10), (6, 11)])
def test_cold_matchings_are_optimal_assignments(shape):
    g = torch.randn(5, *shape, generator=seeded(), dtype=torch.float64)
    x = sinkhorn(g / 1e-5)
    for ours, item in zip(x, g, strict=True):
        best = torch.zeros(shape, dtype=torch.float64)
        best[linear_sum_assignment(item.numpy(), maximize=True)] = 1
        torch.testing.assert_close(ours, best, rtol=0, atol=1e-6)


def test_cold_matchings_are_the_hard_ones_where_greedy_is_optimal():
    d = gt.Matching(4 * torch.eye(6, dtype=torch.float64))
    g = d.perturb((40,), generator=seeded())
    hard = d.trace(g).value
    optimal = [linear_sum_assignment(item.numpy(), maximize=True) for item in g]
    agree = [i for i, place in enumerate(optimal) if hard[i][place].sum() == 6]
    assert 20 < len(agree) < 40
    torch.testing.assert_close(sinkhorn(g[agree] / 1e-4), hard[agree], rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2, 2), (2, 3, 3), (2, 2, 3)])
def test_gradcheck(shape):
    u = torch.randn(*shape, generator=seeded(), dtype=torch.float64, requires_grad=True)
    assert gradcheck(sinkhorn, u)
    assert gradgradcheck(sinkhorn, u)


MASKS = {
    "triangular": [[1, 1, 1], [0, 1, 1], [0, 0, 1]],
    "row": [[1, 1, 1], [0, 0, 0], [1, 1, 0]],
    "column": [[0, 1, 1], [0, 1, 1], [0, 1, 1]],
    "crowded": [[1, 0, 0], [1, 0, 0], [1, 1, 1]],
    "nothing": [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    "ring": [[1, 1, 0], [0, 1, 1], [1, 0, 1]],
}


@pytest.mark.parametrize("mask", [torch.tensor(m).bool() for m in MASKS.values()], ids=MASKS)
def test_gradcheck_masked(mask):
    def soft(u):
        return sinkhorn(torch.where(mask, u, -INF))

    u = torch.randn(3, 3, generator=seeded(), dtype=torch.float64, requires_grad=True)
    assert gradcheck(soft, u)
    assert gradgradcheck(soft, u)
    assert soft(u)[~mask].eq(0).all()


@pytest.mark.parametrize("span", [1, 20, 500])
def test_masks(span):
    u = uniform(3, 3, span=span)

    def soft(name):
        return sinkhorn(torch.where(torch.tensor(MASKS[name]).bool(), u, -INF))

    def check(found, expected):
        torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)

    check(soft("triangular"), torch.eye(3))  # the only matching of all rows
    check(soft("nothing"), torch.zeros(3, 3))
    check(soft("row").sum(-1), [1, 0, 1])  # a row without a key is left out
    check(soft("row")[[0, 2]], sinkhorn(torch.where(torch.tensor(MASKS["row"]).bool(), u, -INF)[[0, 2]]))
    check(soft("column").sum(-2), [0, 1, 1])  # three rows share two columns
    check(soft("column").sum(), 2)
    share = ((u[0, 0] - u[1, 0]) / 2).sigmoid()
    check(soft("crowded")[:, 0], [share, 1 - share, 0])  # two rows share a column, the third finds another
    check(soft("crowded")[2].sum(), 1)
    agree = (u[0, 0] + u[1, 1] + u[2, 2] - u[0, 1] - u[1, 2] - u[2, 0]) / 3
    check(soft("ring").diagonal(), agree.sigmoid().expand(3))


@pytest.mark.parametrize("span", [1, 500])
@pytest.mark.parametrize("keep", [0.5, 0.2, 0.05])
def test_random_masks_match_as_many_rows_as_possible(keep, span):
    racing = torch.rand(20, 12, 15, generator=seeded()) < keep
    u = torch.where(racing, uniform(20, 12, 15, span=span), -INF).requires_grad_()
    x = sinkhorn(u)
    (grad,) = torch.autograd.grad((x * torch.randn(12, 15, generator=seeded())).sum(), u)
    assert grad.isfinite().all()
    assert x[~racing].eq(0).all()
    assert (x >= 0).all()
    assert x.sum(-1).le(1 + 1e-12).all()
    assert x.sum(-2).le(1 + 1e-12).all()
    for item, allowed in zip(x, racing, strict=True):
        most = allowed.numpy()[linear_sum_assignment(allowed.numpy(), maximize=True)].sum()
        assert item.sum().item() == pytest.approx(most, abs=1e-9)


def test_padding_equals_the_item_without_it():
    u = torch.randn(4, 5, 5, generator=seeded(), dtype=torch.float64)
    weight = torch.randn(4, 5, 5, generator=seeded(1), dtype=torch.float64)
    inside = torch.zeros(4, 5, 5, dtype=torch.bool)
    sizes = [(5, 5), (3, 3), (2, 4), (1, 1)]
    for keep, (n, m) in zip(inside, sizes, strict=True):
        keep[:n, :m] = True
    padded = torch.where(inside, u, -INF).requires_grad_()
    x = sinkhorn(padded)
    (grad,) = torch.autograd.grad((x * weight).sum(), padded)
    assert x[~inside].eq(0).all()
    assert grad[~inside].eq(0).all()
    for b, (n, m) in enumerate(sizes):
        alone = u[b, :n, :m].clone().requires_grad_()
        y = sinkhorn(alone)
        torch.testing.assert_close(x[b, :n, :m], y, rtol=0, atol=1e-11)
        (expected,) = torch.autograd.grad((y * weight[b, :n, :m]).sum(), alone)
        torch.testing.assert_close(grad[b, :n, :m], expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_masses():
    u = torch.randn(2, 3, 4, generator=seeded(), dtype=torch.float64)
    rows, cols = torch.tensor([2.0, 0.5, 0.0]), torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.25, 0.75, 0.0, 3.0]])
    x = sinkhorn(u, rows, cols)
    torch.testing.assert_close(x.sum(-1), rows.double().expand(2, 3))
    assert (x.sum(-2) <= cols + 1e-12).all()
    torch.testing.assert_close(sinkhorn(u, torch.ones(3), torch.ones(4)), sinkhorn(u))


def test_kernel_and_torch_agree():
    for shape, span, keep in [((9, 5, 5), 3, 1), ((9, 4, 7), 60, 1), ((9, 8, 8), 500, 1), ((9, 8, 8), 5, 0.3)]:
        u = torch.where(torch.rand(shape, generator=seeded()) < keep, uniform(*shape, span=span), -INF)
        racing = u > -INF
        problem = _bordered(u, racing, racing.any(-1).double(), racing.any(-2).double())
        found = [solve(*problem, 200, 1e-12) for solve in (_balanced, newton)]
        torch.testing.assert_close(*found, rtol=0, atol=1e-10)


def test_too_few_iterations_stay_inside():
    u = uniform(5, 6, 8, span=500)
    x = sinkhorn(u, iterations=2)
    torch.testing.assert_close(x.sum(-1), torch.ones(5, 6, dtype=torch.float64))
    assert (x.sum(-2) <= 1 + 1e-12).all()


@pytest.mark.parametrize("span", [500, 1e5])
def test_extreme_scores_have_finite_derivatives(span):
    u = torch.where(torch.rand(4, 20, 20, generator=seeded()) < 0.8, uniform(4, 20, 20, span=span), -INF)
    u = u.float().requires_grad_()
    grad = torch.randn(4, 20, 20, generator=seeded())
    slope = torch.autograd.grad(sinkhorn(u), u, grad, create_graph=True)[0]
    curve = torch.autograd.grad(slope, u, grad)[0]
    assert slope.isfinite().all()
    assert curve.isfinite().all()
    assert slope.detach()[u.isneginf()].eq(0).all()


def test_shapes_and_strides():
    for shape in [(0, 3, 3), (2, 0, 2, 4), (0, 0), (2, 0, 3), (1, 1), (3, 1, 1), (2, 3, 2, 2)]:
        assert sinkhorn(torch.zeros(shape)).shape == shape
        assert sinkhorn(torch.zeros(shape, requires_grad=True)).sum().backward() is None
    u = torch.randn(5, 6, 4, generator=seeded()).permute(2, 0, 1)
    torch.testing.assert_close(sinkhorn(u), sinkhorn(u.contiguous()))
    torch.testing.assert_close(sinkhorn(u[:1].expand(3, 5, 6)), sinkhorn(u[:1]).expand(3, 5, 6))
    assert sinkhorn(u.half()).dtype == torch.float16
    with pytest.raises(ValueError, match=r"must be \(\*S, n, m\), got \(3,\)"):
        sinkhorn(torch.zeros(3))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64])
def test_masses_do_not_depend_on_the_default_dtype(default):
    u = torch.randn(3, 4, 4, generator=seeded(1))
    expected, before = sinkhorn(u), torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert torch.equal(sinkhorn(u), expected)
    finally:
        torch.set_default_dtype(before)
