"""Likelihoods of true trees against sums over all trees and all traces; the heaviest tree against networkx."""

import pytest
import torch
from common import seeded
from torch.autograd import gradcheck, gradgradcheck
from treesums import INF, directed, heaviest, some_missing, uniform

import gumtrace as gt
from gumtrace.diagnostics import enumerate_values
from gumtrace.experiments.treebank import likelihoods
from gumtrace.experiments.treebank.likelihoods import crf_log_likelihood, trace_log_likelihood
from gumtrace.relaxations.partition import arborescence_log_partition
from gumtrace.relaxations.trees import arborescence_marginals

pytestmark = pytest.mark.usefixtures("one_thread")


def scores(u, every):
    """Σ u over the edges of each tree, (trees,)."""
    return torch.where(every > 0, u, 0.0).sum((-1, -2))


# --- the sum over all trees ---


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("span", [1, 100, 5000])
def test_log_partition_is_the_sum_over_all_trees(n, span):
    for seed in range(4):
        root = seed % n
        u = uniform(n, n, span=span, seed=seed)
        u = some_missing(u, seed) if seed % 2 else u
        expected = scores(u, directed(n, root)).logsumexp(-1)
        torch.testing.assert_close(arborescence_log_partition(u, root), expected, rtol=1e-13, atol=1e-13)


def test_log_partition_counts_trees():
    for n in (2, 6, 30):
        found = arborescence_log_partition(torch.zeros(3, n, n, dtype=torch.float64))
        torch.testing.assert_close(found, torch.full((3,), n - 2.0, dtype=torch.float64) * torch.tensor(n).log())


@pytest.mark.parametrize("root", [0, 1])
def test_log_partition_of_ragged_items(root):
    u, nodes = uniform(2, 3, 6, 6, span=5), torch.tensor([6, 2, 4])
    padded = u.clone()
    for item, size in enumerate(nodes.tolist()):
        padded[:, item, size:] = padded[:, item, :, size:] = torch.nan
    padded.diagonal(dim1=-2, dim2=-1).fill_(torch.nan)
    padded[..., root] = torch.nan
    found = arborescence_log_partition(padded, root, nodes)
    assert found.shape == (2, 3)
    for item, size in enumerate(nodes.tolist()):
        torch.testing.assert_close(found[:, item], arborescence_log_partition(u[:, item, :size, :size], root))


@pytest.mark.parametrize("root", [-1, 3])
def test_the_root_is_one_of_the_nodes(root):
    with pytest.raises(ValueError, match=f"arborescence_log_partition: root {root} is not one of the 3 nodes"):
        arborescence_log_partition(torch.zeros(3, 3), root)


def test_transforms_are_refused():
    """As its docstring says; the marginals, its gradient, have none either."""
    for transform, u in ((torch.func.grad, torch.zeros(3, 3)), (torch.func.vmap, torch.zeros(2, 3, 3))):
        with pytest.raises(NotImplementedError, match=r"arborescence_log_partition: torch\.func"):
            transform(arborescence_log_partition)(u)


def test_no_tree_at_all():
    u = torch.zeros(2, 3, 3, requires_grad=True)
    cut = torch.zeros(2, 3, 3)
    cut[0, 0] = -INF  # nothing leaves the root
    found = arborescence_log_partition(u + cut)
    assert found.tolist() == [-INF, pytest.approx(torch.tensor(3.0).log().item())]
    found.sum().backward()
    assert u.grad[0].eq(0).all()
    assert u.grad[1, :, 1].sum() == pytest.approx(1)


def test_its_gradient_are_the_marginals():
    u = uniform(2, 5, 5, span=3).requires_grad_()
    nodes = torch.tensor([5, 3])
    (grad,) = torch.autograd.grad(arborescence_log_partition(u, 1, nodes).sum(), u)
    torch.testing.assert_close(grad, arborescence_marginals(u.detach(), 1, nodes))
    assert gradcheck(lambda x: arborescence_log_partition(x, 1, nodes), u)
    assert gradgradcheck(lambda x: arborescence_log_partition(x, 1, nodes), u)


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
