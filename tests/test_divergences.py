"""Entropies and divergences: closed forms and estimates against enumeration."""

import pytest
import torch
from common import FALSE_ALARM, name_only, rebuild, seeded, structures
from torch.distributions import Exponential, kl_divergence

import gumtrace as gt
from gumtrace import divergences

CASES = pytest.mark.parametrize(
    ("name", "dist"), [case[:2] for case in structures() if case[0] != "subset-empty"], ids=name_only
)


def other(dist):
    return rebuild(dist, dist.logits + 0.5 * torch.randn(dist.logits.shape, generator=seeded(3), dtype=torch.float64))


@CASES
def test_noise_kl_is_that_of_exponentials(name, dist):
    q = other(dist)
    expected = kl_divergence(Exponential(dist.logits.exp()), Exponential(q.logits.exp()))[dist.racing].sum()
    torch.testing.assert_close(divergences.noise_kl(dist, q), expected)


@CASES
def test_bounds(name, dist):
    q = other(dist)
    assert 0 <= divergences.exact_kl(dist, q) <= divergences.noise_kl(dist, q)


@CASES
@pytest.mark.parametrize("samples", [1, 4])
def test_estimates_are_unbiased_in_value_and_gradient(name, dist, samples):
    """z-tests of many replicates against enumeration."""
    replicates = 20_000
    q = other(dist)
    x, y = dist.log_rates.detach().requires_grad_(), q.log_rates.detach().requires_grad_()
    exact = {"entropy": divergences.exact_entropy(dist.at(x)), "kl": divergences.exact_kl(dist.at(x), q.at(y))}
    many_x, many_y = (t.detach().expand(replicates, *t.shape).clone().requires_grad_() for t in (x, y))
    p, r = dist.at(many_x), q.at(many_y)
    drawn = {
        "entropy": divergences.trace_entropy(p, samples, generator=seeded(1)),
        "kl": divergences.trace_kl(p, r, samples, generator=seeded(2)),
    }
    for kind, wrt in (("entropy", "x"), ("kl", "x"), ("kl", "y")):
        single, many = (x, many_x) if wrt == "x" else (y, many_y)
        (target,) = torch.autograd.grad(exact[kind], single, retain_graph=True)
        (grads,) = torch.autograd.grad(drawn[kind].sum(), many, retain_graph=True)
        pairs = [(drawn[kind].detach()[:, None], exact[kind].detach()[None])]
        pairs += [(grads[:, dist.racing], target[dist.racing])]
        for sample, mean in pairs:
            error = sample.std(0) / replicates**0.5
            z = torch.where(error > 1e-12, (sample.mean(0) - mean) / error.clamp(min=1e-12), 0.0)
            assert (torch.special.erfc(z.abs() / 2**0.5) > FALSE_ALARM).all()


def test_a_key_that_cannot_race_under_q_is_infinite():
    p = gt.Subset(torch.zeros(3), 1)
    q = gt.Subset(torch.zeros(3), 1, mask=torch.tensor([True, True, False]))
    assert divergences.noise_kl(p, q) == torch.inf
    assert divergences.noise_kl(q, p) == 0


def test_unlike_distributions_are_refused():
    with pytest.raises(ValueError, match="one kind"):
        divergences.noise_kl(gt.Subset(torch.zeros(3), 1), gt.Permutation(torch.zeros(3)))
