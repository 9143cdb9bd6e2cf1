"""Reading what a user passes, with errors that say what is wrong and where."""

import math
import operator
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels.geometry import flatten_geometry
from gumtrace.traces.trace import Layout, Trace

Lengths = Tensor | np.ndarray | Sequence[int] | int | None
MOST_KEYS = 2**31 - 2**16  # traces have 32 bits for a key, and loops over keys, too, which end in steps behind the last
MOST_ITEMS = 2**31 - 2**20  # on CUDA, in the same way


class NotFinite(ValueError):
    """A nan or +inf where a number must be: of a model in training, that it diverged."""


def logits(name: str, given, event_dim: int) -> None:
    if not torch.is_tensor(given) or not given.is_floating_point():
        raise TypeError(f"{name}: logits must be a floating point tensor, got {_kind_of(given)}")
    if given.dim() < event_dim:
        raise ValueError(f"{name}: logits need at least {event_dim} dimensions, got shape {tuple(given.shape)}")
    if (keys := math.prod(given.shape[given.dim() - event_dim :])) > MOST_KEYS:
        raise ValueError(f"{name}: {keys} keys are more than {MOST_KEYS}, the most that traces can number")


def items(name: str, shape: torch.Size, device: torch.device) -> int:
    """How many there are of sample + batch; kernels on CUDA number them by 32 bits."""
    count = shape.numel()
    if device.type == "cuda" and count > MOST_ITEMS:
        raise ValueError(f"{name}: {count} samples of all items are more than {MOST_ITEMS}, the most at once on CUDA")
    return count


def mask(name: str, given, logits: Tensor) -> Tensor | None:
    if given is None:
        return None
    if not torch.is_tensor(given) or given.dtype != torch.bool:
        raise TypeError(f"{name}: mask must be a bool tensor, got {_kind_of(given)}")
    if not broadcasts(given.shape, logits.shape):
        raise ValueError(f"{name}: mask {tuple(given.shape)} does not fit logits {tuple(logits.shape)}")
    return given


def lengths(
    name: str, given, logits: Tensor, batch_shape: torch.Size, max_length: int, may_sync: bool
) -> Tensor | None:
    if given is None:
        return None
    given = torch.as_tensor(given, device=logits.device)
    if given.is_floating_point() or given.dtype == torch.bool:
        raise TypeError(f"{name}: lengths must be integers, got {given.dtype}")
    if not broadcasts(given.shape, batch_shape):
        raise ValueError(f"{name}: lengths {tuple(given.shape)} do not fit batch shape {tuple(batch_shape)}")
    # long, as an unsigned length less one would wrap around; a copy, as users may write into theirs
    given = given.to(torch.long, copy=True).expand(batch_shape)
    if not may_sync:
        return given.clamp(0, max_length)  # kernels trust them
    bad = ((given < 0) | (given > max_length)).flatten().nonzero()
    if len(bad) > 0:
        flat = int(bad[0])
        where = item_name(flat, batch_shape)
        raise ValueError(f"{name}: {where} has length {int(given.flatten()[flat])}, not between 0 and {max_length}")
    return given


def integer(name: str, what: str, given) -> int:
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise TypeError(f"{name}: {what} must be an integer, got {given!r}")


def tensor(name: str, what: str, given) -> Tensor:
    if not torch.is_tensor(given):
        raise TypeError(f"{name}: {what} must be a tensor, got {_kind_of(given)}")
    return given


def ends_in(name: str, what: str, shape: torch.Size, end: torch.Size) -> None:
    if shape[len(shape) - len(end) :] != end:
        raise ValueError(f"{name}: {what} of shape {tuple(shape)} does not end in {tuple(end)}")


def broadcast(name: str, what: str, shape: torch.Size, batch_shape: torch.Size) -> torch.Size:
    """The shape of both, as torch broadcasts them."""
    try:
        return torch.broadcast_shapes(shape, batch_shape)
    except RuntimeError:
        raise ValueError(
            f"{name}: {what} of batch shape {tuple(shape)} do not broadcast with {tuple(batch_shape)}"
        ) from None


def same_layout(name: str, ours: Layout, trace: Trace, device: torch.device, may_sync: bool) -> None:
    """A kernel trusts the sizes of the traces it is given, and that they are where the logits are: they must come from
    a distribution like this one."""
    theirs = trace.layout
    if others := {trace.choices.device, trace.links.device} - {device}:
        raise ValueError(
            f"{name}: the trace is on {others.pop()}, the logits on {device}; take trace.to(logits.device)"
        )
    (a, edges), (b, other_edges) = flatten_geometry(ours.geometry), flatten_geometry(theirs.geometry)
    if ours.algorithms:  # the kind and the keys: a user's recursion has no fixed number of decisions
        a, b = a[:2], b[:2]
    other_graph = a != b
    if edges is not None and other_edges is not None and edges is not other_edges and may_sync:
        other_graph |= not torch.equal(edges, other_edges.to(edges.device))
    if other_graph:
        other_k = name == "Subset" and a[:2] == b[:2]
        advice = ", or another k (of tensors k, give both the same most=)" if other_k else ""
        raise ValueError(f"{name}: the trace belongs to another structure, size or graph{advice}")
    names = [type(algorithm).__name__ for algorithm in theirs.algorithms]
    if list(map(type, ours.algorithms)) != list(map(type, theirs.algorithms)):
        raise ValueError(f"{name}: the trace belongs to another algorithm, {', '.join(names)}")
    slots = trace.choices.shape[-1], trace.links.shape[-1]
    if (
        slots != (theirs.geometry.winner_slots, theirs.geometry.link_slots)
        or trace.choices.shape[:-1] != trace.links.shape[:-1]
    ):
        raise ValueError(f"{name}: the trace has {slots} slots for choices and links, which does not match its layout")


def finite_gains(name: str, gains: Tensor, batch_shape: torch.Size) -> None:
    """gains (*batch, *keys): that of an improbable key is part of a mean though the key never wins."""
    bad = gains.isfinite().logical_not().flatten().nonzero()
    if len(bad) == 0:
        return
    first, keys = int(bad[0]), gains.shape[len(batch_shape) :]
    item, flat = divmod(first, keys.numel())
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(keys)))
    key = index[0] if len(index) == 1 else index
    raise NotFinite(
        f"{name}: the gain of key {key} of {item_name(item, batch_shape)} is {gains.flatten()[first].item()}"
    )


def within(x: Tensor, low: int, high: int) -> bool:
    """low <= x < high everywhere."""
    return x.numel() == 0 or bool((x.min() >= low) & (x.max() < high))


def item_name(flat: int, batch_shape: torch.Size) -> str:
    """Which item of sample + batch a flat index is, in words."""
    if not batch_shape:
        return "the item"
    index = np.unravel_index(flat % max(batch_shape.numel(), 1), tuple(batch_shape))
    return f"item {tuple(int(i) for i in index)} of the batch"


def _kind_of(x) -> str:
    return f"a {x.dtype} tensor" if torch.is_tensor(x) else type(x).__name__


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    last = to[len(to) - len(shape) :]  # of the same length: torch.compile of torch 2.5 takes no other in zip
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape, last, strict=True))


def agree(a, b) -> bool:
    """Whether two settings, tensors or numbers, are equal once broadcast: one distribution may stand for a batch.
    Numbers are compared without synchronising."""
    a, b = (x if torch.is_tensor(x) else torch.as_tensor(x, device="cpu") for x in (a, b))
    try:
        return bool((a == b.to(a.device)).all())
    except RuntimeError:
        return False
