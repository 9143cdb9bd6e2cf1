"""Estimators side by side: mean, standard deviation, bias and cost of their gradients."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.diagnostics.enumeration import TooManyTraces
from gumtrace.diagnostics.gradients import Estimate, exact_gradient, frozen, gradients, options
from gumtrace.estimators.base import Objective, checked_count
from gumtrace.estimators.objectives import objective_on
from gumtrace.structures.base import Structure
from gumtrace.structures.joint import as_structure

TIMED = 5  # calls, after one that is not


@dataclass(frozen=True)
class GradientStatistics:
    """One row of the table; std and bias are root mean squares over the keys that race."""

    name: str
    std: float
    bias: float | None  # of the mean from the exact gradient, or from the target; None where there is neither
    bias_error: float | None  # what chance alone would give
    calls: float  # structures that the objective evaluated, per item and estimate
    seconds: float  # an estimate of the whole batch, median
    mean: Tensor | None = field(default=None, repr=False, compare=False)  # of the estimates, (*batch, *keys)


class GradientTable(list[GradientStatistics]):
    """The rows, in the order of the estimators; printed, a table. There, the mean is its root mean square."""

    def __str__(self) -> str:
        lines = [["estimator", "mean", "std", "bias", "by chance", "calls", "ms"]]
        lines += [[row.name, *map(_number, _numbers(row))] for row in self]
        first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
        form = "  ".join([f"{{:{first}}}", *(f"{{:>{width}}}" for width in others)])
        return "\n".join(form.format(*line) for line in lines)


def gradient_statistics(
    estimators: Mapping[str, Estimate],
    dist: Distribution,
    objective: Objective,
    replicates: int = 1000,
    *,
    context: Tensor | None = None,
    on: str = "value",
    warm_up: int = 0,
    exact: bool | None = True,
    target: Tensor | None = None,
    chunk: int = 250,
    generator: torch.Generator | None = None,
) -> GradientTable:
    """Mean, standard deviation, bias and cost of each estimator: print it, or draw it with `plotting.variance`.

    Args:
        objective: gets values of shape samples + (replicates, *batch) + event from the estimators, and traces + batch +
            event for the exact gradient: what belongs to an item must broadcast from the right.
        replicates: how many estimates, 2 or more.
        context: features (*batch, c), for estimators that use them.
        on: "trace" hands the objective traces in place of values.
        warm_up: calls before the measurement, for estimators that learn; their parameters take Adam steps meanwhile.
            They do not learn from the measurement.
        exact: enumerate to find the bias; False for distributions too large for that, None to do so if it is small.
        target: a gradient to find the bias from instead, such as the mean of many unbiased estimates.
        chunk: estimates that are made at once.

    >>> import gumtrace as gt
    >>> d = gt.Subset(torch.tensor([0.0, 1.0, 2.0]), 2)
    >>> table = gradient_statistics({"T": gt.estimators.TraceREINFORCE(samples=4)}, d, lambda x: x[..., 0], 100)
    >>> print(table)  # doctest: +ELLIPSIS
    estimator ... mean ... std ... bias ... calls ...
    T ...
    """
    checked_count("gradient_statistics", "replicates", replicates, least=2)
    checked_count("gradient_statistics", "chunk", chunk)
    if not hasattr(estimators, "items"):  # a ModuleDict has
        wrong = type(estimators).__name__
        raise TypeError(f'gradient_statistics: estimators need names, {{"name": estimator}}, got {wrong}')
    objective_on(on, objective)  # before it is wrapped, to count its calls
    dist = as_structure("gradient_statistics", dist)
    target = _target(dist, objective, on, exact) if target is None else target
    table = GradientTable()
    for name, estimator in estimators.items():
        _warm_up(estimator, dist, objective, warm_up, generator, context, on)
        with frozen(estimator):
            calls, seconds = _cost(estimator, dist, objective, generator, context, on)
            sizes = [min(chunk, replicates - done) for done in range(0, replicates, chunk)]
            parts = [gradients(estimator, dist, objective, size, generator, context, on=on) for size in sizes]
        grads = torch.cat(parts).double()
        alive = dist.racing.expand(grads.shape[1:])
        mean, std = grads.mean(0), _rms(grads.std(0)[alive])
        bias = error = None
        if target is not None:
            bias, error = _rms((mean - target)[alive]), std / replicates**0.5
        table.append(GradientStatistics(name, std, bias, error, calls, seconds, mean))
    return table


def _target(dist: Structure, objective: Objective, on: str, exact: bool | None) -> Tensor | None:
    if exact is False:
        return None
    try:
        return exact_gradient(dist, objective, on=on)[1]
    except TooManyTraces as error:
        if exact is None:
            return None
        instead = "exact=False leaves the bias out, exact=None enumerates only what is small, target= is yours to give"
        raise TooManyTraces(f"{error}: {instead}") from None


def _cost(estimator: Estimate, dist: Structure, objective: Objective, generator, context, on) -> tuple[float, float]:
    """Structures an item, and seconds, of one estimate."""
    counted, seconds = _Counted(objective), []
    for _ in range(1 + TIMED):
        start = time.perf_counter()
        gradients(estimator, dist, counted, 1, generator, context, on=on)
        seconds.append(time.perf_counter() - start)
    return counted.calls / (1 + TIMED), median(seconds[1:])  # the first may compile something


class _Counted:
    """An objective that counts the structures it evaluates, per item."""

    def __init__(self, objective: Objective):
        self.objective, self.calls = objective, 0

    def __call__(self, drawn: Any) -> Tensor:
        self.calls += len(drawn)
        return self.objective(drawn)


def _warm_up(estimator: Estimate, dist: Structure, objective: Objective, steps: int, generator, context, on) -> None:
    """Gradients are taken to the estimator's own parameters alone: whatever the objective uses is the user's."""
    parameters = list(estimator.parameters()) if isinstance(estimator, torch.nn.Module) else []
    parameters = [p for p in parameters if p.requires_grad]
    before = [p.grad for p in parameters]
    optimiser = torch.optim.Adam(parameters, 0.01) if parameters else None
    for _ in range(steps):
        at_x = dist.with_log_rates(dist.log_rates.detach().requires_grad_())
        loss = estimator(at_x, objective, generator=generator, **options(context, on))
        if optimiser is not None:
            grads = torch.autograd.grad(loss.mean(), parameters, allow_unused=True)
            for p, grad in zip(parameters, grads, strict=True):
                p.grad = grad
            optimiser.step()
    for p, grad in zip(parameters, before, strict=True):
        p.grad = grad


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def _numbers(row: GradientStatistics) -> list[float | None]:
    mean = row.mean
    if mean is not None:  # 0 for keys that do not race
        mean = mean.norm().item() / max(int(mean.count_nonzero()), 1) ** 0.5
    return [mean, row.std, row.bias, row.bias_error, row.calls, 1000 * row.seconds]


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.3g}"
