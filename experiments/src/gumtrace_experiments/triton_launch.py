"""What launches of Triton kernels have in common."""

from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None


def tile_size(n: int) -> int:
    """The least power of two that is at least n, and at least 16, the smallest side of a matrix product."""
    return max(1 << (n - 1).bit_length(), 16)


def product_precision(exact: str = "ieee") -> str:
    """Of matrix products in a kernel, as torch's own are set: TF32, or `exact` where those are in float32. Products in
    "tf32x3" are three in TF32 with errors as small as float32's: large tiles of true float32 do not fit into the
    registers."""
    return exact if torch.get_float32_matmul_precision() == "highest" else "tf32"


def shared_memory(device: torch.device) -> int:
    """Bytes that a program may take."""
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)  # not in older torch
