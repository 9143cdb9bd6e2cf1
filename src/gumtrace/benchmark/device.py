"""Time on a CUDA device itself, apart from the host that feeds it."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.distributions import Distribution

ROUNDS = 7  # medians are taken over
MOST_CALLS = 20  # between two events,
SECONDS = 0.03  # or as many as take so long
CYCLES = 2e9  # a second of waiting, or somewhat less
SHORTEST, LONGEST = 0.005, 1.0  # seconds that the device is kept waiting


def event_ms(call: Callable[[], object], device: torch.device | str = "cuda") -> float | None:
    """Milliseconds of device time a call, by events around many eager calls; None where it cannot be measured.

    The device is kept waiting until the host has sent them all, so that launches are hidden, whatever Python takes. Was
    the wait too short, or did the calls fill the device's queue (about a thousand launches), then fewer calls and
    longer waits are tried. Calls that synchronise never get ahead of it.
    """
    with torch.cuda.device(device):
        calls, seconds = _calls(call)
        wait = min(max(SHORTEST, 2 * calls * seconds), LONGEST)
        while (ms := _median_ms(call, calls, wait)) is None:
            if calls > 1:
                calls //= 2
            elif wait < LONGEST:
                wait = min(2 * wait, LONGEST)
            else:
                break
        return ms


def graph_ms(call: Callable[[], object], device: torch.device | str = "cuda") -> float | None:
    """Milliseconds a replay of the call captured as a CUDA graph, replays in a row; None if it synchronises. A capture
    that fails would leave torch's generator unusable, so it is not tried."""
    with torch.cuda.device(device):
        if synchronises(call):
            return None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return _median_ms(graph.replay, _calls(graph.replay)[0])


def synchronises(call: Callable[[], object]) -> bool:
    """Whether the call synchronises with the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def bytes_per_second(device: torch.device | str = "cuda") -> float | None:
    """What a copy of a gigabyte reads and writes."""
    source = torch.ones(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ms = event_ms(lambda: target.copy_(source), device)
    return None if ms is None else 2 * source.nbytes / (1e-3 * ms)


@contextmanager
def unchecked() -> Iterator[None]:
    """Distributions made here do not check their arguments: a check synchronises."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _calls(call: Callable[[], object]) -> tuple[int, float]:
    """How many calls to time at once, and how many seconds one takes, host and device together."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return max(1, min(MOST_CALLS, int(SECONDS / seconds))), seconds


def _median_ms(call: Callable[[], object], calls: int, wait: float = 0.0) -> float | None:
    """None if the device was kept waiting and yet began before the host had sent the last call, in any round."""
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        if wait > 0:
            torch.cuda._sleep(int(wait * CYCLES))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        begun = start.query()
        torch.cuda.synchronize()
        if wait > 0 and begun:
            return None
        times.append(start.elapsed_time(end) / calls)
    return sorted(times)[ROUNDS // 2]
