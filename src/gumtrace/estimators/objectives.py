"""What objectives get, and the checks of what they return."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

Objective = Callable[[Any], Tensor]  # values (samples, *batch, *event), or their traces -> losses (samples, *batch)


class OnTrace(NamedTuple):
    """An objective that gets traces in place of values."""

    objective: Objective


def objective_on(on: str, objective: Objective) -> Any:
    """The objective of values as it is, one of traces marked as such: what `losses` takes."""
    if on not in ("value", "trace"):
        raise ValueError(f'on must be "value" or "trace", what the objective gets; got {on!r}')
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
    """Losses that have the first of the dimensions are perhaps of several structures each."""
    shared = len(want) - loss.dim() if torch.is_tensor(loss) and loss.dim() > 0 else 0
    if shared <= 0 or loss.shape != want[: loss.dim()]:
        return ""
    return f"; if several structures have one loss, pass torch.distributions.Independent(dist, {shared})"


def _check_finite(name: str, dist: Structure, loss: Tensor) -> None:
    flat = loss.detach().flatten()
    if math.isfinite(flat.sum().item()):  # one reduction; a sum of finite losses may overflow
        return
    bad = flat.isfinite().logical_not().nonzero()
    if len(bad) > 0:
        first = int(bad[0])
        sample, where = first // dist.batch_shape.numel(), checks.item_name(first, dist.batch_shape)
        raise checks.NotFinite(f"{name}: the loss of sample {sample} of {where} is {flat[first].item()}")
