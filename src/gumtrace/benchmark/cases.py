"""What is timed: structures, sizes, and how to make a distribution of each from logits."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
from torch import Tensor

import gumtrace as gt
from gumtrace.kernels.backends import backend
from gumtrace.structures.base import Structure

Size = dict[str, int]
Make = Callable[[Tensor], Structure]
BATCH = 1024
CUDA_BATCH = 4096


@dataclass(frozen=True)
class Recipe:
    """How to make a structure of a given size, how many keys it has, and a size so small that all its traces can be
    listed."""

    lay_out: Callable[
        [Size, torch.device], tuple[tuple[int, ...], Make]
    ]  # -> the shape of one item's logits, logits -> distribution
    keys: Callable[[Size], int]
    tiny: Size


@dataclass(frozen=True)
class Case:
    """A structure of one size. `batch` and `repeat`, where given, overrule those of the run: for the very large."""

    structure: str  # a key of STRUCTURES
    size: Size
    batch: int | None = None
    repeat: int | None = None
    quick: bool = False  # whether `--quick` runs it

    @property
    def name(self) -> str:
        return f"{self.structure} {' '.join(f'{key}={value}' for key, value in self.size.items())}"

    @property
    def tiny(self) -> "Case":
        """One unbatched item of the same structure, small enough to enumerate."""
        return replace(self, size=recipe(self).tiny, batch=None)


@dataclass(frozen=True)
class Instance:
    """A case with its logits drawn."""

    case: Case
    logits: Tensor  # (batch, *keys); (*keys) if it is not batched
    make: Make


def recipe(case: Case) -> Recipe:
    if case.structure not in STRUCTURES:
        raise ValueError(f"unknown structure {case.structure!r}: choose from {', '.join(STRUCTURES)}")
    return STRUCTURES[case.structure]


def prepare(
    case: Case,
    batch: int | None = BATCH,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    generator: torch.Generator | None = None,
) -> Instance:
    """A case with standard normal logits, the same every time unless a generator is given; batch=None: not batched."""
    generator = generator or torch.Generator().manual_seed(0)
    shape, make = recipe(case).lay_out(case.size, torch.device(device))
    batch = case.batch or batch
    logits = torch.randn(*(() if batch is None else (batch,)), *shape, generator=generator, dtype=dtype)
    return Instance(case, logits.to(device), make)


def has_kernel(case: Case, device: torch.device | str) -> bool:
    """Whether kernels for the device serve the structure. Tensors of others are copied to the CPU and back, and times
    would be those of the copies."""
    served = getattr(backend(torch.device(device).type), "served", None)  # the CPU's kernels serve all
    tiny = prepare(case.tiny, None)
    return served is None or served(tiny.make(tiny.logits)._layout.geometry)


def _square(make: Make, tiny: int) -> Recipe:
    return Recipe(lambda size, device: ((size["n"], size["n"]), make), lambda size: size["n"] ** 2, {"n": tiny})


def _row(key: str, make: Make, tiny: int) -> Recipe:
    return Recipe(lambda size, device: ((size[key],), make), itemgetter(key), {key: tiny})


def _sparse(size: Size, device: torch.device) -> tuple[tuple[int, ...], Make]:
    nodes, edges = size["nodes"], connected_graph(size["nodes"], size["edges"]).to(device)
    return (size["edges"],), lambda logits: gt.SpanningTree.from_edges(logits, edges, nodes)


def _graphs(size: Size, device: torch.device) -> tuple[tuple[int, ...], Make]:
    """Each item has a graph of its own. They are made once: later distributions take other log-rates for them."""
    made: dict[int, gt.BatchedSpanningTree] = {}

    def make(logits: Tensor) -> Structure:
        items, nodes, edges = logits.numel() // size["edges"], size["nodes"], size["edges"]
        if items not in made:
            first = nodes * torch.arange(items)
            ends = connected_graphs(items, nodes, edges) + first[:, None, None]
            ends, graph = ends.movedim(0, 1).flatten(1).to(device), first.repeat_interleave(nodes).to(device) // nodes
            zeros = torch.zeros(items * edges, device=device)
            made[items] = gt.BatchedSpanningTree(zeros, ends, items * nodes, batch=graph)
        return made[items].with_log_rates(made[items].padded(logits.flatten()))

    return (size["edges"],), make


def connected_graph(nodes: int, edges: int, generator: torch.Generator | None = None) -> Tensor:
    """(2, edges): every node but the first joined to a random earlier one, then random pairs."""
    return connected_graphs(1, nodes, edges, generator)[0]


def connected_graphs(count: int, nodes: int, edges: int, generator: torch.Generator | None = None) -> Tensor:
    """(count, 2, edges), different ones."""
    generator = generator or torch.Generator().manual_seed(0)
    extra = edges - (nodes - 1)
    if nodes < 2 or extra < 0:
        raise ValueError(f"a connected graph of {nodes} nodes cannot have {edges} edges here")
    child = torch.arange(1, nodes).expand(count, nodes - 1)
    above = (torch.rand(child.shape, generator=generator, dtype=torch.float64) * child).long()
    u = torch.randint(nodes, (count, extra), generator=generator)
    v = (u + torch.randint(1, nodes, (count, extra), generator=generator)) % nodes  # never u: no loops
    return torch.stack([torch.cat([above, u], 1), torch.cat([child, v], 1)], 1)


STRUCTURES: dict[str, Recipe] = {
    "SpanningTree": _square(gt.SpanningTree, 4),
    "Matching": _square(gt.Matching, 3),
    "Arborescence": _square(gt.Arborescence, 4),
    "BinaryTree": _row("n", gt.BinaryTree, 5),
    "Permutation": _row("d", gt.Permutation, 4),
    "Subset": Recipe(
        lambda size, device: ((size["d"],), lambda logits: gt.Subset(logits, size["k"])),
        itemgetter("d"),
        {"d": 5, "k": 2},
    ),
    "SpanningTree.from_edges": Recipe(_sparse, itemgetter("edges"), {"nodes": 4, "edges": 5}),
    "BatchedSpanningTree": Recipe(_graphs, itemgetter("edges"), {"nodes": 4, "edges": 5}),
}

CASES: tuple[Case, ...] = (
    Case("SpanningTree", {"n": 10}),
    Case("SpanningTree", {"n": 50}, quick=True),
    Case("SpanningTree", {"n": 100}),
    Case("Matching", {"n": 10}),
    Case("Matching", {"n": 50}, quick=True),
    Case("Arborescence", {"n": 10}),
    Case("Arborescence", {"n": 50}, quick=True),
    Case("Arborescence", {"n": 100}),
    Case("BinaryTree", {"n": 50}, quick=True),
    Case("BinaryTree", {"n": 200}),
    Case("Permutation", {"d": 50}),
    Case("Permutation", {"d": 350}, quick=True),
    Case("Subset", {"d": 350, "k": 10}, quick=True),
    Case("SpanningTree.from_edges", {"nodes": 10**4, "edges": 10**5}, batch=1, quick=True),
    Case("SpanningTree.from_edges", {"nodes": 10**6, "edges": 10**7}, batch=1, repeat=3),
)
