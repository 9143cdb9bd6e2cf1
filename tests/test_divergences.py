"""Entropies and divergences: closed forms and estimates against enumeration."""

import math

import pytest
import reference_algorithms as reference
import torch
from cases import small
from common import FALSE_ALARM, name_only, rebuild, seeded
from torch.distributions import Exponential, kl_divergence

import gumtrace as gt
from gumtrace import divergences

CASES = pytest.mark.parametrize(
    ("name", "dist"), [case[:2] for case in small() if case[0] != "subset-empty"], ids=name_only
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
@pytest.mark.slow
def test_estimates_are_unbiased_in_value_and_gradient(name, dist, samples):
    """z-tests of many replicates against enumeration."""
    replicates = 20_000
    q = other(dist)
    x, y = dist.log_rates.detach().requires_grad_(), q.log_rates.detach().requires_grad_()
    exact = {
        "entropy": divergences.exact_entropy(dist.with_log_rates(x)),
        "kl": divergences.exact_kl(dist.with_log_rates(x), q.with_log_rates(y)),
    }
    many_x, many_y = (t.detach().expand(replicates, *t.shape).clone().requires_grad_() for t in (x, y))
    p, r = dist.with_log_rates(many_x), q.with_log_rates(many_y)
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


@pytest.mark.parametrize("any_scale", [False, True])
def test_a_key_that_races_under_one_of_them_only_is_infinite(any_scale):
    """Under q too: noise that is never there is no bound for traces that have to do without the key."""
    p = gt.Subset(torch.zeros(3), 1)
    q = gt.Subset(torch.zeros(3), 1, mask=torch.tensor([True, True, False]))
    assert divergences.noise_kl(p, q, any_scale=any_scale) == torch.inf
    assert divergences.noise_kl(q, p, any_scale=any_scale) == torch.inf
    assert 0 < divergences.exact_kl(q, p) < torch.inf


ONE = torch.tensor([[True, False], [False, False]])
SOME = torch.tensor([True, True, True, False])


@pytest.mark.parametrize(
    ("build", "here", "there"),
    [
        (lambda x, mask: gt.Subset(x, 2, mask=mask), None, SOME),
        (lambda x, mask: gt.Permutation(x, mask=mask), None, SOME),
        (lambda x, mask: gt.Permutation(x, mask=mask), SOME, None),  # q goes on where p is done
        (lambda x, mask: gt.BinaryTree(x, mask=mask), SOME, None),
        (lambda x, mask: gt.Matching(x.reshape(2, 2), mask=mask), None, ONE),
        (lambda x, mask: gt.Matching(x.reshape(2, 2), mask=mask), ONE, None),
    ],
)
def test_a_run_that_q_cannot_make_is_infinite(build, here, there):
    """And has gradient 0; with the samples of one call infinite and finite."""
    x, y = (torch.zeros(4, requires_grad=True) for _ in range(2))
    for kl in (lambda p, q: divergences.trace_kl(p, q, 50), divergences.exact_kl):
        kl = kl(build(x, here), build(y, there))
        assert kl == torch.inf
        for grad in torch.autograd.grad(kl, (x, y)):
            assert (grad == 0).all()


def test_an_item_that_is_infinite_leaves_the_others_alone():
    x = torch.zeros(2, 4, requires_grad=True)
    q = gt.Subset(torch.randn(2, 4, generator=seeded()), 2, mask=torch.stack([SOME, SOME | True]))
    kl = divergences.trace_kl(gt.Subset(x, 2), q, 50, generator=seeded(1))
    kl.sum().backward()
    assert kl[0] == torch.inf
    assert kl[1].isfinite()
    assert (x.grad[0] == 0).all()
    assert x.grad[1].abs().sum() > 0


def test_keys_that_race_under_q_alone_are_not_infinite():
    p, q = (gt.Subset(torch.zeros(4, dtype=torch.float64), 2, mask=mask) for mask in (SOME, None))
    assert divergences.trace_kl(p, q).item() == pytest.approx(divergences.exact_kl(p, q).item())
    assert divergences.exact_kl(p, q).item() == pytest.approx(math.log(2))  # 1/3 · 1/2 against 1/4 · 1/3


EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
Z = torch.zeros


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        (lambda: gt.Subset(Z(3), 1), lambda: gt.Permutation(Z(3)), "one kind"),
        (lambda: gt.Subset(Z(3), 1), lambda: gt.Subset(Z(4), 1), "one kind"),
        (lambda: gt.Subset(Z(3), 1), lambda: gt.Subset(Z(3), 2), "same k, got 1 and 2"),
        (lambda: gt.Subset(Z(2, 3), torch.tensor([1, 2])), lambda: gt.Subset(Z(3), 2), "same k"),
        (lambda: gt.SpanningTree(Z(3, 3)), lambda: gt.SpanningTree(Z(3, 3), 2), "same components"),
        (lambda: gt.Arborescence(Z(3, 3)), lambda: gt.Arborescence(Z(3, 3), 1), "same root"),
        (lambda: gt.BinaryTree(Z(3)), lambda: gt.BinaryTree(Z(3), lengths=2), "same lengths, got 3 and 2"),
        (
            lambda: gt.SpanningTree.from_edges(Z(3), EDGES, 3),
            lambda: gt.SpanningTree.from_edges(Z(3), EDGES.flip(1), 3),
            "same graph",
        ),
        (
            lambda: gt.SpanningTree.from_edges(Z(3), EDGES, 3),
            lambda: gt.SpanningTree.from_edges(Z(3), EDGES, 4, 2),
            "same graph",
        ),
        (
            lambda: gt.Custom(Z(3), reference.Subset(3, 1)),
            lambda: gt.Custom(Z(3), reference.Permutation(3)),
            "different algo",
        ),
    ],
)
@pytest.mark.parametrize("kl", [divergences.noise_kl, divergences.trace_kl, divergences.exact_kl])
def test_unlike_distributions_are_refused(kl, p, q, message):
    with pytest.raises(ValueError, match=message):
        kl(p(), q())


def test_only_a_users_algorithm_knows_its_runs_on_other_keys():
    p, q = (gt.Custom(Z(4), reference.Subset(4, 2), mask=mask) for mask in (SOME, None))
    assert divergences.noise_kl(p, q) == torch.inf
    for kl in (divergences.trace_kl, divergences.exact_kl):
        with pytest.raises(ValueError, match="only the algorithm knows"):
            kl(p, q)


def test_one_prior_serves_a_whole_batch():
    p, q = gt.Subset(Z(5, 4), torch.full((5,), 2)), gt.Subset(Z(4), 2)
    assert (divergences.noise_kl(p, q) == 0).all()
    assert divergences.trace_kl(p, q).shape == (5,)


@pytest.mark.parametrize(("samples", "error"), [(0, ValueError), (2.5, TypeError)])
def test_numbers_of_samples_are_checked(samples, error):
    d = gt.Permutation(Z(3))
    with pytest.raises(error, match="trace_kl: samples"):
        divergences.trace_kl(d, d, samples)
    with pytest.raises(error, match="trace_entropy: samples"):
        divergences.trace_entropy(d, samples)
