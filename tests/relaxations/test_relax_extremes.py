"""Noise and temperatures at the limits of their dtype: soft structures stay in the polytope, gradients
finite."""

import pytest
import torch

import gumtrace as gt

DTYPES = [torch.float32, torch.float64]
MAPS = {
    "expfamily": ((5,), lambda x: gt.Subset(x, 2), "expfamily"),
    "euclidean": ((5,), lambda x: gt.Subset(x, 2), "euclidean"),
    "categorical": ((5,), lambda x: gt.Subset(x, 2), "categorical"),
    "binary": ((5,), lambda x: gt.Subset(x, 2), "binary"),
    "permutation": ((5,), lambda x: gt.Permutation(x, matrix=True), None),
    "matching": ((5, 5), gt.Matching, None),
    "tree": ((5, 5), gt.SpanningTree, None),
    "arborescence": ((5, 5), gt.Arborescence, None),
}
COLD = [1e-45, 1e-39, 1e-20, 1e-9, 1e-5]
LOGITS = ["normal", "half at min", "times 1e30"]


def logits(what, shape, dtype):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, *shape, generator=g, dtype=dtype)
    if what == "half at min":
        x = torch.where(torch.rand(x.shape, generator=g) < 0.5, torch.finfo(dtype).min, x)
    return (1e30 * x if what == "times 1e30" else x).requires_grad_()


def soft_and_hard(name, what, dtype, temperature):
    shape, make, kind = MAPS[name]
    d = make(logits(what, shape, dtype))
    g = d.perturb(generator=torch.Generator().manual_seed(1))
    return d, gt.relax(d, g, temperature, kind), d.trace(g).value


@pytest.mark.parametrize("learned", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("what", LOGITS)
@pytest.mark.parametrize("temperature", [*COLD, 0.5, 1e30])
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.slow
def test_in_the_polytope_with_finite_gradients(name, temperature, what, dtype, learned):
    t = torch.tensor(temperature, dtype=dtype, requires_grad=True) if learned else temperature
    d, soft, hard = soft_and_hard(name, what, dtype, t)
    assert ((soft >= 0) & (soft <= 1 + 1e-6)).all()
    torch.testing.assert_close(soft.flatten(1).sum(-1), hard.flatten(1).sum(-1), rtol=0, atol=1e-4)
    weight = torch.randn(soft.shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    gradients = torch.autograd.grad((weight * soft).sum(), [d.logits, t] if learned else [d.logits])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", COLD[:-1])
@pytest.mark.parametrize("name", [m for m in MAPS if m not in ("matching", "arborescence")])  # whose limit is another
def test_cold_structures_are_hard(name, temperature, dtype):
    _, soft, hard = soft_and_hard(name, "normal", dtype, temperature)
    torch.testing.assert_close(soft, hard, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["expfamily", "euclidean", "categorical", "binary"])
@pytest.mark.parametrize("learned", [False, True], ids=["number", "tensor"])
def test_large_noise_keeps_its_order(name, dtype, learned):
    """Numbers beyond any bound are still told apart."""
    _, make, kind = MAPS[name]
    x = torch.tensor([1e30, 2e30, 0.0, 1.0, -1e30], dtype=dtype)
    d, one = make(x), torch.tensor(1e-3, dtype=dtype)
    soft = gt.relax(d, x, one if learned else 1e-3, kind)
    torch.testing.assert_close(soft, d.trace(x).value, rtol=0, atol=1e-5)


def test_close_noise_in_the_cold():
    d = gt.Subset(torch.zeros(3, dtype=torch.float64), 1)
    soft = gt.relax(d, torch.tensor([0.0, 1e-7, -1.0], dtype=torch.float64), 1e-9)
    torch.testing.assert_close(soft, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MAPS)
def test_rebar_learns_beside_masked_logits(name):
    """Its own parameters have finite gradients wherever the loss has."""
    shape, make, kind = MAPS[name]
    x = logits("half at min", shape, torch.float32)
    rebar = gt.estimators.REBAR(kind=kind, samples=2)
    weight = torch.randn(make(x).event_shape, generator=torch.Generator().manual_seed(0))
    loss = rebar(make(x), lambda value: (value * weight).flatten(2).sum(-1).square())
    loss.mean().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in rebar.parameters())
