"""Standard deviations of the gradient at equal numbers of objective calls: python benchmarks/variance.py

Writes benchmarks/results/variance.json and prints the table. Estimators that learn are warmed up for 150 calls first.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from gumtrace.diagnostics import gradient_statistics
from gumtrace.toy import applicable, problem

RESULTS = Path(__file__).parent / "results" / "variance.json"
STRUCTURES = ("tree", "arborescence", "subset", "matching")
CALLS = 8


def measure(structure: str, smooth: bool) -> list[dict]:
    p = problem(structure, smooth=smooth)
    torch.manual_seed(0)
    estimators = {name: build() for name, build in applicable(p, CALLS).items()}
    rows = gradient_statistics(
        estimators, p.dist, p.objective, 200, warm_up=150, exact=False, generator=torch.Generator().manual_seed(1)
    )
    return [{"structure": structure, "objective": "smooth" if smooth else "rough", **asdict(row)} for row in rows]


if __name__ == "__main__":
    records = [row for name in STRUCTURES for smooth in (True, False) for row in measure(name, smooth)]
    RESULTS.write_text(json.dumps({"calls": CALLS, "records": records}, indent=1) + "\n")
    for row in records:
        name = f"{row['structure']:13} {row['objective']:7} {row['name']:17}"
        print(f"{name} std {row['std']:.4g}  calls {row['calls']:.0f}")
