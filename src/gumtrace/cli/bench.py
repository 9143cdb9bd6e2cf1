"""`gumtrace bench`: time and memory of every structure, after a check that its answers are right."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from gumtrace import benchmark
from gumtrace.benchmark import Case, CheckFailed, Record
from gumtrace.benchmark.cases import BATCH, CUDA_BATCH, has_kernel
from gumtrace.benchmark.figure import draw
from gumtrace.benchmark.scale import CPU_LOGITS
from gumtrace.benchmark.timing import REPEAT
from gumtrace.cli.arguments import device_problem, file_problem, positive
from gumtrace.extras import require

QUICK_REPEAT = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="any torch device: cpu, cuda, cuda:1, mps (default: cpu)")
    parser.add_argument(
        "--quick", action="store_true", help="one size of each structure and fewer repeats: about a minute"
    )
    parser.add_argument(
        "--scale",
        action="store_true",
        help="large items instead, with batches of their own (on the CPU smaller ones), beside torch's noise and sort",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the records to this file")
    figure = "also draw time and memory of a step against size, a line for each structure, into this picture"
    parser.add_argument("--figure", type=Path, metavar="FILE", help=figure)
    names = ", ".join(benchmark.STRUCTURES)
    parser.add_argument(
        "--structures", type=_structures, metavar="A,B", help=f"structures to measure (default: all): {names}"
    )
    batch = (
        f"items in a batch (default: {BATCH}, on CUDA {CUDA_BATCH}); sparse graphs always come alone; not with --scale"
    )
    parser.add_argument("--batch", type=positive, metavar="N", help=batch)
    parser.add_argument(
        "--dtype", choices=["float32", "float64"], default="float32", help="dtype of the logits (default: float32)"
    )
    repeat = (
        f"rounds to take medians over (default: {REPEAT}, {QUICK_REPEAT} with --quick; 10^7 edges: at most 3); with "
        "--scale the most calls of a step: slow steps are called less often"
    )
    parser.add_argument("--repeat", type=positive, metavar="N", help=repeat)


def run(args: argparse.Namespace) -> int:
    """0: done; 1: a correctness check failed and nothing was timed; 2: the device or the file cannot be used, or there
    is no case to measure."""
    dtype = getattr(torch, args.dtype)
    problem = _batch_problem(args) or device_problem(args.device, dtype) or _files_problem(args)
    if problem:
        print(f"gumtrace bench: {problem}", file=sys.stderr)
        return 2
    cases = [case for case in (benchmark.SCALE if args.scale else benchmark.CASES) if _wanted(case, args)]
    if not cases:
        print(f"gumtrace bench: {_no_cases(args)}", file=sys.stderr)
        return 2
    on_cuda = torch.device(args.device).type == "cuda"
    settings: dict[str, Any] = {"device": args.device, "dtype": dtype}
    rounds = args.repeat or (QUICK_REPEAT if args.quick else REPEAT)
    repeat: dict[str, Any] = {"calls": rounds}
    check: Callable[..., None] = benchmark.check_scale
    time: Callable[..., list[Record]] = benchmark.run_scale
    if not args.scale:
        check, time = benchmark.check_case, benchmark.run_case
        settings["batch"] = args.batch or (CUDA_BATCH if on_cuda else BATCH)
        repeat = {"repeat": rounds, "checked": True}
    try:
        for case in _progress(cases, "checking"):
            check(case, **settings)
    except CheckFailed as failure:
        print(f"gumtrace bench: nothing was timed, since a check failed: {failure}", file=sys.stderr)
        return 1
    records: list[Record] = []
    machine = benchmark.machine(args.device)
    for case in _progress(cases, "timing"):
        records += time(case, **settings, **repeat)
        if args.json is not None:
            benchmark.save(args.json, records, machine)  # after each case, so that a run cut short is not lost
    _print_table(records, machine, args.scale)
    if args.json is not None:
        print(f"{len(records)} records in {args.json}", file=sys.stderr)
    if args.figure is not None:
        draw(records).savefig(args.figure, dpi=140)
        print(f"a figure in {args.figure}", file=sys.stderr)
    return 0


def _batch_problem(args: argparse.Namespace) -> str | None:
    return (
        "--batch has no meaning with --scale, whose cases have batches of their own"
        if args.scale and args.batch
        else None
    )


def _files_problem(args: argparse.Namespace) -> str | None:
    """Why what was asked for cannot be written, as known before the work."""
    problem = None if args.json is None else file_problem(args.json, "--json")
    if problem or args.figure is None:
        return problem
    kinds = require("matplotlib.figure", "plot").Figure().canvas.get_supported_filetypes()
    if args.figure.suffix[1:].lower() not in kinds:
        return f"cannot draw {args.figure}: its name must end in one of {', '.join(sorted(kinds))}"
    return file_problem(args.figure, "--figure")


def _wanted(case: Case, args: argparse.Namespace) -> bool:
    asked = (case.quick or not args.quick) and (args.structures is None or case.structure in args.structures)
    return asked and (args.scale or has_kernel(case, args.device))


def _no_cases(args: argparse.Namespace) -> str:
    """Only structures that were named can be without a case."""
    asked = [f"--{name}" for name in ("scale", "quick") if getattr(args, name)]
    options = f" with {' '.join(asked)}" if asked else " without --scale"
    return f"no case of {', '.join(args.structures)} is measured{options} on {args.device}"


def _structures(text: str) -> list[str]:
    known = {name.lower(): name for name in benchmark.STRUCTURES}
    asked = [name.strip() for name in text.split(",") if name.strip()]
    if strange := [name for name in asked if name.lower() not in known]:
        raise argparse.ArgumentTypeError(
            f"unknown structure {strange[0]!r}: choose from {', '.join(benchmark.STRUCTURES)}"
        )
    if not asked:
        raise argparse.ArgumentTypeError("name at least one structure")
    return [known[name.lower()] for name in asked]


def _progress(cases: list[Case], what: str) -> Iterator[Case]:
    """A bar on stderr where that is a terminal and tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from cases
        return
    with tqdm(total=len(cases), desc=what, file=sys.stderr, disable=None, leave=False) as bar:
        for case in cases:
            bar.set_postfix_str(case.name)
            yield case
            bar.update()


def _print_table(records: list[Record], machine: dict, scale: bool = False) -> None:
    cuda = any(torch.device(record.device).type == "cuda" for record in records)
    if scale:
        head, rows = _scale_table(records, cuda)
    else:
        head, rows = _cuda_table(records, machine["bytes_per_second"]) if cuda else _table(records)
    title = f"{machine['device']}, {machine['threads']} threads, {machine['cpu']}, torch {machine['torch']}"
    note = (
        "ms for the whole batch, medians; ratio: sst_step over trace_reinforce; "
        "copies: t_step in copies of the logits; peak: MB a t_step takes on top"
    )
    if scale:
        note = (
            "ms for the whole batch of the device: a graph's replay, or * events around the eager step; eager: t_step "
            "with all that Python takes; "
            if cuda
            else f"ms for the whole batch, at most {CPU_LOGITS} logits on the CPU, or one item; "
        ) + (
            "torch: exponential_, log and topk or sort; copies, x torch: t_step in copies of the logits, in times of "
            "torch; peak: memory of a t_step beyond logits and gradient, in logits"
        )
    elif cuda:
        note = (
            "ms of device time for the whole batch, eager calls, blank where the host cannot get ahead of the device; "
            "graph: t_step as a CUDA graph; host: t_step with all that Python takes; share: of the card's bandwidth, "
            "if a t_step read the logits three times and wrote them once; peak: memory a t_step takes on top, in logits"
        )
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        print(title)
        for row in [head, *rows]:
            print("  ".join(_cells(row, widths)))
        print(note)
        return
    table = Table(title=title, caption=note, box=box.SIMPLE)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(console.width, needed)).print(table)  # a narrow terminal wraps; nothing is cut off


def _cells(row: list[str], widths: list[int]) -> Iterable[str]:
    return (
        cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )


def _table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """One row per case, one column per step."""
    head = ["case", "batch", "copy", *benchmark.STEPS, benchmark.RELAXED, "ratio", "copies", "peak"]
    rows = []
    for by_step in _by_case(records):
        update = by_step["t_step"]
        name = Case(update.structure, update.size).name
        shown = (*benchmark.STEPS, benchmark.RELAXED)
        times = [_ms(by_step[step].ms) if step in by_step else "" for step in shown]
        relaxed = by_step.get(benchmark.RELAXED)
        ratio = "" if relaxed is None else f"{relaxed.ms / by_step['trace_reinforce'].ms:.1f}"
        peak = "" if update.peak_bytes is None else f"{update.peak_bytes / 1e6:.3g}"
        rows.append([name, str(update.batch), _ms(update.copy_ms), *times, ratio, _ms(update.copies), peak])
    return head, rows


def _by_case(records: list[Record]) -> Iterable[dict[str, Record]]:
    """The records of each case by step."""
    by_case: dict[tuple, dict[str, Record]] = {}
    for record in records:
        by_case.setdefault((record.structure, str(record.size), record.batch), {})[record.step] = record
    return by_case.values()


def _cuda_table(records: list[Record], bandwidth: float | None) -> tuple[list[str], list[list[str]]]:
    shown = (*benchmark.STEPS, benchmark.RELAXED)
    head = ["case", "batch", "copy", *shown, "graph", "host", "copies", "share", "peak"]
    rows = []
    for by_step in _by_case(records):
        update = by_step["t_step"]
        times = [_ms(by_step[step].own_ms) if step in by_step else "" for step in shown]
        last = [_ms(update.graph_ms), _ms(update.ms), _ms(update.copies), _share(update, bandwidth)]
        peak = f"{(update.peak_bytes or 0) / update.logits_bytes:.2f}"
        name = Case(update.structure, update.size).name
        rows.append([name, str(update.batch), _ms(update.copy_ms), *times, *last, peak])
    return head, rows


def _scale_table(records: list[Record], cuda: bool) -> tuple[list[str], list[list[str]]]:
    timed = (benchmark.BASELINE, "t_step", benchmark.RELAXED)
    head = ["case", "batch", "copy", *timed, *(["eager"] if cuda else []), "copies", "x torch", "peak"]
    rows = []
    for by_step in _by_case(records):
        update, torchs = by_step["t_step"], by_step.get(benchmark.BASELINE)
        row = [Case(update.structure, update.size).name, str(update.batch), _ms(update.copy_ms)]
        row += [_scale_ms(by_step.get(step)) for step in timed]
        row += [_ms(update.ms)] if cuda else []
        row += [_ms(update.best_copies), "" if torchs is None else f"{update.best_ms / torchs.best_ms:.2f}"]
        rows.append([*row, "" if update.extra_memory is None else f"{update.extra_memory:.2f}"])
    return head, rows


def _scale_ms(record: Record | None) -> str:
    if record is None:
        return ""
    if record.graph_ms is None and record.device_ms is not None:
        return f"{_ms(record.device_ms)}*"
    return _ms(record.best_ms)


def _share(update: Record, bandwidth: float | None) -> str:
    if bandwidth is None or update.own_ms is None:
        return ""
    return f"{4 * update.logits_bytes / (1e-3 * update.own_ms * bandwidth):.0%}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
