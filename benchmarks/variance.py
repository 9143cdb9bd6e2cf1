"""Standard deviation of the gradient at equal numbers of objective calls: python benchmarks/variance.py

Every estimator that applies, on four structures with two objectives each, at fixed logits. Estimators that learn are
trained first, at the same number of calls per iteration, and do not learn while they are measured. Writes
benchmarks/results/variance.json. Under ten minutes on one core. `--figure FILE` draws a recorded run instead.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from math import hypot, nan, sqrt
from pathlib import Path

import torch
from torch import Tensor, nn

from gumtrace import estimators as E
from gumtrace.benchmark import machine
from gumtrace.diagnostics import GradientStatistics, gradient_statistics, gradients
from gumtrace.extras import require
from gumtrace.toy import SIZES, Problem, problem

RESULTS = Path(__file__).parent / "results" / "variance.json"
STRUCTURES = ("spanning-tree", "arborescence", "subset", "matching")
OBJECTIVES = {
    "smooth": "log(1 + q), of a random quadratic q = mean (A x - b)² of the entries x: no surrogate contains it",
    "rough": "1 if q is above its median at the start, else 0",
}
PLAIN = E.TraceREINFORCE.label  # what the others are compared with
CHUNK = 5000  # estimates of the reference that are made at once


@dataclass(frozen=True)
class Settings:
    """What a run depends on, apart from the machine."""

    calls: int = 8  # of the objective, an estimate
    warm_up: int = 500  # iterations of as many calls, for estimators that learn
    replicates: int = 1000  # estimates to take the standard deviation over
    reference: int = 100_000  # estimates of T-REINFORCE+ whose mean stands for the exact gradient
    extra: int = 512  # structures without a call, for surrogates
    draws: int = 4  # of the noise given the trace, for Gumbel-Rao
    temperature: float = 0.5  # of relaxations; REBAR's initial one
    step: float = 1.0  # of I-MLE; the initial one if it adapts
    seed: int = 0


@dataclass(frozen=True)
class Record:
    """One cell of the table. std, bias and gradient are root mean squares over the keys that race."""

    structure: str
    size: int
    objective: str
    estimator: str
    std: float
    ratio: float  # of the std, at equal numbers of calls, to that of T-REINFORCE+
    bias: float  # from the reference
    bias_error: float  # what chance alone would give
    gradient: float  # the size of the gradient itself
    calls: float


class KeyCritic(nn.Module):
    """A perceptron on all keys: unlike `MatrixCritic` it tells nodes apart, as these objectives do."""

    def __init__(self, key_shape: torch.Size):
        super().__init__()
        self.key_dim, self.net = len(key_shape), E.VectorCritic(key_shape.numel())

    def forward(self, noise: Tensor, context: Tensor | None = None) -> Tensor:
        return self.net(noise.flatten(-self.key_dim), context)


def objectives(p: Problem) -> dict[str, Callable[[Tensor], Tensor]]:
    """Both objectives of a problem whose own is the quadratic q."""
    start = p.dist.sample((20_000,), generator=torch.Generator().manual_seed(0))
    median = p.objective(start).median()
    return {
        "smooth": lambda x: p.objective(x).log1p(),
        "rough": lambda x: (p.objective(x) > median).to(x.dtype),
    }


def applicable(p: Problem, objective: str, s: Settings) -> dict[str, Callable[[], E.Estimator]]:
    """Estimators by label, each for about `calls` objective calls per estimate."""
    differentiable = objective == "smooth"
    fitting = [
        cls for cls in E.ESTIMATORS.values() if cls.supports(p.dist) and (differentiable or not cls.differentiates)
    ]
    modules = {"critic": lambda: KeyCritic(p.dist.key_shape)}
    return {label: build for cls in fitting for label, build in variants(cls, s, int(p.dist.racing.sum()), modules)}


def variants(
    cls: type[E.Estimator], s: Settings, entries: int, modules: dict[str, Callable[[], nn.Module]]
) -> Iterator[tuple[str, Callable[[], E.Estimator]]]:
    """The rows of an estimator: one, or one for each surrogate or kind of step that it can have."""
    samples = round(s.calls / cls.calls_per_sample)
    settings = {**asdict(s), "samples": samples, "leave_one_out": samples > 1}
    if "adaptive" in cls.settings():
        for name, adaptive in (("fixed", False), ("adaptive", True)):
            yield f"{cls.label}, {name}", partial(cls.from_settings, {**settings, "adaptive": adaptive})
        return
    if "surrogate" not in cls.settings():
        yield cls.label, partial(cls.from_settings, settings, **modules)
        return
    surrogates: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: E.LinearSurrogate(forget=1.0),
        "pairwise": lambda: E.PairwiseSurrogate(forget=1.0),
        "MLP": lambda: E.MLPSurrogate(entries),
    }
    for name, surrogate in surrogates.items():
        yield f"{cls.label}, {name}", partial(cls.from_settings, settings, **modules, surrogate=surrogate)


def described(label: str) -> type[E.Estimator]:
    """The estimator of a row."""
    return next(cls for cls in E.ESTIMATORS.values() if cls.label == label.partition(", ")[0])


def rows_of(records: list[dict], cls: type[E.Estimator]) -> list[str]:
    """The labels that an estimator has in a recorded run."""
    return [label for label in dict.fromkeys(r["estimator"] for r in records) if described(label) is cls]


def measure(p: Problem, objective: str, s: Settings) -> Iterator[Record]:
    """A record of each estimator, in turn."""
    f = objectives(p)[objective]
    generator = torch.Generator().manual_seed(s.seed)
    reference, error = long_mean(p, f, s, generator)
    gradient = rms(reference[p.dist.racing])
    plain = 0.0
    for name, build in sorted(applicable(p, objective, s).items(), key=lambda item: item[0] != PLAIN):
        torch.manual_seed(s.seed)  # of the initial weights of critics and perceptrons
        estimator = build()
        learns = bool(estimator.state_dict())
        (row,) = gradient_statistics(
            {name: estimator},
            p.dist,
            f,
            s.replicates,
            warm_up=s.warm_up if learns else 0,
            target=reference,
            generator=generator,
        )
        if name == PLAIN:
            plain = row.std
        yield Record(
            structure=p.name,
            size=p.logits.shape[-1],
            objective=objective,
            estimator=name,
            std=row.std,
            ratio=row.std / plain * sqrt(row.calls / s.calls),
            bias=row.bias or 0.0,
            bias_error=hypot(row.bias_error or 0.0, error),
            gradient=gradient,
            calls=row.calls,
        )


def long_mean(p: Problem, f, s: Settings, generator: torch.Generator) -> tuple[Tensor, float]:
    """The mean of many T-REINFORCE+ estimates, and its error."""
    estimator = E.TraceREINFORCE(samples=s.calls)
    total, square, count = torch.zeros(()), torch.zeros(()), 0
    while count < s.reference:
        grads = gradients(estimator, p.dist, f, min(CHUNK, s.reference - count), generator).double()
        total, square, count = total + grads.sum(0), square + grads.square().sum(0), count + len(grads)
    mean = total / count
    variance = square / count - mean.square()
    return mean, rms((variance[p.dist.racing] / count).sqrt())


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def run(s: Settings) -> list[Record]:
    problems = [(problem(name, seed=s.seed), objective) for name in STRUCTURES for objective in OBJECTIVES]
    records: list[Record] = []
    total = sum(len(applicable(p, objective, s)) for p, objective in problems)
    with require("tqdm", "cli").tqdm(total=total, unit="estimator") as bar:
        for p, objective in problems:
            bar.set_postfix_str(f"{p.name}, {objective}")
            for record in measure(p, objective, s):
                records.append(record)
                bar.update()
    return records


def figure(records: list[Record], path: Path) -> None:
    """Ratios as bars: a row of panels for each objective, a column for each structure."""
    from gumtrace.plotting.curves import variance

    canvas = require("matplotlib.figure", "plot").Figure(figsize=(17, 7), layout="constrained")
    for axes, objective in zip(canvas.subplots(len(OBJECTIVES), len(STRUCTURES)), OBJECTIVES, strict=True):
        for ax, structure in zip(axes, STRUCTURES, strict=True):
            rows = [r for r in records if (r.structure, r.objective) == (structure, objective)]
            bars = [GradientStatistics(r.estimator, r.ratio, None, None, r.calls, nan) for r in rows]
            variance(bars, ax, f"{structure} {SIZES[structure]}, {objective}")
            ax.set_xlabel(f"standard deviation, {PLAIN} = 1")
    canvas.savefig(path, dpi=120)


def save(records: list[Record], s: Settings) -> None:
    body = {"machine": machine(), "settings": asdict(s), "objectives": OBJECTIVES}
    RESULTS.write_text(json.dumps({**body, "records": [asdict(r) for r in records]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the noise of every gradient estimator.")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the recorded run; measure nothing")
    args = parser.parse_args()
    if args.figure:
        figure([Record(**r) for r in json.loads(RESULTS.read_text())["records"]], args.figure)
        return
    torch.set_num_threads(1)  # one item at a time: threads would only wait for each other
    settings = Settings()
    save(run(settings), settings)


if __name__ == "__main__":
    main()
