"""Trees against other people's algorithms, and sizes at which a slow or recursive method would fail."""

import networkx as nx
import numpy as np
import pytest
import torch
from common import seeded
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

import gumtrace as gt

SIZES = [5, 10, 50, 200]


@pytest.mark.parametrize("n", SIZES)
def test_spanning_tree_is_scipys(n):
    dist = gt.SpanningTree(torch.randn(n, n, generator=seeded(n), dtype=torch.float64))
    for noise in dist.perturb((3,), generator=seeded(1)):
        weights = np.triu(np.exp(-noise.numpy()), 1)
        expected = minimum_spanning_tree(csr_matrix(weights)).toarray() > 0
        value = dist.trace(noise).value
        assert value.triu().bool().equal(torch.from_numpy(expected))


@pytest.mark.parametrize("n", SIZES)
def test_sparse_tree_is_scipys(n):
    g = seeded(n)
    edges = torch.cat(
        [torch.stack([torch.arange(n - 1), torch.arange(1, n)]), torch.randint(n, (2, 4 * n), generator=g)], 1
    )
    edges = edges.sort(0).values.unique(dim=1)  # parallel edges would be added up by scipy
    edges = edges[:, edges[0] != edges[1]]
    dist = gt.SpanningTree.from_edges(torch.randn(edges.shape[1], generator=g, dtype=torch.float64), edges, n)
    noise = dist.perturb(generator=g)
    graph = csr_matrix((np.exp(-noise.numpy()), edges.numpy()), shape=(n, n))
    tree = minimum_spanning_tree(graph).toarray()
    assert dist.trace(noise).value.bool().tolist() == [tree[u, v] > 0 for u, v in edges.T.tolist()]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.slow
def test_arborescence_is_networkxs(n):
    root = n // 3
    dist = gt.Arborescence(torch.randn(n, n, generator=seeded(n), dtype=torch.float64), root)
    draws = 2 if n < 200 else 1  # networkx takes seconds
    for noise in dist.perturb((draws,), generator=seeded(2)):
        graph = nx.DiGraph()
        pairs = [(u, v) for u in range(n) for v in range(n) if u != v and v != root]
        graph.add_weighted_edges_from((u, v, float((-noise[u, v]).exp())) for u, v in pairs)
        expected = nx.minimum_spanning_arborescence(graph)
        value = dist.trace(noise).value
        assert {(u, v) for u, v in value.nonzero().tolist()} == set(expected.edges)


@pytest.mark.parametrize("n", [1, 2, 10, 50])
def test_greedy_matching(n):
    """Sort all entries, take what is free."""
    dist = gt.Matching(torch.randn(n, n + 2, generator=seeded(n)))
    for noise in dist.perturb((5,), generator=seeded(3)):
        rows, cols, expected = set(), set(), []
        for key in noise.flatten().argsort(descending=True, stable=True).tolist():
            row, col = divmod(key, n + 2)
            if row not in rows and col not in cols:
                expected.append(key)
                rows.add(row)
                cols.add(col)
        assert dist.trace(noise).winners.tolist() == expected


@pytest.mark.parametrize("order", ["up", "down", "flat"])
def test_a_million_sorted_tokens(order):
    """No recursion: a sorted array is a tree as deep as it is long."""
    n = 1_000_000
    noise = {"up": torch.arange(n), "down": torch.arange(n).flip(0), "flat": torch.zeros(n)}[order].double()
    dist = gt.BinaryTree(torch.zeros(n, dtype=torch.float64))
    trace = dist.trace(noise)
    step = 1 if order == "up" else -1
    expected = torch.arange(n) + step
    expected[n - 1 if order == "up" else 0] = -1
    assert trace.value.equal(expected)
    assert dist.trace_log_prob(trace).item() == pytest.approx(
        -torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64)).item()
    )


def test_permutation_of_a_million():
    logits = torch.zeros(1_000_000, dtype=torch.float64)
    dist = gt.Permutation(logits)
    noise = dist.perturb(generator=seeded())
    assert dist.trace(noise).value.equal(noise.argsort(descending=True, stable=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sorting_is_stable_and_total(dtype):
    noise = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3e38, -3e38, 1.0, -torch.inf], dtype=dtype)
    dist = gt.Permutation(torch.where(noise.isneginf(), noise, 0.0))
    expected = sorted(range(9), key=lambda k: (-noise[k].item(), k))
    assert dist.trace(noise).winners.tolist() == [*expected, -1]


def test_sparse_graph_of_some_size():
    nodes, extra = 2000, 10_000
    g = seeded(8)
    edges = torch.cat(
        [torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)]), torch.randint(nodes, (2, extra), generator=g)],
        1,
    )
    logits = torch.randn(edges.shape[1], generator=g, requires_grad=True)
    dist = gt.SpanningTree.from_edges(logits, edges, nodes)
    trace = dist.sample_trace(generator=g)
    assert dist.support.check(trace.value)
    log_prob = dist.trace_log_prob(trace)
    log_prob.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.sum().item() == pytest.approx(0, abs=1e-2)  # shifting all logits changes nothing
    assert dist.trace(dist.conditional(trace, generator=g)).equals(trace)


def test_sparse_and_dense_trees_agree():
    n = 12
    edges = torch.triu_indices(n, n, 1)
    logits = torch.randn(n, n, generator=seeded(9), dtype=torch.float64)
    dense, sparse = gt.SpanningTree(logits), gt.SpanningTree.from_edges(logits[edges[0], edges[1]], edges, n)
    noise = dense.perturb((20,), generator=seeded(10))
    a, b = dense.trace(noise), sparse.trace(noise[:, edges[0], edges[1]])
    assert a.value[:, edges[0], edges[1]].equal(b.value)
    torch.testing.assert_close(dense.trace_log_prob(a), sparse.trace_log_prob(b))
