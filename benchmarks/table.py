"""Writes the speed table of the README from a recorded run: python benchmarks/table.py"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cpu-2core.json"
MARKS = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)
STEPS = {
    "sample_trace": "sample",
    "log_prob": "log-prob",
    "log_prob+backward": "and backward",
    "conditional": "noise given trace",
    "t_step": "whole step",
    "sst_step": "SST step",
}


def table(results: dict) -> str:
    """One row for each case of the run, milliseconds."""
    machine = results["machine"]
    rows: dict[str, dict[str, float]] = {}
    batches = {}
    for record in results["records"]:
        name = f"{record['structure']} {' '.join(f'{k}={v:,}' for k, v in record['size'].items())}"
        rows.setdefault(name, {})[record["step"]] = record["ms"]
        batches[name] = record["batch"]
    where = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch'].split('+')[0]}, {machine['date']}"
    lines = [
        f"Milliseconds a batch, float32, medians of `gumtrace bench --device cpu` on {where}. The whole step is what a "
        "score-function update pays for the structure: build the distribution, draw noise, run the algorithm, take its "
        "log-probability and go back to the logits. The SST step is what a stochastic softmax pays instead.",
        "",
        "| | batch | " + " | ".join(STEPS.values()) + " |",
        "|---|---:|" + "---:|" * len(STEPS),
    ]
    for name, steps in rows.items():
        lines.append(f"| {name} | {batches[name]:,} | " + " | ".join(_number(steps.get(step)) for step in STEPS) + " |")
    return "\n".join(lines) + "\n"


def _number(ms: float | None) -> str:
    return "" if ms is None else f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def with_table(readme: str) -> str:
    return MARKS.sub(lambda m: m[1] + table(json.loads(RESULTS.read_text())) + m[2], readme)


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text()))
