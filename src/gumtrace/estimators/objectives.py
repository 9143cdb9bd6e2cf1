"""What objectives get, and the checks of what they return; the check of what critics and surrogates get beside it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

M = TypeVar("M", bound=nn.Module)
Objective = Callable[[Any], Tensor]  # values (samples, *batch, *event), or their traces -> losses (samples, *batch)


class OnTrace(NamedTuple):
    """An objective that gets traces in place of values."""

    objective: Objective


def objective_on(on: str, objective: Objective) -> Any:
    """The objective of values as it is, one of traces marked as such: what `losses` takes."""
    if on not in ("value", "trace"):
        raise ValueError(f'on must be "value" or "trace", what the objective gets; got {on!r}')
    if not callable(objective):
        raise TypeError(
            f"the objective must be a function of the {on}s that returns a loss for each, got "
            f"{type(objective).__name__}; pass lambda {on}s: ..."
        )
    return OnTrace(objective) if on == "trace" else objective


def losses(name: str, dist: Structure, objective: Any, drawn: Trace | Tensor) -> Tensor:
    """The objective at traces (samples, *batch) or at values (samples, *batch, *event), with its losses checked;
    integers and bool become floating point.

    Half precision becomes the dtype of the log-rates: losses are subtracted and averaged. Of a trace, the objective
    gets the value or a copy, which it may write into. A value is given as it is: whatever else depends on it has to be
    computed before.
    """
    on_trace = isinstance(objective, OnTrace)
    if isinstance(drawn, Trace):
        given = drawn.clone() if on_trace else drawn.value
    elif on_trace:
        raise TypeError(f'{name} evaluates the objective at values, not at traces: leave out on="trace"')
    else:
        given = drawn
    shape = given.shape
    want = shape[: 1 + len(dist.batch_shape)]
    loss = objective.objective(given) if on_trace else objective(given)
    if not torch.is_tensor(loss) or loss.shape != want:
        got = f"shape {tuple(loss.shape)}" if torch.is_tensor(loss) else type(loss).__name__
        what = "traces" if on_trace else "values"
        raise ValueError(
            f"{name}: the objective must return one loss for each sample and item, shape {tuple(want)}, for {what} of "
            f"shape {tuple(shape)}; got {got}{_advice(loss, want)}"
        )
    if loss.is_complex():
        raise TypeError(f"{name}: the objective must return real losses, got {loss.dtype}")
    # A copy: the objective may own the tensor, and fill it again in its next call.
    loss = loss.to(torch.promote_types(loss.dtype, dist.log_rates.dtype), copy=True)
    if dist._validate_args:
        dist._check_losses(name, loss)
        _check_finite(name, dist, loss)
    return loss


def _advice(loss: Any, want: torch.Size) -> str:
    """Losses that have the first of the dimensions are perhaps of several structures each; those with more dimensions
    are not summed, or a mini-batch for one structure."""
    if not torch.is_tensor(loss) or loss.dim() == 0:
        return ""
    more = loss.shape[len(want) :]
    if more and loss.shape[: len(want)] == want:
        last = "dimension" if len(more) == 1 else f"{len(more)} dimensions"
        each = f", or, if it is a mini-batch, give each item a draw of its own, dist.expand({tuple(more)})"
        return f"; take the mean or sum over the last {last}{each if len(want) == 1 else ''}"
    shared = len(want) - loss.dim()
    if shared <= 0 or loss.shape != want[: loss.dim()]:
        return ""
    return f"; if several structures have one loss, pass torch.distributions.Independent(dist, {shared})"


def with_forward_of(module: Any, *kinds: type[M]) -> M | None:
    """A module, without what torch.compile wraps around it, if it has the forward of one of these classes: a subclass
    may have another."""
    module = getattr(module, "_orig_mod", module)
    return module if isinstance(module, kinds) and type(module).forward in [kind.forward for kind in kinds] else None


def item_features(name: str, dist: Structure, context: Tensor | None, structures: int = 0) -> Tensor | None:
    """A context as the critics and surrogates here expand it: (*batch, c), or also a number of features for each of the
    structures of an item, which then have so many dimensions behind the batch. One of another shape would be taken for
    features that all items share."""
    if context is None:
        return None
    if not torch.is_tensor(context):
        raise TypeError(f"{name}: the context must be a tensor of features, got {type(context).__name__}")
    batch, last = dist.batch_shape, len(dist.batch_shape) + 1
    if context.shape[: last - 1] != batch or context.dim() not in (last, last + structures):
        more = ""
        if context.shape == batch:
            more = "; of one feature, pass context[..., None]"
        elif checks.broadcasts(context.shape[:-1], batch):
            more = f"; if all items share it, pass context.expand({', '.join(map(str, batch))}, -1)"
        want = ", ".join([*map(str, batch), "c"]) if batch else "c,"
        raise ValueError(f"{name}: the context must be features, of shape ({want}), got {tuple(context.shape)}{more}")
    return context[(..., *[None] * structures, slice(None))] if context.dim() == last else context


def _check_finite(name: str, dist: Structure, loss: Tensor) -> None:
    flat = loss.detach().flatten()
    if math.isfinite(flat.sum().item()):  # one reduction; a sum of finite losses may overflow
        return
    bad = flat.isfinite().logical_not().nonzero()
    if len(bad) > 0:
        first = int(bad[0])
        sample, where = first // dist.batch_shape.numel(), checks.item_name(first, dist.batch_shape)
        raise checks.NotFinite(f"{name}: the loss of sample {sample} of {where} is {flat[first].item()}")
