"""`gumtrace bench --scale`: whole steps for large items, beside what torch takes to draw and order as much noise."""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch

from gumtrace.benchmark.cases import STRUCTURES, Case, Instance, Size, prepare, recipe
from gumtrace.benchmark.device import event_ms, graph_ms, unchecked
from gumtrace.benchmark.gate import CheckFailed, trace_bytes
from gumtrace.benchmark.memory import peak_bytes
from gumtrace.benchmark.records import Record
from gumtrace.benchmark.timing import RELAXED, steps

T_STEP, BASELINE = "t_step", "torch"
LOGITS, CPU_LOGITS = 1 << 24, 1 << 19  # of a batch of the series, and the most of one on the CPU
CHECKED = 2  # items
SECONDS, MOST_CALLS = 0.5, 15  # of wall time for a step; slow ones get three calls, the slowest one
SLOW = 3.0  # seconds
RELAXED_NODES = 256  # the most of a tree whose relaxation is timed too: that takes O(n^3)
TOLERANCE = 1e-3  # of gradients, relative, and a tenth of it of log-probabilities: float32 beside float64


def _case(structure: str, batch: int | None = None, quick: bool = False, **size: int) -> Case:
    """Without a batch a point of the series: as many items as make up the same number of logits."""
    return Case(structure, size, batch or max(1, round(LOGITS / keys_of(structure, size))), quick=quick)


def keys_of(structure: str, size: Size) -> int:
    return STRUCTURES[structure].keys(size)


SCALE: tuple[Case, ...] = (
    _case("Subset", d=1024, k=64),
    _case("Subset", d=131072, k=64, batch=64, quick=True),
    _case("Subset", d=8192, k=256, batch=1024),
    _case("Subset", d=10**6, k=1000, batch=8),
    _case("Permutation", d=1000),
    _case("Permutation", d=10**4),
    _case("Permutation", d=100_000, batch=16, quick=True),
    _case("Permutation", d=10**6),
    _case("SpanningTree", n=100, batch=1024),
    _case("SpanningTree", n=256, batch=64),
    _case("SpanningTree", n=500, batch=64, quick=True),
    _case("SpanningTree", n=1000, batch=16),
    _case("SpanningTree", n=2048),
    _case("Matching", n=50),
    _case("Matching", n=200, batch=256, quick=True),
    _case("Matching", n=1000, batch=16),
    _case("Matching", n=2048),
    _case("Arborescence", n=100, batch=1024),
    _case("Arborescence", n=256, batch=64),
    _case("Arborescence", n=500, batch=64, quick=True),
    _case("Arborescence", n=1000, batch=16),
    _case("Arborescence", n=2048),
    _case("BinaryTree", n=200),
    _case("BinaryTree", n=2048, quick=True),
    _case("SpanningTree.from_edges", nodes=10**4, edges=10**5, batch=1),
    _case("SpanningTree.from_edges", nodes=10**5, edges=10**6, batch=1, quick=True),
    _case("SpanningTree.from_edges", nodes=10**6, edges=10**7, batch=1),
    _case("BatchedSpanningTree", nodes=30, edges=60, batch=256),
    _case("BatchedSpanningTree", nodes=100, edges=300, batch=4096, quick=True),
)


def check_scale(case: Case, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
    """Raise CheckFailed unless the first items have the traces that the CPU's kernels find from the same noise, and the
    log-probabilities and gradients that those have in float64."""
    few = prepare(replace(case, batch=min(CHECKED, case.batch or CHECKED)), device=device, dtype=dtype)
    logits = few.logits.requires_grad_()
    d = few.make(logits)
    noise = d.perturb(generator=torch.Generator(logits.device).manual_seed(1)).detach()
    trace = d.trace(noise)
    log_prob = d.trace_log_prob(trace)
    log_prob.sum().backward()
    make = recipe(case).lay_out(case.size, torch.device("cpu"))[1]
    if logits.device.type != "cpu":
        again = make(logits.detach().cpu()).trace(noise.cpu())
        if not trace.to("cpu").equals(again).all():
            raise CheckFailed(f"{case.name}: the traces are not those of the CPU's kernels")
    exact = logits.detach().cpu().double().requires_grad_()
    expected = make(exact).trace_log_prob(trace.to("cpu"))
    expected.sum().backward()
    if not torch.allclose(log_prob.cpu().double(), expected, rtol=TOLERANCE / 10):
        raise CheckFailed(f"{case.name}: the log-probabilities are not those in float64")
    if not (_grad(logits) - _grad(exact)).norm() <= TOLERANCE * _grad(exact).norm():  # of many small ones, too
        raise CheckFailed(f"{case.name}: the gradients are not those in float64")


def _grad(x: torch.Tensor) -> torch.Tensor:
    assert x.grad is not None
    return x.grad.cpu().double()


def run_scale(
    case: Case, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, calls: int = MOST_CALLS
) -> list[Record]:
    """Time the whole step, that of a stochastic softmax for trees, and torch's baseline for subsets and permutations.
    To be checked before, when kernels are compiled as well.

    CUDA: `graph_ms` of a replay. A step that cannot be captured has none, and `device_ms` by events around eager calls,
    what it waits for included. `ms` is wall time of eager calls everywhere.
    """
    device = torch.device(device)
    cuda = device.type == "cuda"
    if not cuda:
        case = replace(case, batch=min(case.batch or 1, max(1, CPU_LOGITS // keys_of(case.structure, case.size))))
    with torch.cuda.device(device) if cuda else nullcontext(), unchecked() if cuda else nullcontext():
        instance = prepare(case, device=device, dtype=dtype)
        every, logits = steps(instance), instance.logits
        shown = {T_STEP: every[T_STEP]}
        tree = "matrix-tree" in instance.make(logits).relaxations
        if tree and case.size.get("n", 0) <= RELAXED_NODES:
            shown[RELAXED] = every[RELAXED]
        if "d" in case.size:  # a row of keys, of which the first are wanted
            shown[BASELINE] = _baseline(instance)
        common = {
            "structure": case.structure,
            "size": dict(case.size),
            "batch": len(logits),
            "device": str(device),
            "dtype": str(dtype).removeprefix("torch."),
            "copy_ms": event_ms(every["copy"], device)
            if cuda
            else 1e3 * statistics.median(_wall(every["copy"], calls)),
            "trace_bytes": trace_bytes(instance.make(logits).sample_trace()),
            "logits_bytes": logits.nbytes,
        }
        return [_record(step, call, device, calls, common) for step, call in shown.items()]


def _record(step: str, call: Callable[[], object], device: torch.device, calls: int, common: dict) -> Record:
    cuda = device.type == "cuda"
    peak = peak_bytes(call, device)
    times = _wall(call, calls, torch.cuda.synchronize if cuda else None)
    graph = graph_ms(call, device) if cuda else None
    return Record(
        step=step,
        ms=1e3 * statistics.median(times),
        min_ms=1e3 * min(times),
        peak_bytes=peak,
        graph_ms=graph,
        device_ms=_eager_ms(call, calls) if cuda and graph is None else None,
        **common,
    )


def _baseline(instance: Instance) -> Callable[[], object]:
    """Gumbel noise of torch, and its first k, or all, in order."""
    logits, size = instance.logits, instance.case.size
    noise = torch.empty_like(logits)

    def call() -> object:
        g = logits - noise.exponential_().log()
        return g.topk(size["k"]) if "k" in size else g.sort(descending=True)

    return call


def _wall(call: Callable[[], object], most: int, synchronise: Callable[[], None] | None = None) -> list[float]:
    """Seconds of each call."""
    times: list[float] = []
    while len(times) < most and (sum(times) < SECONDS or (len(times) < 3 and sum(times) < SLOW)):
        start = time.perf_counter()
        call()
        if synchronise is not None:
            synchronise()
        times.append(time.perf_counter() - start)
    return times


def _eager_ms(call: Callable[[], object], most: int) -> float:
    times: list[float] = []  # milliseconds
    while len(times) < min(3, most) and sum(times) < 1e3 * SLOW:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)
