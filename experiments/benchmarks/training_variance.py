"""How noisy the gradients of every estimator are in real training:
python experiments/benchmarks/training_variance.py

Trains a small model of graph layout (teacher-forced) and one of ListOps (short expressions first) with T-REINFORCE+ on
one core. At the beginning, half-way and at the end all but the estimator is frozen, and every estimator that takes the
structure is measured on the same items of the validation set, at equal numbers of objective calls. Those that learn do
so before, on batches of the training set. A second model of graph layout is trained with its surrogate, which is
measured as it is then. Writes experiments/benchmarks/results/training-variance.json; weights go to --folder. What is
there is not repeated, so the command can be interrupted and given again. A quarter of an hour on one idle core.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from kset_contest import Found  # beside this file
from torch import Tensor
from training_models import MLP, POINTS, TRAINED, Problem, built, configuration, freeze, problem, train
from training_surrogates import explained, within_items

from gumtrace.benchmark import machine
from gumtrace.diagnostics import gradients
from gumtrace.estimators import ESTIMATORS, TraceREINFORCE
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.update import Updater
from gumtrace_experiments.loop.workers import Workers

RESULTS = Path(__file__).parent / "results" / "training-variance.json"
PLAIN = "TraceREINFORCE"
MEASURED = {"graph layout": (64, 20), "ListOps": (16, 40)}
PARTS = ("training", "updates", "gradients", "explained", "within")


@dataclass(frozen=True)
class Settings:
    """What a recording depends on, apart from the models and the machine."""

    items: int = 16  # of a batch
    calls: int = 8  # of the objective, for an item and estimate
    fit: int = 150  # batches, for estimators that learn
    # Of the validation set, items and estimates of their gradients; narrow posteriors need many items, as a few of them
    # have most of the variance, and relaxed arborescences are slow.
    measured: dict[str, tuple[int, int]] = field(default_factory=lambda: dict(MEASURED))
    samples: int = 64  # of as many estimates of T-REINFORCE+, whose mean stands for the true gradient
    fresh: int = 100  # structures of an item that surrogates are judged by
    probed: int = 64  # items, for that
    regression: int = 1000  # structures of an item, for regressions within it
    timed: int = 9  # updates
    seed: int = 0


SMOKE = Settings(
    items=2,
    calls=4,
    fit=2,
    measured={"graph layout": (2, 4), "ListOps": (2, 4)},
    samples=4,
    fresh=6,
    probed=4,
    regression=20,
    timed=2,
)


def rivals(dist: Any, own: str) -> list[str]:
    """Estimators that take the structure and any objective, in the order of tables; `MLP` behind another surrogate."""
    names = [name for name, cls in ESTIMATORS.items() if cls.supports(dist) and not cls.for_terms]
    place = names.index("SurrogateREINFORCE") + 1
    return names[:place] + [MLP] * (own == "graph-layout") + names[place:]


def fit(model: Experiment, batches: int, items: int, generator: torch.Generator) -> None:
    """What the estimator learns of other items, with the model frozen."""
    own = [p for p in model.estimator.parameters() if p.requires_grad]
    if not own and not list(model.estimator.buffers()):
        return
    optimiser = torch.optim.Adam(own, model.config.estimator_lr) if own else None
    model.estimator.train()
    for _ in range(batches):
        index = torch.randint(model.items, (items,), generator=generator)
        given = problem(model, "train", index, generator)
        dist = given.dist.with_log_rates(given.dist.log_rates.detach().requires_grad_())
        loss = model.estimator(dist, given.objective, given.context, generator=generator)
        if optimiser is not None:
            optimiser.zero_grad()
            loss.mean().backward()
            optimiser.step()
    model.estimator.eval()


def spread(grads: Tensor, alive: Tensor) -> dict[str, float]:
    """Root mean square, over items and keys that race, of the standard deviation over estimates; and its error."""
    squares = (grads - grads.mean(0)).square().flatten(1)[:, alive.flatten()].mean(-1)
    squares = squares * (len(grads) / (len(grads) - 1))  # (replicates,)
    std = squares.mean().sqrt()
    error = squares.std() / (2 * std * math.sqrt(len(grads)))
    return {"std": std.item(), "std_error": error.item()}


def estimates(estimator: Any, given: Problem, replicates: int, generator: torch.Generator) -> Tensor:
    """(replicates, items, *keys), one by one: relaxed structures of many would fill gigabytes."""
    context = None if given.context is None else given.context.detach()
    parts = [gradients(estimator, given.dist, given.objective, 1, generator, context) for _ in range(replicates)]
    return torch.cat(parts).double()


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def true_gradient(model: Experiment, index: Tensor, replicates: int, s: Settings) -> tuple[Tensor, float]:
    """The mean of long estimates of T-REINFORCE+, and its error."""
    generator = torch.Generator().manual_seed(s.seed + 1)
    given = problem(model, "valid", index, generator)
    grads = estimates(TraceREINFORCE(samples=s.samples), given, replicates, generator)
    alive = given.dist.racing.expand(grads.shape[1:])
    return grads.mean(0), spread(grads, alive)["std"] / math.sqrt(replicates)


def measured(
    model: Experiment, index: Tensor, replicates: int, truth: tuple[Tensor, float], s: Settings
) -> dict[str, float]:
    """Standard deviation and bias of one estimator on these items of the validation set."""
    generator = torch.Generator().manual_seed(s.seed)
    given = problem(model, "valid", index, generator)
    grads = estimates(model.estimator, given, replicates, generator)
    alive = given.dist.racing.expand(grads.shape[1:])
    target, error = truth
    found = spread(grads, alive)
    bias, chance = rms((grads.mean(0) - target)[alive]), math.hypot(found["std"] / math.sqrt(replicates), error)
    return {**found, "bias": bias, "chance": chance, "gradient": rms(target[alive]), "replicates": replicates}


def clocked(model: Experiment, updates: int) -> float:
    """Milliseconds of the processor for a whole update in training, the median of some."""
    updater, times = Updater(model, Workers(torch.device("cpu"))), []
    for iteration in range(2 + updates):
        start = time.process_time()
        updater.update(iteration)
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times[2:])


class Recording:
    """All of one trained model."""

    def __init__(self, name: str, found: Found, folder: Path, s: Settings, smoke: bool):
        self.name, self.found, self.s = name, found, s
        self.kind, self.config = configuration(name, smoke)
        self.data = self.kind.load_data(self.config, folder, torch.device("cpu"))
        self.points = train(name, self.kind, self.config, self.data, folder)
        items, self.replicates = s.measured[name.partition(",")[0]]
        self.index = torch.arange(items)
        self.own = self.config.estimator != PLAIN  # trained with the estimator that is measured

    def run(self) -> None:
        for point, iteration in zip(POINTS, (0, self.config.iterations // 2, self.config.iterations), strict=True):
            about = {"model": self.name, "point": point}
            metrics = self.points[point]["metrics"]
            self.add("training", about, lambda i=iteration, m=metrics: {"iteration": i, **m})
            self._gradients(about)
        if not self.own:
            for name in self.rivals:
                about = {"model": self.name, "estimator": name}
                self.add("updates", about, lambda n=name: {"ms": clocked(self.model("half-way", n), self.s.timed)})

    @property
    def rivals(self) -> list[str]:
        if self.own:
            return [PLAIN, self.config.estimator]
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            given = problem(freeze(self.model("beginning", PLAIN)), "valid", self.index, generator)
        return rivals(given.dist, self.kind.name)

    def model(self, point: str, name: str) -> Experiment:
        weights = self.points[point]["model"]
        model = built(self.kind, self.config, self.data, weights, name, self.s.items, self.s.calls)
        if self.own and name == self.config.estimator:
            model.load_state_dict(weights)  # as it is after so much training
        return model

    def _gradients(self, about: dict[str, Any]) -> None:
        truth: list[tuple[Tensor, float]] = []
        for name in self.rivals:
            ready = list(self._fitted(about, name, truth))
            if name in ("SurrogateREINFORCE", MLP):
                self.add("explained", {**about, "estimator": name}, lambda r=ready: explained(r[0], self.s))
        if not self.own:
            plain = freeze(self.model(about["point"], PLAIN))
            self.add("within", about, lambda: within_items(plain, self.index[: self.s.items], self.s))

    def _fitted(self, about: dict[str, Any], name: str, truth: list) -> Iterator[Experiment]:
        """The frozen model whose estimator has learnt, after it was measured; nothing if all is known."""
        parts = ["gradients", *["explained"] * (name in ("SurrogateREINFORCE", MLP))]
        about = {**about, "estimator": name}
        if all(any(about.items() <= r.items() for r in self.found.content[part]) for part in parts):
            return
        torch.manual_seed(self.s.seed)
        model = freeze(self.model(about["point"], name))
        if not self.own:
            fit(model, self.s.fit, self.s.items, torch.Generator().manual_seed(self.s.seed + 2))
        truth.extend([] if truth else [true_gradient(model, self.index, self.replicates, self.s)])
        calls = model.config.calls_per_item
        found = lambda: measured(model, self.index, self.replicates, truth[0], self.s)  # noqa: E731
        self.add("gradients", about, lambda: {"calls": calls, **found()})
        yield model

    def add(self, part: str, about: dict[str, Any], measure) -> None:
        before = time.process_time()
        self.found.add(part, about, measure)
        print(part, *about.values(), f"{time.process_time() - before:.1f} s", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--folder", type=Path, default=Path("runs/training-variance"), help="data and weights")
    arguments.add_argument("--models", nargs="*", choices=TRAINED, default=list(TRAINED))
    arguments.add_argument("--smoke", action="store_true", help="tiny sizes, a few seconds; give another --out")
    arguments.add_argument("--out", type=Path, default=RESULTS)
    given = arguments.parse_args()
    if given.smoke and given.out == RESULTS:
        arguments.error(f"--smoke would go to {RESULTS}: give --out FILE")
    torch.set_num_threads(1)
    s = SMOKE if given.smoke else Settings()
    if not given.out.exists():
        body = {"machine": machine(), "settings": asdict(s), **{part: [] for part in PARTS}}
        body["models"] = {name: configuration(name, given.smoke)[1].to_dict() for name in TRAINED}
        given.out.write_text(json.dumps(body, indent=1) + "\n")
    for name in given.models:
        Recording(name, Found(given.out), given.folder, s, given.smoke).run()


if __name__ == "__main__":
    main()
