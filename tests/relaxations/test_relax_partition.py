"""The sum over all arborescences, by enumeration; its gradient are the marginals."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from treesums import INF, directed, some_missing, uniform

from gumtrace.relaxations.partition import arborescence_log_partition
from gumtrace.relaxations.trees import arborescence_marginals

pytestmark = pytest.mark.usefixtures("one_thread")


def scores(u, every):
    """Σ u over the edges of each tree, (trees,)."""
    return torch.where(every > 0, u, 0.0).sum((-1, -2))


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
