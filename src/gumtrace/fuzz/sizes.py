"""Sizes and settings of every structure, drawn at random: from 0, often small, around powers of two, rarely large."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gumtrace.fuzz import algorithms

Rng = np.random.Generator
EARLY, LATE = 150, 300  # turns before which cases are mostly small, so that a fault is found soon, and at last large
INTEGERS = [torch.int64, torch.int64, torch.int32, torch.int16, torch.uint8]
AROUND = [7, 8, 9, 15, 16, 17, 31, 32, 33]  # kernels change their ways at powers of two


@dataclass(frozen=True)
class Sizes:
    """How much work a case may be."""

    small: float = 0.6  # how often it is small
    elements: int = 200_000  # items x decisions x keys
    most: int = 2000  # items
    recursion: int = 12_000  # items x keys of algorithms that run in Python, item by item

    @classmethod
    def at(cls, index: int, device: str) -> "Sizes":
        if device != "cpu":
            return cls(0.3, 2_000_000, 4096, 60_000)
        if index < EARLY:
            return cls(0.9, 60_000, 600, 4_000)
        return cls() if index < LATE else cls(0.6, 800_000, 8000, 24_000)


def _vector(rng: Rng, sizes: Sizes) -> int:
    way = rng.random()
    if way < sizes.small:
        return int(rng.integers(0, 9))
    if way < 0.97:
        return int(rng.choice(AROUND)) if rng.random() < 0.7 else int(rng.choice([63, 64, 65, 100, 128, 130]))
    return int(rng.choice([200, 256, 257, 300, 513, 1025]))


def _side(rng: Rng, sizes: Sizes, largest: int = 60) -> int:
    way = rng.random()
    if way < sizes.small:
        return int(rng.integers(0, 7))
    if way < 0.97:
        return int(rng.choice([7, 8, 9, 15, 16, 17]))
    return min(int(rng.choice([31, 32, 33, 48, 60])), largest)


def _affordable(sizes: Sizes, elements: int) -> float:
    return sizes.elements / max(elements, 1)


def _subset(rng: Rng, sizes: Sizes):
    d = _vector(rng, sizes)
    k = [0, d, max(d - 1, 0), int(rng.integers(0, d + 1)), int(rng.integers(0, min(d, 4) + 1))][rng.integers(5)]
    return (d,), {"k": k}, _affordable(sizes, (k + 1) * d)


def _permutation(rng: Rng, sizes: Sizes):
    d = _vector(rng, sizes)
    matrix = bool(rng.random() < 0.35 and d <= 64)
    return (d,), {"matrix": True} if matrix else {}, _affordable(sizes, d * d)


def _matching(rng: Rng, sizes: Sizes):
    n = _side(rng, sizes, 33)
    m = n if rng.random() < 0.6 else n + int(rng.integers(1, 5))
    return (n, m), {}, _affordable(sizes, n * n * m)


def _spanning_tree(rng: Rng, sizes: Sizes):
    n = _side(rng, sizes)
    components = 1 if rng.random() < 0.7 else int(rng.integers(1, n + 2))
    settings = {"components": components} if components > 1 or rng.random() < 0.1 else {}
    return (n, n), settings, _affordable(sizes, n**3)


def _sparse_tree(rng: Rng, sizes: Sizes):
    nodes = int(rng.integers(0, 9)) if rng.random() < sizes.small else int(rng.choice([16, 17, 33, 64, 100]))
    extra = int(rng.integers(0, 2 * nodes + 2)) if nodes else 0
    edges = rng.integers(0, max(nodes, 1), (2, extra))
    if rng.random() < 0.9 and nodes > 1:
        place = rng.permutation(nodes)
        tree = np.stack([place[1:], place[rng.integers(0, np.arange(1, nodes))]])
        edges = np.concatenate([edges, tree], 1)[:, rng.permutation(extra + nodes - 1)]
    index = torch.from_numpy(np.ascontiguousarray(edges)).to(INTEGERS[rng.integers(3)])
    settings: dict[str, Any] = {"edge_index": index, "num_nodes": nodes}
    if rng.random() < 0.3:
        settings["components"] = int(rng.integers(1, max(nodes, 1) + 1))
    return (edges.shape[1],), settings, _affordable(sizes, nodes * edges.shape[1])


def _arborescence(rng: Rng, sizes: Sizes):
    n = _side(rng, sizes)
    settings = {"root": int(rng.integers(0, n))} if n and rng.random() < 0.7 else {}
    return (n, n), settings, min(sizes.recursion / max(n * n, 6), _affordable(sizes, 2 * n**3))


def _binary_tree(rng: Rng, sizes: Sizes):
    n = _vector(rng, sizes)
    return (n,), {}, _affordable(sizes, n * n)


def _custom(rng: Rng, sizes: Sizes):
    algorithm = _algorithm(rng, int(rng.integers(0, 9)))
    shape = (algorithm.keys,)
    if isinstance(algorithm, algorithms.Crossing):
        shape = (algorithm.rows, algorithm.columns)
    settings = {"algorithm": algorithm, "event_dim": len(shape)}
    return shape, settings, sizes.recursion / 60 / max(algorithm.keys, 4)


def _algorithm(rng: Rng, keys: int) -> Any:
    edges = [(int(u), int(v)) for u, v in rng.integers(0, max(keys, 1), (2 * keys, 2))]
    return [
        lambda: algorithms.First(keys, int(rng.integers(0, keys + 1))),
        lambda: algorithms.Crossing(int(rng.integers(0, 3)), int(rng.integers(0, 4))),
        lambda: algorithms.Merging(tuple(edges), max(keys, 1), int(rng.integers(1, 3))),
        lambda: algorithms.Gaps(keys),
        lambda: algorithms.Apart(tuple(edge for edge in edges if edge[0] != edge[1]), keys),
        lambda: algorithms.Scramble(keys, int(rng.integers(10**6))),
        lambda: algorithms.Scramble(keys, int(rng.integers(10**6))),
    ][rng.integers(7)]()


DRAWN = {
    "subset": _subset,
    "permutation": _permutation,
    "matching": _matching,
    "spanning-tree": _spanning_tree,
    "sparse-tree": _sparse_tree,
    "arborescence": _arborescence,
    "binary-tree": _binary_tree,
    "custom": _custom,
}


def _small_sparse(rng: Rng):
    edges = torch.tensor([[0, 1, 2, 0, 2, 1], [1, 2, 3, 3, 2, 2]])  # one loop, one parallel edge
    return (6,), {"edge_index": edges, "num_nodes": 4, "components": int(rng.integers(1, 3))}


def _small_custom(rng: Rng):
    algorithm = _algorithm(rng, 4)
    return (algorithm.keys,), {"algorithm": algorithm, "event_dim": 1}


SMALL = {
    "subset": lambda rng: ((int(d := rng.integers(2, 6)),), {"k": int(rng.integers(1, d))}),
    "permutation": lambda rng: ((int(rng.integers(2, 5)),), {"matrix": True} if rng.random() < 0.5 else {}),
    "matching": lambda rng: ((2, 3) if rng.random() < 0.5 else (3, 3), {}),
    "spanning-tree": lambda rng: ((4, 4), {"components": int(rng.integers(1, 3))}),
    "sparse-tree": _small_sparse,
    "arborescence": lambda rng: ((n := int(rng.integers(3, 5)), n), {"root": int(rng.integers(0, n))}),
    "binary-tree": lambda rng: ((int(rng.integers(2, 6)),), {}),
    "custom": _small_custom,
}
