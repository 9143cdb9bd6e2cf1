"""Tables of recorded times and variances, for the site and the README: python benchmarks/table.py updates that."""

import json
import re
from pathlib import Path

import clustering
import host
import scale
import sharded_tables
import sorting
from variance import described, rows_of

from gumtrace.estimators import ESTIMATORS

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
        f"Recorded by `gumtrace bench`: torch {_version(cpu)}, {cpu['machine']['date']}, and torch {_version(cuda)}, "
        f"{cuda['machine']['date']}. [Benchmarks](docs/benchmarks.md) has the tables.\n"
    )


def _version(results: dict) -> str:
    return results["machine"]["torch"].split("+")[0]


def speed(results: dict) -> str:
    """One row for each case of the run, milliseconds."""
    machine = results["machine"]
    rows = _by_case(results)
    shown = [step for step in STEPS if any(step in steps for steps in rows.values())]
    where = f"{machine['cpu']}, {machine['threads']} threads, {_when(machine)}"
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


def _when(machine: dict) -> str:
    return f"torch {machine['torch'].split('+')[0]}, {machine['date']}"


def _number(ms: float | None) -> str:
    return "" if ms is None else f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def cuda(results: dict) -> str:
    """One row for each case of the run, milliseconds of the device."""
    machine = results["machine"]
    batches = ", ".join(f"{batch:,}" for batch in sorted({record["batch"] for record in results["records"]}))
    lines = [
        f"Milliseconds of the device for a batch of {batches}, float32, medians of `gumtrace bench --device cuda` on "
        f"{machine['device']}, {_when(machine)}. Peak memory: of the whole step, beyond its inputs, in copies of the "
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


def first_result(results: dict) -> str:
    """One row for each structure, seconds."""
    machine = results["machine"]
    lines = [
        "Seconds from the end of `import torch` to the first sample, the first TraceREINFORCE step and the first "
        "relaxed step, float32, with nothing compiled; then to the last of these with everything compiled, and with "
        "nothing compiled for the slowest of four processes that start at once. By `benchmarks/first_result.py` on "
        f"{machine['cpu']}, {machine['threads']} threads, {_when(machine)}.",
        "",
        "| | sample | step | relaxed step | compiled before | slowest of four |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for record in results["records"]:
        cold = (record["cold"].get(name) for name in ("sample", "step", "relaxed"))
        cold = ["" if seconds is None else f"{seconds:.1f}" for seconds in cold]
        rest = [f"{max(record['warm'].values()):.1f}", f"{record['slowest_of_four']:.1f}"]
        lines.append(f"| {record['structure']} | " + " | ".join([*cold, *rest]) + " |")
    return "\n".join(lines) + "\n"


COMPILING = {  # part of the compiler: row of the table
    "optimisation": "LLVM: optimisation",
    "code generation": "LLVM: code generation",
    "linking": "LLVM: linking",
    "text of IR": "writing IR as text, and reading it",
    "lowering": "Numba: lowering to IR",
    "typing": "Numba: typing",
    "other passes": "Numba: other passes",
}  # and all others by their names


def compile_time(results: dict) -> str:
    """One row for each part of the compiler, CPU seconds."""
    machine, records = results["machine"], results["records"]
    sizes = (
        f"{r['structure']} {r['functions']} functions, the largest of which, `{r['largest']}`, takes "
        f"{r['largest_seconds']:.1f} s with LLVM's work on all that it is made of"
        for r in records
    )
    lines = [
        "CPU seconds from the end of `import torch` to the end of a first TraceREINFORCE step, float32, with nothing "
        f"compiled. It compiles for {'; for '.join(sizes)}. By `benchmarks/compile_time.py` on {machine['cpu']}, "
        f"{_when(machine)}.",
        "",
        "| | " + " | ".join(r["structure"] for r in records) + " |",
        "|---|" + "---:|" * len(records),
    ]
    for part in records[0]["seconds"]:
        lines.append(
            f"| {COMPILING.get(part, part)} | " + " | ".join(f"{r['seconds'][part]:.1f}" for r in records) + " |"
        )
    lines.append("| together | " + " | ".join(f"{sum(r['seconds'].values()):.1f}" for r in records) + " |")
    return "\n".join(lines) + "\n"


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
        VARIANCE.format(**results["settings"], when=_when(results["machine"])),
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


def ranking_noise(results: dict) -> str:
    """One row for each kind of scores."""
    samples, replicates = (results["settings"][name] for name in ("samples", "replicates"))
    lines = [
        f"Standard deviation of the gradient for DCG@10 of 100 items, K = {samples}, relative to T-REINFORCE+'s, over "
        f"{replicates:,} estimates. By `benchmarks/ranking.py`, {_when(results['machine'])}.",
        "",
        "| | loss to go | and the mean over keys that race |",
        "|---|---:|---:|",
    ]
    lines += [f"| {r['list']} | {r['to_go']:.2f} | {r['exact']:.2f} |" for r in results["noise"]]
    return "\n".join(lines) + "\n"


def ranking_cost(results: dict) -> str:
    """A sentence."""
    cost, s = results["cost"], results["settings"]
    return (
        f"A step for {s['cost_lists']} lists of 100, the first 10 of them, K = {s['samples']}, on one core: "
        f"{cost['decision_ms']:.0f} ms, and {cost['trace_ms']:.0f} ms with TraceREINFORCE, measured in turn; "
        f"{cost['ratio']:.2f} times as much.\n"
    )


def ranking(results: dict) -> str:
    """One row for each loss, NDCG@10 at three times for each task."""
    records, s = results["training"], results["settings"]
    names = list(dict.fromkeys(r["task"] for r in records))
    shown = (2, s["checkpoints"] // 2, s["checkpoints"])
    budgets = {name: next(r for r in records if r["task"] == name)["curves"][0][-1][0] for name in names}
    kinds = ", ".join(f"{r['samples']} ({r['task']})" for r in records if r["loss"] == records[0]["loss"])
    heads = [f"{name}, {budgets[name] * i / s['checkpoints']:.1f} s" for name in names for i in shown]
    lines = [
        f"NDCG@10 of test lists after CPU seconds of training on one core, {s['lists']} lists a step, K = "
        f"{kinds}; means of {s['seeds']} runs, behind the last one the range. By "
        f"`benchmarks/ranking.py`, {_when(results['machine'])}.",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(heads),
    ]
    for loss in dict.fromkeys(r["loss"] for r in records):
        cells = []
        for name in names:
            runs = next(r for r in records if (r["task"], r["loss"]) == (name, loss))["curves"]
            cells += [f"{sum(run[i][1] for run in runs) / len(runs):.3f}" for i in shown]
            ends = sorted(run[-1][1] for run in runs)
            cells[-1] += f" ({ends[0]:.3f} to {ends[-1]:.3f})"
        lines.append(f"| {loss} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _load(file: str) -> dict:
    return json.loads((RESULTS / file).read_text())


TABLES = {
    "speed": lambda: headline(_load("cpu-2core.json"), _load("cuda-h200.json")),
    "bench": lambda: speed(_load("cpu-2core.json")),
    "bench-cuda": lambda: cuda(_load("cuda-h200.json")),
    "first-result": lambda: first_result(_load("first_result.json")),
    "compile-time": lambda: compile_time(_load("compile_time.json")),
    "variance": lambda: variance(_load("variance.json")),
    "clustering": lambda: clustering.table(_load("clustering.json")),
    "sharded": lambda: sharded_tables.table(_load("sharded.json")),
    "sharded-scaled": lambda: sharded_tables.scaled(_load("sharded.json")),
    "ranking": lambda: ranking(_load("ranking.json")),
    "ranking-noise": lambda: ranking_noise(_load("ranking.json")),
    "ranking-cost": lambda: ranking_cost(_load("ranking.json")),
    "sorting": lambda: sorting.table(_load("sorting.json")),
    "scale": lambda: scale.table(_load(scale.FILE)),
    "scale-cpu": lambda: scale.table(_load(scale.CPU_FILE)),
    "scale-permutations": lambda: scale.permutations(_load(scale.FILE)),
    "host": lambda: host.table(_load("host-h200.json")),
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
