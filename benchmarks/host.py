"""How long eager updates take on a GPU where the host takes most of it: python benchmarks/host.py --out FILE.json

Small batches of the paper's sizes: `plain`, a sum in torch and its backward; `step`, a distribution, a trace, its
log-probability and backward; `call`, TraceREINFORCE with four samples and an objective of two operations; `update`,
this call and backward. Each with backward in torch's own thread for the device, as it is by default, and in the thread
that calls it. Microseconds: medians and minima of the wall-clock, and the median of what the processor worked for it,
in all threads, before it synchronises at the end. Checks are off, and no graph is recorded.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
from recordings import when  # beside this file

import gumtrace as gt
from gumtrace.benchmark import machine
from gumtrace.benchmark.device import unchecked

BATCH, SAMPLES = 64, 4
STRUCTURES: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "Subset": (lambda x: gt.Subset(x, 10), (350,)),
    "SpanningTree": (gt.SpanningTree, (10, 10)),
    "Arborescence": (gt.Arborescence, (10, 10)),
    "Matching": (gt.Matching, (10, 10)),
    "Permutation": (gt.Permutation, (20,)),
    "BinaryTree": (gt.BinaryTree, (20,)),
}
THREADS = {"own": True, "calling": False}  # where backward runs: what set_multithreading_enabled is told
ROUNDS, CALLS = 25, 20


def calls(make: Callable, shape: tuple[int, ...], device: str) -> dict[str, Callable[[], object]]:
    x = torch.randn(BATCH, *shape, device=device, requires_grad=True)
    weights = torch.randn(shape, device=device)
    estimator = gt.estimators.TraceREINFORCE(samples=SAMPLES)

    def plain() -> None:
        (2.0 * x).sum().backward()
        x.grad = None

    def step() -> None:
        dist = make(x)
        dist.trace_log_prob(dist.sample_trace()).sum().backward()
        x.grad = None

    def call() -> torch.Tensor:
        return estimator(make(x), lambda value: (value * weights).flatten(2).sum(-1))

    def update() -> None:
        call().mean().backward()
        x.grad = None

    return {"plain": plain, "step": step, "call": call, "update": update}


def measure(device: str) -> list[dict]:
    """All cases are timed in turn: whatever else the machine does then meets all of them."""
    made = {name: calls(*what, device) for name, what in STRUCTURES.items()}
    times: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for round_number in range(ROUNDS + 1):
        for thread, structure in product(THREADS, STRUCTURES):
            with torch.autograd.set_multithreading_enabled(THREADS[thread]):
                for name, call in made[structure].items():
                    found = clocked(call, device)
                    if round_number > 0:  # the first one compiles
                        times[structure, thread, name].append(found)
    return [
        {"structure": structure, "thread": thread, "call": name, **summary(times[structure, thread, name])}
        for structure, thread, name in times
    ]


def clocked(call: Callable[[], object], device: str) -> tuple[float, float]:
    """Microseconds a call, of the wall-clock and of the processor. Synchronising at the end is no work of the host."""
    synchronise = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    synchronise()
    start, worked = time.perf_counter(), time.process_time()
    for _ in range(CALLS):
        call()
    worked = time.process_time() - worked
    synchronise()
    return 1e6 * (time.perf_counter() - start) / CALLS, 1e6 * worked / CALLS


def summary(times: list[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = zip(*times, strict=True)
    return {"median_us": statistics.median(wall), "min_us": min(wall), "cpu_us": statistics.median(cpu)}


HEADS = {"plain": "torch alone", "step": "step", "call": "estimator", "update": "estimator and backward"}


def table(results: dict) -> str:
    """One row for each structure, milliseconds."""
    machine, ms = results["machine"], _milliseconds(results)
    lines = [
        f"Milliseconds of an eager call for a batch of {BATCH} small items, by default, and behind the arrow with "
        f"backward in the thread that calls it; medians of `benchmarks/host.py` on {machine['device']}, "
        f"{when(machine)}. Torch alone: a sum and its backward. Step: distribution, trace, log-probability, backward. "
        "Estimator: TraceREINFORCE of "
        f"{SAMPLES} samples with its objective. The host was shared: torch alone shows how fast it was, and in the "
        f"fastest of {ROUNDS} rounds a step took {_fastest(results, 'step')} ms by default, an estimator with backward "
        f"{_fastest(results, 'update')} ms.",
        "",
        "| | " + " | ".join(HEADS.values()) + " |",
        "|---|" + "---:|" * len(HEADS),
    ]
    for structure in STRUCTURES:
        cells = (" → ".join(f"{ms[structure, thread, call]:.2f}" for thread in THREADS) for call in HEADS)
        lines.append(f"| {structure} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _fastest(results: dict, call: str) -> str:
    """Milliseconds, from the least to the most of the structures."""
    least = [r["min_us"] / 1e3 for r in results["records"] if (r["thread"], r["call"]) == ("own", call)]
    return f"{min(least):.2f} to {max(least):.2f}"


def _milliseconds(results: dict) -> dict[tuple[str, str, str], float]:
    return {(r["structure"], r["thread"], r["call"]): r["median_us"] / 1e3 for r in results["records"]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu tries the script, and says nothing of a GPU's host")
    with unchecked():
        records = measure(args.device)
    args.out.write_text(json.dumps({"machine": machine(args.device), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
