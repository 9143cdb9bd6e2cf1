"""The lab notes beside recorded runs, for tests that count again what they say."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "experiments" / "results"


def notes(name: str = "graph-layout") -> str:
    """Of an experiment, in one line."""
    return " ".join((RESULTS / name / "NOTES.md").read_text().split())
