"""Bias and standard deviation of estimators' gradients at one trained model of a k-subset task.

Nothing can be enumerated: C(784, 50) subsets. The loss of neighbours is linear in the subset, so its gradient is exact,
by the chances of each key. For the others the truth is the mean of many estimates of T-REINFORCE+, which is unbiased;
its own standard error is part of what chance alone would give.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gumtrace.diagnostics import gradient_statistics
from gumtrace.estimators import ESTIMATORS, TraceREINFORCE
from gumtrace_experiments.config import Config
from gumtrace_experiments.kset.neighbours import Neighbours
from gumtrace_experiments.kset.task import Problem, Task

ITEMS = 8  # images
CALLS = 12  # of the objective for an image and estimate: as many samples as that allows
LONG, SAMPLES = 2, 64  # of the long average: for each replicate so many estimates, and structures in each of these
WARM_UP = 200  # calls before, for estimators that learn
_CHUNK = 400  # values of the structure an item in memory


def gradients_at(
    model: Task,
    configs: Mapping[str, Config],
    *,
    items: int = ITEMS,
    replicates: int = 500,
) -> dict[str, Any]:
    """`size`: the root mean square of the true gradient to a logit. Of each estimator, with the settings of its config
    and at equal calls: std, bias, and what chance alone would give for the bias."""
    model.eval()
    device = model.data.train.labels.device
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        problem = model.problem(torch.arange(items, device=device), generator)
    target, error = _target(model, problem, LONG * replicates, generator)
    rows = []
    for name, config in configs.items():
        samples = max(1, CALLS // ESTIMATORS[name].calls_per_sample)
        config = config.replace(samples=samples)
        estimator = type(model).build(config, model.data, device).estimator
        (found,) = gradient_statistics(
            {name: estimator},
            problem.dist,
            problem.objective,
            replicates,
            context=problem.context,
            warm_up=WARM_UP if list(estimator.parameters()) or list(estimator.buffers()) else 0,
            target=target,
            chunk=max(1, _CHUNK // config.calls_per_item),
            generator=generator,
        )
        chance = math.hypot(found.bias_error or 0.0, error)
        rows.append({"estimator": name, "samples": config.k, "calls": found.calls, "std": found.std})
        rows[-1] |= {"bias": found.bias, "chance": chance, "temperature": config.temperature}
    size = target.square().mean().sqrt().item()
    return {"size": size, "target_error": error, "replicates": replicates, "rows": rows}


def _target(model: Task, problem: Problem, long: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """The true gradient, or a long average, and its standard error."""
    if isinstance(model, Neighbours):
        return linear_gradient(problem), 0.0
    (found,) = gradient_statistics(
        {"long": TraceREINFORCE(samples=SAMPLES)},
        problem.dist,
        problem.objective,
        long,
        exact=False,
        chunk=max(1, _CHUNK // SAMPLES),
        generator=generator,
    )
    assert found.mean is not None
    return found.mean, found.std / math.sqrt(long)


def linear_gradient(problem: Problem) -> Tensor:
    """(B, keys), of an objective that is linear in the subset: the mean subset has the mean loss."""
    dist: Any = problem.dist
    x = dist.log_rates.detach().double().requires_grad_()
    problem.objective(dist.with_log_rates(x).mean).sum().backward()
    assert x.grad is not None
    return x.grad
