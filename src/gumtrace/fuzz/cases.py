"""A case: one distribution with all its settings, noise to run it on, and a seed for what else is drawn. It can be
built, read as plain arrays, and printed as a script."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gumtrace.fuzz.description import Description
from gumtrace.fuzz.numbers import literal
from gumtrace.fuzz.structures import STRUCTURES
from gumtrace.structures.base import Structure

LAYOUTS = {  # how a tensor lies in memory: code that makes it so from a plain one
    "plain": "{}",
    "every other": "torch.stack([{0}, {0}], -1)[..., 0]",
    "transposed": "{0}.movedim(0, -1).contiguous().movedim(-1, 0)",
    "behind others": "torch.cat([{0}.flatten()[:0].new_ones(3), {0}.flatten()])[3:].view({0}.shape)",
    "expanded": "{0}[:1].expand({0}.shape)",
}


@dataclass(frozen=True)
class Case:
    """What a check is run on.

    Half types are kept in `logits`; noise is of the dtype in which the library computes. `samples` is its leading
    shape: noise is samples + batch + keys.
    """

    structure: str
    logits: Tensor  # (*batch, *keys)
    noise: Tensor  # (*samples, *batch, *keys)
    settings: dict[str, Any] = field(default_factory=dict)
    mask: Tensor | None = None
    lengths: Tensor | None = None
    layout: str = "plain"
    seed: int = 0
    device: str = "cpu"
    extra: str = ""  # what else a check must know

    @property
    def kind(self) -> Description:
        return STRUCTURES[self.structure]

    @property
    def dims(self) -> int:
        return self.kind.dims(self.settings)

    @property
    def key_shape(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[self.logits.dim() - self.dims :])

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[: self.logits.dim() - self.dims])

    @property
    def samples(self) -> tuple[int, ...]:
        return tuple(self.noise.shape[: self.noise.dim() - self.logits.dim()])

    @property
    def rows(self) -> int:
        return int(np.prod(self.batch, dtype=np.int64))

    @property
    def items(self) -> int:
        return int(np.prod(self.samples, dtype=np.int64)) * self.rows

    # As the library sees it ------------------------------------------------------------------------

    def leaf(self) -> Tensor:
        """The logits, on the device and as they lie in memory there, to take gradients to."""
        return _laid_out(self.logits.to(self.device), self.layout).detach().requires_grad_()

    def build(self, logits: Tensor | None = None, **more) -> Structure:
        logits = self.leaf() if logits is None else logits
        settings = {name: _moved(x, self.device) for name, x in self.settings.items()}
        common = {"mask": _moved(self.mask, self.device), "lengths": _moved(self.lengths, self.device)}
        return self.kind.build(logits, settings, **{k: v for k, v in common.items() if v is not None}, **more)

    def generator(self, offset: int = 0) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self.seed + offset)

    # As plain arrays -------------------------------------------------------------------------------

    @cached_property
    def x(self) -> np.ndarray:
        """(rows, keys) float64: log-rates, -inf for keys that do not race."""
        x = self.logits.double().reshape(self.racing.shape).numpy()
        return np.where(self.racing, x, -np.inf)

    @cached_property
    def racing(self) -> np.ndarray:
        """(rows, keys) bool: keys that may race, by mask, length, structure, and a logit that is not -inf."""
        keys = int(np.prod(self.key_shape, dtype=np.int64))
        x = self.logits.double().reshape(self.rows, keys).numpy()
        allowed = np.broadcast_to(self.kind.keys(self.key_shape, self.settings), x.shape)
        if self.mask is not None:
            allowed = allowed & self.mask.expand(self.logits.shape).reshape(x.shape).numpy()
        if self.row_lengths is not None:
            inside = self.kind.inside(self.key_shape, self.settings, self.row_lengths)
            allowed = allowed & inside.reshape(x.shape)
        return allowed & (x != -np.inf)

    @cached_property
    def row_lengths(self) -> np.ndarray | None:
        """(rows,) of ragged items."""
        if self.lengths is None:
            return None
        return self.lengths.expand(self.batch).reshape(self.rows).numpy().astype(np.int64)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(rows,): k of a subset, else how many nodes an item has."""
        return self.kind.sizes(self)

    @cached_property
    def finite(self) -> np.ndarray:
        """(rows,): whether no nan or +inf is among the keys that race."""
        x = self.logits.double().reshape(self.racing.shape).numpy()
        return (~self.racing | (x < np.inf)).all(-1).reshape(self.rows)

    @cached_property
    def feasible(self) -> np.ndarray:
        """(rows,): whether the algorithm can be completed."""
        return self.kind.feasible(self)

    def of_items(self, rows: np.ndarray, items: int | None = None) -> np.ndarray:
        """An array by row (rows, ...) as one by item (items, ...)."""
        items = self.items if items is None else items
        return np.tile(rows, (items // max(self.rows, 1), *[1] * (rows.ndim - 1))) if self.rows else rows[:0]

    # Changed, and printed --------------------------------------------------------------------------

    def change(self, **new) -> "Case":
        return replace(self, **new)

    def take(self, rows: Sequence[int], samples: Sequence[int]) -> "Case":
        """Some rows and samples, as the one dimension of the batch and the one of the samples."""
        rows, samples = list(rows), list(samples)

        def picked(x: Any) -> Any:
            return x.expand(self.batch).reshape(self.rows)[rows] if torch.is_tensor(x) else x

        settings = {name: picked(x) if name == "k" else x for name, x in self.settings.items()}
        mask = self.mask
        if mask is not None:
            mask = mask.expand(self.logits.shape).reshape(self.rows, *self.key_shape)[rows]
        noise = self.noise.reshape(self.items // max(self.rows, 1), self.rows, *self.key_shape)
        return self.change(
            logits=self.logits.reshape(self.rows, *self.key_shape)[rows],
            noise=noise[samples][:, rows],
            settings=settings,
            mask=mask,
            lengths=picked(self.lengths),
            layout="plain" if self.layout == "expanded" else self.layout,  # rows of several dimensions differ
        )

    def script(self) -> list[str]:
        """Lines that build `d` and `noise`."""
        lines = ["import torch", "", "import gumtrace as gt"]
        settings = dict(self.settings)
        if "algorithm" in settings:
            lines.append(f"from gumtrace.fuzz.algorithms import {type(settings['algorithm']).__name__}")
        lines += ["", f"logits = {literal(self.logits)}"]
        if self.layout != "plain":
            lines.append(f"logits = {LAYOUTS[self.layout].format('logits')}")
        if self.device != "cpu":
            lines.append(f"logits = logits.to({self.device!r})")
        for name in ("mask", "lengths"):
            given = getattr(self, name)
            if given is not None:
                settings[name] = given
        lines.append(f"d = {self.kind.call(settings, self)}")
        return lines

    def noise_line(self) -> str:
        return f"noise = {literal(self.noise)}" + ("" if self.device == "cpu" else f".to({self.device!r})")


def _moved(x: Any, device: str) -> Any:
    return x.to(device) if torch.is_tensor(x) else x


def _laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "plain" or x.dim() == 0:
        return x
    if layout == "every other":
        return torch.stack([x, x], -1)[..., 0]
    if layout == "transposed":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    return torch.cat([x.flatten()[:0].new_ones(3), x.flatten()])[3:].view(x.shape)
