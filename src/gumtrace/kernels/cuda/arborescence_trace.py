"""Arborescences: Chu-Liu-Edmonds on a dense matrix in O(n²), by Gabow's way of growing a path, as the CPU twin does it,
and in the same numbers: slot v < n is the node v, later slots are contracted cycles in order of contraction.

A supernode is on the path, finished, or an untouched node: a cycle is decided as soon as it is contracted. So all there
is to know is, for each node, the place on the path of the supernode that it is in. Rows of in-edges go to memory: G of
all nodes, turned so that a target's sources lie side by side, and reduced weights of the cycles on the path, a stack.
Programs take items in turns, so that this memory does not grow with the batch.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_cycles import contract
from gumtrace.kernels.cuda.arborescence_reduce import whole_extent
from gumtrace.kernels.cuda.arborescence_turn import is_large, turn, wanted
from gumtrace.kernels.cuda.arborescence_weights import NOWHERE, PLACES, exponential, extent
from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import power_of_2, quick
from gumtrace.kernels.cuda.noise import noisy, row_of
from gumtrace.kernels.cuda.order import code, decode, least

PROCESSORS = 132  # multiprocessors, where there is no GPU to ask (the interpreter)
WARPS = 32  # that one of them holds at once


@triton.jit
def _smallest(c):
    """The smallest code of a row. 64 bits go by halves: a warp's minimum of 32 bits is one instruction."""
    if c.dtype == tl.int64:
        high = (c >> 32).to(tl.int32)
        top = tl.min(high, 0)
        low = tl.min(tl.where(high == top, ((c & 0xFFFFFFFF) - 0x80000000).to(tl.int32), 0x7FFFFFFF), 0)
        return (top.to(tl.int64) << 32) + (low.to(tl.int64) + 0x80000000)
    return tl.min(c, 0)


@triton.jit
def _subtract(e, minimum, wide):
    """E - min in the item's own scale, for E >= min."""
    if wide:
        above = e > minimum
        t = tl.where(above, e, 1.0) - tl.where(above, minimum, 0.0)
        q = tl.exp(-t)
        rest = 1.0 - q
        lost = (1.0 - rest) - q  # by rounding: where rest is near 1, the logarithm needs it
        small = t < 0.03125  # rest has lost digits of t: its series, of which the first term left out is below 2^-58
        series = 1.0 - t / 6 * (1.0 - t / 7 * (1.0 - t / 8))
        series = t * (1.0 - t / 2 * (1.0 - t / 3 * (1.0 - t / 4 * (1.0 - t / 5 * series))))
        logarithm = tl.log(tl.where(small, series, rest)) + tl.where(small, 0.0, lost)
        result = tl.where(above, e + logarithm, float("-inf"))
    else:
        result = e - minimum
    return result


@triton.jit
def _turn(source, rows, seed, item, turned, n, nodes, root, BLOCK: tl.constexpr):
    """G to memory by target. Returns whether a racing key is not a number, the middle of the others, and whether their
    span is too wide for E."""
    lane = tl.arange(0, BLOCK)
    v, u = lane // n, lane % n
    wrong = lane < 0
    low = tl.full([BLOCK], float("inf"), source.dtype.element_ty)
    high = tl.full([BLOCK], float("-inf"), source.dtype.element_ty)
    for start in range(0, n * n, BLOCK):
        g = noisy(source, rows, seed, item, n * n, u * n + v, v < n)
        tl.store(turned + start + lane, g, mask=v < n)
        races = (v < n) & (u != v) & (v != root)
        wrong |= races & ((g < float("inf")) == 0)
        races &= (u < nodes) & (v < nodes) & (g > float("-inf"))
        low = tl.minimum(low, tl.where(races, g, float("inf")))
        high = tl.maximum(high, tl.where(races, g, float("-inf")))
        u += BLOCK % n
        v += BLOCK // n + (u >= n).to(tl.int32)
        u = tl.where(u >= n, u - n, u)
    return extent(low, high, wrong.to(tl.int32))


@triton.jit
def _contract(turned, weights, targets, n, u, sources, path, inside, first, depth, rows, middle, wide):
    """From every source the best reduced weight into any member of the cycle, and the node it enters at. Takes the
    members' own rows off the stack."""
    held = tl.full(u.shape, float("inf"), tl.float64)
    into = u * 0
    for i in range(depth - first):
        member = tl.max(tl.where(u == depth - 1 - i, path, -1), 0)
        if member < n:
            g = tl.load(turned + member * n + u, mask=sources & (u != member), other=float("-inf")).to(tl.float64)
            target = u * 0 + member
            if wide:
                e = -g
            else:
                some = g > float("-inf")
                e = tl.where(some, exponential(tl.where(some, middle - g, 0.0)), float("inf"))
        else:
            rows -= 1
            e = tl.load(weights + rows * n + u, mask=sources, other=float("inf"))
            target = tl.load(targets + rows * n + u, mask=sources, other=0).to(tl.int32)
        e = _subtract(e, decode(_smallest(code(e))), wide)
        e = tl.where(inside, float("inf"), e)
        better = e < held
        equal = (e == held) & (e < float("inf"))
        if tl.max(equal.to(tl.int32), 0) > 0:  # by G, then by key
            ours = tl.load(turned + target * n + u, mask=equal, other=0.0)
            theirs = tl.load(turned + into * n + u, mask=equal, other=0.0)
            better |= equal & ((ours > theirs) | ((ours == theirs) & (target < into)))
        held = tl.where(better, e, held)
        into = tl.where(better, target, into)
    return held, into, rows


@triton.jit
def _decide(c, none, u, place):
    """The source of the smallest code with its place, as one integer, the first of equal ones; and all of them, -1
    elsewhere."""
    here = (c == _smallest(c)) & (c != none)
    packed = u * PLACES + place
    return tl.min(tl.where(here, packed, NOWHERE), 0), tl.where(here, packed, -1)


@triton.jit
def _grow(turned, weights, targets, winners, links, n, nodes, root, middle, wide, N: tl.constexpr):
    """Winners and links of one item. Returns whether a node could not be reached."""
    UNTOUCHED: tl.constexpr = N  # places: on the path below N,
    DONE: tl.constexpr = N + 1  # or what leads to the root
    u = tl.arange(0, N)
    sources = u < nodes
    place = tl.where(sources & (u != root), UNTOUCHED, DONE)
    path = u * 0 - 1  # supernode at each place
    depth = tl.full((), 0, tl.int32)
    rows = tl.full((), 0, tl.int32)  # of cycles on the path
    slot = n + depth
    here = tl.min(tl.where(place == UNTOUCHED, u, NOWHERE), 0)
    stuck = here < 0
    while here < NOWHERE:
        place = tl.where(u == here, depth, place)
        path = tl.where(u == depth, here, path)
        depth += 1
        g = tl.load(turned + here * n + u, mask=sources & (u != here), other=float("-inf"))
        first, _ = _decide(-code(g), -least(g), u, place)
        tl.store(winners + here, first // PLACES * n + here, mask=first < NOWHERE)
        meets = first % PLACES + tl.where(first < NOWHERE, 0, DONE)
        while meets < N:
            inside = (place >= meets) & (place < N)
            held, into, rows = _contract(
                turned, weights, targets, n, u, sources, path, inside, meets, depth, rows, middle, wide
            )
            tl.store(weights + rows * n + u, held, mask=sources)
            tl.store(targets + rows * n + u, into.to(tl.int16), mask=sources)
            tl.store(links + path, slot, mask=(u >= meets) & (u < depth))
            tl.debug_barrier()
            place = tl.where(inside, meets, place)
            path = tl.where(u == meets, slot, path)
            depth = meets + 1
            rows += 1
            first, tied = _decide(code(held), code(tl.full((), float("inf"), tl.float64)), u, place)
            if tl.max(tied, 0) > first:  # equal reduced weights: by G
                g = tl.load(turned + into * n + u, mask=tied >= 0, other=float("-inf"))
                first, _ = _decide(-code(g), -least(g), u, place)
            source = first // PLACES
            target = tl.max(tl.where(u == source, into, 0), 0)
            tl.store(winners + slot, source * n + target, mask=first < NOWHERE)
            meets = first % PLACES + tl.where(first < NOWHERE, 0, DONE)
            slot += 1
        stuck = first >= NOWHERE
        if meets == UNTOUCHED:
            here = first // PLACES
        else:
            place = tl.where(place < N, DONE, place)
            depth = depth * 0
            rows = rows * 0
            here = tl.min(tl.where((place == UNTOUCHED) & (stuck == 0), u, NOWHERE), 0)
    return stuck


@quick
@triton.jit(do_not_specialize=["rows", "size_rows", "strips", "items", "n", "slots", "root"])
def _trace(
    source,
    rows,
    sizes,
    size_rows,
    seed,
    only,
    turned,
    low_at,
    high_at,
    wrong_at,
    strips,
    weights,
    targets,
    winners,
    links,
    status,
    items,
    n,
    slots,
    root,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIPS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    turned += program * n * n
    weights += program * (n // 2) * n
    targets += program * (n // 2) * n
    slot = tl.arange(0, 2 * N)
    for i in range(tl.program_id(0), items, tl.num_programs(0)):
        item = tl.full((), 0, tl.int64) + i
        if wanted(only, item):
            nodes = n
            if sizes is not None:
                nodes = tl.load(sizes + row_of(item, size_rows))
            tl.store(winners + item * slots + slot, -1, mask=slot < slots)
            tl.store(links + item * slots + slot, -1, mask=slot < slots)
            if low_at is None:
                wrong, middle, wide = _turn(source, rows, seed, item, turned, n, nodes, root, BLOCK)
                tl.debug_barrier()
            else:  # turned before, in strips
                wrong, middle, wide = whole_extent(low_at, high_at, wrong_at, item, strips, STRIPS)
            result = tl.full((), 2, tl.int32)
            if wrong == 0:
                own, own_links = winners + item * slots, links + item * slots
                stuck = _grow(turned, weights, targets, own, own_links, n, nodes, root, middle, wide, N)
                result = stuck.to(tl.int32)
            tl.store(status + item, result.to(tl.int8))
            tl.debug_barrier()  # before the next item takes the same memory


@cache
def _resident(device):
    """Warps that a GPU holds at once, about."""
    processors = PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * WARPS


def layout(n, items, device):
    """Tile, warps and programs for items of n nodes."""
    tile = max(32, power_of_2(n))
    # Two nodes a lane. With four, an H200 gave wrong traces under Triton 3.6 (ptxas 12.8.93), though the PTX is right.
    warps = max(1, tile // 64)
    return tile, warps, min(items, _resident(device) // warps)


def trace(geometry, source, sizes, seed, winners, links, status, only=None):
    """With `only`, (items,) of 0 and 1, the items marked in it."""
    n, items = geometry.nodes, winners.shape[0]
    if n == 0:
        status.zero_()
        return
    tile, warps, programs = layout(n, items, source.device)
    turned = torch.empty(programs, n * n, dtype=source.dtype, device=source.device)
    shared = is_large(n) and items <= programs  # each has its own memory
    weights = torch.empty(programs, (n if shared else n // 2) * n, dtype=torch.float64, device=source.device)
    targets = torch.empty(programs, n // 2 * n, dtype=torch.int16, device=source.device)
    read = (source, source.shape[0], sizes, 1 if sizes is None else sizes.shape[0], seed, only, turned)
    extents, strips = (None, None, None, 1), 1
    if shared:
        first, extents = turn(*read, n, geometry.root)
        strips = triton.next_power_of_2(extents[-1])
        scratch = (weights, targets, winners, links, status, tile, warps)
        only = contract(geometry, sizes, only, turned, first, extents, *scratch)
    read = (*read[:-2], only, turned)
    what = (*extents, weights, targets, winners, links, status, items, n, geometry.winner_slots, geometry.root)
    _trace[(programs,)](*read, *what, N=tile, BLOCK=128 * warps, STRIPS=strips, num_warps=warps, **EXACT)
