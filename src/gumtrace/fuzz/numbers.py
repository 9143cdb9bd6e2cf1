"""Hostile numbers: ties, subnormals, signed zeros, ±1e30, the limits of the dtype, and ordinary ones of any scale.

`literal` writes numbers as code.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

DTYPES = {torch.float32: 0.5, torch.float64: 0.35, torch.bfloat16: 0.1, torch.float16: 0.05}  # and how often
SINGLE = 24  # turns in single precision
Draw = Callable[[np.random.Generator, tuple[int, ...], torch.finfo], np.ndarray]


def _normal(rng, shape, limits):
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 4)


def _moderate(rng, shape, limits):
    return rng.normal(size=shape) * rng.choice([0.3, 1.0, 3.0])


def _ties(rng, shape, limits):
    return rng.integers(-2, 3, shape) * rng.choice([0.5, 1.0, 100.0])


def _equal(rng, shape, limits):
    return np.full(shape, rng.choice([0.0, -0.0, 1.0, -700.0, 1e30, -1e30, limits.min, limits.tiny]))


def _subnormal(rng, shape, limits):
    smallest = limits.tiny * limits.eps
    return rng.integers(-3, 4, shape) * smallest * rng.choice([1.0, 100.0])


def _zeros(rng, shape, limits):
    return np.where(rng.random(shape) < 0.5, 0.0, -0.0)


def _huge(rng, shape, limits):
    return rng.choice([-1e30, 1e30, -1.5e30, 0.0, 1.0], shape)


def _masked_by_min(rng, shape, limits):
    """A usual way to mask: half the keys at the lowest finite number."""
    return np.where(rng.random(shape) < 0.5, limits.min, rng.normal(size=shape))


def _limits(rng, shape, limits):
    return rng.choice([limits.min, limits.max, limits.tiny, 0.0, -1.0], shape)


def _neighbours(rng, shape, limits):
    """Numbers that differ in their last bits."""
    base = rng.choice([1.0, -3.0, 1e4, -1e-3])
    return base * (1 + limits.eps * rng.integers(-2, 3, shape))


def _sorted(rng, shape, limits):
    steps = np.arange(shape[-1]) if len(shape) else np.zeros(())
    return np.broadcast_to(steps * rng.choice([-1.0, 1.0]), shape).copy()


def _wide(rng, shape, limits):
    return rng.uniform(-1e4, 1e4, shape)


KINDS: dict[str, tuple[float, Draw]] = {  # how often, and how
    "moderate": (5, _moderate),
    "normal": (2, _normal),
    "ties": (2, _ties),
    "equal": (1, _equal),
    "subnormal": (1, _subnormal),
    "zeros": (0.5, _zeros),
    "huge": (1, _huge),
    "masked by the lowest number": (1, _masked_by_min),
    "limits": (1, _limits),
    "neighbours": (1, _neighbours),
    "sorted": (0.5, _sorted),
    "wide": (1, _wide),
}
_CHANCES = np.array([weight for weight, _ in KINDS.values()]) / sum(weight for weight, _ in KINDS.values())


def some_dtype(rng: np.random.Generator, turn: int) -> torch.dtype:
    """Float32 alone in the first turns: most faults show in it before another dtype would be compiled."""
    if turn < SINGLE:
        return torch.float32
    return list(DTYPES)[rng.choice(len(DTYPES), p=list(DTYPES.values()))]


def hostile(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Finite numbers (rows, keys): of one kind, or of up to three, row by row or key by key."""
    names = list(KINDS)
    drawn = [names[j] for j in rng.choice(len(names), rng.choice([1, 1, 2, 3]), p=_CHANCES)]
    limits = torch.finfo(dtype)
    parts = np.stack([KINDS[name][1](rng, shape, limits) for name in drawn])  # (kinds, rows, keys)
    by_key = rng.random() < 0.3
    which = rng.integers(len(drawn), size=shape if by_key else (shape[0], 1))
    x = np.take_along_axis(parts, np.broadcast_to(which, shape)[None], 0)[0]
    return _cast(x, dtype)


def garbage(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """For places that nobody may read."""
    return _cast(rng.choice([np.nan, np.inf, -np.inf, 1e30, 0.0], shape), dtype)


def gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.asarray(-np.log(rng.exponential(size=shape) + 1e-300)))


def _cast(x: np.ndarray, dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    bounded = np.where(np.isfinite(x), np.clip(x, limits.min, limits.max), x)
    return torch.from_numpy(bounded).to(dtype)


def literal(x: Any) -> str:
    """A value as code."""
    if not torch.is_tensor(x):
        return repr(x)
    inside = x.double().tolist() if x.is_floating_point() else x.tolist()
    if x.numel() == 0:
        return f"torch.zeros({tuple(x.shape)}, dtype={x.dtype})"
    plain = x.dtype in (torch.float32, torch.int64, torch.bool)
    return f"torch.tensor({inside})" if plain else f"torch.tensor({inside}, dtype={x.dtype})"
