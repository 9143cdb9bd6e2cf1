"""A graph network as surrogate: c(X) for spanning trees whose objective differs from item to item."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from gumtrace.estimators.adam import adam_step, moments_of
from gumtrace.estimators.surrogates import usable

_FORGET = 0.99  # of the running mean of squared losses, at each call


class GraphSurrogate(nn.Module):
    """For a `SpanningTree`: what the edges at each node do there, by networks that all nodes of all items share,

        c(X) = Σ_i f(i, Σ_j X_ij g(i, j))

    where f and g see the features of nodes. A perceptron on a whole item has to learn of each edge anew how its effect
    depends on all features; these learn from every node of every item.

    One step of Adam at each call, on the losses of that call; those of an item less their mean, as all that matters is
    how the structures of an item differ. It needs two samples or more, and learns nothing from one. It never
    synchronises, and computes in float32 or float64, also under autocast.

    Args:
        nodes: n.
        features: of a node. The context is theirs, flattened: (*batch, n features), node by node.
        hidden: width of the networks.
        lr: learning rate.

    >>> import gumtrace as gt
    >>> surrogate = GraphSurrogate(5, 2)
    >>> estimator = gt.estimators.SurrogateREINFORCE(samples=4, extra=32, surrogate=surrogate)
    >>> place, logits = torch.randn(8, 5, 2), torch.zeros(8, 5, 5, requires_grad=True)
    >>> length = lambda tree: (tree * torch.cdist(place, place)).sum((-1, -2))
    >>> estimator(gt.SpanningTree(logits), length, place.flatten(1)).mean().backward()
    """

    entries: Tensor  # (entries,), their places in a flat n x n matrix
    spread: Tensor  # of the losses of an item: the mean square of what they differ by
    calls: Tensor  # that it has learnt from
    moments: Tensor  # (2, parameters), Adam's
    taken: Tensor  # its steps

    def __init__(self, nodes: int, features: int, *, hidden: int = 64, lr: float = 3e-3):
        super().__init__()
        self.nodes, self.features = nodes, features
        i, j = torch.triu_indices(nodes, nodes, 1)
        self.register_buffer("entries", i * nodes + j, persistent=False)
        self.net = _Net(features, hidden)
        self.requires_grad_(False)  # a training loop's optimiser must not update it
        self.lr = lr
        self.register_buffer("moments", moments_of(self.net))
        self.register_buffer("taken", torch.zeros(()))
        self.register_buffer("spread", torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        inputs = self._inputs(x, context)
        with torch.autocast(x.device.type, enabled=False):
            return (self.net(*inputs) * self.spread.sqrt()).to(x.dtype)

    @torch.no_grad()
    def fit(
        self, x: Tensor, loss: Tensor, context: Tensor | None = None, generator: torch.Generator | None = None
    ) -> None:
        """One step on these losses (samples, *batch). Items with one that is not finite are left out."""
        matrix, features = self._inputs(x, context)
        good = usable(loss, self.spread.dtype).all(0) & features.isfinite().all(-1).all(-1)
        loss = torch.where(good, loss, 0.0).to(self.spread.dtype)
        features = torch.where(good[..., None, None], features, 0.0)
        centred = loss - loss.mean(0)
        count = (good.sum() * len(loss)).clamp(min=1)
        self._follow(centred.square().sum() / count, (centred != 0).any())
        target = centred / self.spread.clamp(min=torch.finfo(self.spread.dtype).tiny).sqrt()

        def error(weights: dict[str, Tensor]) -> Tensor:
            found = functional_call(self.net, weights, (matrix, features))
            return torch.where(good, found - found.mean(0) - target, 0.0).square().sum() / count

        with torch.autocast(x.device.type, enabled=False):
            adam_step(self.net, self.moments, self.taken, self.lr, error)

    def _follow(self, square: Tensor, any_differ: Tensor) -> None:
        """A mean over all calls at first, and over the last hundred or so later."""
        self.calls += any_differ
        weight = (1 / self.calls.clamp(min=1)).clamp(min=1 - _FORGET)
        self.spread.copy_(torch.where(any_differ, self.spread.lerp(square, weight), self.spread))

    def _inputs(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Adjacency matrices (*S, n, n), and features (*batch, n, features)."""
        given = 0 if context is None else context.shape[-1]
        if context is None or (x.shape[-1], given) != (len(self.entries), self.nodes * self.features):
            raise ValueError(
                f"GraphSurrogate: made for {len(self.entries)} entries and {self.nodes} x {self.features} features of "
                f"the context, got {x.shape[-1]} and {given}"
            )
        x, context = x.detach().to(self.spread.dtype), context.detach().to(self.spread.dtype)
        matrix = x.new_zeros(*x.shape[:-1], self.nodes**2).index_copy_(-1, self.entries, x)
        matrix = matrix.unflatten(-1, (self.nodes, self.nodes))
        return matrix + matrix.mT, context.unflatten(-1, (self.nodes, self.features))

    def _apply(self, fn, recurse=True):
        """Moves to the estimator's device and dtype, except half precision, in which it would not learn."""
        super()._apply(fn, recurse)
        if self.spread.dtype.itemsize < 4:
            super()._apply(lambda t: t.float() if t.is_floating_point() else t, recurse)
        return self


class _Net(nn.Module):
    """Adjacency matrices (samples, *B, n, n) and features (*B, n, c) to numbers (samples, *B). It starts as 0."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.receiving, self.sending = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.own, self.received = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.middle, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, matrix: Tensor, features: Tensor) -> Tensor:
        receiving, sending = self.receiving(features), self.sending(features)
        pairs = F.silu(receiving[..., :, None, :] + sending[..., None, :, :])  # (*B, n, n, hidden), for all structures
        received = self.received(torch.einsum("s...ij,...ijh->s...ih", matrix, pairs))
        nodes = F.silu(self.middle(F.silu(self.own(features) + received)))
        return self.out(nodes).squeeze(-1).sum(-1)
