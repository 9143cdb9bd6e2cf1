"""What the methods of an experiment return, and where a loss takes its randomness from."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gumtrace_experiments.experiment import Experiment


def checked_loss(experiment: Experiment, found: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    """What `loss` returned. Nothing here synchronises."""
    where = f"{type(experiment).__name__}.loss"
    pair = isinstance(found, tuple | list) and len(found) == 2
    if not (pair and isinstance(found[0], Tensor) and isinstance(found[1], Mapping)):
        got = ", ".join(type(x).__name__ for x in found) if isinstance(found, tuple | list) else type(found).__name__
        raise ValueError(f"{where} must return a loss and a dictionary of metrics, got {got}")
    loss, metrics = found
    if loss.numel() != 1:
        raise ValueError(f"{where} must return a scalar to differentiate, got shape {tuple(loss.shape)}: take its mean")
    if not loss.requires_grad:
        raise ValueError(
            f"{where} must return a scalar to differentiate, got one without a gradient: compute it from parameters of "
            "the model, without detach, item or no_grad"
        )
    for name, value in metrics.items():
        if not (isinstance(value, Tensor) and value.ndim == 0):
            raise ValueError(f"{where} must return metrics that are scalar tensors, got {_kind(name, value)}")
    return loss, metrics


def checked_metrics(experiment: Experiment, found: Any, split: str) -> dict[str, float]:
    """What `evaluate` returned, as numbers. On validation one of them decides which checkpoint is kept."""
    where, metric = f"{type(experiment).__name__}.evaluate", experiment.selection_metric
    if not isinstance(found, Mapping):
        raise ValueError(f"{where} must return a dictionary of metrics, got {type(found).__name__}")
    if split == "valid" and metric not in found:
        got = ", ".join(map(str, found)) or "none"
        raise ValueError(f"{where} must return the selection_metric, {metric!r}, among its metrics, got {got}")
    return {name: _number(where, name, value) for name, value in found.items()}


def _number(where: str, name: str, value: Any) -> float:
    if isinstance(value, int | float):
        return value
    if getattr(value, "shape", None) != ():  # which a scalar tensor has, and a number of numpy
        raise ValueError(f"{where} must return metrics that are numbers, got {_kind(name, value)}")
    return float(value)


def _kind(name: str, value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return f"{type(value).__name__}{shape} for {name!r}"


@contextmanager
def own_draws(experiment: Experiment, device: torch.device) -> Iterator[None]:
    """Warns if what is run inside, a loss, draws from torch's own generator, of the CPU or the device. Nothing seeds
    that one for each iteration: a run that was cut off would not resume as it would have continued."""
    before = _own_states(device)
    yield
    if not all(map(torch.equal, before, _own_states(device))):
        warnings.warn(
            f"{type(experiment).__name__}.loss drew from torch's own generator, as nn.Dropout does and whatever is "
            "called without generator=: runs will not be resumed exactly; pass on the generator that loss is given, "
            "for dropout to gumtrace_experiments.dropout.dropout",
            stacklevel=3,
        )


def _own_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states
