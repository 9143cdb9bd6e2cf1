"""Soft permutation matrices: doubly stochastic, and the hard ones of the same noise when cold."""

import torch
from common import seeded
from torch.autograd import gradcheck, gradgradcheck
from treesums import INF, uniform

import gumtrace as gt
from gumtrace.relaxations.sinkhorn import permutation_matrix


def test_permutations_are_doubly_stochastic():
    for span in (1, 50, 1e4):
        x = permutation_matrix(uniform(6, 9, span=span))
        torch.testing.assert_close(x.sum(-1), torch.ones(6, 9, dtype=torch.float64))
        torch.testing.assert_close(x.sum(-2), torch.ones(6, 9, dtype=torch.float64))
        assert (x >= 0).all()


def test_cold_permutations_are_the_hard_ones():
    mask = torch.rand(8, 12, generator=seeded()) < 0.7
    mask[0], mask[1] = True, False
    d = gt.Permutation(torch.randn(8, 12, generator=seeded(1), dtype=torch.float64), matrix=True, mask=mask)
    g = d.perturb((3,), generator=seeded(2))
    torch.testing.assert_close(permutation_matrix(g / 1e-5), d.trace(g).value, rtol=0, atol=1e-6)


def test_two_keys_in_closed_form():
    u = torch.tensor([0.3, -INF, -1.1], dtype=torch.float64)
    first = torch.tensor(0.7).sigmoid().item()
    expected = torch.tensor([[first, 0, 1 - first], [0, 0, 0], [1 - first, 0, first]], dtype=torch.float64)
    torch.testing.assert_close(permutation_matrix(u), expected)


def test_permutations_do_not_depend_on_a_shift():
    u = torch.randn(4, 7, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(permutation_matrix(u), permutation_matrix(u + 300), rtol=0, atol=1e-10)


def test_permutations_of_racing_keys_equal_those_without_the_others():
    u = torch.randn(6, generator=seeded(), dtype=torch.float64)
    racing = torch.tensor([True, False, True, True, False, True])
    x = permutation_matrix(torch.where(racing, u, -INF))
    torch.testing.assert_close(x[racing][:, racing], permutation_matrix(u[racing]), rtol=0, atol=1e-11)
    assert x[~racing].eq(0).all()
    assert x[:, ~racing].eq(0).all()


def test_gradcheck_permutation():
    racing = torch.tensor([[True, True, True, True], [True, False, True, True]])

    def soft(u):
        return permutation_matrix(torch.where(racing, u, -INF))

    u = torch.randn(2, 4, generator=seeded(), dtype=torch.float64, requires_grad=True)
    assert gradcheck(soft, u)
    assert gradgradcheck(soft, u)
    assert torch.autograd.grad(soft(u).square().sum(), u)[0][~racing].eq(0).all()


def test_float32_permutations_are_computed_in_float64():
    u = uniform(4, 40, span=30.0).float()
    torch.testing.assert_close(permutation_matrix(u), permutation_matrix(u.double()).float(), rtol=0, atol=1e-7)


def test_shapes_of_permutations():
    for shape in [(0,), (1,), (2,), (0, 3), (2, 0, 4), (2, 3, 4)]:
        assert permutation_matrix(torch.zeros(shape)).shape == (*shape, shape[-1])
    assert permutation_matrix(torch.zeros(1)).item() == 1
    assert permutation_matrix(torch.zeros(2, 3)).dtype == torch.float32
