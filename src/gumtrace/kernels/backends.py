"""Which kernels serve tensors on which device.

A backend is a module with a function for each kernel it has, under the names and with the arguments of
`gumtrace.kernels.cpu.ops`, which has them all but those that say how its device is best used (`served`, `host_bound`
and what it needs). It is imported when first used: numba and triton are slow to load. CUDA has one of its own; tensors
on any other device are copied to the CPU and back.
"""

import os
import re
import shutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

_MODULES = {"cpu": "gumtrace.kernels.cpu.ops", "cuda": "gumtrace.kernels.cuda.ops"}
TRITON = (3, 3)  # the oldest version that has all that the kernels use


@cache
def backend(device_type: str) -> ModuleType:
    """The module of kernels for tensors on such a device."""
    if device_type not in _MODULES or (device_type == "cuda" and _no_triton()):
        device_type = "cpu"  # and `gumtrace.backends()` reports it
    return import_module(_MODULES[device_type])


def _no_triton() -> str:
    """Why Triton cannot serve CUDA; empty if it can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    try:
        import triton
    except ImportError as error:  # its libraries do not fit this system
        return f"triton cannot be imported: {error}"
    if version(triton) < TRITON:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, TRITON))}, which comes with torch 2.7"
    return ""


def version(module: ModuleType) -> tuple[int, ...]:
    """Major and minor, of "3.10rc1+git" (3, 10)."""
    return tuple(map(int, re.findall(r"\d+", module.__version__)[:2]))


def own_backends() -> list[str]:
    """Device types other than the CPU that have kernels of their own."""
    return [device_type for device_type in _MODULES if device_type != "cpu"]


def own_kernel(name: str, device_type: str) -> Callable | None:
    """The device's own kernel of this name. For relaxations, whose formula in torch serves the other devices."""
    if device_type != "cpu" and backend(device_type) is backend("cpu"):
        return None
    return getattr(backend(device_type), name, None)


def backends() -> dict[str, str]:
    """Which kernels serve tensors on which device, and why.

    >>> backends()["cpu"].split()[0]
    'numba'
    """
    import numba

    threads = torch.get_num_threads()
    report = {"cpu": f"numba {numba.__version__}, batches shared by {threads} threads (torch.get_num_threads)"}
    if torch.cuda.is_available():
        report["cuda"] = _cuda()
    for device, available in {"mps": torch.backends.mps.is_available(), "xpu": torch.xpu.is_available()}.items():
        if available:
            report[device] = "numba on the cpu: this device has no kernels, so tensors are copied there and back"
    return report


def _cuda() -> str:
    if problem := _no_triton():
        return f"numba on the cpu, tensors are copied there and back: {problem}"
    import triton

    if not _has_compiler():
        return (
            f"triton {triton.__version__}, which builds its launchers with a C compiler and finds none (CC, gcc or "
            "clang): kernels fail unless they are in its cache already"
        )
    from gumtrace.kernels.cuda.ops import RANGES

    ranges = "; ".join(f"{name} {reach}" for name, reach in RANGES.items())
    return (
        f"triton {triton.__version__}: {ranges}. Larger items, forests with links and a user's recursion: numba on "
        "the cpu, tensors are copied there and back"
    )


def _has_compiler() -> bool:
    """Whether Triton finds one, where it looks."""
    named = os.environ.get("CC")
    return shutil.which(named) is not None if named else any(map(shutil.which, ("gcc", "clang")))
