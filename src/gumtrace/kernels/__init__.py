"""Noise to trace, and the formula on traces, as compiled loops: one file a structure."""

import torch


def backends() -> dict[str, str]:
    """Which kernels serve tensors on which device, and why.

    >>> backends()["cpu"].split(",")[0]
    'numba'
    """
    import numba

    threads = torch.get_num_threads()
    report = {"cpu": f"numba, version {numba.__version__}, batches shared by {threads} threads (torch.get_num_threads)"}
    others = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "xpu": torch.xpu.is_available(),
    }
    for device, available in others.items():
        if available:
            report[device] = (
                "numba on the cpu: there is no kernel for this device yet, so tensors are copied there and back"
            )
    return report
