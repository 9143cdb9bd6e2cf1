"""The lab notes beside recorded runs, for tests that count again what they say."""

import json
from pathlib import Path

from gumtrace_experiments.report.records import Record, collect

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "experiments" / "results"


def notes(name: str = "graph-layout") -> str:
    """Of an experiment, in one line."""
    return " ".join((RESULTS / name / "NOTES.md").read_text().split())


def clocked(name: str) -> dict[tuple[str, str], dict]:
    """Times of an experiment with parentheses, by order and estimator."""
    records = json.loads((ROOT / "experiments" / "benchmarks" / "results" / "parentheses.json").read_text())["records"]
    return {(r["order"], r["estimator"]): r for r in records if r["experiment"] == name}


def percent_of(runs, metric: str) -> list[float]:
    """Of runs by seed, on test."""
    return [100 * r.result["test"][metric] for r in runs.values()]


def each_of(runs, metric: str) -> list[str]:
    return [f"{x:.1f}" for x in percent_of(runs, metric)]


def means_of(runs) -> list[str]:
    """Answers and edges, as the notes on ListOps have them."""
    return [f"{sum(x) / len(x):.1f}" for x in (percent_of(runs, metric) for metric in ("accuracy", "precision"))]


def others(estimator: str, samples: int) -> dict[int, Record]:
    """Runs of ListOps by other estimators than T-REINFORCE+, with a curriculum, by seed."""
    runs = collect([RESULTS / "listops" / "listops-others.jsonl"])
    return {r.seed: r for r in runs if (r.config["estimator"], r.config["samples"]) == (estimator, samples)}


def behind(starts: list[list[float]]) -> list[float]:
    """How far each is behind the best of its seed."""
    return [max(scores) - x for scores in starts for x in scores]
