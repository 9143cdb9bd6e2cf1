"""Dropout by a generator: its law, and that it is a function of the generator."""

import pytest
import torch
from common import FALSE_ALARM, seeded
from scipy import stats

from gumtrace_experiments.dropout import dropout, kept, thinned


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_law(p):
    """Zeros are binomial, in all and in each pair of neighbours; false alarm 1e-6."""
    x = torch.linspace(1, 2, 100_000)
    found = dropout(x, p, seeded(), training=True)
    gone = found == 0
    torch.testing.assert_close(found[~gone], x[~gone] / (1 - p))
    pairs = gone[::2] & gone[1::2]
    tests = [stats.binomtest(int(gone.sum()), len(gone), p), stats.binomtest(int(pairs.sum()), len(pairs), p * p)]
    assert min(test.pvalue for test in tests) > FALSE_ALARM / 2


def test_draws():
    x, generator = torch.ones(50), seeded()
    first, second = (dropout(x, 0.5, generator, training=True) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, dropout(x, 0.5, seeded(), training=True))
    before = torch.get_rng_state()
    dropout(x, 0.5, seeded(), training=True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_nothing_is_drawn_in_vain(p, training):
    x, generator = torch.randn(5), seeded()
    assert dropout(x, p, generator, training) is x
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_gradients():
    """Of what stays, as large as it was made; half types stay what they are."""
    x = torch.linspace(1, 2, 40, dtype=torch.bfloat16, requires_grad=True)  # nowhere 0, as what was dropped
    found = dropout(x, 0.25, seeded(), training=True)
    assert found.dtype == torch.bfloat16
    (grad,) = torch.autograd.grad(found.sum(), x)
    expected = torch.where(found == 0, 0.0, 1 / 0.75)
    torch.testing.assert_close(grad.float(), expected, rtol=2**-8, atol=0)


def test_one_mask_for_many_tensors():
    x, keep = torch.ones(1000, 3, requires_grad=True), kept((3,), 0.5, seeded(1), torch.device("cpu"))
    assert 0 < keep.sum() < 3
    found = thinned(x, 0.5, keep)
    assert torch.equal(found, 2.0 * keep.expand(1000, 3))
    found.sum().backward()
    assert torch.equal(x.grad, 2.0 * keep.expand(1000, 3))
