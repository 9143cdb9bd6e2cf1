"""Likelihoods of true trees against sums over all trees and all traces; the heaviest tree against networkx."""

import pytest
import torch
from common import seeded
from treesums import INF, directed, heaviest, uniform

import gumtrace as gt
from gumtrace.diagnostics import enumerate_values
from gumtrace_experiments.treebank import likelihoods
from gumtrace_experiments.treebank.likelihoods import crf_log_likelihood, trace_log_likelihood

pytestmark = pytest.mark.usefixtures("one_thread")


def scores(u, every):
    """Σ u over the edges of each tree, (trees,)."""
    return torch.where(every > 0, u, 0.0).sum((-1, -2))


# --- likelihoods ---


def test_likelihoods_of_all_trees():
    """Of the random field they sum to one. Of the traces that lead to a tree the target is one: the only one where all
    words hang from node 0, for every other tree has two words that could have won a circle of their own."""
    logits = uniform(4, 4, span=3)
    dist, every = gt.Arborescence(logits), directed(4, 0)
    batch = dist.expand((len(every),))
    field = crf_log_likelihood(batch, every.bool())
    torch.testing.assert_close(field, scores(logits, every).log_softmax(-1))

    law = enumerate_values(dist)
    among = (law.outcomes[:, None] == every).all((-1, -2))  # (outcomes, trees)
    assert among.sum(0).eq(1).all()
    exact = law.log_prob[among.int().argmax(0)]
    found = trace_log_likelihood(batch, every.bool())
    star = every[:, 0].sum(-1) == 3
    torch.testing.assert_close(found[star], exact[star])
    assert star.sum() == 1
    assert (found < exact - 1e-6)[~star].all()


def test_the_target_has_the_true_tree_and_no_contraction():
    every = directed(5, 0)
    dist = gt.Arborescence(uniform(len(every), 5, 5, span=3))
    trace = likelihoods.target(dist, every.bool())
    assert trace.value.equal(every)
    assert trace.links.eq(-1).all()
    assert (trace.winners >= 0).sum() == 4 * len(every)


def ragged(dtype=torch.float64):
    """Two items of 5 and 3 nodes with their true edges; the padding holds nonsense."""
    logits = uniform(2, 5, 5, span=2).to(dtype)
    logits[1, 3:], logits[1, :, 3:] = 1e30, torch.nan
    gold = torch.zeros(2, 5, 5, dtype=torch.bool)
    for item, heads in enumerate(([2, 0, 2, 3], [0, 1])):
        for word, head in enumerate(heads, 1):
            gold[item, head, word] = True
    return logits.requires_grad_(), torch.tensor([5, 3]), gold


def test_the_trace_is_head_selection():
    logits, lengths, gold = ragged()
    dist = gt.Arborescence(logits, lengths=lengths)
    found = trace_log_likelihood(dist, gold)
    for item, size in enumerate((5, 3)):
        inside = logits[item, :size, :size].masked_fill(torch.eye(size, dtype=torch.bool), -INF)
        chosen = inside.log_softmax(0)[gold[item, :size, :size]]
        torch.testing.assert_close(found[item], chosen.sum())


@pytest.mark.parametrize("likelihood", [trace_log_likelihood, crf_log_likelihood])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_ragged_items(likelihood, dtype):
    logits, lengths, gold = ragged(dtype)
    for checked in (True, False):
        dist = gt.Arborescence(logits, lengths=lengths, validate_args=checked)
        (grad,) = torch.autograd.grad(likelihood(dist, gold).sum(), logits)
        assert grad.isfinite().all()
        assert grad[1, 3:].eq(0).all()
        assert grad[1, :, 3:].eq(0).all()
        torch.testing.assert_close(grad[..., 1:].sum(-2), torch.zeros(2, 4, dtype=dtype), rtol=0, atol=1e-5)
        assert (grad[gold] > 0).all()
    alone = gt.Arborescence(logits[1:, :3, :3])
    both = gt.Arborescence(logits, lengths=lengths)
    torch.testing.assert_close(likelihood(both, gold)[1:], likelihood(alone, gold[1:, :3, :3]))


# --- the heaviest tree ---


def test_heaviest_is_the_largest_sum():
    logits = torch.randn(40, 7, 7, generator=seeded(), dtype=torch.float64) * torch.logspace(-1, 2, 40)[:, None, None]
    lengths = torch.tensor([7, 4] * 20)
    dist = gt.Arborescence(logits, lengths=lengths, validate_args=False)
    found = likelihoods.heaviest(dist)
    for item, size in enumerate(lengths.tolist()):
        expected = heaviest(logits[item, :size, :size], root=0)
        torch.testing.assert_close(found[item, :size, :size], expected)
        assert found[item].sum() == size - 1
    assert not found.equal(dist.mode)  # which is the least Σ e^-θ


def test_heaviest_does_not_read_what_cannot_be_chosen():
    logits = uniform(6, 6, span=2).float()
    odd = logits.clone()
    odd[:, 0] = 1e9  # beside which the others would all be alike
    odd.diagonal().fill_(1e9)
    found = [likelihoods.heaviest(gt.Arborescence(x)) for x in (logits, odd)]
    assert found[0].equal(found[1])
