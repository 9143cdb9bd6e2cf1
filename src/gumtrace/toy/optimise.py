"""Optimise the logits of a toy problem with one estimator, and measure the noise of its gradients."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gumtrace.diagnostics import gradients
from gumtrace.estimators import Estimator
from gumtrace.toy.problems import Problem


@dataclass(frozen=True)
class Curve:
    """One run: iterations, and the expected objective and the standard deviation of the gradient at each of them."""

    estimator: str
    seed: int
    iterations: list[int]
    objective: list[float]
    std: list[float]


def optimise(
    p: Problem,
    name: str,
    build: Callable[[], Estimator],
    *,
    iterations: int = 150,
    seed: int = 0,
    lr: float = 0.05,
    every: int = 15,
    tick: Callable[[], None] = lambda: None,
) -> Curve:
    """Adam on the logits, and on the estimator's own parameters if it has any."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = p.logits.clone().requires_grad_()
    estimator = build()
    own = [q for q in estimator.parameters() if q.requires_grad]
    optimiser = torch.optim.Adam([{"params": [logits], "lr": lr}, {"params": own, "lr": 0.01}])
    curve = Curve(name, seed, [], [], [])
    for iteration in range(iterations + 1):
        if iteration % every == 0:
            curve.iterations.append(iteration)
            curve.objective.append(expected(p, logits, generator))
            curve.std.append(spread(p, logits, estimator, generator))
        if iteration < iterations:
            optimiser.zero_grad()
            estimator(p.make(logits), p.objective, generator=generator).backward()
            optimiser.step()
        tick()
    return curve


@torch.no_grad()
def expected(p: Problem, logits: torch.Tensor, generator: torch.Generator, samples: int = 512) -> float:
    """The objective of hard structures, whatever the estimator optimises."""
    return p.objective(p.make(logits).sample((samples,), generator=generator)).mean().item()


def spread(
    p: Problem, logits: torch.Tensor, estimator: Estimator, generator: torch.Generator, replicates: int = 32
) -> float:
    """Root mean square over the entries of the standard deviation of one gradient estimate."""
    dist = p.make(logits.detach())
    estimator.eval()  # it must not learn from the measurement
    grads = gradients(estimator, dist, p.objective, replicates, generator)
    estimator.train()
    return grads.std(0)[dist.racing].square().mean().sqrt().item()
