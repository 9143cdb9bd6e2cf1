"""The data of the graph layout experiment: random trees, and nodes that move as their springs tell them.

One frame is one iteration of Fruchterman and Reingold's algorithm, as `networkx.spring_layout` computes it: nodes repel
each other, edges pull, and every frame is centred and scaled so that its largest coordinate is 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumtrace.extras import require
from gumtrace.structures import checks
from gumtrace.structures.spanning_tree import SpanningTree
from gumtrace_experiments.store import caches

# Coordinates at a time: 256 kB, which stay in the cache. From 32 768 on torch shares an operation among its threads,
# and they wait for each other thousands of times: a little faster on idle cores, many times slower on busy ones.
CHUNK = 32_000
SPLITS = ("train", "valid", "test")
FORMAT = 1  # of cache files; a change of what is in them, or of how it is computed, makes it one more


class Split(NamedTuple):
    """Sequences of frames, and the trees behind them."""

    positions: Tensor  # (B, frames, n, 2) float32
    trees: Tensor  # (B, n, n) bool, symmetric

    def to(self, device: torch.device | str) -> "Split":
        return Split(self.positions.to(device), self.trees.to(device))


@dataclass(frozen=True)
class Layouts:
    """The three splits. Positions of the training set fill [-1, 1]; the others are scaled as it was."""

    train: Split
    valid: Split
    test: Split

    def to(self, device: torch.device | str) -> "Layouts":
        return Layouts(self.train.to(device), self.valid.to(device), self.test.to(device))


def layout_step(position: Tensor, adjacency: Tensor) -> Tensor:
    """The next frame, (B, n, 2), of nodes at `position` (B, n, 2) with springs along `adjacency` (B, n, n).

    It equals `networkx.spring_layout(graph, pos=position, iterations=1)`.

    >>> far = torch.tensor([[[-2.0, 0.0], [2.0, 0.0], [9.0, 0.0]]])
    >>> layout_step(far, torch.tensor([[[0, 1, 0], [1, 0, 0], [0, 0, 0]]]))
    tensor([[[-0.6337,  0.0000],
             [-0.3663,  0.0000],
             [ 1.0000,  0.0000]]])
    """
    nodes = position.shape[-2]
    k = nodes**-0.5  # the distance at which an edge pulls as strongly as its ends repel each other
    extent = (position.amax(-2) - position.amin(-2)).amax(-1)  # (B,)
    displacement = torch.zeros_like(position)
    # Node by node: no temporary is as large as all pairs, and sums have one order, which torch's own do not when the
    # size of the batch changes.
    for other in range(nodes):
        delta = position - position[:, other, None]  # (B, n, 2)
        nearness = _inverse_length(delta).mul_(k)  # (B, n), k / distance
        force = nearness.square().sub_(adjacency[..., other] / nearness)
        displacement += delta.mul_(force[..., None])
    # A node that is pushed at all moves by a tenth of the extent.
    step = _inverse_length(displacement).mul_(0.1 * extent[:, None])  # (B, n)
    return _rescale(displacement.mul_(step[..., None]).add_(position))


def simulate(position: Tensor, adjacency: Tensor, frames: int) -> Tensor:
    """(B, frames, n, 2): each frame is the step from the one before, the first is the step from `position`."""
    batch, *event = position.shape
    out = position.new_empty(batch, frames, *event)
    position, adjacency = _batch_innermost(position), _batch_innermost(adjacency.to(position))
    for frame in range(frames):
        position = layout_step(position, adjacency)
        out[:, frame] = position
    return out


def random_trees(count: int, nodes: int, generator: torch.Generator | None = None) -> Tensor:
    """(count, n, n) 0/1: minimum spanning trees of complete graphs with independent, identically distributed weights.

    >>> random_trees(2, 10).sum((-2, -1)) / 2
    tensor([9., 9.])
    """
    return SpanningTree(torch.zeros(nodes, nodes)).sample((count,), generator=generator)


def generate(
    frames: int = 10,
    nodes: int = 10,
    sizes: Sequence[int] = (50_000, 10_000, 10_000),
    seed: int = 0,
    progress: bool = True,
) -> Layouts:
    """Draw trees and standard normal starting positions, simulate, drop the start, scale.

    Args:
        sizes: how many sequences to train, validate and test with.
        progress: show a bar if stderr is a terminal.

    >>> generate(frames=3, nodes=4, sizes=(5, 1, 1)).train.positions.shape
    torch.Size([5, 3, 4, 2])
    """
    frames, nodes, sizes, seed = _checked(frames, nodes, sizes, seed)
    generator = torch.Generator().manual_seed(seed)
    with require("tqdm", "cli").tqdm(total=sum(sizes), desc="layouts", disable=None if progress else True) as bar:
        train, valid, test = (_draw(size, frames, nodes, generator, bar) for size in sizes)
    low, high = (float(limit) for limit in train.positions.aminmax())
    return Layouts(*(_scale(split, low, high) for split in (train, valid, test)))


def load(
    folder: str | Path,
    frames: int = 10,
    nodes: int = 10,
    sizes: Sequence[int] = (50_000, 10_000, 10_000),
    seed: int = 0,
    progress: bool = True,
) -> Layouts:
    """What `generate` returns, kept in a file of `folder` that is named after the arguments."""
    frames, nodes, sizes, seed = _checked(frames, nodes, sizes, seed)
    arguments = {"frames": frames, "nodes": nodes, "sizes": sizes, "seed": seed}
    counts = "-".join(map(str, sizes))
    path = Path(folder) / f"layouts-{frames}-frames-{nodes}-nodes-{counts}-seed-{seed}.pt"
    if caches.exists(path):
        like = {name: _empty(size, frames, nodes)._asdict() for name, size in zip(SPLITS, sizes, strict=True)}
        found = [Split(**split) for split in caches.read(path, FORMAT, arguments, like).values()]
        caches.require(path, all(bool(split.positions.isfinite().all()) for split in found), "positions of nodes")
        return Layouts(*found)
    layouts = generate(**arguments, progress=progress)
    caches.write(path, FORMAT, arguments, {name: getattr(layouts, name)._asdict() for name in SPLITS})
    return layouts


def _empty(size: int, frames: int, nodes: int) -> Split:
    """The dtypes and shapes of a split alone."""
    positions = torch.empty(size, frames, nodes, 2, dtype=torch.float32, device="meta")
    return Split(positions, torch.empty(size, nodes, nodes, dtype=torch.bool, device="meta"))


def _inverse_length(vectors: Tensor) -> Tensor:
    """1 / length, (...), of vectors (..., 2); shorter ones than 0.01 count as that long. There is no square root in it:
    torch's wakes all threads, for small tensors too."""
    x, y = vectors.unbind(-1)
    return (x * x).add_(y * y).clamp_(min=0.01**2).rsqrt_()


def _rescale(position: Tensor) -> Tensor:
    """Centre each frame and divide by its largest coordinate, in place. A single point is left at the origin."""
    position -= sum(position.split(1, -2)) / position.shape[-2]
    largest = position.abs().amax((-2, -1))  # (B,)
    return position.mul_((1 / torch.where(largest > 0, largest, 1))[:, None, None])


def _batch_innermost(x: Tensor) -> Tensor:
    """The same tensor with the batch contiguous in memory. Operations keep that, and run along it: the other dimensions
    are too short for a processor's vectors."""
    return x.permute(2, 1, 0).contiguous().permute(2, 1, 0)


def _draw(count: int, frames: int, nodes: int, generator: torch.Generator, bar: Any) -> Split:
    """One split, not scaled yet. All randomness comes first, so the size of a chunk does not matter."""
    trees = random_trees(count, nodes, generator)
    start = torch.randn(count, nodes, 2, dtype=torch.float64, generator=generator)
    positions = start.new_empty(count, frames, nodes, 2)
    chunk = max(CHUNK // (2 * nodes), 1)
    for out, begin, tree in zip(*(x.split(chunk) for x in (positions, start, trees)), strict=True):
        out.copy_(simulate(begin, tree, frames))
        bar.update(len(out))
    return Split(positions, trees.bool())


def _scale(split: Split, low: float, high: float) -> Split:
    return split._replace(positions=split.positions.sub_(low).mul_(2 / (high - low)).sub_(1).float())


def _checked(frames: int, nodes: int, sizes: Sequence[int], seed: int) -> tuple[int, int, list[int], int]:
    """The arguments as Python's own integers, the only ones that a file read with weights_only may hold."""
    frames, nodes = checks.integer("graph layout", "frames", frames), checks.integer("graph layout", "nodes", nodes)
    sizes = [checks.integer("graph layout", "a size", size) for size in sizes]
    for name, given in (("frames", frames), ("nodes", nodes)):
        if given < 2:
            raise ValueError(f"graph layout: {name} must be at least 2, got {given}")
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(f"graph layout: sizes must be three positive numbers: train, valid, test; got {sizes}")
    return frames, nodes, sizes, checks.integer("graph layout", "seed", seed)
