"""How an operator of the kernels is mapped by torch.func.vmap: the new dimension joins the batch.

Items are samples x batch, so a mapped trace (V, S B, ...) becomes (S V B, ...) beside log-rates (V B, keys).
"""

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor


class Kind(Enum):
    """What an argument or a result of an operator is."""

    ROWS = "(batch, ...)"
    ITEMS = "(samples x batch, ...)"
    SIZES = "(batch,), (1,) or None"
    NUMBER = "of items"
    SEED = "(2,)"
    DTYPE = "of results"


def rule(op: Callable, of_args: list[Kind], of_results: list[Kind]) -> Callable:
    """The vmap rule of an operator."""

    def mapped(info, in_dims, geometry, edges, *args):
        if in_dims[1] is not None:
            raise NotImplementedError("gumtrace: vmap over the edges of graphs: all items of a batch share them")
        width, dims = info.batch_size, tuple(in_dims)[2:]
        args = [_leading(x, dim) for x, dim in zip(args, dims, strict=True)]
        on = [dim is not None for dim in dims]
        one_noise = Kind.SEED in of_args and not on[of_args.index(Kind.SEED)]  # randomness="same"
        if width > 0 and one_noise:
            each = [op(geometry, edges, *_one(args, on, v)) for v in range(width)]
            results = [torch.stack(column) for column in zip(*map(_tuple, each), strict=True)]
        else:
            batch = _batch(of_args, args, on)
            sizes = width, _items(of_args, args, on) // max(batch, 1), batch
            joined = [_join(kind, x, there, *sizes) for kind, x, there in zip(of_args, args, on, strict=True)]
            parts = zip(of_results, _tuple(op(geometry, edges, *joined)), strict=True)
            results = [_part(kind, x, *sizes) for kind, x in parts]
        return (results[0], 0) if len(results) == 1 else (tuple(results), (0,) * len(results))

    return mapped


def _tuple(results) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _one(args: list, on: list[bool], v: int) -> list:
    return [x[v] if there and x is not None else x for x, there in zip(args, on, strict=True)]


def _leading(x, dim: int | None):
    return x if dim is None or x is None else x.movedim(dim, 0)


def _batch(kinds: list[Kind], args: list, on: list[bool]) -> int:
    """How many rows an unmapped call has."""
    for want in (Kind.ROWS, Kind.SIZES, Kind.ITEMS):
        for kind, x, there in zip(kinds, args, on, strict=True):
            if kind == want and x is not None and not (want == Kind.SIZES and x.shape[-1] == 1):
                return x.shape[1 if there else 0]
    return 1


def _items(kinds: list[Kind], args: list, on: list[bool]) -> int:
    """How many items an unmapped call has; 0 if it has rows only."""
    for kind, x, there in zip(kinds, args, on, strict=True):
        if kind in (Kind.NUMBER, Kind.ITEMS):
            return x if kind == Kind.NUMBER else x.shape[1 if there else 0]
    return 0


def _join(kind: Kind, x, there: bool, width: int, samples: int, batch: int):
    if kind == Kind.NUMBER:
        return x * width
    if kind == Kind.SEED:  # every item has a place of its own in the stream, so one is enough; a width of 0 needs none
        return x[0] if there and width > 0 else x.new_zeros(2)
    if kind == Kind.DTYPE or x is None or (kind == Kind.SIZES and not there and len(x) == 1):
        return x
    if not there:
        x = x.expand(width, *x.shape)
    if kind == Kind.SIZES:
        return x.expand(width, batch).reshape(-1)
    if kind == Kind.ROWS:
        return x.flatten(0, 1)
    return x.reshape(width, samples, batch, *x.shape[2:]).transpose(0, 1).flatten(0, 2)


def _part(kind: Kind, x: Tensor, width: int, samples: int, batch: int) -> Tensor:
    if kind == Kind.ROWS:
        return x.unflatten(0, (width, batch))
    return x.reshape(samples, width, batch, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
