"""Tables of recorded times and variances, for the site and the README: python benchmarks/table.py updates that."""

import re
from pathlib import Path

import clustering
import compiling_tables
import host
import ranking_tables
import scale
import sharded_tables
import sorting
from recordings import load, when
from variance import described, rows_of

from gumtrace.estimators import ESTIMATORS

ROOT = Path(__file__).parents[1]
STEPS = {
    "sample_trace": "sample",
    "log_prob": "log-prob",
    "log_prob+backward": "and backward",
    "conditional": "noise given trace",
    "t_step": "whole step",
    "trace_reinforce": "TraceREINFORCE",
    "sst_step": "SST step",
}
CUDA = (  # column, step, field of its record
    ("copy of the logits", "t_step", "copy_ms"),
    ("sample", "sample_trace", "device_ms"),
    ("log-prob", "log_prob", "device_ms"),
    ("noise given trace", "conditional", "device_ms"),
    ("whole step", "t_step", "device_ms"),
    ("as a CUDA graph", "t_step", "graph_ms"),
    ("peak memory", "t_step", "peak_bytes"),
)
STRUCTURES = {
    "spanning-tree": "tree n=10",
    "arborescence": "arborescence n=10",
    "subset": "subset 5 of 50",
    "matching": "matching n=8",
}
VARIANCE = (
    "Standard deviation of one gradient estimate of {calls} objective calls, relative to that of T-REINFORCE+; the "
    "best unbiased one is bold. Smooth objective: log(1 + q) for a random quadratic q of the entries, which no "
    "surrogate represents exactly. Rough: whether q is above its median, which has no gradient, so that not all "
    "estimators apply. Those that learn were trained for {warm_up} iterations of {calls} calls at fixed logits, then "
    "frozen; surrogates draw {extra} more structures, which cost no calls. REBAR makes 9 calls, and its numbers are "
    "scaled by √(9/8). Those with brackets are biased: there, the bias in percent of the size of the gradient. "
    "By `benchmarks/variance.py`, {when}."
)


def headline(cpu: dict, cuda: dict) -> str:
    """Three whole steps: a batch of trees on the CPU and on a GPU, and the largest graph."""

    def step(results: dict, structure: str, **size: int) -> dict:
        found = (r for r in results["records"] if r["step"] == "t_step" and r["structure"] == structure)
        return next(r for r in found if r["size"] == size)

    tree, on_gpu = (step(results, "SpanningTree", n=50) for results in (cpu, cuda))
    sparse = step(cpu, "SpanningTree.from_edges", nodes=1_000_000, edges=10_000_000)
    threads = f"{cpu['machine']['threads']} threads of {cpu['machine']['cpu']}"
    return (
        "A whole step for the structure: build the distribution, sample a trace, take its log-probability and the "
        "gradient of that, in float32.\n\n"
        f"- **{1e3 * tree['ms'] / tree['batch']:.0f} µs** a spanning tree of 50 nodes, in batches of "
        f"{tree['batch']:,}, on {threads}\n"
        f"- **{1e6 * on_gpu['device_ms'] / on_gpu['batch']:.0f} ns** a spanning tree of 50 nodes, in batches of "
        f"{on_gpu['batch']:,}, on {cuda['machine']['device']} (device time, as in a CUDA graph)\n"
        f"- **{sparse['ms'] / 1e3:.1f} s** for one graph of 1,000,000 nodes and 10,000,000 edges, on {threads}\n\n"
        f"Recorded by `gumtrace bench`: {when(cpu['machine'])}, and {when(cuda['machine'])}. "
        "[Benchmarks](docs/benchmarks.md) has the tables.\n"
    )


def speed(results: dict) -> str:
    """One row for each case of the run, milliseconds."""
    machine = results["machine"]
    rows = _by_case(results)
    shown = [step for step in STEPS if any(step in steps for steps in rows.values())]
    where = f"{machine['cpu']}, {machine['threads']} threads, {when(machine)}"
    lines = [
        f"Milliseconds a batch, float32, medians of `gumtrace bench --device cpu` on {where}. The whole step is the "
        "cost of the structure in a score-function update: build the distribution, sample a trace, take its "
        "log-probability and the gradient of that. The SST step is the cost of a stochastic softmax update.",
        "",
        "| | batch | " + " | ".join(STEPS[step] for step in shown) + " |",
        "|---|---:|" + "---:|" * len(shown),
    ]
    for name, steps in rows.items():
        times = [_number(steps[step]["ms"] if step in steps else None) for step in shown]
        lines.append(f"| {name} | {steps['t_step']['batch']:,} | " + " | ".join(times) + " |")
    return "\n".join(lines) + "\n"


def _by_case(results: dict) -> dict[str, dict[str, dict]]:
    """The records by case and step."""
    rows: dict[str, dict[str, dict]] = {}
    for record in results["records"]:
        name = f"{record['structure']} {' '.join(f'{k}={v:,}' for k, v in record['size'].items())}"
        rows.setdefault(name, {})[record["step"]] = record
    return rows


def _number(ms: float | None) -> str:
    return "" if ms is None else f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def cuda(results: dict) -> str:
    """One row for each case of the run, milliseconds of the device."""
    machine = results["machine"]
    batches = ", ".join(f"{batch:,}" for batch in sorted({record["batch"] for record in results["records"]}))
    lines = [
        f"Milliseconds of the device for a batch of {batches}, float32, medians of `gumtrace bench --device cuda` on "
        f"{machine['device']}, {when(machine)}. Peak memory: of the whole step, beyond its inputs, in copies of the "
        "logits. Blank: there is none, or the host cannot get ahead of the device.",
        "",
        "| | " + " | ".join(column for column, _, _ in CUDA) + " |",
        "|---|" + "---:|" * len(CUDA),
    ]
    for name, steps in _by_case(results).items():
        lines.append(f"| {name} | " + " | ".join(_cuda_cell(steps.get(step), field) for _, step, field in CUDA) + " |")
    return "\n".join(lines) + "\n"


def _cuda_cell(record: dict | None, field: str) -> str:
    if record is None or record[field] is None:
        return ""
    if field == "peak_bytes":
        return f"{record[field] / record['logits_bytes']:.1f}"
    return f"{record[field]:.0f}" if record[field] >= 10 else f"{record[field]:#.2g}"


def variance(results: dict) -> str:
    """One row for each estimator, two columns for each structure."""
    cells = {(r["estimator"], r["structure"], r["objective"]): r for r in results["records"]}
    columns = [(structure, objective) for structure in STRUCTURES for objective in ("smooth", "rough")]
    best = {
        (structure, objective): min(
            r["ratio"]
            for r in results["records"]
            if (r["structure"], r["objective"]) == (structure, objective) and described(r["estimator"]).unbiased
        )
        for structure, objective in columns
    }
    lines = [
        VARIANCE.format(**results["settings"], when=when(results["machine"])),
        "",
        "| | " + " | ".join(f"{name}, smooth | rough" for name in STRUCTURES.values()) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in (label for cls in ESTIMATORS.values() for label in rows_of(results["records"], cls)):
        row = [_ratio(cells.get((name, *column)), best[column]) for column in columns]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _ratio(record: dict | None, best: float) -> str:
    if record is None:
        return "–"
    if not described(record["estimator"]).unbiased:
        return f"{record['ratio']:.2f} ({100 * record['bias'] / record['gradient']:.0f})"
    return f"**{record['ratio']:.2f}**" if record["ratio"] == best else f"{record['ratio']:.2f}"


TABLES = {
    "speed": lambda: headline(load("cpu-2core.json"), load("cuda-h200.json")),
    "bench": lambda: speed(load("cpu-2core.json")),
    "bench-cuda": lambda: cuda(load("cuda-h200.json")),
    "first-result": lambda: compiling_tables.first_result(load("first_result.json")),
    "compile-time": lambda: compiling_tables.compile_time(load("compile_time.json")),
    "variance": lambda: variance(load("variance.json")),
    "clustering": lambda: clustering.table(load("clustering.json")),
    "sharded": lambda: sharded_tables.table(load("sharded.json")),
    "sharded-scaled": lambda: sharded_tables.scaled(load("sharded.json")),
    "ranking": lambda: ranking_tables.table(load("ranking.json")),
    "ranking-noise": lambda: ranking_tables.noise(load("ranking.json")),
    "ranking-cost": lambda: ranking_tables.cost(load("ranking.json")),
    "sorting": lambda: sorting.table(load("sorting.json")),
    "scale": lambda: scale.table(load(scale.FILE)),
    "scale-cpu": lambda: scale.table(load(scale.CPU_FILE)),
    "scale-permutations": lambda: scale.permutations(load(scale.FILE)),
    "host": lambda: host.table(load("host-h200.json")),
}


def table(name: str) -> str:
    return TABLES[name]()


def with_tables(page: str) -> str:
    """The page with the recorded tables between its marks, <!-- NAME --> and <!-- /NAME -->."""
    for name in TABLES:
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page = marks.sub(lambda m, name=name: m[1] + table(name) + m[2], page)
    return page


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(with_tables(page.read_text()))
