"""Draws without replacement: their law against that of all traces, listed; both ways of drawing; what is left, what is
not found, extreme numbers. False alarms: one in a million for each statistical test; seeds are fixed."""

import math
import time
from collections import Counter
from itertools import permutations, product

import pytest
import torch
from cases import DISTS
from common import FALSE_ALARM, seeded
from scipy import stats
from torch.distributions import Independent

import gumtrace as gt
from gumtrace.kernels import ops
from gumtrace.structures import TooManyTraces
from gumtrace.structures.distinct import by_recursion
from gumtrace.structures.joint import as_structure

COMPARING = [name for name, build in DISTS.items() if build().has_distinct_kernel]


def kernel(dist, count, seed=0):
    return dist.distinct_traces(count, generator=seeded(seed))


def recursion(dist, count, seed=0):
    return by_recursion(dist, count, ops.new_seed(dist.logits.device, seeded(seed)))


def names(trace):
    """Each trace as something that can be compared: its winners, or the parents of a binary tree."""
    rows = (trace.links if trace._links_only else trace.choices).flatten(0, -2).tolist()
    return [tuple(row) if trace._links_only else tuple(k for k in row if k >= 0) for row in rows]


def p_of_orders(item, drawn, count):
    """That draws (count, replicates) of one item come in the orders that they must: of the traces listed, with chances
    proportional to their probabilities, one after the other."""
    listed = item.enumerate_traces()
    probs = dict(zip(names(listed), item.trace_log_prob(listed).detach().double().exp().tolist(), strict=True))
    count = min(count, len(probs))
    replicates = drawn.shape[1]
    flat = names(drawn)
    seen = Counter(zip(*(flat[s * replicates : (s + 1) * replicates] for s in range(count)), strict=True))
    observed, expected, pooled = [], [], [0.0, 0.0]
    for order in permutations(probs, count):
        p, left = 1.0, 1.0
        for trace in order:
            p, left = p * probs[trace] / max(left, 1e-300), left - probs[trace]
        if p * replicates < 5:
            pooled = [pooled[0] + seen[order], pooled[1] + p * replicates]
        else:
            observed.append(seen[order])
            expected.append(p * replicates)
    if pooled[1] > 1e-6:
        observed.append(pooled[0])
        expected.append(pooled[1])
    assert sum(observed) == replicates  # no order is outside of the list, so no trace came twice
    square = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return stats.chi2.sf(square, len(observed) - 1) if len(observed) > 1 else 1.0


def smallest_p(dist, draw, count, replicates):
    """Of all items, corrected for their number."""
    drawn = draw(dist.expand((replicates, *dist.batch_shape)), count).traces
    items = list(product(*map(range, dist.batch_shape)))
    return len(items) * min(
        p_of_orders(dist.item(index), drawn[(slice(None), slice(None), *index)], count) for index in items
    )


@pytest.mark.parametrize("name", DISTS)
@pytest.mark.slow
def test_law_of_the_first_two(name):
    dist = DISTS[name]()
    assert smallest_p(dist, kernel, 2, 20_000 if name in COMPARING else 1500) > FALSE_ALARM


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.slow
def test_law_of_the_recursion_in_place_of_the_kernel(name):
    assert smallest_p(DISTS[name](), recursion, 2, 1500) > FALSE_ALARM


@pytest.mark.parametrize("count", [1, 3, 6, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_law_of_permutations_to_the_last(count, dtype):
    dist = gt.Permutation(torch.tensor([0.0, 1.0, 2.0], dtype=dtype))
    assert smallest_p(dist, kernel, count, 20_000) > FALSE_ALARM


@pytest.mark.parametrize("count", [3, 5])
def test_law_of_binary_trees_to_the_last(count):
    assert smallest_p(gt.BinaryTree(torch.tensor([0.0, 1.0, 2.0])), kernel, count, 20_000) > FALSE_ALARM


def test_the_judge_finds_a_wrong_order():
    """The same traces, the last first; and independent draws, of which some come twice."""
    dist = gt.Permutation(torch.tensor([0.0, 1.0, 2.0]))
    drawn = kernel(dist.expand((20_000,)), 2).traces
    assert p_of_orders(dist, drawn[[1, 0]], 2) < FALSE_ALARM
    with pytest.raises(AssertionError):
        p_of_orders(dist, dist.sample_trace((2, 20_000), generator=seeded(0)), 2)


@pytest.mark.parametrize("name", ["permutation", "subset", "binary", "arborescence"])
def test_times_of_arrival(name):
    """e^-perturbed grows by an exponential time, whose rate is the probability that is left."""
    dist = DISTS[name]()
    drawn = kernel(dist.expand((20_000 if name in COMPARING else 1500,)), 4)
    arrival = (-drawn.perturbed_log_prob).exp()
    wait = torch.cat([arrival[:1], (arrival[1:] - arrival[:-1]) * drawn.log_rest[:-1].exp()])
    for row in wait:
        assert stats.kstest(row.numpy(), "expon").pvalue > FALSE_ALARM


@pytest.mark.parametrize("name", DISTS)
@pytest.mark.parametrize("draw", [kernel, recursion])
def test_numbers_are_those_of_the_traces(name, draw):
    dist = DISTS[name]()
    drawn = draw(dist, 3)
    assert drawn.traces.shape == drawn.log_prob.shape == drawn.found.shape == (3, *dist.batch_shape)
    assert not drawn.log_prob.requires_grad
    expected = dist.trace_log_prob(drawn.traces).detach()
    torch.testing.assert_close(drawn.log_prob, torch.where(drawn.found, expected, -torch.inf))
    covered = 1 - drawn.log_prob.exp().cumsum(0)
    torch.testing.assert_close(drawn.log_rest.exp(), covered, rtol=0, atol=1e-9)
    assert (drawn.perturbed_log_prob[1:] <= drawn.perturbed_log_prob[:-1]).all()


@pytest.mark.parametrize("name", DISTS)
def test_more_draws_begin_with_the_same(name):
    """Whatever their number: `distinct_values` rests on it."""
    dist = DISTS[name]()
    few, many = kernel(dist, 2, seed=5), kernel(dist, 5, seed=5)
    assert names(few.traces) == names(many.traces[:2])
    torch.testing.assert_close(few.perturbed_log_prob, many.perturbed_log_prob[:2], rtol=0, atol=0)


@pytest.mark.parametrize("draw", [kernel, recursion])
def test_fewer_than_were_asked_for(draw):
    dist = gt.Permutation(torch.randn(3, 4, generator=seeded(1)), lengths=torch.tensor([0, 2, 3]))
    drawn = draw(dist, 7)
    assert drawn.found.sum(0).tolist() == [1, 2, 6]
    torch.testing.assert_close(drawn.log_prob.exp().sum(0), torch.ones(3))
    for number in (drawn.log_prob, drawn.perturbed_log_prob):
        assert torch.equal(number > -torch.inf, drawn.found)
    assert (drawn.log_rest[5:] == -torch.inf).all()
    assert names(drawn.traces[6]) == names(drawn.traces[0])  # the first again: a trace that can be evaluated
    assert repr(drawn) == "Distinct(shape=(7, 3), found=9 of 21)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("structure", [gt.Permutation, gt.BinaryTree, lambda x: gt.Subset(x, 2)])
@pytest.mark.parametrize("logits", [[0.0, -50.0, -2000.0], [1e30, 0.0, -1e30], [0.0, -1e4, 1e4], [0.0, -40.0, -300.0]])
def test_nothing_is_lost_however_improbable(structure, logits, dtype):
    """1 - p would be 0: all are found, each once, and nothing is nan."""
    dist = structure(torch.tensor(logits, dtype=dtype))
    count = len(dist.enumerate_traces())
    drawn = kernel(dist, count + 1)
    assert drawn.found.tolist() == [True] * count + [False]
    assert len(set(names(drawn.traces[:count]))) == count
    torch.testing.assert_close(drawn.log_prob[:count], dist.trace_log_prob(drawn.traces[:count]))
    assert not (drawn.log_rest.isnan() | drawn.perturbed_log_prob.isnan()).any()


def test_masked_keys_and_the_smallest_items():
    drawn = gt.Permutation(torch.tensor([0.0, -torch.inf, 1.0])).distinct_traces(2)
    assert sorted(drawn.value.tolist()) == [[0, 1, 2], [2, 1, 0]]
    for dist in (gt.Permutation(torch.zeros(0)), gt.BinaryTree(torch.zeros(1)), gt.Subset(torch.zeros(3), 3)):
        assert int(kernel(dist, 10).found.sum()) == len(dist.enumerate_traces())
    assert kernel(gt.Permutation(torch.zeros(0, 3)), 2).value.shape == (2, 0, 3)


def test_more_draws_than_keys():
    drawn = kernel(gt.Permutation(torch.randn(6, 5, generator=seeded(2))), 120)
    assert drawn.found.all()
    assert all(len(set(map(tuple, rows))) == 120 for rows in drawn.value.transpose(0, 1).tolist())
    torch.testing.assert_close(drawn.log_prob.exp().sum(0), torch.ones(6))


def test_long_items_have_different_traces():
    dist = gt.Permutation(8 * torch.randn(16, 350, generator=seeded(3)))
    drawn = kernel(dist, 8)
    assert drawn.found.all()
    assert all(len(set(map(tuple, rows))) == 8 for rows in drawn.value.transpose(0, 1).tolist())
    torch.testing.assert_close(drawn.log_prob, dist.trace_log_prob(drawn.traces), rtol=1e-4, atol=1e-3)


def test_threads_make_no_difference():
    dist, threads = gt.Permutation(torch.randn(64, 200, generator=seeded(4))), torch.get_num_threads()
    drawn = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            drawn.append(kernel(dist, 8))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(drawn[0].traces.choices, drawn[1].traces.choices)
    assert torch.equal(drawn[0].perturbed_log_prob, drawn[1].perturbed_log_prob)


@pytest.mark.slow
def test_cost():
    """8 distinct permutations of 350 keys in at most the time of 30 samples; it is about 20. In processor time, so that
    other processes do not matter."""
    dist = gt.Permutation(torch.randn(128, 350, generator=seeded(9)))
    best = [math.inf, math.inf]
    for _ in range(8):
        for which, draw in enumerate((dist.sample_trace, lambda: kernel(dist, 8))):
            start = time.process_time()
            draw()
            best[which] = min(best[which], time.process_time() - start)
    assert best[1] < 30 * best[0]


def test_several_structures_of_an_item():
    """A combination is drawn once; each of them may come again."""
    dist = as_structure("a test", Independent(gt.Permutation(torch.randn(2, 2, 2, generator=seeded(6))), 1))
    drawn = dist.distinct_traces(5, generator=seeded(0))
    assert drawn.value.shape == (5, 2, 2, 2)
    assert drawn.found.sum(0).tolist() == [4, 4]
    torch.testing.assert_close(drawn.log_prob[:4], dist.trace_log_prob(drawn.traces)[:4])
    torch.testing.assert_close(drawn.log_prob.exp().sum(0), torch.ones(2))


# Structures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["subset", "matching"])
def test_law_of_different_structures(name):
    dist = DISTS[name]()
    law = gt.diagnostics.enumerate_values(dist)
    p = law.log_prob.detach().exp()
    replicates = 20_000 if name in COMPARING else 1500
    drawn = dist.expand((replicates,)).distinct_values(2, generator=seeded(0))
    same = (drawn.value.flatten(2)[:, :, None] == law.outcomes.flatten(1)).all(-1)  # (2, replicates, structures)
    first, second = same.double().argmax(-1)
    assert (same.sum(-1) == 1).all()
    assert (first != second).all()
    seen = torch.zeros(len(p), len(p)).index_put((first, second), torch.ones(replicates), accumulate=True)
    expected = replicates * p[:, None] * p / (1 - p)[:, None]
    apart = ~torch.eye(len(p), dtype=torch.bool) & (expected > 5)
    square = ((seen - expected).square() / expected)[apart].sum()
    assert stats.chi2.sf(float(square), int(apart.sum())) > FALSE_ALARM  # of as many or fewer degrees of freedom
    torch.testing.assert_close(drawn.log_prob, dist.log_prob(drawn.value))
    torch.testing.assert_close(drawn.log_rest.exp(), 1 - drawn.log_prob.exp().cumsum(0), rtol=0, atol=1e-6)


def test_all_structures_are_found():
    drawn = gt.Subset(torch.randn(3, 4, generator=seeded(7)), torch.tensor([1, 2, 4])).distinct_values(7)
    assert drawn.found.sum(0).tolist() == [4, 6, 1]
    torch.testing.assert_close(drawn.log_prob.exp().sum(0), torch.ones(3))
    assert (drawn.log_rest[-1] == -torch.inf).all()


def test_permutations_are_their_traces():
    dist = gt.Permutation(torch.randn(5, 4, generator=seeded(8)))
    traces, values = (f(6, generator=seeded(1)) for f in (dist.distinct_traces, dist.distinct_values))
    assert torch.equal(traces.value, values.value)
    torch.testing.assert_close(traces.log_prob, values.log_prob)


# Refusals ------------------------------------------------------------------------------------------


def test_refusals():
    with pytest.raises(ValueError, match=r"Permutation.distinct_traces: count must be at least 1, got 0"):
        gt.Permutation(torch.zeros(3)).distinct_traces(0)
    with pytest.raises(TypeError, match="count must be an integer"):
        gt.Subset(torch.zeros(3), 1).distinct_values(1.5)
    with pytest.raises(NotImplementedError, match="distinct_traces draws different traces"):
        gt.Arborescence(torch.zeros(3, 3)).distinct_values(2)
    orders = gt.Subset(torch.tensor([9.0] * 8 + [-9.0] * 4), 8)
    with pytest.raises(TooManyTraces, match=r"of the first 4,096 traces of the item, .* only 1 have different"):
        orders.distinct_values(3, generator=seeded(0))
    with pytest.raises(ValueError, match="nan or"):
        gt.Permutation(torch.tensor([0.0, math.nan]), validate_args=False).distinct_traces(2)


def test_an_algorithm_that_depends_on_chance_is_refused():
    class Fickle:
        calls = 0

        def start(self):
            return range(4), None

        def stop(self, K, R):
            return len(K) < 2

        def split(self, K, R):
            Fickle.calls += 1
            keys = sorted(K)
            return [keys[:1], keys[1:]] if Fickle.calls % 4 == 0 else [keys]

        def map(self, K, R, winners):
            return [k for k in K if k not in winners], None

    with pytest.raises(ValueError, match="hooks must depend on their arguments alone"):
        gt.Custom(torch.zeros(4), Fickle(), validate_args=False).distinct_traces(20)
