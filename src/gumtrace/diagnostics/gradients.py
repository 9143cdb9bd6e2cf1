"""Gradient estimators against the exact gradient: bias, variance, cost."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gumtrace.diagnostics.enumeration import Objective, enumerate_losses
from gumtrace.structures.base import Structure

Estimate = Callable[..., Tensor]  # an estimator, or anything called like one


@dataclass(frozen=True)
class BiasReport:
    """z is the deviation of the mean estimate from the exact gradient in standard errors, (*batch, *keys).

    p_value: of the largest |z|, corrected for the number of entries: below 1e-6 the estimator is biased.
    """

    replicates: int
    exact: Tensor
    mean: Tensor
    std: Tensor  # of one estimate
    z: Tensor
    p_value: float


@dataclass(frozen=True)
class GradientStatistics:
    """One row of the table; std and bias are root mean squares over the keys that race."""

    name: str
    std: float
    bias: float | None  # of the mean from the exact gradient, or from the target; None where there is neither
    bias_error: float | None  # what chance alone would give
    calls: float  # structures the objective was asked for, an item and an estimate
    seconds: float  # an estimate of the whole batch


def exact_gradient(dist: Structure, objective: Objective) -> tuple[Tensor, Tensor]:
    """The expected objective (*batch,) and its gradient with respect to the log-rates (*batch, *keys), by enumeration.

    >>> import gumtrace as gt
    >>> value, grad = exact_gradient(gt.Subset(torch.zeros(3), 1), lambda x: x[..., 0])
    >>> round(value.item(), 4), [round(g, 4) for g in grad.tolist()]
    (0.3333, [0.2222, -0.1111, -0.1111])
    """
    x = dist.log_rates.detach().double().requires_grad_()
    totals = [
        (item.trace_log_prob(trace).exp() * loss).sum() for item, trace, loss in enumerate_losses(dist.at(x), objective)
    ]
    (grad,) = torch.autograd.grad(torch.stack(totals).sum(), x)
    return torch.stack(totals).detach().reshape(dist.batch_shape), grad


def gradients(
    estimator: Estimate,
    dist: Structure,
    objective: Objective,
    replicates: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Independent estimates of the gradient to the log-rates, (replicates, *batch, *keys), all in one call."""
    x = dist.log_rates.detach().expand(replicates, *dist.log_rates.shape).clone().requires_grad_()
    loss = estimator(dist.at(x), objective, generator=generator)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    return grad


def check_unbiased(
    estimator: Estimate,
    dist: Structure,
    objective: Objective,
    replicates: int = 20_000,
    *,
    chunk: int = 5_000,
    generator: torch.Generator | None = None,
) -> BiasReport:
    """Compares the mean of many estimates with the exact gradient. Works on batches, masked and ragged ones too.

    >>> import gumtrace as gt
    >>> d = gt.Subset(torch.tensor([0.0, 1.0, 2.0]), 2)
    >>> report = check_unbiased(gt.estimators.TraceREINFORCE(2), d, lambda x: x[..., 0], 2000)
    >>> report.p_value > 1e-6
    True
    """
    _, exact = exact_gradient(dist, objective)
    count, mean, square = 0, torch.zeros_like(exact), torch.zeros_like(exact)
    while count < replicates:
        grads = gradients(estimator, dist, objective, min(chunk, replicates - count), generator).double()
        count += len(grads)
        mean += (grads - exact).sum(0)
        square += (grads - exact).square().sum(0)
    mean = mean / count  # less the exact gradient: no digits are lost
    variance = (square / count - mean.square()).clamp(min=0) * count / max(count - 1, 1)
    error = (variance / count).sqrt()
    settled = error <= 1e-9 * (1 + exact.abs())  # no noise at all: right or wrong beyond doubt
    z = torch.where(settled, torch.where(mean.abs() > 1e-6, torch.inf, 0.0), mean / error.clamp(min=1e-300))
    tests = max(int((~settled).sum()), 1)
    p_value = min(1.0, float(torch.special.erfc(z.abs().max() / 2**0.5)) * tests) if z.numel() else 1.0
    return BiasReport(count, exact, mean + exact, variance.sqrt(), z, p_value)


def gradient_statistics(
    estimators: Mapping[str, Estimate],
    dist: Structure,
    objective: Objective,
    replicates: int = 1000,
    *,
    warm_up: int = 0,
    exact: bool = True,
    target: Tensor | None = None,
    chunk: int = 250,
    generator: torch.Generator | None = None,
) -> list[GradientStatistics]:
    """Standard deviation, bias and cost of each estimator, as rows; `plotting.variance` draws them.

    Args:
        warm_up: calls before the measurement, for estimators that learn; their parameters take Adam steps meanwhile.
        exact: enumerate to find the bias; False for distributions too large for that.
        target: a gradient to find the bias from instead, such as the mean of many unbiased estimates.
        chunk: estimates that are made at once.
    """
    if exact and target is None:
        target = exact_gradient(dist, objective)[1]
    rows = []
    for name, estimator in estimators.items():
        counted = _Counted(objective)
        _warm_up(estimator, dist, objective, warm_up, generator)
        start = time.perf_counter()
        for _ in range(3):
            gradients(estimator, dist, counted, 1, generator)
        seconds = (time.perf_counter() - start) / 3
        calls = counted.calls / 3
        with _frozen(estimator):
            sizes = [min(chunk, replicates - done) for done in range(0, replicates, chunk)]
            grads = torch.cat([gradients(estimator, dist, objective, size, generator) for size in sizes]).double()
        alive = dist.racing.expand(grads.shape[1:])
        std = grads.std(0)[alive].square().mean().sqrt().item()
        bias = error = None
        if target is not None:
            bias = (grads.mean(0) - target)[alive].square().mean().sqrt().item()
            error = std / replicates**0.5
        rows.append(GradientStatistics(name, std, bias, error, calls, seconds))
    return rows


@contextmanager
def _frozen(estimator: Estimate) -> Iterator[None]:
    """What learns from its draws must not learn from these."""
    module = estimator if isinstance(estimator, torch.nn.Module) else None
    was_training = module is not None and module.training
    if module is not None:
        module.eval()
    yield
    if module is not None:
        module.train(was_training)


class _Counted:
    """An objective that counts the structures it is asked for, an item."""

    def __init__(self, objective: Objective):
        self.objective, self.calls = objective, 0

    def __call__(self, value: Tensor) -> Tensor:
        loss = self.objective(value)
        self.calls += loss.shape[0]
        return loss


def _warm_up(estimator: Estimate, dist: Structure, objective: Objective, steps: int, generator) -> None:
    parameters = list(estimator.parameters()) if isinstance(estimator, torch.nn.Module) else []
    parameters = [p for p in parameters if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, 0.01) if parameters else None
    for _ in range(steps):
        if optimiser is not None:
            optimiser.zero_grad()
        estimator(dist.at(dist.log_rates.detach().requires_grad_()), objective, generator=generator).mean().backward()
        if optimiser is not None:
            optimiser.step()
