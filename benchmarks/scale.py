"""The table and the figure of `gumtrace bench --scale`, from its records."""

from gumtrace.benchmark.scale import keys_of
from gumtrace.extras import require
from gumtrace.plotting.style import FAINT, INK, SERIES, SOFT

FILE = "scale-h200.json"
TABLE = (
    "Milliseconds for the whole batch, float32, by `gumtrace bench --scale` on {device}, {when}: of the device alone, "
    "as a replay of a CUDA graph{star}. Eager: wall-clock time of the whole step without one, Python included. torch: "
    "`exponential_`, `log` and `topk` or `sort` of as many numbers, in the same run. Peak memory: of the whole step, "
    "beyond the logits and their gradient, in multiples of the logits."
)


STAR = ", or with a star by events around the eager step, which could not be captured"


def table(results: dict) -> str:
    """One row for each case."""
    machine = results["machine"]
    when = f"torch {machine['torch'].split('+')[0]}, {machine['date']}"
    star = STAR if any(map(_by_events, results["records"])) else ""
    lines = [
        TABLE.format(device=machine["device"], when=when, star=star),
        "",
        "| | batch | copy of the logits | torch | whole step | eager | SST step | peak memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for by_step in _by_case(results["records"]):
        step = by_step["t_step"]
        name = f"{step['structure']} {' '.join(f'{key}={value:,}' for key, value in step['size'].items())}"
        times = [_time(by_step.get(which)) for which in ("torch", "t_step", "sst_step")]
        times.insert(2, _short(step["ms"]))
        lines.append(
            f"| {name} | {step['batch']:,} | {_short(step['copy_ms'])} | {' | '.join(times)} | {_memory(step)} |"
        )
    return "\n".join(lines) + "\n"


def draw(results: dict):
    """Two panels, time and memory against the keys of an item; a line for each structure."""
    figure = require("matplotlib.figure", "plot").Figure(figsize=(9, 3.8), layout="constrained")
    time, memory = figure.subplots(1, 2, sharex=True)
    cases = list(_by_case(results["records"]))
    structures = list(dict.fromkeys(by_step["t_step"]["structure"] for by_step in cases))
    for structure, color in zip(structures, SERIES, strict=False):
        points = [by_step for by_step in cases if by_step["t_step"]["structure"] == structure]
        points.sort(key=lambda by_step: keys_of(structure, by_step["t_step"]["size"]))
        for step, look in (("t_step", "o-"), ("torch", "o:")):
            shown = [by_step[step] for by_step in points if step in by_step]
            at = [keys_of(structure, r["size"]) for r in shown]
            label = structure if step == "t_step" else None
            time.loglog(at, [_nanoseconds(_ms(r), r) for r in shown], look, color=color, label=label, markersize=4)
        shown = [by_step["t_step"] for by_step in points if by_step["t_step"]["peak_bytes"] is not None]
        at = [keys_of(structure, r["size"]) for r in shown]
        memory.semilogx(at, [_beyond(r) for r in shown], "o-", color=color, markersize=4)
    copies = [_nanoseconds(r["copy_ms"], r) for r in results["records"] if r["copy_ms"] is not None]
    if copies:
        time.axhline(min(copies), color=SOFT, linewidth=1, label="copy of the logits")
    time.set_ylabel("nanoseconds a logit", color=INK)
    memory.set_ylabel("peak memory, in logits", color=INK)
    for ax in (time, memory):
        ax.set_xlabel("keys of an item", color=INK)
        ax.grid(color=FAINT, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=SOFT, labelsize=8.5)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def _by_case(records: list[dict]):
    cases: dict[tuple, dict[str, dict]] = {}
    for record in records:
        cases.setdefault((record["structure"], str(record["size"]), record["batch"]), {})[record["step"]] = record
    return cases.values()


def _ms(record: dict) -> float:
    """What the step takes: of the device, where there is one."""
    return next(record[field] for field in ("graph_ms", "device_ms", "ms") if record[field] is not None)


def _nanoseconds(ms: float, record: dict) -> float:
    return 1e6 * ms / (record["batch"] * keys_of(record["structure"], record["size"]))


def _beyond(record: dict) -> float:
    """Peak memory beyond the gradient, which the step returns, in multiples of the logits."""
    return max(record["peak_bytes"] / record["logits_bytes"] - 1, 0.0)


def _memory(record: dict) -> str:
    return "" if record["peak_bytes"] is None else f"{_beyond(record):.1f}"


def _time(record: dict | None) -> str:
    if record is None:
        return ""
    return _short(_ms(record)) + "\\*" * _by_events(record)


def _by_events(record: dict) -> bool:
    return record["graph_ms"] is None and record["device_ms"] is not None


def _short(ms: float | None) -> str:
    return "" if ms is None else f"{ms:,.0f}" if ms >= 10 else f"{ms:#.2g}"
