"""Tables of the pages on structures and estimators: recorded runs, cut down to what a page is about.

Only the time of an estimate is measured when the site is built.
"""

import re
import time
from pathlib import Path

import table as recorded  # benchmarks/table.py, which has the tables of all structures and estimators
import torch
import variance  # benchmarks/variance.py
from recordings import load  # benchmarks/recordings.py

from gumtrace import estimators as E
from gumtrace.benchmark import machine
from gumtrace.toy import SIZES, Problem, problem

PAGES = {  # structures whose pages show a cost: page -> its title, which is how the benchmarks call it
    page.stem: page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    for page in sorted((Path(__file__).parent / "structures").glob("*.md"))
    if page.stem != "custom" and f"cost-{page.stem}.md" in page.read_text(encoding="utf-8")
}
DEVIATIONS = (
    "One estimate of {calls} objective calls ({others}), by `benchmarks/variance.py`, {date}. Standard deviations and "
    "biases are root mean squares over the keys: relative to the size of the gradient, relative to T-REINFORCE+'s at "
    "as many calls, and in percent of the gradient; in brackets the bias that chance alone would show. Smooth: "
    "log(1 + q) of a random quadratic q of the entries. Rough: whether q is above its median, which has no gradient."
)


def tables(out: Path) -> None:
    """Every table of these pages, as OUT/NAME.md."""
    out.mkdir(parents=True, exist_ok=True)
    made = {f"cost-{page}": speed(name) for page, name in PAGES.items()}
    made["cost-custom"] = literal()
    made["structures"] = steps_at_a_glance()
    made["estimators"] = estimators_at_a_glance()
    made["reference-estimators"] = reference()
    made |= {f"variance-{page}": deviations(rows) for page, rows in ROWS.items()}
    made["updates"] = updates()
    times = {structure: measure_times(structure) for structure in TIMED}
    made["times"] = time_table(times["spanning-tree"])
    made |= {f"time-{page}": time_sentence(page, times) for page in ROWS}
    for name, text in made.items():
        (out / f"{name}.md").write_text(text, encoding="utf-8")


def page_of(cls: type[E.Estimator]) -> str:
    """The name of an estimator's page: TraceREINFORCE is described by trace-reinforce.md."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


# The rows of benchmarks/results/variance.json for the page of each estimator.
ROWS = {page_of(cls): variance.rows_of(load("variance.json")["records"], cls) for cls in E.ESTIMATORS.values()}


def speed(structure: str) -> str:
    """The recorded times of one structure, on the CPU and on CUDA."""
    parts = []
    for name, write in (("cpu-2core", recorded.speed), ("cuda-h200", recorded.cuda)):
        results = load(f"{name}.json")
        records = [r for r in results["records"] if r["structure"].split(".")[0] == structure]
        parts.append(write({**results, "records": records}))
    return "\n".join(parts)


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _table(head: list[str], rows: list[list[str]], words: int = 1) -> str:
    """Markdown; all columns but the first are numbers."""
    line = lambda cells: f"| {' | '.join(cells)} |\n"  # noqa: E731
    return line(head) + line(["---"] * words + ["---:"] * (len(head) - words)) + "".join(map(line, rows))


def literal() -> str:
    """The literal recursion beside the kernels, as benchmarks/scaling.py measured them."""
    results = load("scaling-h200.json")
    ms = {(r["way"], r["n"], r["batch"]): r["ms"] for r in results["records"]}
    sizes = sorted({n for way, n, batch in ms if way == "literal recursion" and batch == 256})
    rows = [[str(n), *(_number(ms[way, n, 256]) for way in ("literal recursion", "CPU", "CUDA"))] for n in sizes]
    m = results["machine"]
    return (
        "Milliseconds of a whole T-REINFORCE step for 256 spanning trees of n nodes, by `benchmarks/scaling.py` on "
        f"{m['cpu']}, {m['threads']} threads, and {m['device']}, {m['date']}.\n\n"
        + _table(["n", "Kruskal's algorithm as hooks of `Custom`", "`SpanningTree`, CPU", "`SpanningTree`, CUDA"], rows)
    )


def steps_at_a_glance() -> str:
    """A whole step of every structure, microseconds per item."""
    cpu, cuda = load("cpu-2core.json"), load("cuda-h200.json")

    def step(results: dict, name: str, size: dict, field: str) -> float | None:
        for r in results["records"]:
            if (r["structure"], r["size"], r["step"]) == (name, size, "t_step"):
                return None if r[field] is None else 1e3 * r[field] / r["batch"]
        return None

    cases = [(r["structure"], r["size"]) for r in cpu["records"] if r["step"] == "t_step"]
    rows = [
        [
            f"`{name}` " + " ".join(f"{k}={v:,}" for k, v in size.items()),
            _number(step(cpu, name, size, "ms")),
            _number(step(cuda, name, size, "device_ms")),
        ]
        for name, size in cases
    ]
    head = ["", f"{cpu['machine']['cpu']}, {cpu['machine']['threads']} threads", cuda["machine"]["device"]]
    return _table(head, rows)


def estimators_at_a_glance() -> str:
    """What each estimator says of itself, and a table of contents of their pages."""
    dists = [problem(name).dist for name in SIZES]
    rows = []
    for name, cls in E.ESTIMATORS.items():
        calls = "$K$" if cls.calls_per_sample == 1 else f"${cls.calls_per_sample}K$"
        served = [f"`{type(d).__name__}`" for d in dists if cls.supports(d)]
        rows.append(
            [
                f"[{name}]({page_of(cls)}.md)",
                cls.label,
                "yes" if cls.unbiased else "no",
                "differentiable" if cls.differentiates else "any",
                "all" if len(served) == len(dists) else ", ".join(served),
                calls,
                ", ".join(f"`{setting}`" for setting in cls.settings()),
            ]
        )
    head = ["", "in tables", "unbiased", "objective", "structures", "calls for $K$ samples", "settings"]
    pages = "\n".join(map(page_of, E.ESTIMATORS.values()))
    return _table(head, rows, words=len(head)) + f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def other_counts(calls: int) -> str:
    """The estimators that do not make exactly so many calls, as a sample takes several."""
    made = {cls.label: cls.calls_per_sample * round(calls / cls.calls_per_sample) for cls in E.ESTIMATORS.values()}
    return ", ".join(f"{label}: {count}" for label, count in made.items() if count != calls)


def reference() -> str:
    """The docstring of every estimator."""
    classes = "\n".join(f".. autoclass:: {name}\n   :no-members:" for name in E.ESTIMATORS)
    return f"```{{eval-rst}}\n.. currentmodule:: gumtrace.estimators\n\n{classes}\n```\n"


def deviations(estimators: list[str]) -> str:
    """The recorded standard deviations and biases of one estimator, one row per structure."""
    results = load("variance.json")
    found = {(r["estimator"], r["structure"], r["objective"]): r for r in results["records"]}
    objectives = [o for o in results["objectives"] if any(key[0] in estimators and key[2] == o for key in found)]
    rows = [
        [f"{name}, {words}" if len(estimators) > 1 else words]
        + [cell for o in objectives for cell in _spread(found[name, structure, o])]
        for name in estimators
        for structure, words in recorded.STRUCTURES.items()
        if (name, structure, "smooth") in found
    ]
    columns = ["std / gradient", "std / T-REINFORCE+'s", "bias (by chance), %"]
    head = ["", *(f"{o}: {column}" for o in objectives for column in columns)]
    others = other_counts(results["settings"]["calls"])
    return DEVIATIONS.format(**results["settings"], **results["machine"], others=others) + "\n\n" + _table(head, rows)


def _spread(r: dict) -> list[str]:
    size = r["gradient"]
    bias = f"{100 * r['bias'] / size:.0f} ({100 * r['bias_error'] / size:.0f})"
    return [f"{r['std'] / size:.1f}", f"{r['ratio']:.2f}", bias]


def updates() -> str:
    """One update with one sample by T-REINFORCE and by SST, milliseconds per batch."""
    cells: dict[str, dict[str, float]] = {}
    for device in ("cpu-2core", "cuda-h200"):
        for r in load(f"{device}.json")["records"]:
            if r["step"] in ("trace_reinforce", "sst_step"):
                name = f"`{r['structure']}` " + " ".join(f"{k}={v:,}" for k, v in r["size"].items())
                cells.setdefault(name, {})[f"{device} {r['step']}"] = r["ms"]
    columns = [f"{device} {step}" for device in ("cpu-2core", "cuda-h200") for step in ("trace_reinforce", "sst_step")]
    cpu, cuda = load("cpu-2core.json"), load("cuda-h200.json")
    batches = [next(r["batch"] for r in results["records"]) for results in (cpu, cuda)]
    return (
        f"Milliseconds of one update with one sample, objective not counted: a batch of {batches[0]:,} on "
        f"{cpu['machine']['cpu']} with {cpu['machine']['threads']} threads (graphs given by their edges: 1), and of "
        f"{batches[1]:,} on {cuda['machine']['device']}, Python included. By `gumtrace bench`, "
        f"{cpu['machine']['date']}.\n\n"
        + _table(
            ["", "TraceREINFORCE, CPU", "SST, CPU", "TraceREINFORCE, CUDA", "SST, CUDA"],
            [[name, *(_number(found.get(c)) for c in columns)] for name, found in cells.items()],
        )
    )


# Times that are measured when the site is built ------------------------------------------------------

BATCH, CALLS, EXTRA = 16, 8, 64
ROUNDS = 4  # of all estimators in turn
TIMED = {  # the first that an estimator supports
    "spanning-tree": "spanning trees of 10 nodes",
    "subset": "subsets, 5 of 50 keys",
}
SETTING = (
    f"one estimate and its backward for a batch of {BATCH} {{}}, {CALLS} objective calls per "
    f"item ({other_counts(CALLS)}), {EXTRA} extra structures for surrogates and 4 draws for Gumbel-Rao"
)


def measure_times(structure: str) -> dict[str, float]:
    """Seconds by estimator."""
    p = problem(structure)
    builds = variance.applicable(p, "smooth", variance.Settings(calls=CALLS, extra=EXTRA))
    made = {name: build() for name, build in builds.items()}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with the time of the processor alone: whatever else the machine does hardly matters
    found = [{name: _seconds(estimator, p) for name, estimator in made.items()} for _ in range(1 + ROUNDS)]
    torch.set_num_threads(threads)
    return {name: min(times[name] for times in found[1:]) for name in made}  # the first round may compile something


def _seconds(estimator: E.Estimator, p: Problem) -> float:
    logits = p.logits.expand(BATCH, *p.logits.shape).clone().requires_grad_()
    start = time.process_time()
    estimator(p.make(logits), lambda x: p.objective(x).log1p()).mean().backward()
    return time.process_time() - start


def time_table(times: dict[str, float]) -> str:
    plain = times["T-REINFORCE+"]
    rows = [[name, _number(1e3 * t), f"{t / plain:.1f}"] for name, t in times.items()]
    setting = SETTING.format(TIMED["spanning-tree"])
    return (
        f"Milliseconds of {setting}; the objective costs next to nothing. Measured when this page was built, on one "
        f"thread of {machine()['cpu']}: good to a factor, not to a digit.\n\n"
        + _table(["", "ms", "T-REINFORCE+ = 1"], rows)
    )


def time_sentence(page: str, times: dict[str, dict[str, float]]) -> str:
    structure = next(structure for structure in TIMED if ROWS[page][0] in times[structure])
    of, plain = times[structure], times[structure]["T-REINFORCE+"]
    found = [f"{_number(1e3 * of[name])} ms ({of[name] / plain:.1f})" for name in ROWS[page]]
    which = f" for {'; '.join(ROWS[page])}" if len(found) > 1 else ""
    return (
        f"Measured when this page was built, on one thread of {machine()['cpu']}: {SETTING.format(TIMED[structure])} "
        f"took {', '.join(found)}"
        f"{which}; in brackets, relative to T-REINFORCE+.\n"
    )
