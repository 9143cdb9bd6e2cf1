"""The sum over all arborescences, by the matrix-tree theorem: what a random field over trees is divided by."""

import torch
from torch import Tensor

from gumtrace.kernels.tree_marginals import NO_EDGE
from gumtrace.relaxations.transforms import refuse_transforms
from gumtrace.relaxations.trees import arborescence_marginals


def arborescence_log_partition(u: Tensor, root: int = 0, nodes: Tensor | None = None) -> Tensor:
    """log Σ e^(Σ u over its edges), over all arborescences from the root: (*S,).

    Args:
        u: (*S, n, n), u[..., i, j] of the edge i -> j, -inf for edges that are not there; the diagonal and the column
            of the root are not read.
        root: the node they grow from.
        nodes: integers that expand to (*S): node counts of ragged items, which the root is one of.

    Its gradient are the edges' marginals, `arborescence_marginals`, and it can be differentiated once more than they
    can. Computed in float64, by logarithms and without a subtraction, so that it is accurate however far u spreads;
    -inf where the root does not reach every node. O(n³), in n steps. As with the marginals, derivatives are those of
    autograd: the transforms of torch.func refuse it.

    >>> arborescence_log_partition(torch.zeros(4, 4)).exp().round()  # Cayley: 4² trees
    tensor(16.)
    """
    if not 0 <= root < max(u.shape[-1], 1):
        raise ValueError(f"arborescence_log_partition: root {root} is not one of the {u.shape[-1]} nodes")
    refuse_transforms("arborescence_log_partition")
    return _LogPartition.apply(u, root, nodes)  # type: ignore[return-value]


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, root, nodes):
        ctx.root, ctx.nodes = root, nodes
        ctx.save_for_backward(u)
        return _eliminate(_loaded(u.double(), root, nodes)).to(u.dtype)

    @staticmethod
    def backward(ctx, *grads):
        (u,) = ctx.saved_tensors
        return grads[0][..., None, None] * arborescence_marginals(u, ctx.root, ctx.nodes), None, None


def _loaded(u: Tensor, root: int, nodes: Tensor | None) -> Tensor:
    """The logarithms of weights, with the root first. Padding hangs on the root, and so adds nothing."""
    n = u.shape[-1]
    node = torch.arange(n, device=u.device)
    edge = (u > -torch.inf) & (node[:, None] != node)
    log_w = torch.where(edge, u, NO_EDGE)
    if nodes is not None:
        inside = node < nodes.to(u.device)[..., None]  # (*S, n)
        log_w = torch.where(inside[..., :, None] & inside[..., None, :], log_w, NO_EDGE)
        log_w = torch.where(~inside[..., None, :] & (node[:, None] == root), 0.0, log_w)
    order = torch.where(node == 0, root, torch.where(node == root, 0, node))
    return log_w[..., order, :][..., order]


def _eliminate(log_w: Tensor) -> Tensor:
    """Nodes leave one by one, and paths through them become edges: Z is the product of what enters each at its turn."""
    total = log_w.new_zeros(log_w.shape[:-2])
    for v in range(log_w.shape[-1] - 1, 0, -1):
        entering = log_w[..., :v, v].logsumexp(-1)
        total = total + entering
        path = (log_w[..., :v, v] - entering[..., None])[..., :, None] + log_w[..., v, None, :v]
        log_w = torch.logaddexp(log_w[..., :v, :v], path)  # loops too, which nothing reads
    return torch.where(total > NO_EDGE / 2, total, -torch.inf)
