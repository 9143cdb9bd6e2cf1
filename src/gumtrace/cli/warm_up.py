"""`gumtrace warm-up`: compile the kernels of structures ahead of their first use."""

import argparse
import os
import subprocess
import sys
import time

import torch
from torch import Tensor

import gumtrace as gt
from gumtrace.benchmark.cases import STRUCTURES, Case, prepare
from gumtrace.cli.arguments import positive
from gumtrace.recursions import MaximalIndependentSet
from gumtrace.relaxations import has_relaxation, relax
from gumtrace.structures.base import Structure

DTYPES = {"float32": torch.float32, "float64": torch.float64}  # half types are computed in float32
CUSTOM, GRAPHS, LINKED = "Custom", "BatchedSpanningTree", "ConstrainedForest"
SOFT = "Permutation"  # has a relaxation as a matrix only
NAMES = tuple(dict.fromkeys((*STRUCTURES, GRAPHS, LINKED, CUSTOM)))  # GRAPHS is among the first, for the benchmark
Pairs = list[tuple[str, str]]  # names of a structure and of a dtype
MOST_JOBS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "structures", nargs="*", type=_name, metavar="STRUCTURE", help=f"any of {', '.join(NAMES)} (default: all)"
    )
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="of the logits (default: both)"
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        default=min(_cores(), MOST_JOBS),
        help=f"processes that compile side by side, about 0.6 GB each (default: one a core, at most {MOST_JOBS})",
    )


def _name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"unknown structure {text!r}: choose from {', '.join(NAMES)}")
    return text


def run(args: argparse.Namespace) -> int:
    from gumtrace.kernels.cpu.folders import VARIABLE, writable_folder

    folder = writable_folder()
    if folder is None:
        print(f"gumtrace: no folder can be written; set {VARIABLE} to one that can", file=sys.stderr)
        return 1
    start = time.monotonic()
    pairs = list(dict.fromkeys((name, dtype) for name in args.structures or NAMES for dtype in args.dtype))
    jobs = min(args.jobs, len(pairs))
    if jobs == 1:
        _compile_here(pairs)
    elif failure := _compile_side_by_side(pairs, jobs):
        print(f"gumtrace: {failure}", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - start:.0f} s; the kernels are in {folder.parent}")
    return 0


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compile_here(pairs: Pairs) -> None:
    for place, (name, dtype) in enumerate(pairs, 1):
        print(f"[{place}/{len(pairs)}] {name} {dtype}", flush=True)
        use(make(name, DTYPES[dtype]))


def _compile_side_by_side(pairs: Pairs, jobs: int) -> str | None:
    """Each pair in a process of its own, `jobs` of them at a time. What went wrong, if anything did."""
    running: dict[tuple[str, str], subprocess.Popen] = {}
    try:
        for place, (name, dtype) in enumerate(pairs, 1):
            if failure := _wait(running, jobs - 1):
                return failure
            print(f"[{place}/{len(pairs)}] {name} {dtype}", flush=True)
            running[name, dtype] = subprocess.Popen(_command(name, dtype), stdout=subprocess.DEVNULL)
        return _wait(running, 0)
    finally:  # after a failure or Ctrl-C
        for process in running.values():
            process.terminate()


def _command(name: str, dtype: str) -> list[str]:
    return [sys.executable, "-m", "gumtrace", "warm-up", name, "--dtype", dtype, "--jobs", "1"]


def _wait(running: dict[tuple[str, str], subprocess.Popen], most: int) -> str | None:
    """Until no more than so many processes are left. What went wrong with one of them, if anything did."""
    while True:
        for (name, dtype), process in list(running.items()):
            status = process.poll()
            if status is not None:
                del running[name, dtype]
            if status:
                why = "was killed, perhaps for lack of memory; --jobs 1 takes least" if status < 0 else "failed"
                return f"the process that compiled {name} {dtype} {why} (exit status {status})"
        if len(running) <= most:
            return None
        time.sleep(0.05)


def make(name: str, dtype: torch.dtype) -> Structure:
    """A small batch of a structure, whose logits require a gradient."""
    if name == CUSTOM:
        logits = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
        return gt.Custom(logits, MaximalIndependentSet(torch.ones(3, 3) > 0))
    if name == GRAPHS:  # with the checks of a new one, which the benchmark leaves out
        logits, edges = torch.zeros(4, dtype=dtype, requires_grad=True), torch.tensor([[0, 1, 2, 3], [1, 2, 0, 4]])
        return gt.BatchedSpanningTree(logits, edges, 5, batch=torch.tensor([0, 0, 0, 1, 1]))
    if name == LINKED:
        return gt.ConstrainedForest(torch.zeros(2, 3, 3, dtype=dtype, requires_grad=True), components=2)
    instance = prepare(Case(name, STRUCTURES[name].tiny), 2, dtype=dtype)
    logits = instance.logits.requires_grad_()
    return gt.Permutation(logits, matrix=True) if name == SOFT else instance.make(logits)


def use(dist: Structure) -> None:
    """Everything that has a kernel: samples with and without replacement, log-probabilities, noise given the trace,
    soft values, means, and two derivatives of each, which control variates need."""
    trace = dist.sample_trace()
    _ = trace.value
    _differentiate(dist.trace_log_prob(trace), dist.logits)
    dist.distinct_traces(2)
    noise = dist.perturb()
    dist.trace(noise.detach())
    _differentiate(dist.conditional(trace), dist.logits)
    for kind in dist.relaxations if has_relaxation(dist) else ():
        _differentiate(relax(dist, dist.perturb(), 1.0, kind), dist.logits)
    try:
        mean = dist.mean
    except (NotImplementedError, ValueError):  # not known, or not for these sizes
        return
    _differentiate(mean, dist.logits)


def _differentiate(x: Tensor, logits: Tensor) -> None:
    x = torch.where(x.isfinite(), x, 0.0).sum()
    (first,) = torch.autograd.grad(x, logits, retain_graph=True)
    (again,) = torch.autograd.grad(x, logits, create_graph=True)
    if again.requires_grad:
        torch.autograd.grad((again * first).sum(), logits, retain_graph=True)
