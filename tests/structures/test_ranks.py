"""Places of keys in the order of their arrival: means of permutation matrices of any size."""

import math

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace.diagnostics import TooManyTraces, enumerate_values
from gumtrace.structures import ranks
from gumtrace.structures.ranks import place_probs


def randn(*shape, scale=1.0):
    return scale * torch.randn(*shape, generator=seeded(2), dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 50.0])
def test_places_are_those_of_all_orders(scale):
    x = randn(5, scale=scale)
    law = enumerate_values(gt.Permutation(x, matrix=True))
    expected = (law.log_prob.exp()[:, None, None] * law.outcomes).sum(0)  # (places, keys)
    torch.testing.assert_close(place_probs("", x, 5).mT, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("d", "k"), [(30, 1), (30, 12), (30, 30), (12, 11)])
def test_a_place_has_one_key_and_a_key_one_place(d, k):
    """To the precision of float64, at sizes that nobody enumerates."""
    probs = place_probs("", randn(d), k)
    assert (probs.sum(0) - 1).abs().max() < 1e-13
    if k == d:
        assert (probs.sum(1) - 1).abs().max() < 1e-13
    uniform = place_probs("", torch.zeros(d, dtype=torch.float64), k)
    torch.testing.assert_close(uniform, torch.full_like(uniform, 1 / d), rtol=1e-12, atol=0)


def test_first_place_is_a_softmax():
    x = randn(40)
    torch.testing.assert_close(place_probs("", x, 1)[:, 0], x.softmax(-1), rtol=1e-12, atol=1e-15)


def test_gradients():
    x = randn(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: place_probs("", x, 3), x)
    assert torch.autograd.gradgradcheck(lambda x: place_probs("", x, 2), x)


def test_parts_are_put_together(monkeypatch):
    """Rows that are computed again in the backward."""
    x = randn(3, 6).requires_grad_()
    whole = place_probs("", x, 4)
    (wanted,) = torch.autograd.grad(whole[..., 0].square().sum(), x)
    monkeypatch.setattr(ranks, "HELD", 1)
    parts = place_probs("", x, 4)
    (found,) = torch.autograd.grad(parts[..., 0].square().sum(), x)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(found, wanted)


def test_wide_logits_and_keys_that_do_not_race():
    x = torch.tensor([1e4, -1e4, 0.0, 1e30, -1e30, -math.inf], requires_grad=True)
    probs = place_probs("", x, 5)
    assert probs.argmax(-1).tolist()[:5] == [1, 3, 2, 0, 4]
    torch.testing.assert_close(probs.sum(-1), torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]))
    (grad,) = torch.autograd.grad(probs[:, :2].sum(), x)
    assert grad.isfinite().all()
    assert place_probs("", torch.zeros(2, 0), 0).shape == (2, 0, 0)
    assert place_probs("", torch.zeros(0, 3), 2).shape == (0, 3, 2)


def test_means_of_large_structures():
    d = gt.Subset(torch.randn(2, 60, generator=seeded()), torch.tensor([5, 0]), lengths=torch.tensor([60, 40]))
    torch.testing.assert_close(d.mean.sum(-1), torch.tensor([5.0, 0.0]))
    often = d.sample((20_000,), generator=seeded(1)).mean(0)
    assert ((often - d.mean).abs() < 6 * (d.variance / 20_000).sqrt() + 1e-9).all()  # 60 keys, one in 10^7
    matrix = gt.Permutation(torch.randn(20, generator=seeded()), matrix=True).mean
    torch.testing.assert_close(matrix.sum(-1), torch.ones(20))


def test_too_large_says_so():
    with pytest.raises(TooManyTraces, match=r"Permutation.mean: .* steps are too many.*sample\(\(1000,\)\)"):
        gt.Permutation(torch.zeros(300), matrix=True).mean.sum()
