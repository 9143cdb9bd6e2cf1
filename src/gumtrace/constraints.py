"""Supports of the structures, as torch.distributions constraints: `check(value)` says which values are possible."""

import torch
from torch import Tensor
from torch.distributions import constraints


class _Event(constraints.Constraint):
    """A constraint on a whole discrete event."""

    is_discrete = True

    def __init__(self, event_dim: int):
        self._event_dim = event_dim
        super().__init__()

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return self._event_dim

    def __repr__(self) -> str:
        return f"gumtrace.constraints.{type(self).__name__}"


class indicator(_Event):
    """0/1 over any event."""

    def check(self, value: Tensor) -> Tensor:
        good = _binary(value)
        return good.flatten(good.dim() - self.event_dim).all(-1) if self.event_dim else good


class subset(_Event):
    """0/1 vectors with k ones, at keys that race."""

    def __init__(self, racing: Tensor, k: Tensor):
        self.racing, self.k = racing, k
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        return _binary(value, self.racing).all(-1) & (_count(value) == self.k)


class permutation(_Event):
    """Orders of keys in which those that do not race stay at their own index."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        keys = torch.arange(value.shape[-1], device=value.device)
        return (value.sort(-1).values == keys).all(-1) & ((value == keys) | self.racing).all(-1)


class permutation_matrix(_Event):
    """0/1 matrices with one 1 in each racing row and column and none elsewhere."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        rows, cols = value.sum(-1) == self.racing, value.sum(-2) == self.racing
        return _binary(value).flatten(-2).all(-1) & (rows & cols).all(-1)


class matching(_Event):
    """0/1 matrices with at most one 1 in a row or column, to which no racing key could be added."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        rows, cols = value.sum(-1), value.sum(-2)
        apart = (rows <= 1).all(-1) & (cols <= 1).all(-1)
        open_keys = (rows == 0)[..., :, None] & (cols == 0)[..., None, :] & self.racing
        return _binary(value, self.racing).flatten(-2).all(-1) & apart & ~open_keys.flatten(-2).any(-1)


class forest(_Event):
    """Symmetric 0/1 matrices of forests with `components` trees over the first `nodes` nodes, of edges that race."""

    def __init__(self, racing: Tensor, nodes: Tensor, components: int):
        self.racing = racing | racing.mT
        self.nodes, self.components = nodes, components
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        symmetric = (value == value.mT).flatten(-2).all(-1) & (value.diagonal(dim1=-2, dim2=-1) == 0).all(-1)
        parts = _parts(value) - (value.shape[-1] - self.nodes)  # padding counts as parts of its own
        return (
            _binary(value, self.racing).flatten(-2).all(-1)
            & symmetric
            & (_count(value.flatten(-2)) == 2 * (self.nodes - self.components))
            & (parts == self.components)
        )


class sparse_forest(_Event):
    """0/1 vectors over the edges of a graph that are forests with `components` trees, of edges that race."""

    def __init__(self, racing: Tensor, edges: Tensor, nodes: Tensor, components: int):
        self.racing = racing
        self.edges, self.nodes, self.components = edges, nodes, components
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        right = _binary(value, self.racing).all(-1) & (_count(value) == self.nodes - self.components)
        flat = value.reshape(right.numel(), value.shape[-1])
        acyclic = torch.tensor([_acyclic(self.edges[:, row > 0.5].tolist()) for row in flat], dtype=torch.bool)
        return right & acyclic.reshape(right.shape).to(right.device)


class arborescence(_Event):
    """0/1 matrices of trees directed away from the root over the first `nodes` nodes, of edges that race."""

    def __init__(self, racing: Tensor, nodes: Tensor, root: int):
        self.racing, self.nodes, self.root = racing, nodes, root
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        node = torch.arange(value.shape[-1], device=value.device)
        wants_edge = (node < self.nodes[..., None]) & (node != self.root)
        reached = _closure(value)[..., self.root : self.root + 1, :].any(-2) | (node >= self.nodes[..., None])
        return _binary(value, self.racing).flatten(-2).all(-1) & (value.sum(-2) == wants_edge).all(-1) & reached.all(-1)


class binary_tree(_Event):
    """Parents of the tokens that race: a binary tree whose in-order walk is the sequence."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        n = value.shape[-1]
        racing = self.racing.expand(value.shape)
        plausible = ((value == -2) == ~racing).all(-1) & ((value >= -2) & (value < n)).all(-1)
        flat = torch.where(plausible[..., None], value, -2).reshape(plausible.numel(), n)
        shaped = torch.tensor([_in_order(row) for row in flat.tolist()], dtype=torch.bool, device=value.device)
        return plausible & shaped.reshape(plausible.shape)


def _binary(value: Tensor, racing: Tensor | None = None) -> Tensor:
    """0, or 1 where a key races."""
    one = value == 1
    return (value == 0) | (one if racing is None else one & racing)


def _count(value: Tensor) -> Tensor:
    """How many ones, as an integer: half types do not hold every count."""
    return (value == 1).sum(-1)


def _closure(adjacency: Tensor) -> Tensor:
    """Who can reach whom, by repeated squaring."""
    n = adjacency.shape[-1]
    reach = ((adjacency > 0.5) | torch.eye(n, dtype=torch.bool, device=adjacency.device)).float()
    for _ in range(max(n - 1, 1).bit_length()):
        reach = (reach @ reach > 0.5).float()
    return reach > 0.5


def _parts(adjacency: Tensor) -> Tensor:
    """How many connected components: nodes that reach no node of a lower number."""
    reach = _closure(adjacency)
    return (~reach.tril(-1).any(-1)).sum(-1)


def _acyclic(edges: list[list[int]]) -> bool:
    root = {node: node for ends in edges for node in ends}

    def find(v: int) -> int:
        while root[v] != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    for u, v in zip(*edges, strict=True):
        if find(u) == find(v):
            return False
        root[find(u)] = find(v)
    return True


def _in_order(parents: list[int]) -> bool:
    """Whether every node's subtree is an interval of the tokens that race, split by the node."""
    tokens = [i for i, p in enumerate(parents) if p != -2]
    children: dict[int, list[int]] = {i: [] for i in [-1, *tokens]}
    for i in tokens:
        if parents[i] not in children:
            return False
        children[parents[i]].append(i)
    if len(children[-1]) != min(len(tokens), 1):
        return False
    stack, seen = [(node, -1, len(parents)) for node in children[-1]], 0
    while stack:
        node, low, high = stack.pop()
        left, right = [c for c in children[node] if c < node], [c for c in children[node] if c > node]
        if not low < node < high or len(left) > 1 or len(right) > 1:
            return False
        stack += [(c, low, node) for c in left] + [(c, node, high) for c in right]
        seen += 1
    return seen == len(tokens)
