"""Gradient estimators against the exact gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.diagnostics.enumeration import enumerate_losses
from gumtrace.diagnostics.p_values import smallest, two_sided
from gumtrace.estimators.base import Objective, checked_count
from gumtrace.structures.joint import as_structure

Estimate = Callable[..., Tensor]  # an estimator, or anything called like one


@dataclass(frozen=True)
class BiasReport:
    """z is the deviation of the mean estimate from the exact gradient in standard errors, (*batch, *keys).

    p_value: of the largest |z|, corrected for the number of entries: below 1e-6 the estimator is biased. 0 if an
    estimate is not finite.
    """

    replicates: int
    exact: Tensor
    mean: Tensor
    std: Tensor  # of one estimate
    z: Tensor
    p_value: float


def exact_gradient(dist: Distribution, objective: Objective, *, on: str = "value") -> tuple[Tensor, Tensor]:
    """The expected objective (*batch,) and its gradient with respect to the log-rates (*batch, *keys), by enumeration.

    The objective gets the values of all traces at once, shape traces + batch + event; with `on="trace"` the traces.

    >>> import gumtrace as gt
    >>> value, grad = exact_gradient(gt.Subset(torch.zeros(3), 1), lambda x: x[..., 0])
    >>> round(value.item(), 4), [round(g, 4) for g in grad.tolist()]
    (0.3333, [0.2222, -0.1111, -0.1111])
    """
    dist = as_structure("exact_gradient", dist)
    x = dist.log_rates.detach().double().requires_grad_()
    items = enumerate_losses("exact_gradient", dist.with_log_rates(x), objective, on)
    totals = [(item.trace_log_prob(trace).exp() * loss).sum() for item, trace, loss in items]
    (grad,) = torch.autograd.grad(torch.stack(totals).sum(), x)
    return torch.stack(totals).detach().reshape(dist.batch_shape), grad


def gradients(
    estimator: Estimate,
    dist: Distribution,
    objective: Objective,
    replicates: int,
    generator: torch.Generator | None = None,
    context: Tensor | None = None,
    *,
    on: str = "value",
) -> Tensor:
    """Independent estimates of the gradient to the log-rates, (replicates, *batch, *keys), all in one call.

    Replicates are one more dimension of the batch: the objective gets values of shape samples + (replicates, *batch) +
    event, and critics a context (replicates, *batch, c).
    """
    dist = as_structure("gradients", dist)
    x = dist.log_rates.detach().expand(replicates, *dist.log_rates.shape).clone().requires_grad_()
    if context is not None:
        context = context.expand(replicates, *context.shape)
    loss = estimator(dist.with_log_rates(x), objective, generator=generator, **options(context, on))
    (grad,) = torch.autograd.grad(loss.sum(), x)
    return grad


def check_unbiased(
    estimator: Estimate,
    dist: Distribution,
    objective: Objective,
    replicates: int = 20_000,
    *,
    context: Tensor | None = None,
    on: str = "value",
    chunk: int = 5_000,
    learn: bool = False,
    generator: torch.Generator | None = None,
) -> BiasReport:
    """Compares the mean of many estimates with the exact gradient. Works on batches, masked and ragged ones too.

    Args:
        objective: gets values of shape samples + (replicates, *batch) + event from the estimator, and traces + batch +
            event for the exact gradient: what belongs to an item must broadcast from the right.
        replicates: how many estimates, 2 or more.
        context: features (*batch, c), for estimators that use them.
        on: "trace" hands the objective traces in place of values.
        chunk: estimates that are made at once.
        learn: let an estimator in training mode learn from these draws; otherwise it stays as it is.

    >>> import gumtrace as gt
    >>> d = gt.Subset(torch.tensor([0.0, 1.0, 2.0]), 2)
    >>> report = check_unbiased(gt.estimators.TraceREINFORCE(samples=2), d, lambda x: x[..., 0], 2000)
    >>> report.p_value > 1e-6
    True
    """
    checked_count("check_unbiased", "replicates", replicates, least=2)
    checked_count("check_unbiased", "chunk", chunk)
    _, exact = exact_gradient(dist, objective, on=on)
    count, mean, square = 0, torch.zeros_like(exact), torch.zeros_like(exact)
    with nullcontext() if learn else frozen(estimator):
        while count < replicates:
            size = min(chunk, replicates - count)
            grads = gradients(estimator, dist, objective, size, generator, context, on=on).double()
            count += len(grads)
            mean += (grads - exact).sum(0)
            square += (grads - exact).square().sum(0)
    mean = mean / count  # less the exact gradient: no digits are lost
    variance = (square / count - mean.square()).clamp(min=0) * count / (count - 1)
    error = (variance / count).sqrt()
    settled = error <= 1e-9 * (1 + exact.abs())  # no noise at all: right or wrong beyond doubt
    z = torch.where(settled, torch.where(mean.abs() > 1e-6, torch.inf, 0.0), mean / error.clamp(min=1e-300))
    p_value = smallest(two_sided(z), max(int((~settled).sum()), 1))
    return BiasReport(count, exact, mean + exact, variance.sqrt(), z, p_value)


@contextmanager
def frozen(estimator: Estimate) -> Iterator[None]:
    """What learns from its draws must not learn from these."""
    if not isinstance(estimator, torch.nn.Module):
        yield
        return
    modes = {module: module.training for module in estimator.modules()}
    estimator.eval()
    try:
        yield
    finally:
        estimator.train(modes[estimator])
        for module, mode in modes.items():  # a part may have been in another mode than the whole
            module.training = mode


def options(context: Tensor | None, on: str) -> dict[str, Any]:
    """As arguments, for estimators that know of neither."""
    return ({} if context is None else {"context": context}) | ({} if on == "value" else {"on": on})
