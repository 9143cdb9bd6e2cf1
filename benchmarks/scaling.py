"""Time of a step against the batch and against the size: python benchmarks/scaling.py --json FILE --figure FILE.png

A whole T-REINFORCE step for spanning trees: make the distribution, draw a trace, take its log-probability, go back.
Three ways: the paper's recursion, literally, with Kruskal's algorithm as the hooks below; the kernels of the CPU; those
of CUDA, where there is a device. Times are of the whole batch. `--quick` measures a few points, `--from FILE.json`
draws a recorded run. Under two minutes.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

import gumtrace as gt
from gumtrace.benchmark import machine
from gumtrace.benchmark.device import event_ms
from gumtrace.extras import require
from gumtrace.plotting.style import ACCENT, CHOSEN, FAINT, INK, SOFT

LITERAL = "literal recursion"
WAYS = {LITERAL: ("cpu", SOFT), "CPU": ("cpu", ACCENT), "CUDA": ("cuda", CHOSEN)}
N, BATCH = 50, 256  # what stands still while the other one grows
BATCHES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
SIZES = (5, 10, 20, 50, 100, 200, 500)
SLOW = 3.0  # seconds: a series ends with the first point above
SECONDS, CALLS = 0.5, 50  # calls of a point, whichever is reached first


class Kruskal:
    """R: the part of each node."""

    def __init__(self, n: int):
        self.n = n

    def start(self):
        return [u * self.n + v for u in range(self.n) for v in range(u + 1, self.n)], list(range(self.n))

    def stop(self, K, R):
        return not K

    def split(self, K, R):
        return [K]

    def map(self, K, R, winners):
        u, v = (R[node] for node in divmod(winners[0], self.n))
        R = [u if part == v else part for part in R]
        return [key for key in K if R[key // self.n] != R[key % self.n]], R


def step_of(way: str, n: int, batch: int) -> Callable[[], None]:
    """The step, as a function without arguments."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, n, n, generator=generator).to(WAYS[way][0]).requires_grad_()
    kruskal = Kruskal(n)

    def step() -> None:
        if way == LITERAL:
            d = gt.Custom(logits, kruskal, event_dim=2, validate_args=False)
        else:
            d = gt.SpanningTree(logits, validate_args=False)
        d.trace_log_prob(d.sample_trace()).sum().backward()
        logits.grad = None

    return step


def wall_ms(call: Callable[[], None], cuda: bool) -> float:
    """The median of calls, each waited for."""
    wait = torch.cuda.synchronize if cuda else lambda: None
    wait()
    times: list[float] = []
    while not times or (sum(times) < SECONDS and len(times) < CALLS):
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(way: str, n: int, batch: int) -> dict:
    step, cuda = step_of(way, n, batch), WAYS[way][0] == "cuda"
    if way != LITERAL:  # which is slow, and has nothing to compile for this size
        step()
    ms = wall_ms(step, cuda)
    return {"way": way, "n": n, "batch": batch, "ms": ms, "device_ms": event_ms(step) if cuda else None}


def run(quick: bool) -> dict:
    """The machine and the records, one a point."""
    batches, sizes = (BATCHES[:3], SIZES[:3]) if quick else (BATCHES, SIZES)
    ways = [way for way, (device, _) in WAYS.items() if device == "cpu" or torch.cuda.is_available()]
    axes = {"batch": [(N, batch) for batch in batches], "n": [(n, BATCH) for n in sizes]}
    points = [(way, axis, *point) for way in ways for axis in axes for point in axes[axis]]
    for way in ways:
        step_of(way, 3, 1)()  # compiles
    records: dict[tuple, dict] = {}
    ended = set()
    for way, axis, n, batch in progress(points):
        if (way, axis) in ended:
            continue
        key = (way, n, batch)
        if key not in records:  # one point is on both axes
            records[key] = measure(way, n, batch)
        if records[key]["ms"] > 1e3 * SLOW:
            ended.add((way, axis))
    return {"machine": machine(WAYS[ways[-1]][0]), "records": list(records.values())}


def progress(points: list) -> Iterable:
    try:
        from tqdm import tqdm
    except ImportError:
        return points
    return tqdm(points, desc="scaling", unit="point")


def draw(results: dict, path: Path) -> None:
    """Two panels, against the batch and against the size; a line for each way."""
    canvas = require("matplotlib.figure", "plot").Figure(figsize=(9, 3.8), layout="constrained")
    panels = canvas.subplots(1, 2, sharey=True)
    for ax, axis, other, still in zip(panels, ("batch", "n"), ("n", "batch"), (N, BATCH), strict=True):
        points = sorted((r for r in results["records"] if r[other] == still), key=lambda r: r[axis])
        for way, (_, color) in WAYS.items():
            for field, name, look in (("ms", way, "o-"), ("device_ms", f"{way}, device time", "o--")):
                shown = [r for r in points if r["way"] == way and r[field] is not None]
                if shown:
                    at, ms = [r[axis] for r in shown], [r[field] for r in shown]
                    ax.loglog(at, ms, look, color=color, label=name, markersize=4, linewidth=1.6)
        ax.set_title(f"spanning trees, {other} = {still}", fontsize=10, color=INK)
        ax.set_xlabel({"batch": "batch", "n": "nodes n"}[axis], color=INK)
        ticks = sorted({r[axis] for r in points})
        ax.set_xticks(ticks, [str(tick) for tick in ticks])
        ax.minorticks_off()
        ax.grid(color=FAINT, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=SOFT, labelsize=8.5)
    panels[0].set_ylabel("milliseconds per step", color=INK)
    lines = panels[0].get_legend_handles_labels()
    canvas.legend(*lines, loc="outside upper center", ncols=4, frameon=False, fontsize=8.5, labelcolor=INK)
    facts = results["machine"]
    device = "" if facts["device"] == "cpu" else f", {facts['device']}"
    where = f"{facts['cpu']}, {facts['threads']} threads{device}, torch {facts['torch']}, {facts['date']}"
    canvas.supxlabel(where, fontsize=7.5, color=SOFT)
    canvas.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times to this file")
    parser.add_argument("--figure", type=Path, help="draw them into this file")
    parser.add_argument("--from", dest="recorded", type=Path, help="take the times from this file, measure nothing")
    parser.add_argument("--quick", action="store_true", help="a few points")
    args = parser.parse_args()
    results = json.loads(args.recorded.read_text(encoding="utf-8")) if args.recorded else run(args.quick)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if args.figure:
        draw(results, args.figure)
    if not (args.json or args.figure):
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
