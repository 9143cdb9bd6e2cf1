"""Soft spanning trees and arborescences: edge marginals of P(tree) ∝ e^(Σ u of its edges), by the matrix-tree theorem.

The marginals are the gradient of log Z, so the derivative of theirs is symmetric and a backward pass is a derivative
in the direction of the incoming gradient. A Numba kernel on the CPU and a Triton kernel on CUDA give the marginals and
their derivatives in one or two directions; `sweeps` computes the same in torch where there is no kernel.
"""

import torch
from torch import Tensor

from gumtrace.kernels.backends import own_kernel
from gumtrace.kernels.tree_marginals import HELD, NO_EDGE, UNDIRECTED, by_triangles
from gumtrace.relaxations.transforms import refuse_transforms


def spanning_tree_marginals(u: Tensor, nodes: Tensor | None = None) -> Tensor:
    """Edge marginals of P(tree) ∝ e^(Σ u over its edges): symmetric (*S, n, n), inside the spanning tree polytope.

    Args:
        u: (*S, n, n), of which the upper triangle i < j is read: G / temperature, -inf for edges that do not race.
        nodes: integers that expand to (*S): node counts of ragged items.

    The upper triangle sums to nodes - 1. As the temperature falls the marginals tend to the maximum spanning tree of
    G, the tree that Kruskal's algorithm finds. They are computed in float64 without a subtraction of large numbers and
    stay accurate however far u spreads; an item that has no spanning tree is 0. Differentiable twice; O(n³).

    >>> spanning_tree_marginals(torch.zeros(3, 3))[0]
    tensor([0.0000, 0.6667, 0.6667])
    """
    return _marginals("spanning_tree_marginals", u, nodes, UNDIRECTED)


def arborescence_marginals(u: Tensor, root: int = 0, nodes: Tensor | None = None) -> Tensor:
    """Edge marginals of P(arborescence from the root) ∝ e^(Σ u over its edges): (*S, n, n).

    Args:
        u: (*S, n, n), u[..., i, j] of the edge i -> j: G / temperature, -inf for edges that do not race; the diagonal
            and the column of the root are not read.
        root: the node it grows from.
        nodes: integers that expand to (*S): node counts of ragged items.

    The columns of all nodes but the root sum to 1. As the temperature falls the marginals tend to the arborescence of
    the largest Σ G. This need not be the hard structure of the same noise, which is the arborescence of the least
    Σ e^-G: the two agree on every choice of a single edge, and may differ where a cycle is opened. Accuracy,
    derivatives and cost are those of `spanning_tree_marginals`; an item in which the root does not reach every node
    is 0.

    >>> arborescence_marginals(torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, -torch.inf, 0.0]]))
    tensor([[0.0000, 1.0000, 0.5000],
            [0.0000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]])
    """
    if not 0 <= root < max(u.shape[-1], 1):
        raise ValueError(f"arborescence_marginals: root {root} is not one of the {u.shape[-1]} nodes")
    return _marginals("arborescence_marginals", u, nodes, root)


def _marginals(name: str, u: Tensor, nodes: Tensor | None, root: int) -> Tensor:
    if u.dim() < 2 or u.shape[-1] != u.shape[-2]:
        raise ValueError(f"{name}: u must be (*S, n, n), got {tuple(u.shape)}")
    refuse_transforms(name)
    n, shape = u.shape[-1], u.shape[:-2]
    sizes = None
    if nodes is not None:
        sizes = nodes.to(u.device, torch.int32).expand(shape).reshape(shape.numel())
    rows = u.reshape(shape.numel(), n, n)
    rows = rows if u.dtype in (torch.float32, torch.float64) else rows.float()
    return _Marginals.apply(rows, sizes, root).to(u.dtype).reshape(u.shape)  # type: ignore[union-attr]


# The marginals of an undirected graph are symmetric, but it has one log-weight for an edge, above the diagonal. So a
# tangent that comes from their side is folded: its two triangles are added. What no such tangent went into is spread
# over both triangles, what one did is a gradient of log-weights. With two tangents, the first is the one to fold.


class _Marginals(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, sizes, root):
        ctx.root = root
        ctx.save_for_backward(u, sizes)
        return _derivative(u, None, None, sizes, root, False)

    @staticmethod
    def backward(ctx, *grads):
        u, sizes = ctx.saved_tensors
        return _Slope.apply(u, grads[0], sizes, ctx.root, True), None, None


class _Slope(torch.autograd.Function):
    """The derivative of the marginals in one direction."""

    @staticmethod
    def forward(ctx, u, direction, sizes, root, fold):
        ctx.root, ctx.fold = root, fold
        ctx.save_for_backward(u, direction, sizes)
        return _derivative(u, direction, None, sizes, root, fold)

    @staticmethod
    def backward(ctx, *grads):
        u, direction, sizes = ctx.saved_tensors
        first, second = (direction, grads[0]) if ctx.fold else (grads[0], direction)
        to_u = _Curve.apply(u, first, second, sizes, ctx.root)
        return to_u, _Slope.apply(u, grads[0], sizes, ctx.root, not ctx.fold), None, None, None


class _Curve(torch.autograd.Function):
    """The derivative of the marginals in two directions."""

    @staticmethod
    def forward(ctx, u, first, second, sizes, root):
        return _derivative(u, first, second, sizes, root, True)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError("marginals of trees can be differentiated twice, not three times")


def _derivative(
    u: Tensor, first: Tensor | None, second: Tensor | None, sizes: Tensor | None, root: int, fold: bool
) -> Tensor:
    """The marginals of u (items, n, n), differentiated in the given directions. Undirected, `fold` says on which side
    matrices have two triangles."""
    compute = _registered if torch.compiler.is_compiling() else _compute
    return compute(u, first, second, sizes, root, fold)


def _compute(
    u: Tensor, first: Tensor | None, second: Tensor | None, sizes: Tensor | None, root: int, fold: bool
) -> Tensor:
    kernel = own_kernel("tree_marginals", "cpu" if u.device.type == "mps" else u.device.type)  # mps has no float64
    out = kernel(u, first, second, sizes, root, fold) if kernel is not None else None
    return by_triangles(sweeps, u, first, second, sizes, root, fold) if out is None else out


_registered = torch.library.custom_op("gumtrace::tree_marginals", _compute, mutates_args=())  # for torch.compile
_registered.register_fake(lambda u, *_: u.new_empty(u.shape))


# The same in torch, by logarithms of weights: see the kernel for the recursion. Hyperdual numbers (`duals`) stack their
# components in the leading dimension: x, and if there are tangents x₁, or x₁, x₂, x₁₂.

PRODUCTS = {1: [(0, 0, 0)], 2: [(0, 0, 0), (0, 1, 1), (1, 0, 1)]}
PRODUCTS[4] = [*PRODUCTS[2], (0, 2, 2), (2, 0, 2), (0, 3, 3), (3, 0, 3), (1, 2, 3), (2, 1, 3)]

ROOM = 2**30  # bytes that items which are computed together may keep for the way back


@torch.no_grad()
def sweeps(u: Tensor, along: Tensor, sizes: Tensor, root: int) -> Tensor:
    """u (items, n, n), along (0, 1 or 2, items, n, n), sizes (items,); undirected, upper triangles only. An item keeps
    n³ / 3 numbers for the way back, so that of large items few are computed together."""
    together = max(1, 3 * ROOM // max(8 * u.shape[-1] ** 3, 1))
    if len(u) <= together:
        return _swept(u, along, sizes, root)
    parts = zip(u.split(together), along.split(together, 1), sizes.split(together), strict=True)
    return torch.cat([_swept(*part, root) for part in parts])


def _swept(u: Tensor, along: Tensor, sizes: Tensor, root: int) -> Tensor:
    n, undirected = u.shape[-1], root == UNDIRECTED
    if n == 0:
        return torch.zeros_like(u)
    node = torch.arange(n, device=u.device)
    inside = (node < sizes[:, None]) & (sizes > root)[:, None]  # (items, n)
    edge = (u > -torch.inf) & (node[:, None] < node if undirected else node[:, None] != node)
    edge = edge & inside[:, :, None] & inside[:, None, :]
    log_w, along = torch.where(edge, u.double(), 0.0), torch.where(edge, along.double(), 0.0)
    if undirected:
        log_w, along, edge, root = log_w + log_w.mT, along + along.mT, edge | edge.mT, 0
    edge &= node != root
    log_w = torch.where(edge, log_w, NO_EDGE)
    log_w = torch.where(edge, (log_w - log_w.amax(-2, keepdim=True)).clamp(min=HELD), NO_EDGE)
    log_w[:, root] = torch.where(inside | (node == root), log_w[:, root], 0.0)  # padding hangs on the root
    # the root stays to the end, and nodes leave from the last to the first; no number is copied from the host
    order = torch.where(node == 0, root, torch.where(node == root, 0, node))
    log_w, along = log_w[:, order][..., order], along[..., order, :][..., order]
    duals = torch.stack([torch.ones_like(log_w), *along, *along[:1] * along[1:]])  # e^(ε₁ along₁ + ε₂ along₂)
    adjoint, reached = _adjoint(log_w, duals)
    result = (duals * adjoint.flip(0)).sum(0)[:, order][..., order]
    result = torch.where(edge & reached[:, None, None], result, 0.0)
    if undirected:
        result = result.triu(1) + result.tril(-1).mT
    return (result.clamp(0.0, 1.0) if len(duals) == 1 else result).to(u.dtype)


def _adjoint(log_w: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
    """w ∂ log Z / ∂w as hyperdual numbers (J, items, n, n), relative to the value of w, and which items have a tree."""
    n, products = log_w.shape[-1], PRODUCTS[len(duals)]
    a, w = log_w.clone(), duals.clone()
    kept: list[tuple[Tensor, ...]] = []
    reached = torch.ones(len(log_w), dtype=torch.bool, device=log_w.device)
    for v in range(n - 1, 0, -1):
        entering = a[:, :v, v].logsumexp(-1, keepdim=True)  # (items, 1)
        reached &= entering[:, 0] > NO_EDGE / 2
        log_t = a[:, :v, v] - entering
        share = log_t.exp()  # (items, v)
        s = (share * w[..., :v, v]).sum(-1, keepdim=True)  # (J, items, 1)
        t, row = _divide(w[..., :v, v], s), w[..., v, :v]  # (J, items, v)
        path = log_t[:, :, None] + a[:, v, None, :v]  # (items, v, v)
        path.diagonal(dim1=-2, dim2=-1).fill_(2 * NO_EDGE)
        total = torch.logaddexp(a[:, :v, :v], path)
        q = (path - total).exp_()  # the share of paths through v
        a[:, :v, :v] = total
        new = torch.zeros(len(w), *q.shape, dtype=q.dtype, device=q.device)  # of the paths
        for x, y, z in products:
            new[z] += t[x][:, :, None] * row[y][:, None, :]
        w[..., :v, :v].lerp_(new, q.expand_as(new))
        kept.append((q, share, s, t, row))
    adjoint = torch.zeros_like(duals)
    for v in range(1, n):
        q, share, s, t, row = kept.pop()
        inner = q * adjoint[..., :v, :v]  # (J, items, v, v)
        c, total = torch.zeros_like(t), torch.zeros_like(s)
        for x, y, z in products:
            adjoint[z, :, v, :v] += (t[x][:, None, :] @ inner[y])[:, 0]
            c[z] += (inner[y] @ row[x][:, :, None])[..., 0]
        for x, y, z in products:
            total[z] += (t[x] * c[y]).sum(-1, keepdim=True)
        total[0] -= 1.0
        adjoint[..., :v, :v] -= inner
        adjoint[..., :v, v] = _divide(c - share * total, s)
    return adjoint, reached


def _divide(x: Tensor, y: Tensor) -> Tensor:
    """x / y for hyperdual numbers."""
    quotient: list[Tensor] = []
    for z in range(len(x)):
        known = sum(quotient[i] * y[j] for i, j, to in PRODUCTS[len(x)] if to == z and i < z)
        quotient.append((x[z] - known) / y[0])
    return torch.stack(quotient)
