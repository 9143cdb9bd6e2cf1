"""How long eager updates take on a GPU where the host takes most of it: python benchmarks/host.py --out FILE.json

Small batches of the paper's sizes. Medians and minima of wall-clock microseconds: `plain`, a sum in torch and its
backward; `step`, a distribution, a trace, its log-probability and backward; `call`, TraceREINFORCE with four samples
and an objective of two operations; `update`, this call and backward. Each with backward in torch's own thread for the
device, as it is by default, and in the thread that calls it. Checks are off, and no graph is recorded.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

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


def measure(structure: str, thread: str, device: str) -> dict:
    """One record. All calls are timed in turn: whatever else the machine does then meets all of them."""
    made = calls(*STRUCTURES[structure], device)
    times: dict[str, list[float]] = {name: [] for name in made}
    with torch.autograd.set_multithreading_enabled(THREADS[thread]):
        for name in made:
            clocked(made[name], device)  # compiles
        for _ in range(ROUNDS):
            for name in made:
                times[name].append(clocked(made[name], device))
    found = {name: {"median": statistics.median(x), "min": min(x)} for name, x in times.items()}
    return {"structure": structure, "thread": thread, "microseconds": found}


def clocked(call: Callable[[], object], device: str) -> float:
    synchronise = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    synchronise()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    synchronise()
    return 1e6 * (time.perf_counter() - start) / CALLS


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    with unchecked():
        records = [measure(structure, thread, args.device) for structure in STRUCTURES for thread in THREADS]
    args.out.write_text(json.dumps({"machine": machine(args.device), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
