"""How much of the losses of fresh structures surrogates explain, for training_variance.py."""

from typing import Any

import torch
from torch import Tensor
from training_models import problem

from gumtrace.estimators.surrogate import structure_entries
from gumtrace.structures.base import Structure
from gumtrace_experiments.experiment import Experiment

_CHUNK = 25  # structures of an item that are evaluated at once


@torch.no_grad()
def explained(model: Experiment, s: Any) -> dict[str, float]:
    """1 - Var(L - c) / Var(L), both within items of the validation set and summed over them: of all items, of the half
    with the narrower posteriors, and of the other; with the mean entropies of these, in nats.

    `scaled` is the same with c times its best factor: what is missing there is not the size of c.
    """
    generator = torch.Generator().manual_seed(s.seed + 3)
    given = problem(model, "valid", torch.arange(s.probed), generator)
    values, losses = drawn(given, s.fresh, generator)
    surrogate: Any = model.estimator.surrogate
    c = surrogate(values, given.context)
    nats = entropy(given.dist, s.fresh, generator)
    narrow = nats <= nats.median()
    scaled = c * (centred(c) * centred(losses)).sum() / centred(c).square().sum().clamp(min=1e-12)
    return {
        "explained": share(losses, c),
        "narrow": share(losses[:, narrow], c[:, narrow]),
        "wide": share(losses[:, ~narrow], c[:, ~narrow]),
        "scaled": share(losses, scaled),
        "narrow_nats": nats[narrow].mean().item(),
        "wide_nats": nats[~narrow].mean().item(),
    }


@torch.no_grad()
def within_items(model: Experiment, index: Tensor, s: Any) -> dict[str, float]:
    """What a sum of one number for each entry can explain at best: its weights are fitted to some structures of the
    item itself, by ridge regression, and judged by others."""
    generator = torch.Generator().manual_seed(s.seed + 4)
    given = problem(model, "valid", index, generator)
    (seen, targets), (values, losses) = (drawn(given, s.regression, generator) for _ in range(2))
    nats = entropy(given.dist, s.fresh, generator)
    return {"explained": share(losses.double(), regressed(seen, targets, values)), "nats": nats.mean().item()}


def regressed(seen: Tensor, targets: Tensor, values: Tensor) -> Tensor:
    """Predictions (count, items) for entries (count, items, entries), up to a constant for each item: by a ridge
    regression for each, on other entries and their losses."""
    columns = []
    for item in range(seen.shape[1]):
        x = centred(seen[:, item].double())
        weights = torch.linalg.solve(x.mT @ x + torch.eye(x.shape[-1]), x.mT @ centred(targets[:, item].double()))
        columns.append(values[:, item].double() @ weights)
    return torch.stack(columns, 1)


def drawn(given: Any, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Entries (count, items, entries) of structures, and their losses (count, items)."""
    value = given.dist.sample((count,), generator=generator)
    return structure_entries(given.dist, value), torch.cat([given.objective(part) for part in value.split(_CHUNK)])


def entropy(dist: Structure, count: int, generator: torch.Generator) -> Tensor:
    """Of the structures where their probability is tractable, else of traces; estimated, (items,)."""
    trace = dist.sample_trace((count,), generator=generator)
    log_prob = dist.log_prob(trace.value) if dist.has_log_prob else dist.trace_log_prob(trace)
    return -log_prob.mean(0)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def share(losses: Tensor, c: Tensor) -> float:
    """(samples, items) each."""
    return (1 - centred(losses - c).square().sum() / centred(losses).square().sum()).item()
