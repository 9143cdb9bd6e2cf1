"""The peak memory of a call, over everything that allocates: torch, numpy and the compiled kernels alike."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[[], object], device: torch.device | str = "cpu") -> int | None:
    """How far memory rises during a call above what was in use before it; None where that cannot be measured.

    CUDA: the high-water mark of torch's allocator. CPU, on Linux: the high-water mark of the process's resident memory,
    which the kernel lets a process reset. Profilers see torch's tensors or Python's objects only, and the kernels' own
    work arrays are neither. Memory that was freed but is still held by malloc would hide what a call takes, so it is
    given back first; what malloc keeps for helper threads stays (their work arrays: about one item of the batch a
    thread). Pages never touched do not count, and the kernel counts a core's pages in lots of 32 or more: below a
    megabyte the figure is rough. Make the call once before, so that nothing is compiled meanwhile.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return None
    try:
        _give_back()
        _CLEAR.write_text("5")  # the high-water mark falls to what is resident now
        before = _status("VmRSS")
        call()
        return max(_status("VmHWM") - before, 0)
    except (OSError, KeyError):  # a sandbox without these files
        return None


def _give_back() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024
