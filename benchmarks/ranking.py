"""Learning to rank for DCG@10 of 100 items: python benchmarks/ranking.py [--mnist FOLDER]

What credit per decision brings, in three parts: the standard deviation of the gradient relative to T-REINFORCE+ at as
many samples, the time of a step relative to it, and NDCG@10 of test lists over seconds of training, beside ListMLE.
Seconds are CPU seconds of one core, without the evaluations. Learning rates are chosen for each loss by the NDCG of
validation lists. Writes benchmarks/results/ranking.json; without the folder of mnist.npz, its part stays as it was
recorded.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.benchmark import machine
from gumtrace.diagnostics import gradients

RESULTS = Path(__file__).parent / "results" / "ranking.json"
ITEMS, TOP = 100, 10
DISCOUNT = 1 / torch.arange(2.0, TOP + 2).log2()
SCORES = {  # grades; how much scores know of standardised gains, and how much of them is normal noise
    "grades 0 to 4, equal scores": (4, 0.0, 0.0),
    "grades 0 to 4, random scores": (4, 0.0, 1.0),
    "grades 0 to 4, scores that know some": (4, 1.0, 1.0),
    "grades 0 to 4, scores that know much": (4, 2.0, 1.0),
    "8 relevant items, random scores": (1, 0.0, 1.0),
    "8 relevant items, nearly all of them found": (1, 3.0, 1.0),
}


@dataclass(frozen=True)
class Settings:
    """What a run depends on, apart from the machine."""

    samples: int = 8  # for noise and cost
    replicates: int = 2000  # estimates to take the standard deviation over
    cost_lists: int = 256
    cost_rounds: int = 60
    lists: int = 8  # a step of training
    rates: tuple[float, ...] = (0.003, 0.01, 0.05)
    seeds: int = 3
    checkpoints: int = 12


# Noise and cost ------------------------------------------------------------------------------------


def noise(s: Settings) -> list[dict]:
    """One list; of each kind of grades and scores, both ratios."""
    records = []
    for name, (highest, known, random) in SCORES.items():
        generator = torch.Generator().manual_seed(0)
        grades = torch.randint(0, 5, (ITEMS,), generator=generator) if highest > 1 else torch.arange(ITEMS) < 8
        gain = 2.0 ** grades.double() - 1
        scores = known * (gain - gain.mean()) / gain.std() + random * torch.randn(ITEMS, generator=generator).double()
        dcg = E.DecisionGains(-gain, DISCOUNT)
        terms = E.DecisionTerms(lambda trace, dcg=dcg: dcg.split(trace)[0])  # without the gains of the others that race
        plain, to_go, exact = (
            gradients(cls(samples=s.samples), gt.Subset(scores, TOP), f, s.replicates, generator, on="trace")
            .var(0)
            .sum()
            .sqrt()
            .item()
            for cls, f in ((E.TraceREINFORCE, dcg), (E.DecisionREINFORCE, terms), (E.DecisionREINFORCE, dcg))
        )
        records.append({"list": name, "plain": plain, "to_go": to_go / plain, "exact": exact / plain})
    return records


def cost(s: Settings) -> dict:
    """Milliseconds of a whole step, the two estimators in turn."""
    scores = torch.randn(s.cost_lists, ITEMS, requires_grad=True)
    dcg = E.DecisionGains(-torch.rand(s.cost_lists, ITEMS), DISCOUNT)
    spent: dict[str, list[float]] = {"trace": [], "decision": []}
    estimators = {"trace": E.TraceREINFORCE(samples=s.samples), "decision": E.DecisionREINFORCE(samples=s.samples)}
    for _ in range(s.cost_rounds):
        for name, estimator in estimators.items():
            start = time.process_time()
            estimator(gt.Subset(scores, TOP), dcg, on="trace").mean().backward()
            spent[name].append(1e3 * (time.process_time() - start))
    ratio = median(d / t for d, t in zip(spent["decision"], spent["trace"], strict=True))
    return {"trace_ms": median(spent["trace"]), "decision_ms": median(spent["decision"]), "ratio": ratio}


# Training ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Lists of items with grades; `lists(split, rows)` gives features (lists, 100, f) and grades (lists, 100)."""

    name: str
    lists: Callable[[str, int, torch.Generator], tuple[Tensor, Tensor]]
    scorer: Callable[[], nn.Module]
    seconds: float
    samples: int


def rare_documents(split: str, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Feature 0 tells the order of ordinary documents, grades 0 to 2; feature 1 the few outstanding ones, 3 and 4,
    which are poor by feature 0. Eighteen features say nothing, and grades are noisy."""
    x = torch.randn(count, ITEMS, 20, generator=generator)
    rare = x[..., 1] > 1.2
    x[..., 0] -= rare.float()
    ordinary = torch.bucketize(
        x[..., 0] + 0.5 * torch.randn(count, ITEMS, generator=generator), torch.tensor([-0.5, 0.5])
    )
    best = torch.randint(3, 5, (count, ITEMS), generator=generator)
    noticed = torch.rand(count, ITEMS, generator=generator) < 0.8
    return x, torch.where(rare & noticed, best, ordinary)


def digits(folder: Path) -> Callable[[str, int, torch.Generator], tuple[Tensor, Tensor]]:
    """Lists of MNIST images; the grade is the digit that is shown."""
    data = np.load(folder / "mnist.npz")
    images = {s: torch.from_numpy(data[f"{s}_images"]).flatten(1).float() / 255 for s in ("train", "test")}
    labels = {s: torch.from_numpy(data[f"{s}_labels"]).long() for s in ("train", "test")}
    ranges = {"train": ("train", 0, 50_000), "validation": ("train", 50_000, 60_000), "test": ("test", 0, 10_000)}

    def lists(split: str, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        where, first, last = ranges[split]
        rows = torch.randint(first, last, (count, ITEMS), generator=generator)
        return images[where][rows], labels[where][rows]

    return lists


def tasks(folder: Path | None) -> list[Task]:
    found = [Task("generated", rare_documents, lambda: nn.Linear(20, 1), 1.2, 2)]
    if folder is not None:
        small = lambda: nn.Sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 1))  # noqa: E731
        found.append(Task("MNIST", digits(folder), small, 4.0, 8))
    return found


def shares(grades: Tensor) -> Tensor:
    """Gains 2^grade - 1 over the best DCG that the list allows: NDCG is their discounted sum."""
    gain = 2.0**grades - 1
    best = (gain.sort(-1, descending=True).values[..., :TOP] * DISCOUNT).sum(-1, keepdim=True)
    return gain / best


def ndcg(scores: Tensor, grades: Tensor) -> float:
    return (shares(grades).gather(-1, scores.topk(TOP).indices) * DISCOUNT).sum(-1).mean().item()


def list_mle(scores: Tensor, grades: Tensor, places: int) -> Tensor:
    """Minus the likelihood of the first places of the order of the grades, ties at random."""
    order = (grades + 0.5 * torch.rand(grades.shape)).argsort(-1, descending=True)[..., :places]
    d = gt.Subset(scores, places)
    return -d.trace_log_prob(d.observe(order))


def on_metric(estimator: E.Estimator, scores: Tensor, grades: Tensor) -> Tensor:
    return estimator(gt.Subset(scores, TOP), E.DecisionGains(-shares(grades), DISCOUNT), on="trace")


def losses(samples: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return {
        "ListMLE": partial(list_mle, places=ITEMS),
        "ListMLE, first 10": partial(list_mle, places=TOP),
        "TraceREINFORCE": partial(on_metric, E.TraceREINFORCE(samples=samples)),
        "DecisionREINFORCE": partial(on_metric, E.DecisionREINFORCE(samples=samples)),
    }


def train(task: Task, loss: Callable, rate: float, seed: int, s: Settings, split: str) -> list[list[float]]:
    """[CPU seconds, NDCG@10 of lists of the split] at checkpoints."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x_test, grades_test = task.lists(split, 200, torch.Generator().manual_seed(99))
    scorer = task.scorer()
    optimiser = torch.optim.Adam(scorer.parameters(), lr=rate)
    spent, curve = 0.0, [[0.0, ndcg(scorer(x_test).detach().squeeze(-1), grades_test)]]
    while len(curve) <= s.checkpoints:
        x, grades = task.lists("train", s.lists, generator)
        start = time.process_time()
        optimiser.zero_grad()
        loss(scorer(x).squeeze(-1), grades).mean().backward()
        optimiser.step()
        spent += time.process_time() - start
        if spent >= task.seconds * len(curve) / s.checkpoints:
            curve.append([spent, ndcg(scorer(x_test).detach().squeeze(-1), grades_test)])
    return curve


def curves(task: Task, s: Settings) -> list[dict]:
    records = []
    for name, loss in losses(task.samples).items():
        train(replace(task, seconds=0.2), loss, s.rates[0], 0, s, "validation")  # kernels are compiled now
        reached = {rate: train(task, loss, rate, 0, s, "validation") for rate in s.rates}
        area = {rate: sum(point[1] for point in curve) for rate, curve in reached.items()}
        rate = max(area, key=lambda rate: area[rate])
        runs = [train(task, loss, rate, 1 + seed, s, "test") for seed in range(s.seeds)]
        record = {"task": task.name, "samples": task.samples, "loss": name, "rate": rate, "curves": runs}
        records.append(record)
        print(task.name, name, rate, [round(run[-1][1], 3) for run in runs], flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure learning to rank for DCG@10.")
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="of mnist.npz; without it that part is kept")
    folder = parser.parse_args().mnist
    torch.set_num_threads(1)
    torch.manual_seed(0)
    s = Settings()
    before = json.loads(RESULTS.read_text(encoding="utf-8"))["training"] if RESULTS.exists() else []
    made = [record for task in tasks(folder) for record in curves(task, s)]
    fresh = {record["task"] for record in made}
    body = {
        "machine": machine(),
        "settings": asdict(s),
        "noise": noise(s),
        "cost": cost(s),
        "training": made + [record for record in before if record["task"] not in fresh],
    }
    RESULTS.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
