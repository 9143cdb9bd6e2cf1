"""KL and entropy of structures: the registered KL, estimates, the order of bounds, and what leaves them as they are."""

from itertools import pairwise

import pytest
import torch
from cases import DISTS, small
from common import FALSE_ALARM, name_only, rebuild, seeded
from torch.distributions import Independent, kl_divergence

import gumtrace as gt
from gumtrace import divergences
from gumtrace.diagnostics import TooManyTraces, enumerate_values

CASES = [case[:2] for case in small() if case[0] != "subset-empty"]
EVERY = pytest.mark.parametrize(("name", "dist"), CASES, ids=name_only)
TRACTABLE = pytest.mark.parametrize(("name", "dist"), [c for c in CASES if c[1].has_log_prob], ids=name_only)


def other(dist, scale=0.5):
    return rebuild(dist, dist.logits + scale * torch.randn(dist.logits.shape, generator=seeded(3), dtype=torch.float64))


def by_enumeration(p, q):
    """Of two unbatched distributions with the same keys racing: both lists are in the same order."""
    of_p, of_q = enumerate_values(p), enumerate_values(q)
    assert of_p.outcomes.equal(of_q.outcomes)
    return (of_p.log_prob.exp() * (of_p.log_prob - of_q.log_prob)).sum()


@EVERY
def test_it_is_that_of_the_enumerated_laws(name, dist):
    q = other(dist)
    x, y = (d.log_rates.detach().clone().requires_grad_() for d in (dist, q))
    got = kl_divergence(dist.with_log_rates(x), q.with_log_rates(y))
    torch.testing.assert_close(got, by_enumeration(dist, q))
    found = torch.autograd.grad(got, (x, y))
    wanted = torch.autograd.grad(by_enumeration(dist.with_log_rates(x), q.with_log_rates(y)), (x, y))
    torch.testing.assert_close(found, wanted)


@EVERY
def test_the_order_of_bounds(name, dist):
    """structure ≤ trace ≤ noise at the best scale ≤ noise."""
    for scale in (0.1, 0.5, 3.0):
        q = other(dist, scale)
        chain = [
            kl_divergence(dist, q),
            divergences.exact_kl(dist, q),
            divergences.noise_kl(dist, q, any_scale=True),
            divergences.noise_kl(dist, q),
        ]
        assert chain[0] >= 0
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(chain))
    assert dist.entropy() <= divergences.exact_entropy(dist) * (1 + 1e-12)


@EVERY
def test_a_constant_added_to_all_logits_changes_only_the_noise(name, dist):
    """The first KL on offer is the same: noise_kl alone is not."""
    q = other(dist)
    moved = rebuild(q, q.logits + 5)
    for kl in (kl_divergence, divergences.exact_kl, lambda p, q: divergences.noise_kl(p, q, any_scale=True)):
        torch.testing.assert_close(kl(dist, q), kl(dist, moved))
        torch.testing.assert_close(kl(q, moved), torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0)
    assert divergences.noise_kl(dist, moved) > divergences.noise_kl(dist, q) + 1
    torch.testing.assert_close(dist.entropy(), rebuild(dist, dist.logits - 7).entropy())


def test_any_scale_is_the_least_of_all():
    p, q = gt.Subset(torch.randn(6, generator=seeded()), 2), gt.Subset(torch.randn(6, generator=seeded(1)), 2)
    best = min(divergences.noise_kl(p, gt.Subset(q.logits + c, 2)) for c in torch.linspace(-5, 5, 2001))
    assert divergences.noise_kl(p, q, any_scale=True).item() == pytest.approx(best.item(), rel=1e-4)


@TRACTABLE
@pytest.mark.slow
def test_estimates_are_unbiased_in_value_and_gradient(name, dist):
    """z-tests of many replicates against enumeration: one false alarm in a million for each number."""
    replicates = 5_000
    q = other(dist)
    x, y = (d.log_rates.detach().clone().requires_grad_() for d in (dist, q))
    exact = {
        "entropy": dist.with_log_rates(x).entropy(),
        "kl": kl_divergence(dist.with_log_rates(x), q.with_log_rates(y)),
    }
    many_x, many_y = (t.detach().expand(replicates, *t.shape).clone().requires_grad_() for t in (x, y))
    p, r = dist.with_log_rates(many_x), q.with_log_rates(many_y)
    drawn = {
        "entropy": divergences.structure_entropy(p, 4, generator=seeded(1)),
        "kl": divergences.structure_kl(p, r, 4, generator=seeded(2)),
    }
    for kind, single, many in (("entropy", x, many_x), ("kl", x, many_x), ("kl", y, many_y)):
        (target,) = torch.autograd.grad(exact[kind], single, retain_graph=True)
        (grads,) = torch.autograd.grad(drawn[kind].sum(), many, retain_graph=True)
        pairs = [(drawn[kind].detach()[:, None], exact[kind].detach()[None])]
        pairs += [(grads[:, dist.racing], target[dist.racing])]
        for sample, mean in pairs:
            error = sample.std(0) / replicates**0.5
            z = torch.where(error > 1e-12, (sample.mean(0) - mean) / error.clamp(min=1e-12), 0.0)
            assert (torch.special.erfc(z.abs() / 2**0.5) > FALSE_ALARM).all()


@pytest.mark.parametrize("name", DISTS)
def test_batches_ragged_and_masked(name):
    """Item by item, the same number; a batch of priors broadcasts."""
    dist = DISTS[name]()
    q = dist.with_log_rates(
        dist.log_rates + torch.randn(dist.log_rates.shape, generator=seeded(5), dtype=torch.float64)
    )
    kl = kl_divergence(dist, q)
    assert kl.shape == dist.batch_shape
    if dist.batch_shape:
        alone = torch.stack([kl_divergence(dist.item((i,)), q.item((i,))) for i in range(len(kl))])
        torch.testing.assert_close(kl, alone)
    else:
        torch.testing.assert_close(kl_divergence(dist.expand((3,)), q), kl.expand(3))
        torch.testing.assert_close(
            kl_divergence(Independent(dist.expand((3,)), 1), Independent(q.expand((3,)), 1)), 3 * kl
        )


SOME = torch.tensor([True, True, True, False])


@pytest.mark.parametrize(
    ("build", "finite"),
    [
        (lambda x, mask: gt.Subset(x, 2, mask=mask), True),
        (lambda x, mask: gt.Permutation(x, mask=mask), True),  # the key comes last, if it races
        (lambda x, mask: gt.BinaryTree(x, mask=mask), False),  # its parent is -2, if it does not
    ],
)
def test_keys_that_race_under_one_of_them_only(build, finite):
    x, y = (torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    p, q = build(x, SOME), build(y, None)
    kl = kl_divergence(p, q)
    estimate = divergences.structure_kl(p, q, 20, generator=seeded())
    if finite:  # all structures of p are equally probable, and so they are under q
        torch.testing.assert_close(kl, estimate)
    else:
        assert kl == estimate == torch.inf
        assert all((grad == 0).all() for grad in torch.autograd.grad(kl, (x, y)))


def test_what_p_can_make_and_q_cannot_is_infinite():
    x, y = (torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    p, q = gt.Subset(x, 2), gt.Subset(y, 2, mask=SOME)
    for kl in (kl_divergence(p, q), divergences.structure_kl(p, q, 50, generator=seeded())):
        assert kl == torch.inf
        assert all((grad == 0).all() for grad in torch.autograd.grad(kl, (x, y), retain_graph=True))


def test_arborescences_whose_traces_differ_though_the_structures_agree():
    """Under q, one more edge races: traces of a tree that p makes have contractions that p never sees."""
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1, 2] = False
    x = torch.randn(3, 3, generator=seeded(), dtype=torch.float64)
    p, q = gt.Arborescence(x, mask=mask), gt.Arborescence(x)
    total = torch.zeros((), dtype=torch.float64)
    of_p, of_q = enumerate_values(p), enumerate_values(q)
    for tree, log_p in zip(of_p.outcomes, of_p.log_prob, strict=True):
        at = (of_q.outcomes == tree).flatten(1).all(-1)
        total = total + log_p.exp() * (log_p - of_q.log_prob[at].item())
    torch.testing.assert_close(kl_divergence(p, q), total)


def test_refusals_name_what_to_call():
    big = gt.Subset(torch.zeros(40), 20)
    with pytest.raises(
        TooManyTraces, match=r"kl_divergence: 137,846,528,820 structures .*structure_kl.*trace_kl.*noise_kl"
    ):
        kl_divergence(big, big)
    assert divergences.structure_kl(big, big, 2).abs() < 1e-3
    tree = gt.Arborescence(torch.zeros(4, 4))
    with pytest.raises(NotImplementedError, match=r"structure_kl needs log_prob, which Arborescence .*trace_kl"):
        divergences.structure_kl(tree, tree)
    with pytest.raises(NotImplementedError, match=r"structure_entropy needs log_prob, .*trace_entropy"):
        divergences.structure_entropy(tree)
    with pytest.raises(ValueError, match="kl_divergence: both must have the same k"):
        kl_divergence(gt.Subset(torch.zeros(3), 1), gt.Subset(torch.zeros(3), 2))
    with pytest.raises(ValueError, match="structure_kl: samples"):
        divergences.structure_kl(big, big, 0)


@pytest.mark.parametrize("name", ["trace_kl", "structure_kl", "noise_kl"])
@pytest.mark.parametrize("shapes", [((3,), (1,)), ((), (3,)), ((2, 1), (3,))])
def test_batches_broadcast_both_ways(name, shapes):
    """As those of torch.distributions.kl_divergence."""
    p, q = (gt.Subset(torch.randn(*shape, 4, generator=seeded()), 2) for shape in shapes)
    assert getattr(divergences, name)(p, q).shape == torch.broadcast_shapes(*shapes)


@pytest.mark.parametrize("shapes", [((3,), (1,)), ((), (3,)), ((2, 1), (3,)), ((3,), ()), ((2, 3), (3,))])
def test_exact_divergences_of_batches_that_broadcast(shapes):
    """Each distribution is summed over as it is, a prior once for the whole batch."""
    p, q = (gt.Subset(torch.randn(*shape, 4, generator=seeded(len(shape))), 2) for shape in shapes)
    shape = torch.broadcast_shapes(*shapes)
    found = kl_divergence(p, q)
    assert found.shape == shape
    for index in torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)).tolist():
        one = kl_divergence(*(each.expand(shape).item(tuple(index)) for each in (p, q)))
        torch.testing.assert_close(found[tuple(index)], one)
