"""The tables and the figure of `gumtrace bench --scale`, from its records."""

from recordings import when  # beside this file

from gumtrace.benchmark import BASELINE, RELAXED, Record
from gumtrace.benchmark import figure as drawing
from gumtrace.benchmark.scale import CPU_LOGITS

FILE, CPU_FILE = "scale-h200.json", "scale-cpu.json"
TORCH = (
    "torch: `exponential_`, `log` and `topk` or `sort` of as many numbers, in the same run. Copies: the whole step in "
    "copies of the logits; times torch: in times of torch's noise and sort. Peak memory: of the whole step, beyond the "
    "logits and their gradient, in multiples of the logits."
)
CUDA_TABLE = (
    "Milliseconds for the whole batch, float32, by `gumtrace bench --device cuda --scale` on {device}, {when}: of the "
    "device alone, as a replay of a CUDA graph{star}. Eager: wall-clock time of the whole step without one, Python "
    "included. " + TORCH
)
CPU_TABLE = (
    "Milliseconds for the whole batch, float32, by `gumtrace bench --device cpu --scale` on {cpu}, {threads} threads, "
    "{when}. Batches have at most " + f"{CPU_LOGITS:,}" + " logits, or one item. " + TORCH
)
STAR = ", or with a star by events around the eager step, which could not be captured"


def table(results: dict) -> str:
    """One row for each case."""
    machine, records = results["machine"], records_of(results)
    on_cpu = machine["device"] == "cpu"
    star = STAR if any(map(_by_events, records)) else ""
    head = ["batch", "copy of the logits", "torch", "whole step", *([] if on_cpu else ["eager"])]
    head += ["SST step", "copies", "times torch", "peak memory"]
    lines = [
        (CPU_TABLE if on_cpu else CUDA_TABLE).format(**machine | {"when": when(machine), "star": star}),
        "",
        f"| | {' | '.join(head)} |",
        "|---|" + "---:|" * len(head),
    ]
    for by_step in _by_case(records):
        step = by_step["t_step"]
        cells = [f"{step.batch:,}", _short(step.copy_ms), _time(by_step.get(BASELINE)), _time(step)]
        cells += [] if on_cpu else [_short(step.ms)]
        cells += [_time(by_step.get(RELAXED)), _short(step.best_copies)]
        cells += [_times_torch(by_step), "" if step.extra_memory is None else f"{step.extra_memory:.1f}"]
        lines.append(f"| {name(step)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def permutations(results: dict) -> str:
    """What permutations take beside torch's noise and sort, in a paragraph."""
    steps = [by_step for by_step in _by_case(records_of(results)) if by_step["t_step"].structure == "Permutation"]
    times = [f"{_times_torch(by_step)} for {by_step['t_step'].size['d']:,}" for by_step in steps]
    largest = max(steps, key=lambda by_step: by_step["t_step"].extra_memory or 0.0)
    step, torch = largest["t_step"], largest[BASELINE]
    return (
        "A `Permutation` takes longer than torch's noise and `sort`, as it sorts the same numbers and then computes "
        f"sums and gradients. By the number of keys, on {results['machine']['device']}, in times of torch: "
        f"{', '.join(times)}. For {step.size['d']:,} keys it takes {step.extra_memory:.0f} times the memory of the "
        f"logits, as much as torch's noise and `sort`, which take {(torch.peak_bytes or 0) / torch.logits_bytes:.0f}.\n"
    )


def name(record: Record) -> str:
    return f"{record.structure} {' '.join(f'{key}={value:,}' for key, value in record.size.items())}"


def draw(results: dict):
    """See gumtrace.benchmark.figure."""
    return drawing.draw(records_of(results))


def records_of(results: dict) -> list[Record]:
    return [Record(**record) for record in results["records"]]


def _by_case(records: list[Record]):
    cases: dict[tuple, dict[str, Record]] = {}
    for record in records:
        cases.setdefault((record.structure, str(record.size), record.batch), {})[record.step] = record
    return cases.values()


def _times_torch(by_step: dict[str, Record]) -> str:
    return f"{by_step['t_step'].best_ms / by_step[BASELINE].best_ms:.2f}" if BASELINE in by_step else ""


def _time(record: Record | None) -> str:
    return "" if record is None else _short(record.best_ms) + "\\*" * _by_events(record)


def _by_events(record: Record) -> bool:
    return record.graph_ms is None and record.device_ms is not None


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}" if number >= 10 else f"{number:#.2g}"
