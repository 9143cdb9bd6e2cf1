"""Finite logits at the limits of their dtype, a usual way to mask: probabilities, gradients and noise stay right."""

import math

import pytest
import torch
from common import rebuild

import gumtrace as gt

EDGES = torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 3]])
STRUCTURES = {
    "subset": ((6,), lambda x: gt.Subset(x, 4)),
    "permutation": ((6,), gt.Permutation),
    "matching": ((6, 6), gt.Matching),
    "tree": ((6, 6), gt.SpanningTree),
    "sparse": ((6,), lambda x: gt.SpanningTree.from_edges(x, EDGES, 4)),
    "arborescence": ((6, 6), gt.Arborescence),
    "binary": ((6,), gt.BinaryTree),
}
DTYPES = [torch.float32, torch.float64]
LIMITS = ["min", "max", "-1e30", "1e30"]


def limit(name, dtype):
    return getattr(torch.finfo(dtype), name) if name in ("min", "max") else float(name)


def half_at(level, shape, dtype, batch=200):
    """About half of the logits at the level, the others standard normal."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *shape, generator=g, dtype=dtype)
    return torch.where(torch.rand(batch, *shape, generator=g) < 0.5, torch.tensor(level, dtype=dtype), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_noise_given_a_trace_is_finite_and_gives_it_back(kind, name, dtype):
    shape, make = STRUCTURES[kind]
    d = make(half_at(limit(name, dtype), shape, dtype).requires_grad_())
    trace = d.sample_trace(generator=torch.Generator().manual_seed(1))
    g = d.conditional(trace, generator=torch.Generator().manual_seed(2))
    assert g[d.racing].isfinite().all()
    assert d.trace(g).equals(trace).all()
    (gradient,) = torch.autograd.grad(g[d.racing].sum(), d.logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_log_probabilities_as_of_moderate_logits(kind, name, dtype):
    """Seen from everywhere else, a level at the limit is one 10,000 away: to e^-10,000 they are the same."""
    shape, make = STRUCTURES[kind]
    level = limit(name, dtype)
    x = half_at(level, shape, dtype)
    near = torch.where(x == level, math.copysign(1e4, level), x.double())
    x.requires_grad_()
    near.requires_grad_()
    d, moderate = make(x), make(near)
    trace = d.sample_trace(generator=torch.Generator().manual_seed(1))
    log_prob, want = d.trace_log_prob(trace), moderate.trace_log_prob(trace)
    torch.testing.assert_close(log_prob.double(), want, rtol=0, atol=2e-4 if dtype == torch.float32 else 2e-10)
    (gradient,) = torch.autograd.grad(log_prob.sum(), x)
    (wanted,) = torch.autograd.grad(want.sum(), near)
    torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-10)


SMALL = {
    "subset": gt.Subset(torch.zeros(4), 2),
    "permutation": gt.Permutation(torch.zeros(4)),
    "matching": gt.Matching(torch.zeros(3, 3)),
    "tree": gt.SpanningTree(torch.zeros(4, 4)),
    "binary": gt.BinaryTree(torch.zeros(4)),
}


def test_probabilities_of_structures_over_several_scales():
    """What is left when the large ones are gone has chances of its own."""
    x = torch.tensor([[1e30, 0.0, 0.0], [0.0, 0.5, -0.5], [0.0, 1.0, 2.0]], dtype=torch.float64)
    moderate = torch.where(x > 100, 1e4, x)
    for value in (torch.eye(3), torch.eye(3)[[0, 2, 1]]):
        ours, want = (gt.Matching(y).log_prob(value.double()) for y in (x, moderate))
        torch.testing.assert_close(ours, want, rtol=0, atol=1e-10)


def test_the_density_of_impossible_noise_is_0():
    far = torch.finfo(torch.float32).max
    d = gt.Matching(torch.tensor([[0.0, far]]))
    assert d.noise_log_prob(torch.tensor([[0.0, -far]])) == -torch.inf


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*LIMITS, "-1e31", "-3e28"])
@pytest.mark.parametrize("kind", SMALL)
def test_probabilities_of_structures(kind, name, dtype):
    """All keys at the level: as at 0. All but two: as with a level of 10,000."""
    level, zero = limit(name, dtype), SMALL[kind]
    even = zero.logits.double()
    mixed = torch.full_like(even, math.copysign(1e4, level))
    mixed.view(-1)[:2] = torch.tensor([0.5, -0.5])
    for moderate in (even, mixed):
        extreme = torch.where(moderate.abs() < 1, moderate, level) if moderate is mixed else moderate + level
        extreme = extreme.to(dtype).requires_grad_()
        law = gt.diagnostics.enumerate_values(rebuild(zero, moderate))
        d = rebuild(zero, extreme)
        log_prob = d.log_prob(law.outcomes.to(d.sample().dtype))
        possible = law.log_prob > -100
        want = law.log_prob[possible]
        torch.testing.assert_close(log_prob[possible].double(), want, rtol=0, atol=1e-5)
        assert (log_prob[~possible] < -100).all()
        (gradient,) = torch.autograd.grad(log_prob[possible].sum(), extreme)
        assert gradient.isfinite().all()
