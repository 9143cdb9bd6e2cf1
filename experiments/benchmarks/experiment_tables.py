"""Tables of what the experiments found, from recorded runs: python experiments/benchmarks/experiment_tables.py puts
them into the lab notes."""

import json
import re
from pathlib import Path
from typing import Any

import kset_tables  # beside this file
import start_tables
import summary_tables
import training_tables

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find
from gumtrace_experiments.commands.table import with_tables as with_one
from gumtrace_experiments.parentheses.orders import FIXED
from gumtrace_experiments.report.names import family, place
from gumtrace_experiments.report.records import ITERATION, canonical, collect

RUNS = Path(__file__).parents[1] / "results"
RESULTS = Path(__file__).parent / "results"
TITLES = {
    **{name: title for name, (title, _) in summary_tables.SUMMARY.items()},
    "l2x": "Learning to explain",
}
DEPTHS = {
    "right": "arguments hang from their function",
    "as good": "from one that is as good",
    "function": "another function",
    "digit": "a digit",
    "bracket": "a bracket",
    "accuracy": "answers right",
    "told": "along true trees",
}
ORIGINAL = {
    "accuracy": "accuracy",
    "precision": "edge precision",
    "right": "arguments hang from their function",
    "as_good": "from one that is as good",
}


def tuning(name: str) -> str:
    """How many short runs an experiment's settings were taken from; how long one is makes no other setting."""
    tried = collect([RUNS / "tuning" / f"{name}.jsonl"])
    kinds = sorted({(r.config.get("training", ""), r.config["estimator"]) for r in tried}, key=lambda k: place(k[1]))
    kinds = sorted(kinds, key=lambda kind: kind[0], reverse=True)  # unrolled, then teacher-forced
    protocols = any(training for training, _ in kinds)
    lines = [
        "| estimator |" + " training |" * protocols + " settings | runs | iterations at most |",
        "|---|" + "---|" * protocols + "---:|---:|---:|",
    ]
    for training, estimator in kinds:
        same = [r for r in tried if (r.config.get("training", ""), r.config["estimator"]) == (training, estimator)]
        unused = {"temperature"} - ESTIMATORS[estimator].settings().keys()
        alike = {"iterations", "evaluate_every"} | unused
        settings = {canonical({key: x for key, x in r.setting.items() if key not in alike}) for r in same}
        most = max(max(r.curve[ITERATION], default=0) for r in same)
        cells = [family(estimator), *[training] * protocols, str(len(settings)), str(len(same)), f"{most:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def depths(results: dict) -> str:
    """One row for each estimator and depth, percent, means over the runs."""
    lines = [
        f"| estimator | items × structures | runs | depth | {' | '.join(DEPTHS.values())} |",
        "|---|---|---:|---:|" + "---:|" * len(DEPTHS),
    ]
    for about, runs in _by_batch(results["runs"]).items():
        for level in zip(*(run["rows"] for run in runs), strict=True):
            means = (sum(row[name] for row in level) / len(level) for name in DEPTHS)
            shares = " | ".join(f"{100 * mean:.1f}" for mean in means)
            lines.append(f"| {about} | {len(runs)} | {level[0]['depth']} | {shares} |")
    return "\n".join(lines) + "\n"


def original(results: dict) -> str:
    """One row for each file and estimator, percent, means over the runs."""
    lines = [
        "| file | expressions | of | own digits | all digits | estimator | items × structures | runs "
        f"| {' | '.join(ORIGINAL.values())} |",
        "|---|---:|---:|---:|---:|---|---|---:|" + "---:|" * len(ORIGINAL),
    ]
    for name, file in results["files"].items():
        known = [
            f"{file['expressions']:,}",
            f"{file['of']:,}",
            f"{100 * file['own']:.1f}",
            f"{100 * file['every']:.1f}",
        ]
        for about, runs in _by_batch(results["runs"]).items():
            found = [run["files"][name] for run in runs]
            shares = (sum(metrics[key] for metrics in found) / len(found) for key in ORIGINAL)
            cells = [name, *known, about, str(len(runs)), *(f"{100 * share:.1f}" for share in shares)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_batch(runs: list[dict]) -> dict[str, list[dict]]:
    """By two cells of a table: the estimator with what is unusual of its runs, and what a batch has."""
    found = {}
    for run in sorted(runs, key=_order):
        config = run["config"]
        share = config.get("relabel", 0)  # records from before it, and from before curricula, have none
        name = family(config["estimator"]) + f", relabel {share}" * (share > 0)
        name += ", one start" if config["starts"] == 1 else ""
        name += "" if config.get("curriculum") else ", no curriculum"
        about = f"{name} | {start_tables.items(config)} × {config['samples']}"
        found.setdefault(about, []).append(run)
    return found


def _order(run: dict) -> tuple:
    config = run["config"]
    batch = place(config["estimator"]), start_tables.items(config)
    return not config.get("curriculum"), config.get("relabel", 0), *batch, config["starts"]


def updates(results: dict) -> str:
    """One row for each case, milliseconds."""
    cases = {}
    for r in results["records"]:
        cases.setdefault((r["experiment"], r["estimator"], str(r["settings"])), []).append(r)
    most = max(r["runs"] for r in results["records"])
    devices, versions, dates = (
        ", ".join(sorted({r["machine"][name].split("+")[0] for r in results["records"]}))
        for name in ("device", "torch", "date")
    )
    lines = [
        f"Milliseconds of an update, medians of `experiments/benchmarks/updates.py` on {devices}, "
        f"torch {versions}, {dates}: of one run alone, and of {most} side by side, their time divided by "
        "their updates. As CUDA graphs; gradients are not clipped. The paper's are on hardware it does not name.",
        "",
        f"| | estimator | alone | an update, {most} side by side | the paper's |",
        "|---|---|---:|---:|---:|",
    ]
    for (name, estimator, _), records in cases.items():
        alone, *_, beside = sorted(records, key=lambda r: r["runs"])
        settings = alone["settings"]
        title = ", ".join([TITLES[name], *filter(None, [settings.get("training")])])
        config = find(name).config_type(estimator=estimator, **settings)
        about = [family(estimator), *([f"K = {config.k}"] if config.k > 1 else [])]
        if config.learns_temperature:
            about.append("temperature learned")
        times = [
            f"{alone['ms']:#.3g}",
            f"{beside['ms']:#.3g}",
            "" if alone["paper_ms"] is None else str(alone["paper_ms"]),
        ]
        lines.append(f"| {title} | {', '.join(about)} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


def parentheses(results: dict, name: str) -> str:
    """One row for each order and estimator of an experiment: milliseconds and seconds."""
    kind: Any = find(name).config_type
    about, config = results["machine"], kind()
    lines = [
        f"An update (N = {config.calls} calls, as a CUDA graph), and how long a model that has learned for a moment "
        f"takes to generate {config.generated:,} different sequences: `experiments/benchmarks/parentheses_table.py "
        f"--parts clock` on {about['device']}, torch {about['torch'].split('+')[0]}, {about['date']}.",
        "",
        "| order | estimator | an update, ms | sequences, s | drawn for that |",
        "|---|---|---:|---:|---:|",
    ]
    for r in results["records"]:
        if r["experiment"] == name:
            k = kind(order=r["order"], estimator=r["estimator"]).k
            estimator = ", ".join([family(r["estimator"]), *([f"K = {k}"] if k > 1 else [])])
            cells = [r["order"], "none" if r["order"] in FIXED else estimator, f"{r['ms']:.2f}", f"{r['seconds']:.1f}"]
            lines.append(f"| {' | '.join(cells)} | {r['draws']:,} |")
    return "\n".join(lines) + "\n"


def _load(file: str) -> dict:
    return json.loads((RESULTS / file).read_text())


TABLES = {
    "graph-layout-tuning": lambda: tuning("graph-layout"),
    "listops-tuning": lambda: tuning("listops"),
    "listops-depths": lambda: depths(_load("listops-depths.json")),
    "listops-original": lambda: original(_load("listops-original.json")),
    "updates": lambda: updates(_load("updates.json")),
    "parentheses-tree-times": lambda: parentheses(_load("parentheses.json"), "parentheses-tree"),
    "parentheses-insertion-times": lambda: parentheses(_load("parentheses.json"), "parentheses-insertion"),
    **summary_tables.TABLES,
    **start_tables.TABLES,
    **kset_tables.TABLES,
    **training_tables.TABLES,
}


def table(name: str) -> str:
    return TABLES[name]()


def unfolded(page: str) -> str:
    """Without what it has folded (report/rendering.py): tables of training sets and of gradients, and commands."""
    return re.sub(r"<details>.*?</details>\n+", "", page, flags=re.DOTALL)


def with_tables(page: str) -> str:
    """The page with the recorded tables between those of their marks that it has, <!-- NAME --> and <!-- /NAME -->."""
    for name in TABLES:
        if f"<!-- {name} -->" in page:
            page = with_one(page, name, table(name))
    return page


if __name__ == "__main__":
    for file in RUNS.glob("*/NOTES.md"):
        file.write_text(with_tables(file.read_text()))
