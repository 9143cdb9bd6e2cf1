"""Time on a CUDA device itself, apart from the host that feeds it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.distributions import Distribution

ROUNDS = 7  # medians are taken over
MOST_CALLS = 20  # between two events,
SECONDS = 0.05  # or as many as take so long
CYCLES = 2e9  # a second of waiting, or somewhat less


def event_ms(call: Callable[[], object]) -> float:
    """Milliseconds of device time a call, by events around many eager calls.

    The device is kept waiting until the host has sent them all, so that launches are hidden, whatever Python takes.
    """
    calls, seconds = _calls(call)
    return _median_ms(call, calls, lambda: torch.cuda._sleep(int(min(1.0, 3 * calls * seconds) * CYCLES)))


def graph_ms(call: Callable[[], object]) -> float:
    """Milliseconds a replay of the call captured as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return _median_ms(graph.replay, _calls(graph.replay)[0], lambda: None)


def bytes_per_second() -> float:
    """What a copy of a gigabyte reads and writes."""
    source = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e-3 * event_ms(lambda: target.copy_(source)))


@contextmanager
def unchecked() -> Iterator[None]:
    """Distributions made here do not check their arguments: a check waits for the device."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _calls(call: Callable[[], object]) -> tuple[int, float]:
    """How many calls to time at once, and how many seconds the host takes for one."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return max(1, min(MOST_CALLS, int(SECONDS / seconds))), seconds


def _median_ms(call: Callable[[], object], calls: int, lead: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        lead()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return sorted(times)[ROUNDS // 2]
