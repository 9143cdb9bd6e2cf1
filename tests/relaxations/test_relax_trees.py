"""Edge marginals of trees: against enumeration of all trees, over the whole range of scores, with derivatives."""

import itertools

import pytest
import torch
from common import seeded
from torch.autograd import gradcheck, gradgradcheck
from treesums import INF, directed, heaviest, reference, some_missing, symmetric, undirected, uniform

import gumtrace as gt
from gumtrace.kernels.cpu.matrix_tree import tree_marginals
from gumtrace.relaxations import trees
from gumtrace.relaxations.trees import arborescence_marginals, spanning_tree_marginals

KINDS = [
    pytest.param(spanning_tree_marginals, lambda n: undirected(n), symmetric, id="tree"),
    pytest.param(arborescence_marginals, lambda n: directed(n, 0), reference, id="arborescence"),
    pytest.param(
        lambda u: arborescence_marginals(u, u.shape[-1] // 2), lambda n: directed(n, n // 2), reference, id="root"
    ),
]
FUNCTIONS = [spanning_tree_marginals, arborescence_marginals]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("span", [1, 10, 100, 500, 5000])
@pytest.mark.parametrize(("soft", "trees_of", "exact"), KINDS)
def test_equals_the_sum_over_all_trees(soft, trees_of, exact, span, n):
    every = trees_of(n)
    for seed in range(6):
        u = uniform(n, n, span=span, seed=seed)
        u = some_missing(u, seed) if seed % 2 else u
        torch.testing.assert_close(soft(u), exact(u, every), rtol=0, atol=1e-15 * (100 + 4 * span))


@pytest.mark.parametrize("span", [1, 30, 500])
@pytest.mark.parametrize(("soft", "trees_of", "exact"), KINDS)
def test_derivatives_equal_those_of_the_sum_over_all_trees(soft, trees_of, exact, span):
    every = trees_of(4)
    for seed in range(4):
        u = uniform(4, 4, span=span, seed=seed)
        u = some_missing(u, seed) if seed % 2 else u
        first, second = (torch.randn(4, 4, generator=seeded(seed), dtype=torch.float64) for _ in range(2))
        found = []
        for f in (soft, lambda x: exact(x, every)):
            x = u.clone().requires_grad_()
            slope = torch.autograd.grad(f(x), x, first, create_graph=True)[0]
            found.append((slope, torch.autograd.grad(slope, x, second)[0]))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15 * (100 + 20 * span))


def test_wide_ties_are_shared():
    """Two heavy edges of equal weight 1000 above the rest: the sum over all trees, by hand."""
    u = torch.full((4, 4), -500.0, dtype=torch.float64)
    u[0, 1] = u[0, 2] = u[1, 2] = 500.0
    p = spanning_tree_marginals(u)
    torch.testing.assert_close(p[0, 1:], torch.tensor([2 / 3, 2 / 3, 1 / 3], dtype=torch.float64))
    torch.testing.assert_close(p[3], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0], dtype=torch.float64))


def test_weak_links_are_not_lost():
    """A walk that drifts away from the root by e^50 a step: weights of paths to the root fall to e^-2000."""
    n = 40
    u = torch.full((n, n), -INF, dtype=torch.float64)
    for i in range(n - 1):
        u[i, i + 1], u[i + 1, i] = -25.0, 25.0
    u.requires_grad_()
    p = arborescence_marginals(u)
    expected = torch.zeros(n, n, dtype=torch.float64)
    expected[torch.arange(n - 1), torch.arange(1, n)] = 1  # the only tree there is
    torch.testing.assert_close(p, expected, rtol=0, atol=1e-12)
    (p * torch.randn(n, n, generator=seeded(), dtype=torch.float64)).sum().backward()
    torch.testing.assert_close(u.grad, torch.zeros_like(expected), rtol=0, atol=1e-11)


@pytest.mark.parametrize("span", [1, 300, 500, 1e5])
@pytest.mark.parametrize("root", [trees.UNDIRECTED, 0, 3])
def test_kernel_and_torch_agree(span, root):
    """The kernel's two ways, by weights and by logarithms, against the one in torch, ragged and with missing edges."""
    u = some_missing(uniform(6, 8, 8, span=span))
    u[0] = uniform(8, 8, span=span)
    u[5, 0] = u[5, :, 0] = -INF  # no tree
    sizes = torch.tensor([8, 8, 6, 1, 0, 8], dtype=torch.int32)
    for tangents in range(3):
        along = torch.randn(tangents, 6, 8, 8, generator=seeded(), dtype=torch.float64)
        ours = tree_marginals(u, along, sizes, root)
        torch.testing.assert_close(ours, trees.sweeps(u, along, sizes, root), rtol=0, atol=1e-12 * (1 + span / 100))
        assert ours.isfinite().all()


@pytest.mark.parametrize("tangents", [0, 2])
def test_in_torch_few_large_items_are_computed_together(monkeypatch, tangents):
    u, along = uniform(5, 8, 8), torch.randn(tangents, 5, 8, 8, generator=seeded(), dtype=torch.float64)
    sizes = torch.tensor([8, 8, 6, 1, 8], dtype=torch.int32)
    expected, counts, swept = trees.sweeps(u, along, sizes, 0), [], trees._swept
    monkeypatch.setattr(trees, "_swept", lambda u, *rest: (counts.append(len(u)), swept(u, *rest))[1])
    for room, together in ((2 * 8 * 8**3 // 3 + 8, [2, 2, 1]), (1, [1] * 5)):
        monkeypatch.setattr(trees, "ROOM", room)
        torch.testing.assert_close(trees.sweeps(u, along, sizes, 0), expected, rtol=0, atol=1e-15)
        assert counts == together
        counts.clear()


@pytest.mark.parametrize("soft", FUNCTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2, 2), (3, 4, 4)])
def test_gradcheck(soft, shape):
    u = torch.randn(*shape, generator=seeded(), dtype=torch.float64, requires_grad=True)
    assert gradcheck(soft, u)
    assert gradgradcheck(soft, u)


def test_gradcheck_ragged_and_masked():
    nodes = torch.tensor([4, 3, 2])
    missing = some_missing(torch.zeros(3, 4, 4)).isneginf()

    def soft(u):
        return arborescence_marginals(torch.where(missing, -INF, u), 1, nodes)

    u = torch.randn(3, 4, 4, generator=seeded(), dtype=torch.float64, requires_grad=True)
    assert gradcheck(soft, u)
    assert gradgradcheck(soft, u)
    assert torch.autograd.grad(soft(u).sum(), u)[0][missing].eq(0).all()


def test_second_backward_is_the_last():
    u = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(spanning_tree_marginals(u)[0, 1], u, create_graph=True)[0]
    curve = torch.autograd.grad(slope[0, 1], u, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="twice, not three times"):
        curve.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
def test_torch_compile():
    u = torch.randn(2, 4, 4, generator=seeded(), requires_grad=True)
    compiled = torch.compile(spanning_tree_marginals, fullgraph=True, backend="aot_eager")
    found = [(f(u), torch.autograd.grad(f(u).square().sum(), u)[0]) for f in (spanning_tree_marginals, compiled)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("span", [3, 60, 500, 1e5])
def test_inside_the_spanning_tree_polytope(span, dtype):
    n = 6
    u = uniform(20, n, n, span=span).to(dtype)
    p = spanning_tree_marginals(u)
    slack = 1e-5 if dtype == torch.float32 else 1e-11 * (1 + span / 100)
    assert p.dtype == dtype
    assert p.equal(p.mT)
    assert ((p >= 0) & (p <= 1)).all()
    assert p.diagonal(dim1=-2, dim2=-1).eq(0).all()
    assert ((p.triu(1).sum((-2, -1)) - (n - 1)).abs() < slack).all()
    for size in range(2, n):
        for nodes in itertools.combinations(range(n), size):
            assert (p[:, nodes][..., nodes].sum((-2, -1)) / 2 <= size - 1 + slack).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("span", [3, 60, 500, 1e5])
def test_columns_of_arborescences_sum_to_one(span, dtype):
    u = uniform(8, 20, 20, span=span).to(dtype)
    p = arborescence_marginals(u, root=5)
    assert p.dtype == dtype
    assert ((p >= 0) & (p <= 1)).all()
    assert p[..., 5].eq(0).all()
    others = [j for j in range(20) if j != 5]
    torch.testing.assert_close(p.sum(-2)[:, others], torch.ones(8, 19, dtype=dtype), rtol=0, atol=1e-5)


@pytest.mark.parametrize("soft", FUNCTIONS)
@pytest.mark.parametrize("span", [500, 1e5])
def test_extreme_scores_have_finite_derivatives(soft, span):
    u = some_missing(uniform(4, 30, 30, span=span)).float().requires_grad_()
    grad = torch.randn(4, 30, 30, generator=seeded())
    slope = torch.autograd.grad(soft(u), u, grad, create_graph=True)[0]
    curve = torch.autograd.grad(slope, u, grad)[0]
    assert slope.isfinite().all()
    assert curve.isfinite().all()
    assert slope.detach()[u.isneginf()].eq(0).all()


def test_cold_trees_are_the_hard_ones():
    d = gt.SpanningTree(torch.randn(5, 10, 10, generator=seeded(), dtype=torch.float64))
    g = d.perturb(generator=seeded(1))
    soft = spanning_tree_marginals(g / 1e-6)  # colder than any two G are close
    torch.testing.assert_close(soft, d.trace(g).value, rtol=0, atol=1e-6)
    torch.testing.assert_close(soft[0], heaviest(g[0]), rtol=0, atol=1e-6)


def test_cold_arborescences_are_the_heaviest():
    g = torch.randn(5, 10, 10, generator=seeded(), dtype=torch.float64)
    soft = arborescence_marginals(g / 1e-4, root=2)
    for ours, item in zip(soft, g, strict=True):
        torch.testing.assert_close(ours, heaviest(item, root=2), rtol=0, atol=1e-6)


def test_heaviest_arborescence_need_not_be_the_hard_one():
    """Nodes 1 and 2 prefer each other. Opened at 1, the tree has Σ G = 4 and Σ e^-G = 1.02; opened at 2, Σ G = 3.8 and
    Σ e^-G = 0.99."""
    g = torch.full((3, 3), -INF, dtype=torch.float64)
    g[0, 1], g[1, 2] = 0.0, 4.0
    g[0, 2], g[2, 1] = 0.8, 0.6
    hard = gt.Arborescence(g).trace(g).value
    heavy = torch.zeros(3, 3, dtype=torch.float64)
    heavy[0, 1] = heavy[1, 2] = 1
    assert not hard.equal(heavy)
    torch.testing.assert_close(arborescence_marginals(g / 1e-3), heavy)


@pytest.mark.parametrize("soft", FUNCTIONS)
def test_ragged_items_equal_their_own(soft):
    nodes = torch.tensor([5, 3, 1, 0, 2])
    inside = torch.arange(5) < nodes[:, None]
    inside = inside[:, :, None] & inside[:, None, :]
    u = torch.randn(2, 5, 5, 5, generator=seeded(), dtype=torch.float64)
    u = torch.where(inside, u, -INF).requires_grad_()
    weight = torch.randn(2, 5, 5, 5, generator=seeded(1), dtype=torch.float64)
    p = soft(u, nodes=nodes)
    (grad,) = torch.autograd.grad((p * weight).sum(), u)
    assert p[~inside.expand_as(p)].eq(0).all()
    assert grad[~inside.expand_as(p)].eq(0).all()
    for s, (b, n) in itertools.product(range(2), enumerate(nodes.tolist())):
        alone = u[s, b, :n, :n].detach().clone().requires_grad_()
        q = soft(alone) if n else alone
        torch.testing.assert_close(p[s, b, :n, :n], q)
        (expected,) = torch.autograd.grad((q * weight[s, b, :n, :n]).sum(), alone)
        torch.testing.assert_close(grad[s, b, :n, :n], expected if n else grad[s, b, :n, :n])


@pytest.mark.parametrize("soft", FUNCTIONS)
def test_shapes_and_strides(soft):
    for shape in [(0, 3, 3), (2, 0, 4, 4), (0, 0), (2, 0, 0), (1, 1), (3, 1, 1), (2, 3, 2, 2)]:
        assert soft(torch.zeros(shape)).shape == shape
        assert soft(torch.zeros(shape, requires_grad=True)).sum().backward() is None
    assert soft(torch.zeros(1, 1)).item() == 0
    u = torch.randn(5, 5, 4, generator=seeded()).permute(2, 0, 1)
    torch.testing.assert_close(soft(u), soft(u.contiguous()))
    torch.testing.assert_close(soft(u[:1].expand(3, 5, 5)), soft(u[:1]).expand(3, 5, 5))
    assert soft(u.half()).dtype == torch.float16


@pytest.mark.parametrize("soft", FUNCTIONS)
def test_no_tree_is_zero(soft):
    u = torch.zeros(2, 4, 4)
    u[0, 3], u[0, :, 3] = -INF, -INF
    u.requires_grad_()
    p = soft(u)
    p.square().sum().backward()
    assert p[0].eq(0).all()
    assert p[1].sum() > 2
    assert u.grad[0].eq(0).all()


def test_only_the_upper_triangle_is_read():
    u = torch.randn(6, 6, generator=seeded())
    junk = torch.where(torch.ones(6, 6).triu(1) > 0, u, torch.nan)
    torch.testing.assert_close(spanning_tree_marginals(junk), spanning_tree_marginals(u))
    free = torch.eye(6, dtype=torch.bool)
    free[:, 2] = True
    torch.testing.assert_close(arborescence_marginals(torch.where(free, torch.nan, u), 2), arborescence_marginals(u, 2))


def test_errors():
    with pytest.raises(ValueError, match=r"must be \(\*S, n, n\), got \(3, 4\)"):
        spanning_tree_marginals(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="root 3 is not one of the 3 nodes"):
        arborescence_marginals(torch.zeros(3, 3), root=3)
