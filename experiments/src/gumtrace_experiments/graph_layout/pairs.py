"""Layers at the pairs of nodes: how many rows they have, and where those of a type and a step are."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

COLUMNS = 64  # of a program: fewer than its threads, else the compiler gives all rows to each of them
SCENES = 4  # of a program that leaves sums behind


class Pairs:
    """The first layer at the pairs in some steps, and what their backward passes leave there: of type 0 in all steps,
    then of type 1. `shape` is that of the sums of a step, (I, K, n, F, hidden)."""

    def __init__(
        self, shape: Sequence[int], used: Tensor, wiring: Tensor, steps: int = 1, inputs: Tensor | None = None
    ):
        self.items, self.samples, self.n, self.frames, hidden = shape
        self.soft = wiring.is_floating_point()
        self.scenes = _scenes(shape, wiring)
        self.counts, self.steps = pair_counts(shape, wiring), steps
        self.copies = self.frames * (1 if self.soft else self.samples)  # scenes that share nodes in a frame
        # A block of columns divides the layer: where it has an odd share, blocks are small.
        columns = min(COLUMNS, hidden & -hidden)
        self.blocks = hidden // columns
        self.options: dict[str, Any] = {"N": self.n, "H": hidden, "COLUMNS": columns, "num_stages": 1}  # of all kernels
        rows = steps * sum(self.counts)
        self.inputs = torch.empty(rows, hidden, dtype=used.dtype, device=used.device) if inputs is None else inputs

    @cached_property
    def grads(self) -> Tensor:
        """To the second layer before its relu. A backward pass fills this and what follows."""
        return torch.empty(self.inputs.shape, dtype=self.inputs.dtype, device=self.inputs.device)

    @cached_property
    def to_bias(self) -> Tensor:
        """To the second layer's bias, in parts to be summed."""
        return torch.empty(self.steps, self.scenes, 2, self.inputs.shape[1], device=self.inputs.device)

    @cached_property
    def to_first(self) -> Tensor:
        """To the first layer, in parts to be summed."""
        programs = -(-self.scenes // SCENES)
        return torch.empty(self.steps, programs, 2, 5, self.inputs.shape[1], device=self.inputs.device)

    def layer(self) -> Tensor:
        """Memory for a layer at the pairs of one step, (pairs, hidden)."""
        hidden = self.inputs.shape[1]
        return torch.empty(sum(self.counts), hidden, dtype=self.inputs.dtype, device=self.inputs.device)

    def start(self, step: int) -> int:
        """The first row of type 0 of a step."""
        return step * self.counts[0]

    def between(self, step: int) -> int:
        """How many rows lie between the first pairs of either type."""
        return (self.steps - step) * self.counts[0] + step * self.counts[1]

    def types(self, x: Tensor, step: int, steps: int = 1) -> list[Tensor]:
        """The rows of either type in some steps."""
        starts = self.start(step), self.start(step) + self.between(step)
        return [x[start : start + steps * count] for start, count in zip(starts, self.counts, strict=True)]

    def to_layers(self, steps: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients to the first layer and to the weight and the bias of the second, of the first few steps."""
        weight = self.inputs.new_empty(2, *self.inputs.shape[1:] * 2)
        for to, grads, inputs in zip(
            weight, self.types(self.grads, 0, steps), self.types(self.inputs, 0, steps), strict=True
        ):
            torch.mm(grads.T, inputs, out=to)
        return self.to_first[:steps].sum((0, 1)), weight.float(), self.to_bias[:steps].sum((0, 1))


def _scenes(shape: Sequence[int], wiring: Tensor) -> int:
    """How many there are: trees have pairs of their own in every sample, others share them."""
    items, samples, _, frames, _ = shape
    return items * frames * (1 if wiring.is_floating_point() else samples)


def pair_counts(shape: Sequence[int], wiring: Tensor) -> list[int]:
    """How many pairs there are of either type."""
    n, scenes = shape[2], _scenes(shape, wiring)
    return [scenes * wiring.shape[-1]] * 2 if wiring.is_floating_point() else [scenes * (n - 1) * k for k in (n - 2, 2)]
