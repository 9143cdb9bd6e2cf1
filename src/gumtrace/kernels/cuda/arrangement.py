"""Permutations from their winners: keys in order, those that do not race at their own index."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.geometry import PermutationGeometry

BLOCK = 1024  # keys that go by at once
LONGEST = 1 << 14  # one program takes an item: beyond it, what the CPU does with torch's operations, on the device


@quick
@triton.jit(do_not_specialize=["keys"])
def _arrangement(winners, out, keys, WIDTH: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    winners += item * keys
    out += item * keys
    for start in range(0, keys, WIDTH):
        key = start + tl.arange(0, WIDTH)
        tl.store(out + key, 0, mask=key < keys)
    tl.debug_barrier()
    for start in range(0, keys, WIDTH):
        place = start + tl.arange(0, WIDTH)
        key = tl.load(winners + place, mask=place < keys, other=-1)
        tl.store(out + key, 1, mask=(key >= 0) & (key < keys))  # it races
    tl.debug_barrier()
    before = tl.full((), 0, tl.int32)
    for start in range(0, keys, WIDTH):
        key = start + tl.arange(0, WIDTH)
        races = tl.load(out + key, mask=key < keys, other=0).to(tl.int32)
        place = before + tl.cumsum(races, 0) - races  # of the winner that comes to this index
        winner = tl.load(winners + place, mask=races == 1, other=-1)
        winner = tl.where((winner >= 0) & (winner < keys), winner, keys)
        tl.store(out + key, tl.where(races == 1, winner, key).to(tl.int64), mask=key < keys)
        before += tl.sum(races, 0)


def arrangement(geometry: PermutationGeometry, winners: Tensor) -> Tensor:
    items, keys = winners.shape
    if keys > LONGEST:
        return cpu.arrangement(geometry, winners)
    out = torch.empty(items, keys, dtype=torch.int64, device=winners.device)
    if out.numel() > 0:
        width = min(BLOCK, max(16, power_of_2(keys)))
        _arrangement[(items,)](winners, out, keys, WIDTH=width, num_warps=max(1, min(4, width // 256)), **EXACT)
    return out
