"""UnorderedREINFORCE: its mean summed over all sets that can be drawn, its weights against all orders, where it pays,
and numbers at the edge. `test_unbiased.py` has it for every structure, K = 1, 2, 4.

False alarms: one in a million for each statistical test; seeds are fixed."""

from itertools import combinations, permutations

import pytest
import torch
from common import FALSE_ALARM, seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import check_unbiased, exact_gradient, exact_variance, gradients
from gumtrace.estimators.unordered import first_two
from gumtrace.structures.distinct import Distinct


def objective(value):
    weights = torch.randn(value.shape[-1], generator=seeded(3), dtype=torch.float64)
    return (value.double() @ weights).square() + 1.0


def logits(n, scale=1.0):
    return scale * torch.randn(n, generator=seeded(n), dtype=torch.float64)


def on_all_sets(dist, samples):
    """All sets of so many traces of one item as a batch, with the probability of each: that of a subset of traces."""
    traces = dist.enumerate_traces()
    log_prob = dist.trace_log_prob(traces)
    sets = torch.tensor(list(combinations(range(len(traces)), samples))).T  # (samples, sets)
    chosen = torch.zeros(sets.shape[1], len(traces), dtype=torch.float64).scatter(1, sets.T, 1.0)
    probs = gt.Subset(log_prob, samples).log_prob(chosen).exp()
    rest = torch.where(chosen.bool(), -torch.inf, log_prob).logsumexp(-1).expand(sets.shape)
    drawn = Distinct(traces[sets], log_prob[sets], log_prob[sets], rest, torch.ones_like(sets, dtype=torch.bool))
    return drawn, probs


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize(
    ("dist", "samples"),
    [
        (gt.Permutation(logits(3)), 2),
        (gt.Permutation(logits(3)), 4),
        (gt.Permutation(logits(4)), 2),
        (gt.Permutation(logits(4)), 4),
        (gt.BinaryTree(logits(4)), 8),
    ],
)
def test_mean_over_all_sets_is_the_exact_gradient(dist, samples, leave_one_out, monkeypatch):
    """No draws, no chance: to ten digits."""
    drawn, probs = on_all_sets(dist, samples)
    assert probs.sum().item() == pytest.approx(1.0, abs=1e-9)
    x = dist.logits.expand(len(probs), -1).clone().requires_grad_()
    batch = type(dist)(x)
    monkeypatch.setattr(batch, "distinct_traces", lambda count, generator=None: drawn, raising=False)
    loss = E.UnorderedREINFORCE(samples=samples, leave_one_out=leave_one_out)(batch, objective)
    (grad,) = torch.autograd.grad((probs * loss).sum(), x)
    value, exact = exact_gradient(dist, objective)
    assert (probs * loss).sum().item() == pytest.approx(value.item(), rel=1e-10)
    torch.testing.assert_close(grad.sum(0), exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("samples", [2, 4, 8])
@pytest.mark.parametrize("n", [4, 5, 6])
@pytest.mark.slow
def test_permutations(n, samples):
    dist = gt.Permutation(logits(n))
    report = check_unbiased(E.UnorderedREINFORCE(samples=samples), dist, objective, 20_000, generator=seeded(1))
    assert report.p_value > FALSE_ALARM


def test_weights_by_all_orders():
    p = torch.rand(7, generator=seeded(0), dtype=torch.float64)
    p = p / p.sum()
    p, rest = p[:5], p[5:].sum()
    first, second = torch.zeros(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    for order in permutations(range(5)):
        chance, left = 1.0, 1.0
        for s in order:
            chance, left = chance * p[s] / left, left - p[s]
        first[order[0]] += chance
        second[order[0], order[1]] += chance
    w, v, others = first_two(p.log(), rest.log(), torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(w, first / first.sum())
    torch.testing.assert_close(v, second / first[:, None])
    torch.testing.assert_close(others, 1 - p)


@pytest.mark.parametrize("rest", [-1e-3, -30.0, -900.0, -torch.inf])
def test_weights_where_little_is_left(rest):
    """Probabilities from nearly 1 down to e^-5000: weights sum to 1 and are finite, and the certain trace is first."""
    log_prob = torch.tensor([-1e-20, -60.0, -400.0, -5000.0], dtype=torch.float64)
    log_prob = log_prob if rest < -1 else log_prob - 8.0
    w, v, others = first_two(log_prob, torch.tensor(rest, dtype=torch.float64), torch.ones(4, dtype=torch.bool))
    torch.testing.assert_close(w.sum(), torch.ones_like(w[0]))
    torch.testing.assert_close(v.sum(1), torch.ones_like(w))
    assert (others[1:] > 0.99).all()
    assert w[0] > 0.99 or rest > -1


def test_traces_that_do_not_exist_have_no_weight():
    log_prob = torch.tensor([0.6, 0.4, 0.0, 0.0], dtype=torch.float64).log()
    found = torch.tensor([True, True, False, False])
    w, v, others = first_two(log_prob, torch.tensor(-torch.inf), found)
    torch.testing.assert_close(w, torch.tensor([0.6, 0.4, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(v[:2, :2], torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(others[:2], torch.tensor([0.4, 0.6], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_traces_give_the_exact_gradient(dtype):
    """With as many samples as there are traces, and with more; ragged, one item with a single trace."""
    x = torch.randn(3, 3, generator=seeded(2)).to(dtype)
    dist = gt.Permutation(x, lengths=torch.tensor([1, 2, 3]))
    _, exact = exact_gradient(dist, objective)
    for samples in (6, 8):
        grad = gradients(E.UnorderedREINFORCE(samples=samples), dist, objective, 2, seeded(0))
        torch.testing.assert_close(grad[0].double(), exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)
        torch.testing.assert_close(grad[0], grad[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e30])
def test_nearly_certain_and_masked(dtype, scale):
    x = (scale * torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0])).to(dtype).requires_grad_()
    dist = gt.Permutation(x, mask=torch.tensor([True, True, False, True, True]))
    loss = E.UnorderedREINFORCE(samples=8)(dist, objective, generator=seeded(0))
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_one_sample_is_plain_reinforce():
    """The same variance as that of T-REINFORCE without a baseline: within 5 % by 20,000 draws."""
    dist = gt.Permutation(logits(4))
    stds = []
    for cls in (E.UnorderedREINFORCE, E.TraceREINFORCE):
        grads = gradients(cls(samples=1, leave_one_out=False), dist, objective, 20_000, seeded(0))
        stds.append(grads.std(0).norm())
    assert stds[0] == pytest.approx(stds[1].item(), rel=0.05)


def test_it_pays_where_the_distribution_is_narrow():
    """Of 1.1 nats: less than half of the deviation of T-REINFORCE+. Of 6.6 nats, all that there are: the same."""
    ratios = []
    for scale in (0.0, 6.0):
        dist = gt.Permutation(logits(6, scale))
        grads = gradients(E.UnorderedREINFORCE(samples=4), dist, objective, 20_000, seeded(0))
        ratios.append((grads.var(0).sum() / exact_variance(dist, objective, 4).trace.sum()).sqrt().item())
    assert ratios[0] == pytest.approx(1.0, abs=0.05)
    assert ratios[1] < 0.5


def test_the_value_weighs_traces_by_their_probability():
    """A plain mean over two traces would be 1/2, whatever they are."""
    dist = gt.Permutation(torch.tensor([5.0, 0.0], requires_grad=True))
    loss = E.UnorderedREINFORCE(samples=2)(dist, lambda x: (x[..., 0] == 0).double())
    assert loss.item() == pytest.approx(torch.tensor(5.0).sigmoid().item(), rel=1e-5)


def test_too_many_samples():
    with pytest.raises(ValueError, match="UnorderedREINFORCE: samples must be at most 12, got 13"):
        E.UnorderedREINFORCE(samples=13)
