"""The timing of one case: all its steps in turn, over and over, with a copy of the logits among them."""

import gc
import math
import statistics
import time
from collections.abc import Callable

import torch

from gumtrace.benchmark.cases import BATCH, Case, Instance, prepare
from gumtrace.benchmark.device import event_ms, graph_ms, unchecked
from gumtrace.benchmark.gate import check, trace_bytes
from gumtrace.benchmark.memory import peak_bytes
from gumtrace.benchmark.records import Record
from gumtrace.estimators import StochasticSoftmax, TraceREINFORCE
from gumtrace.estimators.base import Estimator
from gumtrace.relaxations import has_relaxation

STEPS = (
    "perturb",
    "trace",
    "sample_trace",
    "log_prob",
    "log_prob+backward",
    "conditional",
    "t_step",
    "trace_reinforce",
)
RELAXED = "sst_step"  # what a stochastic softmax pays instead of `trace_reinforce`, where there is a relaxation
REPEAT = 15
SAMPLE_SECONDS = 1e-3  # a timing shorter than this repeats its call
Calls = dict[str, Callable[[], object]]


def run_case(
    case: Case,
    *,
    batch: int = BATCH,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    repeat: int = REPEAT,
    checked: bool = False,
) -> list[Record]:
    """Check a case (unless `checked` says it was), then time it: one record a step.

    Machines are shared and noisy, so no step has its repeats in a row: every round times the copy of the logits and
    each step once, and medians and minima are taken over rounds. Ratios are then of the same moments.
    """
    device = torch.device(device)
    instance = prepare(case, batch, device, dtype)
    if not checked:
        check(instance)
    if device.type == "cuda":
        with torch.cuda.device(device), unchecked():  # kernels need not change the device then
            return _records(case, instance, device, dtype, repeat)
    return _records(case, instance, device, dtype, repeat)


def _records(case: Case, instance: Instance, device: torch.device, dtype: torch.dtype, repeat: int) -> list[Record]:
    calls = steps(instance)
    times = time_round_robin(calls, min(repeat, case.repeat or repeat), _synchroniser(device))
    logits = instance.logits
    cuda = device.type == "cuda"
    copy = times.pop("copy")
    common = {
        "structure": case.structure,
        "size": dict(case.size),
        "batch": len(logits),
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "copy_ms": event_ms(calls["copy"], device) if cuda else 1e3 * statistics.median(copy),
        "trace_bytes": trace_bytes(instance.make(logits).sample_trace()),
        "logits_bytes": logits.nbytes,
    }
    return [
        Record(
            step=step,
            ms=1e3 * statistics.median(seconds),
            min_ms=1e3 * min(seconds),
            peak_bytes=peak_bytes(calls[step], device),
            device_ms=event_ms(calls[step], device) if cuda else None,
            graph_ms=graph_ms(calls[step], device) if cuda and step == "t_step" else None,
            **common,
        )
        for step, seconds in times.items()
    ]


def steps(instance: Instance) -> Calls:
    """The copy and the steps, as functions without arguments. Gradients are dropped at the end of each call.

    Only the steps with a backward read logits that require gradients. Three of them also make the distribution, with
    its checks. `t_step` draws a trace, takes its log-probability and goes back. `trace_reinforce` and `sst_step` are
    whole updates by the estimators TraceREINFORCE and StochasticSoftmax, one sample each, with an objective that costs
    nothing: what is left is what the structure costs, and the two can be compared.
    """
    make, logits = instance.make, instance.logits
    leaf = logits.clone().requires_grad_()
    # The distribution that is kept has a leaf of its own: its autograd graph belongs to the current stream, while
    # `graph_ms` records `t_step` on another, and torch warns if both reach one leaf.
    kept = logits.clone().requires_grad_()
    d, learned = make(logits), make(kept)
    noise, trace, copied = d.perturb(), d.sample_trace(), torch.empty_like(logits)
    slope = torch.randn_like(logits)[None]  # (1, *logits)

    def log_prob_backward() -> None:
        learned.trace_log_prob(trace).sum().backward()
        kept.grad = None

    def t_step() -> None:
        d = make(leaf)
        d.trace_log_prob(d.sample_trace()).sum().backward()
        leaf.grad = None

    def update(estimator: Estimator) -> Callable[[], None]:
        def step() -> None:
            estimator(make(leaf), lambda x: _Free.apply(x, slope, 1 + len(d.batch_shape))).mean().backward()
            leaf.grad = None

        return step

    calls = (
        d.perturb,
        lambda: d.trace(noise),
        d.sample_trace,
        lambda: d.trace_log_prob(trace),
        log_prob_backward,
        lambda: d.conditional(trace),
        t_step,
        update(TraceREINFORCE(samples=1, leave_one_out=False)),
    )
    found: Calls = {"copy": lambda: copied.copy_(logits), **dict(zip(STEPS, calls, strict=True))}
    if has_relaxation(d):
        found[RELAXED] = update(StochasticSoftmax(temperature=0.5))
    return found


class _Free(torch.autograd.Function):
    """The objective of the benchmark: every loss is 1, and its gradient, `slope`, lies ready."""

    @staticmethod
    def forward(ctx, value, slope, batch_dim):
        ctx.save_for_backward(slope)
        return slope.new_ones(value.shape[:batch_dim])

    @staticmethod
    def backward(ctx, *grads):
        return ctx.saved_tensors[0], None, None


def time_round_robin(calls: Calls, repeat: int, synchronise: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds a call, `repeat` of each, in turn. Each is called twice before: to compile, and to see how long it is."""
    numbers = {}
    for name, call in calls.items():
        _seconds(call, 1, synchronise)
        numbers[name] = max(1, math.ceil(SAMPLE_SECONDS / _seconds(call, 1, synchronise)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeat):
            for name, call in calls.items():
                times[name].append(_seconds(call, numbers[name], synchronise))
    finally:
        if collecting:
            gc.enable()
    return times


def _seconds(call: Callable[[], object], number: int, synchronise: Callable[[], None]) -> float:
    synchronise()
    start = time.perf_counter()
    for _ in range(number):
        call()
    synchronise()
    return (time.perf_counter() - start) / number


def _synchroniser(device: torch.device) -> Callable[[], None]:
    """Synchronises with the device: without it only the launches would be timed."""
    if device.type in ("cuda", "xpu"):
        return lambda: getattr(torch, device.type).synchronize(device)
    return getattr(getattr(torch, device.type, None), "synchronize", lambda: None)
