"""Writes the tables of the README from recorded runs: python benchmarks/table.py"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
STEPS = {
    "sample_trace": "sample",
    "log_prob": "log-prob",
    "log_prob+backward": "and backward",
    "conditional": "noise given trace",
    "t_step": "whole step",
    "trace_reinforce": "TraceREINFORCE",
    "sst_step": "SST step",
}
ESTIMATORS = (
    "E-REINFORCE+",
    "T-REINFORCE+",
    "X-REINFORCE+",
    "RELAX",
    "REBAR",
    "Surrogate, linear",
    "Surrogate, pairwise",
    "Surrogate, MLP",
    "SST",
    "Straight-through",
    "Gumbel-Rao",
)
BIASED = ("SST", "Straight-through", "Gumbel-Rao")
STRUCTURES = {
    "tree": "tree n=10",
    "arborescence": "arborescence n=10",
    "subset": "subset 5 of 50",
    "matching": "matching n=8",
}
VARIANCE = (
    "Standard deviation of one gradient estimate of {calls} objective calls, relative to that of T-REINFORCE+; the "
    "best unbiased one is bold. Smooth: log(1 + q) for a random quadratic q of the entries, which no surrogate "
    "contains. Rough: whether q is above its median, which has no gradient, so that not all estimators apply. Those "
    "that learn did so for {warm_up} iterations of {calls} calls at logits that stand still, and were frozen then; "
    "surrogates draw {extra} more structures, which cost no calls. REBAR makes 9 calls, and its numbers are scaled by "
    "√(9/8). The last three are biased: in brackets, how far their mean is off, in per cent of the gradient's size. "
    "By `benchmarks/variance.py`, torch {torch}, {date}."
)


def speed(results: dict) -> str:
    """One row for each case of the run, milliseconds."""
    machine = results["machine"]
    rows: dict[str, dict[str, float]] = {}
    batches = {}
    for record in results["records"]:
        name = f"{record['structure']} {' '.join(f'{k}={v:,}' for k, v in record['size'].items())}"
        rows.setdefault(name, {})[record["step"]] = record["ms"]
        batches[name] = record["batch"]
    shown = [step for step in STEPS if any(step in times for times in rows.values())]
    where = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch'].split('+')[0]}, {machine['date']}"
    lines = [
        f"Milliseconds a batch, float32, medians of `gumtrace bench --device cpu` on {where}. The whole step is what a "
        "score-function update pays for the structure: build the distribution, draw noise, run the algorithm, take its "
        "log-probability and go back to the logits. The SST step is what a stochastic softmax pays instead.",
        "",
        "| | batch | " + " | ".join(STEPS[step] for step in shown) + " |",
        "|---|---:|" + "---:|" * len(shown),
    ]
    for name, steps in rows.items():
        lines.append(f"| {name} | {batches[name]:,} | " + " | ".join(_number(steps.get(step)) for step in shown) + " |")
    return "\n".join(lines) + "\n"


def _number(ms: float | None) -> str:
    return "" if ms is None else f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def variance(results: dict) -> str:
    """One row for each estimator, two columns for each structure."""
    cells = {(r["estimator"], r["structure"], r["objective"]): r for r in results["records"]}
    columns = [(structure, objective) for structure in STRUCTURES for objective in ("smooth", "rough")]
    best = {
        (structure, objective): min(
            r["ratio"]
            for r in results["records"]
            if (r["structure"], r["objective"]) == (structure, objective) and r["estimator"] not in BIASED
        )
        for structure, objective in columns
    }
    version, date = results["machine"]["torch"].split("+")[0], results["machine"]["date"]
    lines = [
        VARIANCE.format(**results["settings"], torch=version, date=date),
        "",
        "| | " + " | ".join(f"{name}, smooth | rough" for name in STRUCTURES.values()) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in ESTIMATORS:
        row = [_ratio(cells.get((name, *column)), best[column]) for column in columns]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _ratio(record: dict | None, best: float) -> str:
    if record is None:
        return "–"
    if record["estimator"] in BIASED:
        return f"{record['ratio']:.2f} ({100 * record['bias'] / record['gradient']:.0f})"
    return f"**{record['ratio']:.2f}**" if record["ratio"] == best else f"{record['ratio']:.2f}"


def with_table(readme: str) -> str:
    for mark, file, table in (("bench", "cpu-2core.json", speed), ("variance", "variance.json", variance)):
        text = table(json.loads((RESULTS / file).read_text()))
        marks = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
        readme = marks.sub(lambda m, text=text: m[1] + text + m[2], readme)
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text()))
