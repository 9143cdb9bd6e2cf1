"""GraphSurrogate: what it computes, that it learns objectives of items it has not seen, and that gradients stay
unbiased."""

import copy

import pytest
import torch
from common import FALSE_ALARM, seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import check_unbiased, gradients

pytestmark = pytest.mark.usefixtures("one_thread")
N, C = 4, 2


def made(seed=0, nodes=N):
    torch.manual_seed(seed)
    return E.GraphSurrogate(nodes, C, hidden=16)


def items(count, generator, nodes=N):
    """Places of nodes, and an objective of their trees that depends on pairs of edges at a node."""
    place = torch.randn(count, nodes, C, generator=generator)
    distance = torch.cdist(place, place)
    return place.flatten(1), lambda x: ((x * distance).sum(-1) - 1).square().sum(-1)


def learnt(estimator, calls, nodes=N):
    generator = seeded(1)
    for _ in range(calls):
        context, f = items(16, generator, nodes)
        estimator(gt.SpanningTree(torch.zeros(16, nodes, nodes)), f, context, generator=generator)
    return estimator.eval()


def randomised(surrogate):
    """It starts as 0: give it something to compute."""
    with torch.no_grad():
        surrogate.spread.fill_(4.0)
        for p in surrogate.net.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(5)))
    return surrogate


def test_value_is_the_sum_over_nodes():
    surrogate = randomised(made()).double()
    net, x = surrogate.net, gt.SpanningTree(torch.zeros(2, N, N)).sample((3,), generator=seeded(1)).double()
    context = torch.randn(2, N * C, generator=seeded(2)).double()
    place, i, j = context.unflatten(-1, (N, C)), *torch.triu_indices(N, N, 1)
    for sample in range(3):
        for item in range(2):
            total = torch.zeros((), dtype=torch.double)
            for a in range(N):
                others = [b for b in range(N) if x[sample, item, a, b] == 1]
                pairs = [net.receiving(place[item, a]) + net.sending(place[item, b]) for b in others]
                received = net.received(torch.stack(pairs).mul(torch.stack(pairs).sigmoid()).sum(0))
                hidden = torch.nn.functional.silu(net.own(place[item, a]) + received)
                total += net.out(torch.nn.functional.silu(net.middle(hidden)))[0]
            found = surrogate(x[..., i, j], context)[sample, item]
            torch.testing.assert_close(found, 2 * total)


def test_nodes_are_all_alike():
    """To renumber them changes nothing."""
    surrogate = randomised(made())
    x = gt.SpanningTree(torch.zeros(N, N)).sample((5,), generator=seeded(1))
    place, order = torch.randn(N, C, generator=seeded(2)), torch.tensor([2, 0, 3, 1])
    i, j = torch.triu_indices(N, N, 1)
    there = surrogate(x[:, order][:, :, order][..., i, j], place[order].flatten())
    torch.testing.assert_close(there, surrogate(x[..., i, j], place.flatten()), atol=1e-4, rtol=1e-4)


def test_it_starts_as_t_reinforce():
    """Before its first loss it is 0, and leaves the gradient of the evaluated structures alone."""
    assert (made()(torch.ones(3, 2, 6), torch.randn(2, N * C, generator=seeded(1))) == 0).all()


@pytest.mark.slow
def test_it_explains_items_that_it_has_not_seen():
    """Most of the variance within fresh items of ten nodes; a perceptron on the whole item next to nothing."""
    shares, n = {}, 10
    context, f = items(50, seeded(7), n)
    x = gt.SpanningTree(torch.zeros(50, n, n)).sample((50,), generator=seeded(8))
    i, j = torch.triu_indices(n, n, 1)
    for name, surrogate in {"graph": made(nodes=n), "mlp": E.MLPSurrogate(n * (n - 1) // 2, context=n * C)}.items():
        estimator = learnt(E.SurrogateREINFORCE(samples=8, extra=2, surrogate=surrogate), 150, n)
        left = f(x) - estimator.surrogate(x[..., i, j], context)
        shares[name] = 1 - (left.var(0).sum() / f(x).var(0).sum()).item()
    assert shares["graph"] > 0.7
    assert shares["mlp"] < 0.3


@pytest.mark.slow
def test_gradients_of_fresh_items_have_less_variance():
    estimator = learnt(E.SurrogateREINFORCE(samples=8, extra=64, surrogate=made()), 150)
    context, f = items(16, seeded(7))
    dist, spread = gt.SpanningTree(torch.zeros(16, N, N)), {}
    for name, one in {"surrogate": estimator, "plain": E.TraceREINFORCE(samples=8)}.items():
        grads = gradients(one, dist, f, 200, seeded(3), context)
        spread[name] = grads.std(0)[dist.racing].square().mean().sqrt().item()
    assert spread["surrogate"] < 0.6 * spread["plain"]


@pytest.mark.parametrize("samples", [2, 4, 8])
def test_unbiased(samples):
    """False alarm: one in a million."""
    surrogate = randomised(made())
    context, f = items(3, seeded(7))
    estimator = E.SurrogateREINFORCE(samples=samples, extra=8, surrogate=surrogate)
    dist = gt.SpanningTree(torch.randn(3, N, N, generator=seeded(2)))
    report = check_unbiased(estimator, dist, f, 3000, context=context, generator=seeded(3))
    assert report.p_value > FALSE_ALARM


def test_one_sample_teaches_nothing():
    surrogate = made()
    before = copy.deepcopy(surrogate.net.state_dict())
    surrogate.fit(torch.ones(1, 2, 6), torch.randn(1, 2), torch.randn(2, N * C))
    torch.testing.assert_close(surrogate.net.state_dict(), before, rtol=0, atol=0)


def test_a_constant_of_an_item_changes_nothing():
    states = []
    for constant in (0.0, 1.0):
        surrogate, generator = made().double(), seeded(1)
        for _ in range(5):
            context, f = items(4, generator)
            x = gt.SpanningTree(torch.zeros(4, N, N)).sample((3,), generator=generator)
            i, j = torch.triu_indices(N, N, 1)
            surrogate.fit(x[..., i, j], f(x).double() + constant * context[:, 0], context)
        states.append(surrogate.state_dict())
    torch.testing.assert_close(*states, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_items_that_are_not_finite_are_left_out(wrong):
    x = torch.rand(3, 4, 6, generator=seeded(1))
    loss, context = torch.randn(3, 4, generator=seeded(2)), torch.randn(4, N * C, generator=seeded(3))
    kept, left = made(), made()
    kept.fit(x[:, :2], loss[:, :2], context[:2])
    loss[1, 2], context[3, 0] = wrong, wrong
    left.fit(x, loss, context)
    torch.testing.assert_close(left.state_dict(), kept.state_dict(), rtol=1e-4, atol=1e-6)


def test_state_survives_saving_and_half_precision(tmp_path):
    surrogate = made()
    surrogate.fit(torch.rand(3, 4, 6), torch.randn(3, 4), torch.randn(4, N * C))
    torch.save(surrogate.state_dict(), tmp_path / "state.pt")
    other = made(seed=9)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(other.state_dict(), surrogate.state_dict(), rtol=0, atol=0)
    assert {t.dtype for t in surrogate.half().state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("context", [None, torch.zeros(2, 3)])
def test_another_context_is_told(context):
    given = 0 if context is None else 3
    with pytest.raises(ValueError, match=f"made for 6 entries and 4 x 2 features of the context, got 6 and {given}"):
        made()(torch.zeros(3, 2, 6), context)
