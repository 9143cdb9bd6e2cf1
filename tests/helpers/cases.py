"""The one table of structures that the tests go through, by what they are tested for:

CASES       what every structure promises: small distributions with masks, ragged and of the smallest sizes
SMALL       laws, noise given a trace, derivatives: one item with its literal reference and the number of its traces
FAST        estimators: as few traces as make their gradients interesting
RAGGED      padded batches against their items alone
COMPILED    operators: under torch.compile, under vmap, and as torch checks them
OPENING     what the explorer opens with
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import reference_algorithms as reference
import torch
from common import edge_list, seeded
from torch import Tensor

import gumtrace as gt
from gumtrace.recursions import CentreClustering, MaximalIndependentSet

RING = torch.eye(6).roll(1, 0)  # six nodes in a ring
EDGES = torch.tensor([[0, 1, 2, 3, 0, 2, 1, 4], [1, 2, 3, 4, 4, 2, 3, 3]])  # five nodes, one loop, one parallel edge


@dataclass(frozen=True)
class Case:
    """`build` takes logits (*B, *keys); `races` says which keys race, by mask and structure alone."""

    name: str
    keys: tuple[int, ...]
    event: tuple[int, ...]
    build: Callable[..., gt.Subset]
    races: Callable[[tuple[int, ...]], Tensor] | None = None
    certain: bool = False  # there is only one trace
    kind: str = "ones"  # of value: ones (0/1), order (of a permutation), parents, labels

    def logits(self, batch_shape=(), dtype=torch.float32) -> Tensor:
        seeded = torch.Generator().manual_seed(len(self.name))
        return torch.randn(*batch_shape, *self.keys, generator=seeded, dtype=torch.float64).to(dtype)

    def racing(self, batch_shape=()) -> Tensor:
        racing = torch.ones(self.keys, dtype=torch.bool) if self.races is None else self.races(batch_shape)
        return racing.expand(*batch_shape, *self.keys)

    def __call__(self, batch_shape=(), dtype=torch.float32):
        return self.build(self.logits(batch_shape, dtype))

    def __str__(self) -> str:
        return self.name


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lengths(batch_shape, n: int) -> Tensor:
    """n and n - 1 in turn along the last batch dimension."""
    return n - torch.arange(batch_shape[-1]) % 2 if batch_shape else torch.tensor(n - 1)


def inside(n: int, dims: int = 1, also: Tensor | None = None) -> Callable[..., Tensor]:
    def races(batch_shape):
        row = torch.arange(n) < lengths(batch_shape, n)[..., None]
        keys = row if dims == 1 else row[..., :, None] & row[..., None, :]
        return keys if also is None else keys & also

    return races


def but(shape, *keys: int) -> Tensor:
    """All keys but some."""
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[list(keys)] = False
    return mask


def upper(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def into_others(n: int, root: int) -> Tensor:
    return ~torch.eye(n, dtype=torch.bool) & (torch.arange(n) != root)


def _sparse(x, **more):
    return gt.SpanningTree.from_edges(x, EDGES, 5, **more)


def _ragged(structure, n: int, dims: int = 1, **fixed):
    return lambda x, **more: structure(x, lengths=lengths(x.shape[:-dims], n), **fixed, **more)


def _masked(structure, mask: Tensor, **fixed):
    return lambda x, **more: structure(x, mask=mask, **fixed, **more)


def _fixed(structure, **fixed):
    return lambda x, **more: structure(x, **fixed, **more)


def _by_item(x, **more):
    k = torch.arange(x.shape[-2]) % 5 if x.dim() > 1 else torch.tensor(2)
    return gt.Subset(x, k, **more)


def _always(mask: Tensor):
    return lambda batch_shape: mask


HOLE, ROOTED = but((5, 5), 1), into_others(5, 2)
APART, CLUSTERS = MaximalIndependentSet(RING), CentreClustering(RING)
LOOPLESS = EDGES[0] != EDGES[1]

CASES = [
    Case("subset", (6,), (6,), _fixed(gt.Subset, k=3)),
    Case("subset-none", (4,), (4,), _fixed(gt.Subset, k=0), certain=True),
    Case("subset-all", (4,), (4,), _fixed(gt.Subset, k=4)),
    Case("subset-by-item", (6,), (6,), _by_item),
    Case("subset-masked", (6,), (6,), _masked(gt.Subset, but(6, 2, 5), k=2), _always(but(6, 2, 5))),
    Case("subset-ragged", (6,), (6,), _ragged(gt.Subset, 6, k=3), inside(6)),
    Case("subset-1", (1,), (1,), _fixed(gt.Subset, k=1), certain=True),
    Case("subset-2", (2,), (2,), _fixed(gt.Subset, k=1)),
    Case("permutation", (5,), (5,), gt.Permutation, kind="order"),
    Case("permutation-masked", (5,), (5,), _masked(gt.Permutation, but(5, 1)), _always(but(5, 1)), kind="order"),
    Case("permutation-ragged", (5,), (5,), _ragged(gt.Permutation, 5), inside(5), kind="order"),
    Case("permutation-matrix", (4,), (4, 4), _fixed(gt.Permutation, matrix=True)),
    Case("permutation-matrix-ragged", (4,), (4, 4), _ragged(gt.Permutation, 4, matrix=True), inside(4)),
    Case("permutation-1", (1,), (1,), gt.Permutation, certain=True, kind="order"),
    Case("permutation-2", (2,), (2,), gt.Permutation, kind="order"),
    Case("matching", (4, 4), (4, 4), gt.Matching),
    Case("matching-wide", (3, 5), (3, 5), gt.Matching),
    Case("matching-masked", (3, 5), (3, 5), _masked(gt.Matching, but((3, 5), 3)), _always(but((3, 5), 3))),
    Case("matching-ragged", (4, 4), (4, 4), _ragged(gt.Matching, 4, 2), inside(4, 2)),
    Case("matching-1", (1, 1), (1, 1), gt.Matching, certain=True),
    Case("matching-2", (2, 2), (2, 2), gt.Matching),
    Case("spanning-tree", (5, 5), (5, 5), gt.SpanningTree, _always(upper(5))),
    Case("forest", (5, 5), (5, 5), _fixed(gt.SpanningTree, components=2), _always(upper(5))),
    Case("spanning-tree-masked", (5, 5), (5, 5), _masked(gt.SpanningTree, HOLE), _always(upper(5) & HOLE)),
    Case("spanning-tree-ragged", (5, 5), (5, 5), _ragged(gt.SpanningTree, 5, 2), inside(5, 2, upper(5))),
    Case("spanning-tree-1", (1, 1), (1, 1), gt.SpanningTree, _always(upper(1)), certain=True),
    Case("spanning-tree-2", (2, 2), (2, 2), gt.SpanningTree, _always(upper(2)), certain=True),
    Case("sparse-tree", (8,), (8,), _sparse, _always(LOOPLESS)),
    Case("sparse-forest", (8,), (8,), _fixed(_sparse, components=3), _always(LOOPLESS)),
    Case("sparse-tree-masked", (8,), (8,), _masked(_sparse, but(8, 3)), _always(LOOPLESS & but(8, 3))),
    Case("arborescence", (4, 4), (4, 4), gt.Arborescence, _always(into_others(4, 0))),
    Case("arborescence-root", (5, 5), (5, 5), _fixed(gt.Arborescence, root=2), _always(ROOTED)),
    Case("arborescence-masked", (5, 5), (5, 5), _masked(gt.Arborescence, HOLE), _always(into_others(5, 0) & HOLE)),
    Case("arborescence-ragged", (5, 5), (5, 5), _ragged(gt.Arborescence, 5, 2, root=2), inside(5, 2, ROOTED)),
    Case("arborescence-1", (1, 1), (1, 1), gt.Arborescence, _always(into_others(1, 0)), certain=True),
    Case("arborescence-2", (2, 2), (2, 2), gt.Arborescence, _always(into_others(2, 0)), certain=True),
    Case("binary-tree", (6,), (6,), gt.BinaryTree, kind="parents"),
    Case("binary-tree-masked", (6,), (6,), _masked(gt.BinaryTree, but(6, 0, 3)), _always(but(6, 0, 3)), kind="parents"),
    Case("binary-tree-ragged", (6,), (6,), _ragged(gt.BinaryTree, 6), inside(6), kind="parents"),
    Case("binary-tree-1", (1,), (1,), gt.BinaryTree, certain=True, kind="parents"),
    Case("binary-tree-2", (2,), (2,), gt.BinaryTree, kind="parents"),
    Case("custom", (3, 4), (3, 4), _fixed(gt.Custom, algorithm=reference.Matching(3, 4), event_dim=2)),
    Case("custom-ragged", (6,), (6,), _ragged(gt.Custom, 6, algorithm=APART, event_dim=1), inside(6)),
    Case("custom-value", (6,), (6,), _fixed(gt.Custom, algorithm=CLUSTERS, event_dim=1), kind="labels"),
    Case("custom-1", (1,), (1,), _fixed(gt.Custom, algorithm=reference.Subset(1, 1), event_dim=1), certain=True),
]
every = pytest.mark.parametrize("case", CASES, ids=str)


# Laws and derivatives -----------------------------------------------------------------------------------


class Small(NamedTuple):
    name: str
    dist: gt.structures.Structure
    reference: object  # the same as an algorithm for `Custom`
    ordered: bool  # whether decisions come one after the other
    traces: int  # how many it has, counted by hand


def small(dtype=torch.float64, seed=0, scale=1.0) -> list[Small]:
    """One small item of each kind."""
    g = seeded(seed)

    def randn(*shape):
        return scale * torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    edges = torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 1]])  # the last one is a loop
    sparse_orders = 5 * 4 * 3 - 2 * 3 * 2  # of three edges out of five, but not those that close one of two triangles
    return [
        Small("subset", gt.Subset(randn(5), 2), reference.Subset(5, 2), True, 5 * 4),
        Small("subset-empty", gt.Subset(randn(4), 0), reference.Subset(4, 0), True, 1),
        Small("permutation", gt.Permutation(randn(4)), reference.Permutation(4), True, math.factorial(4)),
        Small("matching", gt.Matching(randn(3, 3)), reference.Matching(3, 3), True, 9 * 4),
        Small("matching-wide", gt.Matching(randn(2, 4)), reference.Matching(2, 4), True, 8 * 3),
        Small("tree", gt.SpanningTree(randn(4, 4)), reference.Kruskal.dense(4), True, 96),
        Small("forest", gt.SpanningTree(randn(4, 4), 2), reference.Kruskal.dense(4, components=2), True, 6 * 5),
        Small(
            "sparse",
            gt.SpanningTree.from_edges(randn(6), edges, 4),
            reference.Kruskal(edge_list(edges), 4),
            True,
            sparse_orders,
        ),
        Small("arborescence", gt.Arborescence(randn(4, 4)), reference.ChuLiuEdmonds(4), False, 82),
        Small("arborescence-root", gt.Arborescence(randn(3, 3), root=2), reference.ChuLiuEdmonds(3, root=2), False, 5),
        Small("binary", gt.BinaryTree(randn(4)), reference.BinaryTree(4), False, 14),  # Catalan
    ]


# Estimators ---------------------------------------------------------------------------------------------

PARALLEL = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [1, 2, 3, 0, 2, 1, 1]])  # four nodes, one loop, one parallel edge
ROW = torch.ones(4, 4).triu(1).tril(1)  # four nodes in a row


def _fixed_randn(*shape):
    return torch.randn(*shape, generator=seeded(8), dtype=torch.float64)


def _counts(*n):
    return torch.tensor(n)


FAST = {
    "subset": lambda: gt.Subset(_fixed_randn(5), 2),
    "subset-ragged": lambda: gt.Subset(_fixed_randn(2, 4), torch.tensor([1, 2]), lengths=_counts(3, 4)),
    "subset-masked": lambda: gt.Subset(_fixed_randn(2, 5), 2, mask=but((2, 5), 1, 7)),
    "permutation": lambda: gt.Permutation(_fixed_randn(3), matrix=True),
    "permutation-ragged": lambda: gt.Permutation(_fixed_randn(2, 4), matrix=True, lengths=_counts(3, 4)),
    "permutation-masked": lambda: gt.Permutation(_fixed_randn(4), matrix=True, mask=but(4, 1)),
    "matching": lambda: gt.Matching(_fixed_randn(2, 3)),
    "matching-ragged": lambda: gt.Matching(_fixed_randn(2, 3, 3), lengths=_counts(2, 3)),
    "matching-masked": lambda: gt.Matching(
        _fixed_randn(3, 3), mask=torch.eye(3).bool() | torch.ones(3, 3).triu().bool()
    ),
    "tree": lambda: gt.SpanningTree(_fixed_randn(4, 4)),
    "tree-ragged": lambda: gt.SpanningTree(_fixed_randn(2, 4, 4), lengths=_counts(3, 4)),
    "tree-masked": lambda: gt.SpanningTree(_fixed_randn(4, 4), mask=but((4, 4), 2)),
    "forest": lambda: gt.SpanningTree(_fixed_randn(4, 4), components=2),
    "sparse": lambda: gt.SpanningTree.from_edges(_fixed_randn(7), PARALLEL, 4),
    "sparse-ragged": lambda: gt.SpanningTree.from_edges(_fixed_randn(2, 7), PARALLEL, 4, lengths=_counts(3, 4)),
    "sparse-masked": lambda: gt.SpanningTree.from_edges(_fixed_randn(7), PARALLEL, 4, components=2, mask=but(7, 3)),
    "arborescence": lambda: gt.Arborescence(_fixed_randn(3, 3)),
    "arborescence-ragged": lambda: gt.Arborescence(_fixed_randn(2, 4, 4), lengths=_counts(2, 4)),
    "arborescence-masked": lambda: gt.Arborescence(_fixed_randn(4, 4), root=1, mask=but((4, 4), 2)),
    "binary": lambda: gt.BinaryTree(_fixed_randn(4)),
    "binary-ragged": lambda: gt.BinaryTree(_fixed_randn(2, 4), lengths=_counts(2, 4)),
    "binary-masked": lambda: gt.BinaryTree(_fixed_randn(5), mask=but(5, 2)),
}
LITERAL = {  # written in Python
    "custom-set": lambda: gt.Custom(_fixed_randn(4), MaximalIndependentSet(ROW)),
    "custom-set-ragged": lambda: gt.Custom(
        _fixed_randn(2, 4), MaximalIndependentSet(ROW), event_dim=1, lengths=_counts(3, 4)
    ),
    "custom-clusters": lambda: gt.Custom(_fixed_randn(4), CentreClustering(ROW)),
    "custom-tree-masked": lambda: gt.Custom(_fixed_randn(4, 4), reference.Kruskal.dense(4), mask=but((4, 4), 2)),
}
DISTS = FAST | LITERAL


# Padding ------------------------------------------------------------------------------------------------

RAGGED = {  # how many dimensions the keys have, and how one is made
    "subset": (1, lambda x, **more: gt.Subset(x, 1, **more)),
    "permutation": (1, gt.Permutation),
    "permutation-matrix": (1, lambda x, **more: gt.Permutation(x, matrix=True, **more)),
    "matching": (2, gt.Matching),
    "tree": (2, gt.SpanningTree),
    "arborescence": (2, gt.Arborescence),
    "binary": (1, gt.BinaryTree),
}


# Operators ----------------------------------------------------------------------------------------------

CYCLE = torch.tensor([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 2, 3]])  # four nodes, and two chords


def _in_turn(x):
    """n and n - 1."""
    return x.shape[-1] - torch.arange(x.shape[-3], device=x.device) % 2


def _up_to_two(x):
    return torch.arange(x.shape[-3], device=x.device) % 3


def _few_edges(x):
    return gt.SpanningTree.from_edges(x.flatten(-2)[..., : CYCLE.shape[1]], CYCLE.to(x.device), 4, validate_args=False)


COMPILED = {  # each made from a square of logits
    "subset": lambda x: gt.Subset(x[..., 0, :], 2, validate_args=False),
    "subset-by-item": lambda x: gt.Subset(x[..., 0, :], _up_to_two(x), most=2, validate_args=False),
    "permutation": lambda x: gt.Permutation(x[..., 0, :], validate_args=False),
    "permutation-matrix": lambda x: gt.Permutation(x[..., 0, :], matrix=True, validate_args=False),
    "matching": lambda x: gt.Matching(x, validate_args=False),
    "tree": lambda x: gt.SpanningTree(x, validate_args=False),
    "tree-ragged": lambda x: gt.SpanningTree(x, lengths=_in_turn(x), validate_args=False),
    "tree-sparse": _few_edges,
    "arborescence": lambda x: gt.Arborescence(x, validate_args=False),
    "arborescence-ragged": lambda x: gt.Arborescence(x, lengths=_in_turn(x), validate_args=False),
    "binary": lambda x: gt.BinaryTree(x[..., 0, :], validate_args=False),
}


# The explorer -------------------------------------------------------------------------------------------

NINE = [(v, (v + 1) % 9) for v in range(9)] + [(0, 4), (3, 7), (6, 1)]  # the graph of nine nodes


def _independent_set(logits):
    adjacency = torch.zeros(9, 9)
    adjacency[tuple(zip(*NINE, strict=True))] = 1
    return gt.Custom(logits, MaximalIndependentSet(adjacency))


OPENING = {  # the sizes with which it opens: the shape of the logits, and the distribution
    "subset": ((8,), lambda logits: gt.Subset(logits, k=3)),
    "permutation": ((7,), gt.Permutation),
    "matching": ((4, 5), gt.Matching),
    "spanning-tree": ((6, 6), gt.SpanningTree),
    "arborescence": ((5, 5), gt.Arborescence),
    "binary-tree": ((7,), gt.BinaryTree),
    "independent-set": ((9,), _independent_set),
}
