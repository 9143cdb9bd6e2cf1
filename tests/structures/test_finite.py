"""Support, entropy and moments, as torch.distributions have them: against the list of all traces."""

import math
from itertools import product

import pytest
import torch
from cases import DISTS
from common import seeded
from torch.distributions import Independent, MixtureSameFamily

import gumtrace as gt
from gumtrace.diagnostics import TooManyTraces, enumerate_values
from gumtrace.structures import finite


def items(dist):
    return [dist.item(index) for index in product(*map(range, dist.batch_shape))]


@pytest.mark.parametrize("name", DISTS)
def test_entropy_is_that_of_the_enumerated_law(name):
    dist = DISTS[name]()
    assert dist.entropy().shape == dist.batch_shape
    laws = [enumerate_values(item).log_prob for item in items(dist)]
    expected = torch.stack([-(x.exp() * x).sum() for x in laws]).reshape(dist.batch_shape)
    torch.testing.assert_close(dist.entropy(), expected)
    x = dist.log_rates.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(dist.with_log_rates(x).entropy().sum(), x)
    y = dist.log_rates.detach().clone().requires_grad_()
    laws = [enumerate_values(item).log_prob for item in items(dist.with_log_rates(y))]
    (wanted,) = torch.autograd.grad(sum(-(x.exp() * x).sum() for x in laws), y)
    torch.testing.assert_close(slope, wanted)


@pytest.mark.parametrize("name", DISTS)
def test_mean_and_variance_are_those_of_the_enumerated_law(name):
    dist = DISTS[name]()
    if not dist.sample().is_floating_point():
        with pytest.raises(NotImplementedError, match="of which a mean says nothing"):
            dist.mean.sum()
        return
    means, variances = [], []
    for item in items(dist):
        law = enumerate_values(item)
        weight = law.log_prob.exp()[(..., *[None] * len(dist.event_shape))]
        means.append((weight * law.outcomes).sum(0))
        variances.append((weight * (law.outcomes - means[-1]).square()).sum(0))
    shape = dist.batch_shape + dist.event_shape
    torch.testing.assert_close(dist.mean, torch.stack(means).reshape(shape))
    torch.testing.assert_close(dist.variance, torch.stack(variances).reshape(shape))
    torch.testing.assert_close(dist.stddev, dist.variance.sqrt())


@pytest.mark.parametrize("name", DISTS)
def test_the_support_has_every_structure_once(name):
    dist = DISTS[name]()
    alike = dist._items_are_alike()
    if not alike:
        with pytest.raises(ValueError, match=r"enumerate_support: items of the batch have different structures"):
            dist.enumerate_support()
    for item in items(dist):
        support, law = item.enumerate_support(), enumerate_values(item)
        assert support.dtype == law.outcomes.dtype
        rows, wanted = ({tuple(x.flatten().tolist()) for x in values} for values in (support, law.outcomes))
        assert len(rows) == len(support) == len(law)
        assert rows == wanted
        if item.has_log_prob:
            assert item.log_prob(support).exp().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
def test_a_batch_with_one_support(batch):
    dist = gt.SpanningTree(torch.randn(*batch, 4, 4, generator=seeded()))
    support = dist.enumerate_support()
    assert support.shape == (16, *batch, 4, 4)
    torch.testing.assert_close(dist.log_prob(support).exp().sum(0), torch.ones(batch))
    assert dist.enumerate_support(expand=False).shape == (16, *[1] * len(batch), 4, 4)
    assert dist.has_enumerate_support


def test_one_list_serves_a_batch(monkeypatch):
    """Items with the same keys racing are not enumerated one by one."""
    packed, pack = [], gt.Subset._pack
    monkeypatch.setattr(
        gt.Subset, "_pack", lambda self, runs, shape: packed.append(len(runs)) or pack(self, runs, shape)
    )
    gt.Subset(torch.randn(50, 6), 2).entropy()
    assert packed == [15]


def test_subsets_are_counted_not_their_traces():
    """3,432 subsets of 7 of 14 keys, which have 17 million traces."""
    d = gt.Subset(torch.randn(14, generator=seeded()), 7)
    assert d.enumerate_support().shape == (3432, 14)
    uniform = gt.Subset(torch.zeros(14), 7)
    assert uniform.entropy().item() == pytest.approx(math.log(3432))


def test_large_runs_are_given_up_earlier(monkeypatch):
    """After as much work as many small ones."""
    monkeypatch.setattr(finite, "MOST_WORK", 10_000)
    with pytest.raises(TooManyTraces, match="more than 78 runs"):  # of at most 8 decisions among 16 edges
        gt.Arborescence(torch.zeros(5, 5)).enumerate_support()


@pytest.mark.parametrize(
    ("dist", "message"),
    [
        (lambda: gt.Subset(torch.zeros(40), 20), "137,846,528,820 structures are too many"),
        (lambda: gt.Permutation(torch.zeros(10), matrix=True), "3,628,800 structures"),
        (lambda: gt.BinaryTree(torch.zeros(30)), r"about 10\^16 structures"),
        (lambda: gt.SpanningTree(torch.zeros(9, 9)), "4,782,969 structures"),
        (lambda: gt.SpanningTree(torch.zeros(20, 20)), r"about 10\^23 structures"),
        (lambda: gt.Arborescence(torch.zeros(200, 200), root=3), r"about 10\^\d+ structures"),
        (lambda: gt.SpanningTree(torch.zeros(12, 12), components=2), r"more than 100 runs"),
        (lambda: gt.Matching(torch.zeros(9, 9)), r"more than 100 runs"),
    ],
)
def test_too_many_structures_are_an_error_with_their_number(dist, message, monkeypatch):
    """Where that is not known, with the number of runs after which the list was given up."""
    dist = dist()
    if "runs" in message:
        monkeypatch.setattr(finite, "MOST_RUNS", 100)
    with pytest.raises(TooManyTraces, match=rf"enumerate_support: {message}.*sample"):
        dist.enumerate_support()
    with pytest.raises(TooManyTraces, match=rf"entropy: {message}.*structure_entropy"):
        dist.entropy()


@pytest.mark.parametrize(("what", "samples"), [("mean", "mean"), ("variance", "var"), ("stddev", "var")])
def test_moments_that_are_too_many_say_how_to_estimate_them(what, samples):
    with pytest.raises(TooManyTraces, match=rf"dist.sample\(\(1000,\)\).{samples}\(0\)"):
        getattr(gt.SpanningTree(torch.zeros(30, 30)), what)


@pytest.mark.parametrize("name", DISTS)
def test_structures_are_counted_before_they_are_listed(name):
    for item in items(DISTS[name]()):
        count = item._count_values()
        assert count is None or count == len(item.enumerate_support())


def test_large_batches_are_refused_before_memory_is(monkeypatch):
    monkeypatch.setattr(finite, "MOST_ROWS", 100)
    with pytest.raises(TooManyTraces, match=r"15 structures or traces for each of 8 items are 120, at most 100"):
        gt.Subset(torch.zeros(8, 6), 2).entropy()


@pytest.mark.parametrize("dist", [gt.Permutation(torch.zeros(20)), gt.BinaryTree(torch.zeros(20))])
def test_numbers_of_keys_have_no_mean(dist):
    for ask in (lambda: dist.mean, lambda: dist.variance, lambda: dist.stddev):
        with pytest.raises(NotImplementedError, match="of which a mean says nothing"):
            ask()
    with pytest.raises(NotImplementedError, match="values are integers"):
        DISTS["custom-clusters"]().mean.sum()


def test_what_cannot_be_says_what_to_call():
    d = gt.Subset(torch.zeros(4), 2)
    assert not d.has_rsample
    with pytest.raises(NotImplementedError, match=r"Subset.rsample: .*gumtrace.relax"):
        d.rsample()
    with pytest.raises(NotImplementedError, match=r"Subset.cdf: structures have no order"):
        d.cdf(d.sample())
    with pytest.raises(NotImplementedError, match=r"Subset.icdf: structures have no order"):
        d.icdf(torch.tensor(0.5))


def test_nothing_in_the_batch():
    d = gt.Subset(torch.zeros(0, 4), 2)
    assert d.entropy().shape == (0,)
    assert d.mean.shape == (0, 4)
    assert d.enumerate_support().shape[1:] == (0, 4)


def test_torch_builds_on_them():
    """Independent adds entropies, mixtures average means."""
    d = gt.Subset(torch.randn(3, 4, generator=seeded()), 2)
    torch.testing.assert_close(Independent(d, 1).entropy(), d.entropy().sum())
    mixture = MixtureSameFamily(torch.distributions.Categorical(torch.ones(3)), d)
    torch.testing.assert_close(mixture.mean, d.mean.mean(0))
    torch.testing.assert_close(d.perplexity(), d.entropy().exp())


def test_half_precision():
    d = gt.Subset(torch.tensor([0.0, 1.0, 2.0], dtype=torch.bfloat16), 2)
    assert d.entropy().dtype == torch.float32
    assert d.mean.sum().item() == pytest.approx(2.0)


def test_several_graphs_in_a_batch():
    """Items that have graphs, and so trees, of their own."""
    triangle, square = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    d = gt.SpanningTree.from_edges([torch.zeros(3), torch.zeros(4)], [triangle, square], [3, 4])
    torch.testing.assert_close(d.entropy().exp(), torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(d.mean, torch.tensor([[2 / 3, 2 / 3, 2 / 3, 0.0], [3 / 4] * 4]))
    torch.testing.assert_close(torch.distributions.kl_divergence(d, d), torch.zeros(2))
    assert [len(item.enumerate_support()) for item in items(d)] == [3, 4]
    with pytest.raises(ValueError, match="items of the batch have different structures"):
        d.enumerate_support()


def test_an_algorithm_for_each_item():
    class First:
        def __init__(self, keys):
            self.keys = keys

        def start(self):
            return range(self.keys), None

        def stop(self, K, R):
            return not K

        def split(self, K, R):
            return [K]

        def map(self, K, R, winners):
            return [], None

    d = gt.Custom(torch.zeros(2, 4), [First(4), First(2)], event_dim=1)
    torch.testing.assert_close(d.entropy().exp(), torch.tensor([4.0, 2.0]))
    torch.testing.assert_close(d.mean, torch.tensor([[0.25] * 4, [0.5, 0.5, 0.0, 0.0]]))
