"""Arborescences: whether a drawn G | T gives its trace back."""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.noise import MINIMA, log_exponential


@triton.jit(do_not_specialize=["stream", "slots"])
def recheck(
    winners,
    links,
    again,
    again_links,
    status,
    totals,
    z,
    seed,
    stream,
    failed,
    g,
    slots,
    DRAW: tl.constexpr,
    N: tl.constexpr,
):
    """Whether items that were drawn anew are well now; if not, new minima for the next draw."""
    item = tl.program_id(0).to(tl.int64)
    if tl.load(failed + item) != 0:
        b = tl.arange(0, 2 * N)
        place = item * slots + b
        mask = b < slots
        other = tl.load(winners + place, mask=mask, other=0) != tl.load(again + place, mask=mask, other=0)
        other |= tl.load(links + place, mask=mask, other=0) != tl.load(again_links + place, mask=mask, other=0)
        broken = tl.maximum(tl.max(other.to(tl.int32), 0), (tl.load(status + item) != 0).to(tl.int32))
        tl.store(failed + item, broken.to(tl.int8))
        if DRAW:
            noise = log_exponential(seed, stream + MINIMA, item, b, g.dtype.element_ty)
            new = noise.to(tl.float64) - tl.load(totals + place, mask=mask, other=0.0)
            tl.store(z + place, new, mask=b < slots * broken)
