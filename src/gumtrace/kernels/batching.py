"""How an operator of the kernels is mapped by torch.func.vmap: the new dimension joins the batch.

Items are samples x batch, so a mapped trace (V, S B, ...) becomes (S V B, ...) beside log-rates (V B, keys).
"""

from collections.abc import Callable

import torch
from torch import Tensor

# What the arguments behind geometry and edges are, and the results: rows (batch, ...), items (S B, ...), sizes
# ((batch,), (1,) or None), a number of items, a seed.
KINDS = {
    "check_logits": (["rows"], ["rows"]),
    "perturb": (["rows", "number", "seed"], ["items"]),
    "trace": (["items", "sizes"], ["items", "items", "items"]),
    "sample": (["rows", "sizes", "number", "seed"], ["items", "items", "items"]),
    "arborescence_heads": (["items", "items"], ["items"]),
    "indicator": (["items", "dtype"], ["items"]),
    "log_prob": (["rows", "items", "items"], ["items", "items"]),
    "log_prob_grad": (["rows", "items", "items", "items", "items"], ["rows"]),
    "log_totals": (["rows", "items", "items"], ["items"]),
    "to_keys": (["items"] * 5, ["items"]),
    "to_decisions": (["items"] * 5, ["items"]),
    "log_spread": (["items"] * 3, ["items"]),
    "conditional": (["rows", "sizes", "items", "items", "seed"], ["items"] * 4),
    "conditional_grad": (["rows"] + ["items"] * 6, ["rows"]),
}


def rule(name: str, op: Callable) -> Callable:
    """The vmap rule of an operator."""
    of_args, of_results = KINDS[name]

    def mapped(info, in_dims, geometry, edges, *args):
        if in_dims[1] is not None:
            raise NotImplementedError("gumtrace: vmap over the edges of graphs: all items of a batch share them")
        width, dims = info.batch_size, tuple(in_dims)[2:]
        args = [_leading(x, dim) for x, dim in zip(args, dims, strict=True)]
        on = [dim is not None for dim in dims]
        if width > 0 and "seed" in of_args and not on[of_args.index("seed")]:  # randomness="same": one noise for all
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


def _batch(kinds: list[str], args: list, on: list[bool]) -> int:
    """How many rows an unmapped call has."""
    for want in ("rows", "sizes", "items"):
        for kind, x, there in zip(kinds, args, on, strict=True):
            if kind == want and x is not None and not (want == "sizes" and x.shape[-1] == 1):
                return x.shape[1 if there else 0]
    return 1


def _items(kinds: list[str], args: list, on: list[bool]) -> int:
    """How many items an unmapped call has; 0 if it has rows only."""
    for kind, x, there in zip(kinds, args, on, strict=True):
        if kind in ("number", "items"):
            return x if kind == "number" else x.shape[1 if there else 0]
    return 0


def _join(kind: str, x, there: bool, width: int, samples: int, batch: int):
    if kind == "number":
        return x * width
    if kind == "seed":  # every item has a place of its own in the stream, so one is enough; a width of 0 needs none
        return x[0] if there and width > 0 else x.new_zeros(2)
    if kind == "dtype" or x is None or (kind == "sizes" and not there and len(x) == 1):
        return x
    if not there:
        x = x.expand(width, *x.shape)
    if kind == "sizes":
        return x.expand(width, batch).reshape(-1)
    if kind == "rows":
        return x.flatten(0, 1)
    return x.reshape(width, samples, batch, *x.shape[2:]).transpose(0, 1).flatten(0, 2)


def _part(kind: str, x: Tensor, width: int, samples: int, batch: int) -> Tensor:
    if kind == "rows":
        return x.unflatten(0, (width, batch))
    return x.reshape(samples, width, batch, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
