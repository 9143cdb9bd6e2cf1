"""0/1 over the keys: which of them won."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.geometry import SYMMETRIC, Geometry

BLOCK = 1024  # keys or winners that go by at once
CHUNK = 1 << 16  # most keys of a program; it looks at all winners of its item


@quick
@triton.jit
def _indicator(
    winners,
    out,
    keys,
    slots,
    chunks,
    n,
    SYMMETRIC: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
):
    item = (tl.program_id(0) // chunks).to(tl.int64)
    low = tl.program_id(0) % chunks * CHUNK
    high = low + tl.minimum(CHUNK, keys - low)
    out += item * keys
    for start in range(low, high, WIDTH):
        key = start + tl.arange(0, WIDTH)
        tl.store(out + key, 0, mask=key < high)
    tl.debug_barrier()
    for start in range(0, slots, STEPS):
        b = start + tl.arange(0, STEPS)
        key = tl.load(winners + item * slots + b, mask=b < slots, other=-1)
        one = tl.full([STEPS], 1.0, tl.float32).to(out.dtype.element_ty)
        tl.store(out + key, one, mask=(key >= low) & (key < high))
        if SYMMETRIC:
            key = tl.where((key >= 0) & (key < keys), key % n * n + key // n, -1)
            tl.store(out + key, one, mask=(key >= low) & (key < high))


def indicator(geometry: Geometry, winners: Tensor, dtype: torch.dtype) -> Tensor:
    """(items, keys): 1 where a key won; symmetric for trees and forests of a dense graph."""
    items, slots, keys = *winners.shape, geometry.keys
    out = torch.empty(items, keys, dtype=dtype, device=winners.device)
    if out.numel() == 0:
        return out
    chunks = -(-keys // CHUNK)
    width, steps = (min(BLOCK, max(16, power_of_2(size))) for size in (keys, slots))
    numbers = out.view(torch.int8) if dtype == torch.bool else out
    symmetric = isinstance(geometry, SYMMETRIC)
    where = (winners, numbers, keys, slots, chunks, geometry.nodes if symmetric else 1)
    shape = {"SYMMETRIC": symmetric, "CHUNK": CHUNK, "WIDTH": width, "STEPS": steps}
    _indicator[(items * chunks,)](*where, **shape, num_warps=max(1, min(4, width // 256)), **EXACT)
    return out
