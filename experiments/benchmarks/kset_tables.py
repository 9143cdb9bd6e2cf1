"""Tables of the k-subset contest: equal calls beside equal time, and bias and standard deviation of gradients."""

import json
import math
from pathlib import Path
from typing import Any

from gumtrace_experiments import find
from gumtrace_experiments.columns import Column
from gumtrace_experiments.report.equal_time import found_until
from gumtrace_experiments.report.groups import Choice, choices, spread
from gumtrace_experiments.report.names import family, place, title
from gumtrace_experiments.report.records import Record, collect
from gumtrace_experiments.report.tables import number

RUNS = Path(__file__).parents[1] / "results"
RESULTS = Path(__file__).parent / "results" / "kset.json"
SHOWN = {"kset-autoencoder": "loss", "kset-features": "accuracy", "kset-neighbours": "accuracy"}


def equal_time(name: str, found: dict[str, Any], runs: list[Record]) -> str:
    """Of each block a table: on validation, the checkpoint that is best after all updates, and the one that was best
    when the fastest estimator had made all of its updates."""
    kind = find(name)
    (column,) = [column for column in kind.report().columns if column.metric == SHOWN[name]]
    times = [r for r in found["updates"] if r["experiment"] == name]
    shown = choices(runs, kind.report(), kind.selection_metric)
    parts = []
    for key in dict.fromkeys(choice.block.key for choice in shown):
        same = [choice for choice in shown if choice.block.key == key and choice.group.finished]
        clocked = [(choice, _of(choice, times)) for choice in same]
        parts.append(_equal_time(clocked, column, kind.selection_metric))
    return "\n".join(parts)


def _of(choice: Choice, times: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The record of a setting, which may be older than some of its fields, on the device of the runs; None where it
    was not clocked."""
    device = choice.group.finished[0].machine["device"]
    known = [record for record in times if record["device"] == device]
    return next((record for record in known if record["setting"].items() <= choice.group.setting.items()), None)


def _equal_time(clocked: list[tuple[Choice, dict[str, Any] | None]], column: Column, metric: str) -> str:
    choice = clocked[0][0]
    first = next(record for _, record in clocked if record is not None)
    budget = min(r["ms"] * c.group.setting["iterations"] for c, r in clocked if r is not None) / 1e3
    lines = [
        f"**Equal calls and equal time, {choice.block.title}**",
        "",
        f"| estimator | ms an update | {column.name}, all updates | in {budget:.2g} s | updates then |",
        "|---|---:|---:|---:|---:|",
    ]
    for choice, record in clocked:
        most = choice.group.setting["iterations"]
        row = f"| {title(choice.group.setting)} |"
        if record is None:
            lines.append(f"{row} – | {_mean(choice, column, metric, most)} | – | – |")
            continue
        updates = min(int(1e3 * budget / record["ms"]), most)
        cells = [_mean(choice, column, metric, until) for until in (most, updates)]
        lines.append(f"{row} {record['ms']:.3g} | {' | '.join(cells)} | {updates:,} |")
    where = first["machine"]
    device = (
        f"{where['cpu']}, {where['threads']} thread{'s' * (where['threads'] > 1)}"
        if where["device"] == "cpu"
        else where["device"]
    )
    lines += [
        "",
        "On validation, means over seeds ± their standard deviation, of the best checkpoint that was evaluated by "
        "then. Updates were "
        f"clocked alone, without evaluations: {device}, torch {where['torch']}, {where['date']}.",
        "",
    ]
    return "\n".join(lines)


def _mean(choice: Choice, column: Column, metric: str, until: int) -> str:
    values = []
    for run in choice.group.finished:
        values.append(column.scale * found_until(run, metric, column.metric, until))
    found = spread(values, larger=column.larger)
    mean = number(found.mean, column.digits)
    return mean if found.std is None or math.isnan(found.mean) else f"{mean} ± {number(found.std, column.digits)}"


def gradients(name: str, found: dict[str, Any]) -> str:
    """One table for each model that was measured."""
    parts = []
    for record in found["gradients"]:
        if record["experiment"] == name:
            parts.append(_gradients(name, record))
    return "\n".join(parts)


def _gradients(name: str, record: dict[str, Any]) -> str:
    block = find(name).report().block(record["setting"])
    exact = record["target_error"] == 0
    truth = "the exact gradient" if exact else "a long average of T-REINFORCE+, whose standard error is in “by chance”"
    lines = [
        f"**Gradients at the model of {family(record['setting']['estimator'])}, seed {record['seed']}: {block.title}**",
        "",
        "| estimator | calls | standard deviation | bias | by chance |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in sorted(record["rows"], key=lambda row: place(row["estimator"])):
        numbers = " | ".join(f"{row[key]:.3g}" for key in ("std", "bias", "chance"))
        lines.append(f"| {title(row)} | {row['calls']:.0f} | {numbers} |")
    lines += [
        "",
        f"Root mean squares over logits, of the gradient of one image's loss; the true one is {record['size']:.3g}. "
        f"Bias is the distance of the mean of {record['replicates']} estimates from {truth}; an "
        "unbiased estimator is that far away by chance.",
        "",
    ]
    return "\n".join(lines)


def load() -> dict[str, Any]:
    return json.loads(RESULTS.read_text())


TABLES = {
    **{f"{name}-time": lambda name=name: equal_time(name, load(), collect([RUNS / name])) for name in SHOWN},
    **{f"{name}-gradients": lambda name=name: gradients(name, load()) for name in SHOWN},
}
