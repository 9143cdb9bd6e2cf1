"""Fenchel-Young losses: gradients against the exact ones by enumeration, the property of structures that they rest on,
targets that are known in part, and refusals. False alarms: one in a million for each statistical test."""

import pytest
import torch
from cases import DISTS
from common import FALSE_ALARM, seeded
from torch.distributions import Independent

import gumtrace as gt
from gumtrace.diagnostics.p_values import smallest, two_sided
from gumtrace.losses import FenchelYoung

pytestmark = pytest.mark.usefixtures("one_thread")
EDGES = torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 0]])  # two of them are parallel
MAXIMISERS = [name for name, make in DISTS.items() if make().maximises_sum]


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def links(n, *pairs):
    given = torch.zeros(n, n, dtype=torch.bool)
    given[tuple(zip(*pairs, strict=True))] = True
    return given


LINKED = {  # a distribution, and the target, known in part
    "must": lambda: (d := gt.SpanningTree(randn(5, 5), 2), d.constrained(links(5, (0, 1), (1, 4)))),
    "cannot": lambda: (d := gt.SpanningTree(randn(4, 4), 2), d.constrained(cannot_link=links(4, (0, 1), (2, 3)))),
    "both": lambda: (d := gt.SpanningTree(randn(5, 5), 2), d.constrained(links(5, (1, 4)), links(5, (4, 2)))),
    "mask": lambda: (gt.Subset(randn(5), 2), gt.Subset(randn(5), 2, mask=torch.arange(5) != 1)),
}


def p_value(dist, target, exact, samples=2, replicates=4000):
    """That the mean of many gradients to the log-rates is the exact one, (*batch, *keys)."""
    x = dist.log_rates.detach().expand(replicates, *dist.log_rates.shape).clone().requires_grad_()
    target = target if torch.is_tensor(target) else target.expand((replicates, *target.batch_shape))
    loss = FenchelYoung(samples=samples)(dist.with_log_rates(x), target, generator=seeded())
    (grad,) = torch.autograd.grad(loss.sum(), x)
    error, difference = grad.std(0) / replicates**0.5, grad.mean(0) - exact
    certain = error < 1e-12
    assert (difference[certain].abs() < 1e-9).all()
    z = (difference / error)[~certain]
    return smallest(two_sided(z), z.numel())


def excess(dist, mean):
    return torch.where(dist.racing, (dist.mean - mean).detach(), 0.0)


# What the loss rests on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAXIMISERS)
def test_the_algorithm_finds_the_largest_sum(name):
    """Of all structures, by enumeration."""
    dist = DISTS[name]()
    for index in [()] if not dist.batch_shape else [(0,), (1,)]:
        item = dist.item(index)
        noise = item.perturb((200,), generator=seeded())
        value = lambda x: torch.where(item.racing, noise * x, 0.0).flatten(1).sum(-1)  # noqa: B023, E731
        best = torch.stack([value(x) for x in item.enumerate_support()]).max(0).values
        torch.testing.assert_close(value(item.trace(noise).value), best)


@pytest.mark.parametrize("fewer", [gt.Subset, gt.SpanningTree])
def test_the_first_winners_have_the_largest_sum(fewer):
    """Of subsets of fewer keys, and of forests of more trees."""
    noise = randn(5, 5) if fewer is gt.SpanningTree else randn(5)
    trace = fewer(noise, 1 if fewer is gt.SpanningTree else 4).trace(noise)
    for count in range(1, 4):
        short = fewer(noise, 5 - count if fewer is gt.SpanningTree else count).trace(noise)
        assert torch.equal(short.winners, trace.winners[:count])


def test_other_algorithms_do_not():
    """Greedy matchings, and arborescences of least total time, are beaten by others: the loss refuses them."""
    for dist in (gt.Matching(randn(3, 3)), gt.Arborescence(randn(4, 4))):
        noise = dist.perturb((200,), generator=seeded())
        value = lambda x: torch.where(dist.racing, noise * x, 0.0).sum((-1, -2))  # noqa: B023, E731
        best = torch.stack([value(x) for x in dist.enumerate_support()]).max(0).values
        assert (value(dist.trace(noise).value) < best - 1e-9).any()
        with pytest.raises(NotImplementedError, match="largest sum of G"):
            FenchelYoung()(dist, dist.sample())


# Values and gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAXIMISERS)
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.slow
def test_gradient_is_the_mean_less_the_target(name, samples):
    dist = DISTS[name]()
    wanted = dist.sample(generator=seeded(5))
    assert p_value(dist, wanted, excess(dist, wanted), samples) > FALSE_ALARM
    assert p_value(dist, wanted, 1.1 * excess(dist, wanted), samples) < FALSE_ALARM  # it can tell


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.slow
def test_gradient_for_what_is_known_in_part(name):
    dist, target = LINKED[name]()
    exact = excess(dist, target.mean)
    assert p_value(dist, target, exact) > FALSE_ALARM
    assert p_value(dist, target, 1.3 * exact) < FALSE_ALARM  # it can tell


@pytest.mark.parametrize("name", [*MAXIMISERS, *LINKED])
def test_value_and_gradient_belong_together(name):
    """At fixed noise the loss is linear around almost every point."""
    dist, target = LINKED[name]() if name in LINKED else ((d := DISTS[name]()), d.sample(generator=seeded(5)))
    x = dist.log_rates.detach()
    free = torch.where(dist.racing, x, 0.0).requires_grad_()

    def loss(free):
        return FenchelYoung(samples=3)(dist.with_log_rates(free), target, generator=seeded(2))

    assert torch.autograd.gradcheck(loss, free, eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("name", ["must", "mask", "cannot"])
def test_gradient_of_the_mean_loss_by_finite_differences(name):
    """Common noise of a fixed seed, steps of 0.02 to either side. Two thousandths are allowed, four times what the
    worst entry differs by; with cannot-links, where greedy choices do not have the largest sum, it is 0.047."""
    dist, target = LINKED[name]()
    x = torch.where(dist.racing, dist.log_rates.detach(), 0.0).requires_grad_()

    def loss(x):
        return FenchelYoung(samples=10_000)(dist.with_log_rates(x), target, generator=seeded())

    steps = 0.02 * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)[dist.racing.flatten()]
    with torch.no_grad():
        numeric = torch.stack([(loss(x + step) - loss(x - step)) / 0.04 for step in steps])
    difference = (torch.autograd.grad(loss(x), x)[0][dist.racing] - numeric).abs().max()
    assert difference > 0.02 if name == "cannot" else difference < 0.002


def test_a_target_known_in_part_is_not_convex():
    """Keys 0 and 1 may be wanted, not key 2: at both ends one of them wins anyway, and half-way neither does."""
    x = torch.tensor([[-3.0, 3.0, 2.0], [0.0, 0.0, 2.0], [3.0, -3.0, 2.0]], dtype=torch.float64)
    part = gt.Subset(x, 1, mask=torch.arange(3) < 2)
    low, high, also_low = FenchelYoung(samples=20_000)(gt.Subset(x, 1), part, generator=seeded())
    torch.testing.assert_close(high, x[1].logsumexp(-1) - x[1, :2].logsumexp(-1), atol=0.05, rtol=0)
    assert high > (low + also_low) / 2 + 1


def test_of_one_key_it_is_the_cross_entropy():
    """E max G = log Σ e^logit + Euler's constant, which is also E of the noise of the target."""
    x, samples = randn(6), 200_000
    loss = FenchelYoung(samples=samples)(gt.Subset(x, 1), torch.eye(6, dtype=x.dtype)[2], generator=seeded())
    spread = torch.pi / 3**0.5  # of the difference of two values of a Gumbel variable; it is less here
    error = (loss + x.log_softmax(-1)[2]).abs() / (spread / samples**0.5)
    assert two_sided(error) > FALSE_ALARM


@pytest.mark.parametrize("name", [*MAXIMISERS, *LINKED])
def test_never_negative_and_zero_where_it_is_certain(name):
    dist, target = LINKED[name]() if name in LINKED else ((d := DISTS[name]()), d.sample(generator=seeded(5)))
    losses = [FenchelYoung(samples=1)(dist, target, generator=seeded(i)) for i in range(50)]
    assert (torch.stack(losses) >= -1e-12).all()
    wanted = target if torch.is_tensor(target) else target.mode
    sure = dist.with_log_rates(torch.where(dist.racing, 90 * wanted.to(dist.log_rates.dtype), -torch.inf))
    assert FenchelYoung()(sure, target).abs().max() < 1e-9


def test_as_many_trees_as_the_constraints_leave():
    """Four nodes that all are apart have no edge, and nothing to learn; with three of them, one edge is compared."""
    d = gt.SpanningTree(randn(4, 4).requires_grad_(), 2)
    pairs = torch.combinations(torch.arange(4)).tolist()
    loss = FenchelYoung()(d, d.constrained(cannot_link=links(4, *pairs)))
    assert loss == 0
    three = d.constrained(cannot_link=links(4, (0, 1), (0, 2), (1, 2)))
    grad = torch.autograd.grad(FenchelYoung(samples=64)(d, three, generator=seeded()), d.logits)[0]
    assert abs(grad.sum()) < 1e-12
    assert (grad[:3, :3] >= 0).all()
    assert grad[:3, 3].sum() < 0


def test_exact_means():
    x = randn(3, 40).float().requires_grad_()
    d = gt.Subset(x, 10)
    wanted = d.sample()
    (grad,) = torch.autograd.grad(FenchelYoung(samples=1, exact=True)(d, wanted).sum(), x)
    torch.testing.assert_close(grad, (d.mean - wanted).detach())
    tree = gt.SpanningTree(randn(4, 4).requires_grad_())
    (grad,) = torch.autograd.grad(FenchelYoung(samples=1, exact=True)(tree, tree.mode), tree.logits)
    torch.testing.assert_close(grad, (tree.mean - tree.mode).triu().detach())
    part = gt.Subset(x, 10, mask=torch.arange(40) != 3)
    (grad,) = torch.autograd.grad(FenchelYoung(samples=1, exact=True)(d, part).sum(), x)
    torch.testing.assert_close(grad, (d.mean - part.mean).detach())


def test_several_graphs():
    x = randn(7).requires_grad_()
    d = gt.SpanningTree.from_edges([x[:6], x[6:]], [EDGES, EDGES[:, :1]], [4, 2])
    wanted = d.sample(generator=seeded())
    samples = 20_000
    loss = FenchelYoung(samples=samples)(d, wanted, generator=seeded())
    assert loss.shape == (2,)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    exact = d.flat(d.mean - wanted).detach()
    mean = d.flat(d.mean).detach()
    error = (mean * (1 - mean) / samples).sqrt()
    assert abs(grad[6]) < 1e-12  # one edge, always there
    assert smallest(two_sided((grad - exact)[:6] / error[:6]), 6) > FALSE_ALARM


def test_several_structures_for_one_loss():
    d = gt.Subset(randn(4, 3, 5), 2)
    wanted = d.sample(generator=seeded())
    each = FenchelYoung()(d, wanted, generator=seeded())
    together = FenchelYoung()(Independent(d, 1), wanted, generator=seeded())
    torch.testing.assert_close(together, each.sum(-1))
    part = gt.Subset(d.logits, 2, mask=torch.arange(5) > 0)
    both = FenchelYoung()(Independent(d, 1), Independent(part, 1), generator=seeded())
    torch.testing.assert_close(both, FenchelYoung()(d, part, generator=seeded()).sum(-1))
    with pytest.raises(ValueError, match="Independent in 2 dimensions, the distribution in 1"):
        FenchelYoung()(Independent(d, 1), Independent(part, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes_and_weights_of_items(dtype):
    x = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    loss = FenchelYoung(exact=True)(gt.Subset(x, 2), torch.tensor([1, 1, 0, 0]))
    (loss * torch.tensor([1.0, -3.0])).sum().backward()
    assert x.grad.tolist() == [[-0.5, -0.5, 0.5, 0.5], [1.5, 1.5, -1.5, -1.5]]


def test_it_trains():
    """A forest that is to keep links it does not know of."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    same = labels[:, None] == labels
    x = torch.zeros(6, 6, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=0.3)
    for step in range(40):
        d = gt.SpanningTree(x, 2)
        loss = FenchelYoung()(d, d.constrained(same & ~torch.eye(6).bool(), ~same), generator=seeded(step))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert d.trace(x.detach()).labels().tolist() == labels.tolist()


def test_no_second_derivative():
    x = torch.zeros(4, requires_grad=True)
    (grad,) = torch.autograd.grad(FenchelYoung()(gt.Subset(x, 2), torch.tensor([1, 1, 0, 0])), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="FenchelYoung: its gradient cannot be differentiated again"):
        grad.sum().backward()


# Refusals -----------------------------------------------------------------------------------------------


def test_wrong_targets_are_errors():
    d, loss = gt.Subset(torch.zeros(2, 4), 2), FenchelYoung()
    with pytest.raises(ValueError, match=r"the target of item \(1,\) of the batch is not in the support"):
        loss(d, torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"targets \(3,\) do not fit batch shape \(2,\)"):
        loss(d, torch.zeros(3, 4))
    with pytest.raises(ValueError, match="a target of shape"):
        loss(d, torch.zeros(5))
    with pytest.raises(TypeError, match=r"the target must be a value, such as trace.value.* got Trace"):
        loss(d, d.sample_trace())
    with pytest.raises(TypeError, match="got list"):
        loss(d, [1, 1, 0, 0])
    with pytest.raises(TypeError, match="needs a structure"):
        loss(torch.distributions.Categorical(torch.ones(3)), torch.tensor(1))


def test_wrong_distributions_as_targets_are_errors():
    d, loss = gt.Subset(torch.zeros(2, 4), 2), FenchelYoung()
    for other in (gt.Subset(torch.zeros(2, 4), 3), gt.Permutation(torch.zeros(2, 4)), gt.Subset(torch.zeros(2, 5), 2)):
        with pytest.raises(ValueError, match="the target must be a distribution like the one that is trained"):
            loss(d, other)
    with pytest.raises(ValueError, match="the batch of the target"):
        loss(d, gt.Subset(torch.zeros(4), 2))
    masked = gt.Subset(torch.zeros(2, 4), 2, mask=torch.arange(4) > 0)
    with pytest.raises(ValueError, match=r"in the target of item \(0,\) of the batch a key races"):
        loss(masked, d)
    tree = gt.SpanningTree(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="components"):
        loss(tree, gt.SpanningTree(torch.zeros(3, 3), 2).constrained())
    with pytest.raises(NotImplementedError, match="largest sum"):
        loss(tree.constrained(), tree.mode)


def test_wrong_settings_are_errors():
    with pytest.raises(ValueError, match="samples must be at least 1"):
        FenchelYoung(samples=0)
    d = gt.SpanningTree(torch.zeros(4, 4), 2)
    with pytest.raises(ValueError, match=r"number of edges of .* depends on the noise"):
        FenchelYoung(exact=True)(d, d.constrained())
    large = gt.SpanningTree(torch.zeros(30, 30))
    with pytest.raises(ValueError, match="exact=True needs the mean"):
        FenchelYoung(exact=True)(large, large.mode)
    with pytest.raises(NotImplementedError, match=r"torch.func cannot transform it"):
        torch.func.grad(lambda x: FenchelYoung()(gt.Subset(x, 1, validate_args=False), torch.eye(3)[0]))(torch.zeros(3))
    assert repr(FenchelYoung(samples=3)) == "FenchelYoung(samples=3, exact=False)"
