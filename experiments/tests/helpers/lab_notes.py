"""The lab notes beside recorded runs, for tests that count again what they say."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "experiments" / "results"


def notes(name: str = "graph-layout") -> str:
    """Of an experiment, in one line."""
    return " ".join((RESULTS / name / "NOTES.md").read_text().split())


def clocked(name: str) -> dict[tuple[str, str], dict]:
    """Times of an experiment with parentheses, by order and estimator."""
    records = json.loads((ROOT / "experiments" / "benchmarks" / "results" / "parentheses.json").read_text())["records"]
    return {(r["order"], r["estimator"]): r for r in records if r["experiment"] == name}
