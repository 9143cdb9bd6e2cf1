"""Noise to trace, and the formula on traces: compiled loops for the CPU, Triton for CUDA, one file a structure."""

import os
import shutil

import torch


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
    try:
        import triton
    except ImportError:
        return "numba on the cpu, tensors are copied there and back: triton is not installed"
    if not _has_compiler():
        return (
            f"triton {triton.__version__}, which builds its launchers with a C compiler and finds none (CC, gcc or "
            "clang): kernels fail unless they are in its cache already"
        )
    from gumtrace.kernels.cuda.ops import RANGES

    ranges = "; ".join(f"{name} {reach}" for name, reach in RANGES.items())
    return (
        f"triton {triton.__version__}: {ranges}. Larger items, graphs given by their edges and a user's recursion: "
        "numba on the cpu, tensors are copied there and back"
    )


def _has_compiler() -> bool:
    """Whether Triton finds one, where it looks."""
    named = os.environ.get("CC")
    return shutil.which(named) is not None if named else any(map(shutil.which, ("gcc", "clang")))
