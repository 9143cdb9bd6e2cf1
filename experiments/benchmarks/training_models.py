"""Small models in real training, for training_variance.py: what is trained, and its weights at three points."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumtrace.estimators import MLPSurrogate, SurrogateREINFORCE
from gumtrace.estimators.base import Objective
from gumtrace.extras import require
from gumtrace.structures.base import Structure
from gumtrace_experiments import find
from gumtrace_experiments.config import Config
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.graph_layout.experiment import GraphLayout
from gumtrace_experiments.listops.data import Split
from gumtrace_experiments.listops.experiment import ListOpsExperiment, cross_entropy
from gumtrace_experiments.loop.evaluation import evaluate_split
from gumtrace_experiments.loop.update import Updater
from gumtrace_experiments.loop.workers import Workers

CPU = torch.device("cpu")
POINTS = ("beginning", "half-way", "end")
MLP = "MLP"  # in the place of graph layout's own surrogate
SETTINGS: dict[str, dict[str, Any]] = {  # of estimators, where they are not the defaults
    "IMLE": {"adaptive": True},
    "REBAR": {"learn_temperature": False},  # which would take second derivatives of the objective
}
# Graph layout has seed 4: as in full size, some starts end in the poor optimum, in which the encoder avoids true edges.
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "graph layout": (
        "graph-layout",
        {"hidden": 64, "calls": 128, "samples": 8, "lr": 1e-3, "iterations": 2000, "train_size": 20_000, "seed": 4},
    ),
    "ListOps": (
        "listops",
        {
            **{"samples": 4, "lr": 3e-3, "iterations": 4000, "train_size": 20_000, "curriculum": "12:100"},
            **{"longest": 30, "depth": 3, "rounds": 3},
        },
    ),
}
TRAINED["graph layout, with the surrogate"] = (
    "graph-layout",
    {**TRAINED["graph layout"][1], "estimator": "SurrogateREINFORCE"},
)


class Problem(NamedTuple):
    """What an estimator gets for some items."""

    dist: Structure
    objective: Objective
    context: Tensor | None


def configuration(name: str, smoke: bool) -> tuple[type[Experiment], Config]:
    experiment, settings = TRAINED[name]
    kind: Any = find(experiment)
    config = kind.config_type(schedule="cosine", test_size=1000, temperature=0.5, **settings)
    if smoke:
        config = kind.smoke(config).replace(iterations=4, test_size=20, curriculum="", hidden=8)
    return kind, config


def train(name: str, kind: type[Experiment], config: Config, data: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """The weights at each point with the metrics on validation, kept in the folder: what is there is not repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = {point: config.iterations * i // (len(POINTS) - 1) for i, point in enumerate(POINTS)}
    files = {point: folder / f"{name.replace(', ', '-').replace(' ', '-')}-{end}.pt" for point, end in ends.items()}
    model = kind.build(config, data, CPU)
    updater, done = Updater(model, Workers(CPU)), 0
    with require("tqdm", "cli").tqdm(total=config.iterations, desc=name, unit="it", disable=None) as bar:
        for point, end in ends.items():
            if files[point].exists():
                state = torch.load(files[point], weights_only=True)
                updater.load_model(state["model"])
                updater.load_moments(state["optimiser"])
            else:
                for iteration in range(done, end):
                    updater.update(iteration)
                    bar.update()
                metrics = evaluate_split(model, "valid", CPU)
                state = {"model": model.state_dict(), "optimiser": updater.optimiser.state_dict(), "metrics": metrics}
                torch.save(state, files[point])
            done = end
            bar.update(end - bar.n)
    return {point: torch.load(file, weights_only=True) for point, file in files.items()}


def built(
    kind: type[Experiment], config: Config, data: Any, weights: dict[str, Tensor], name: str, items: int, calls: int
) -> Experiment:
    """The model with another estimator, at about `calls` calls of the objective an item.

    Args:
        name: of the estimator, or `MLP`.
        weights: of all but the estimator.
    """
    estimator = "SurrogateREINFORCE" if name == MLP else name
    config = config.replace(estimator=estimator, **SETTINGS.get(estimator, {}))
    samples = max(1, round(calls / config.estimator_type.calls_per_sample))
    config = config.replace(samples=samples, calls=items * samples * config.estimator_type.calls_per_sample)
    model: Any = kind.build(config, data, CPU)
    if name == MLP:
        n = config.nodes  # type: ignore[attr-defined]
        size, context = n * (n - 1) // 2, model.context(data.train.positions[:1]).shape[-1]
        surrogate = MLPSurrogate(size, hidden=config.critic_hidden, context=context)  # type: ignore[attr-defined]
        model.estimator = SurrogateREINFORCE(samples=samples, extra=config.extra, surrogate=surrogate)
    others = {key: value for key, value in weights.items() if not key.startswith("estimator.")}
    model.load_state_dict({**model.state_dict(), **others})
    return model


def freeze(model: Experiment) -> Experiment:
    """All but the estimator, in evaluation mode."""
    model.eval()
    own = {id(p) for p in model.estimator.parameters()}
    for p in model.parameters():
        if id(p) not in own:
            p.requires_grad_(False)
    return model


def problem(model: Experiment, split: str, index: Tensor, generator: torch.Generator) -> Problem:
    """Some items of a split. The context keeps its graph, from which a critic learns."""
    data = getattr(model.data, split)
    if isinstance(model, GraphLayout):
        positions = data.positions[index]
        with torch.no_grad():
            dist = model.posterior(positions)
        return Problem(dist, partial(model.reconstruction, positions), model.context(positions))
    assert isinstance(model, ListOpsExperiment)
    batch = Split(*(x[index].long() for x in data))
    with torch.no_grad():
        dist = model.posterior(batch)

    def objective(structure: Tensor) -> Tensor:
        return cross_entropy(model.answer(batch, structure), batch.answers)

    return Problem(dist, objective, model.context(batch, generator))
