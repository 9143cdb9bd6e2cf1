"""`gumtrace warm-up`: compile the kernels of structures ahead of their first use."""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

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
NAMES = (*STRUCTURES, GRAPHS, LINKED, CUSTOM)
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
        default=min(os.cpu_count() or 1, MOST_JOBS),
        help=f"processes that compile side by side, half a GB each (default: one for each core, at most {MOST_JOBS})",
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
    pairs = [(name, dtype) for name in args.structures or NAMES for dtype in args.dtype]
    for place, (name, dtype) in enumerate(_compile(pairs, min(args.jobs, len(pairs))), 1):
        print(f"[{place}/{len(pairs)}] {name} {dtype}", flush=True)
    print(f"{time.monotonic() - start:.0f} s; the kernels are in {folder.parent}")
    return 0


def _compile(pairs: list[tuple[str, str]], jobs: int) -> Iterator[tuple[str, str]]:
    """The pairs, as they are done."""
    if jobs == 1:
        for pair in pairs:
            _use(*pair)
            yield pair
        return
    one_thread = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), **one_thread) as pool:
        found = {pool.submit(_use, *pair): pair for pair in pairs}
        for future in as_completed(found):
            future.result()
            yield found[future]


def _use(name: str, dtype: str) -> None:
    use(make(name, DTYPES[dtype]))


def make(name: str, dtype: torch.dtype) -> Structure:
    """A small batch of a structure, whose logits require a gradient."""
    if name == CUSTOM:
        logits = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
        return gt.Custom(logits, MaximalIndependentSet(torch.ones(3, 3) > 0))
    if name == GRAPHS:
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
