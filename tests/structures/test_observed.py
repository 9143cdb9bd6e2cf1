"""Traces from observed winners: likelihoods of Plackett-Luce by hand, and refusals that name the item."""

import math

import pytest
import torch
from common import seeded

import gumtrace as gt


def plackett_luce(logits, ranking):
    """log P of one ranking, a list: each winner against all keys that are left."""
    left, total = list(range(len(logits))), logits.new_zeros(())
    for winner in ranking:
        total = total + logits[winner] - logits[left].logsumexp(0)
        left.remove(winner)
    return total


def by_hand(logits, rankings):
    return torch.stack([plackett_luce(x, [w for w in r if w >= 0]) for x, r in zip(logits, rankings, strict=True)])


def randn(*shape):
    return torch.randn(*shape, generator=seeded(3), dtype=torch.float64)


PARTIAL = torch.tensor([[2, 0, -1, -1], [4, -1, -1, -1], [1, 3, 0, 2], [-1, -1, -1, -1]])


def test_a_partial_ranking_is_one_line():
    logits = randn(4, 5).requires_grad_()
    d = gt.Subset(logits, k=(PARTIAL >= 0).sum(-1))
    got, expected = d.trace_log_prob(d.observe(PARTIAL)), by_hand(logits, PARTIAL.tolist())
    torch.testing.assert_close(got, expected)
    (slope,), (wanted,) = (torch.autograd.grad(x.sum(), logits) for x in (got, expected))
    torch.testing.assert_close(slope, wanted)


def test_list_mle_is_one_line():
    logits, order = randn(6, 7).requires_grad_(), randn(6, 7).add(1).argsort(-1)
    d = gt.Permutation(logits)
    got, expected = d.trace_log_prob(d.observe(order)), by_hand(logits, order.tolist())
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got, d.log_prob(order))
    (slope,), (wanted,) = (torch.autograd.grad(x.sum(), logits) for x in (got, expected))
    torch.testing.assert_close(slope, wanted)


@pytest.mark.parametrize("make", [lambda x: gt.Subset(x, 3), gt.Permutation, lambda x: gt.Permutation(x, matrix=True)])
def test_samples_observed_are_the_traces_they_came_from(make):
    d = make(torch.where(torch.arange(6) == 4, -torch.inf, randn(2, 3, 6)))
    trace = d.sample_trace((5,), generator=seeded())
    seen = d.observe(trace.winners)
    assert seen.equals(trace).all()
    torch.testing.assert_close(seen.value, trace.value)
    assert d.trace(d.conditional(seen)).equals(trace).all()


def test_ragged_lists():
    logits, lengths = randn(3, 5), torch.tensor([5, 2, 0])
    order = torch.tensor([[4, 2, 0, 1, 3], [1, 0, -1, -1, -1], [-1, -1, -1, -1, -1]])
    d = gt.Permutation(logits, lengths=lengths)
    expected = torch.stack([plackett_luce(logits[i, : lengths[i]], order[i, : lengths[i]].tolist()) for i in range(3)])
    torch.testing.assert_close(d.trace_log_prob(d.observe(order)), expected)


def test_one_ranking_stands_for_the_batch_and_samples_come_first():
    logits = randn(4, 5)
    d = gt.Subset(logits, 2)
    ranking = torch.tensor([3, 1])
    expected = by_hand(logits, [[3, 1]] * 4)
    torch.testing.assert_close(d.trace_log_prob(d.observe(ranking)), expected)
    many = d.observe(ranking.expand(7, 1, 2))
    assert many.shape == (7, 4)
    torch.testing.assert_close(d.trace_log_prob(many), expected.expand(7, 4))


def test_width_does_not_matter():
    """Rankings may be padded further than the largest k, or less far than the slots of a trace."""
    d = gt.Subset(torch.zeros(2, 5), torch.tensor([1, 2]), most=4)
    wide, narrow = torch.tensor([[3, -1, -1, -1, -1], [1, 0, -1, -1, -1]]), torch.tensor([[3, -1], [1, 0]])
    for winners in (wide, narrow, narrow.int(), narrow.short()):
        assert d.trace_log_prob(d.observe(winners)).exp().tolist() == pytest.approx([1 / 5, 1 / 20])
    nothing = gt.Permutation(torch.zeros(3, 0))
    assert nothing.trace_log_prob(nothing.observe(torch.zeros(3, 0, dtype=torch.long))).tolist() == [0, 0, 0]


MASK = torch.tensor([True, True, False, True, True])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 5, 0], "item \\(1,\\) of the batch names a key outside 0..4"),
        ([1, -2, 0], "item \\(1,\\) of the batch names a key outside 0..4"),
        ([1, 0, 1], "item \\(1,\\) of the batch names a key twice"),
        ([1, 0, 2], "item \\(1,\\) of the batch names a key that does not race"),
        ([1, -1, 0], "item \\(1,\\) of the batch has a winner behind a -1"),
        ([1, 0, -1], "item \\(1,\\) of the batch has 2 winners and k = 3"),
    ],
)
@pytest.mark.parametrize("validate", [True, False])
def test_refusals_name_the_item(row, message, validate):
    d = gt.Subset(torch.zeros(2, 5), 3, mask=MASK, validate_args=validate)
    with pytest.raises(ValueError, match=f"Subset: the ranking of {message}"):
        d.observe(torch.tensor([[0, 1, 3], row]))


def test_a_partial_ranking_is_no_permutation():
    with pytest.raises(ValueError, match=r"2 winners for 4 keys that race; .* Subset\(logits, k=\(winners >= 0\)"):
        gt.Permutation(torch.zeros(4)).observe(torch.tensor([1, 0, -1, -1]))


@pytest.mark.parametrize("winners", [torch.zeros(3), torch.tensor(1), [0, 1, 2], torch.zeros(3, dtype=torch.bool)])
def test_winners_are_integers(winners):
    with pytest.raises(TypeError, match="Subset: observed winners must be integers"):
        gt.Subset(torch.zeros(4), 3).observe(winners)


def test_shapes_must_broadcast():
    d = gt.Subset(torch.zeros(4, 5), 1)
    with pytest.raises(ValueError, match=r"winners of batch shape \(3,\) do not broadcast with \(4,\)"):
        d.observe(torch.zeros(3, 1, dtype=torch.long))
    one = gt.Subset(torch.zeros(1, 5), 1)
    with pytest.raises(ValueError, match="does not end in"):
        one.observe(torch.zeros(3, 1, dtype=torch.long))


def test_orders_learnt_from_rankings():
    """Maximum likelihood of observed winners: first choices three to one are e^logit three to one."""
    logits = torch.zeros(2, requires_grad=True)
    winners = torch.tensor([[0], [0], [0], [1]])
    optimiser = torch.optim.LBFGS([logits], max_iter=50)

    def step():
        optimiser.zero_grad()
        d = gt.Subset(logits, 1)
        loss = -d.trace_log_prob(d.observe(winners)).mean()
        loss.backward()
        return loss

    optimiser.step(step)
    assert (logits[0] - logits[1]).item() == pytest.approx(math.log(3), abs=1e-3)


@pytest.mark.filterwarnings("ignore")  # what torch.compile says of torch's own code
def test_likelihoods_compile_and_map():
    """Values cannot be read while torch traces: nothing is checked, and nothing is out of bounds."""
    logits, winners = randn(3, 5), torch.tensor([[2, 0], [4, 1], [1, 3]])

    def likelihood(x, winners):
        d = gt.Subset(x, 2, validate_args=False)
        return d.trace_log_prob(d.observe(winners))

    expected = by_hand(logits, winners.tolist())
    torch.testing.assert_close(
        torch.compile(likelihood, fullgraph=True, backend="aot_eager")(logits, winners), expected
    )
    torch.testing.assert_close(torch.func.vmap(likelihood)(logits, winners), expected)


@pytest.mark.parametrize("keep", [{"lengths": torch.tensor([2, 4])}, {"mask": torch.tensor([True, False, True, True])}])
def test_values_of_ragged_and_masked_permutations_are_observed(keep):
    """They have keys that do not race in their own places."""
    d = gt.Permutation(torch.randn(2, 4, generator=seeded(1)), **keep)
    value = d.sample((3,), generator=seeded(2))
    trace = d.observe(value)
    assert torch.equal(trace.value, value)
    torch.testing.assert_close(d.trace_log_prob(trace), d.log_prob(value))


def test_other_structures_say_how_to_observe():
    with pytest.raises(NotImplementedError, match=r"Matching.observe: .*d.trace\(noise\)"):
        gt.Matching(torch.zeros(2, 2)).observe(torch.tensor([0, 3]))
