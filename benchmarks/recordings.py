"""What was recorded beside these scripts, and when."""

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def load(file: str) -> dict:
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def when(machine: dict) -> str:
    return f"torch {machine['torch'].split('+')[0]}, {machine['date']}"
