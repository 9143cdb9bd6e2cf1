"""The merges of a large spanning tree, found by Borůvka's rounds over the edges that won, each as heavy as its merge is
late.

They leave on every level k the part of each node and its reach: the latest merge among the edges that the node's parts
took up to there. Two nodes are joined by the later one of their reaches on the first level where they are in one part
(King 1997, on verifying spanning trees). The parts of a forest are joined on one more level, by its last merge: their
pairs outlived it.

A reach is the number of its merge, and behind that the number of the pair that won: so no winner is read for a pair.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT, known
from gumtrace.kernels.cuda.scaled_float import NOTHING
from gumtrace.kernels.cuda.spanning_tree_rounds import NONE, joined

PAIR_BITS, PAIRS = tl.constexpr(21), tl.constexpr(2**21 - 1)  # of 2048 nodes; the rest is for their merges


@triton.jit
def number_of(u, v):
    """Of a pair u < v, from 1 on."""
    return v * (v - 1) // 2 + u + 1


@triton.jit
def _packed(merge, number):
    return ((merge - 1024) << PAIR_BITS) | number


@triton.jit
def merge_of(reach):
    return (reach >> PAIR_BITS) + 1024


@triton.jit
def pair_of(reach):
    return reach & PAIRS


@triton.jit
def decisions(winners, item, n, slots, N: tl.constexpr):
    """The winners, and how many there are before the first -1, or what is no key."""
    lane = tl.arange(0, N)
    winner = known(tl.load(winners + item * slots + lane, mask=lane < slots, other=-1), n * n)
    return winner, tl.min(tl.where(winner < 0, lane, N), 0)


@triton.jit(do_not_specialize=["n", "components", "slots"])
def _levels(
    winners,
    part,
    reach,
    number,
    first_at,
    tops,
    whole,
    n,
    components,
    slots,
    FOREST: tl.constexpr,
    N: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Write part and reach (levels, n); and how many levels and nodes there are. `tops` and `whole` are left empty for
    sums by merge, where these are asked for."""
    item = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, N)  # of nodes, of decisions
    inside = lane < n
    winner, steps = decisions(winners, item, n, slots, N)
    live = lane < steps
    u, v = tl.where(live, winner // n, 0), tl.where(live, winner % n, 0)
    packed = _packed(lane, tl.where(live & (u < v), number_of(u, v), 0))
    own = item * (LEVELS + 1) * n + lane
    first_at += item * n
    none = _packed(lane * 0, 0)
    names, far = lane, none
    level = tl.full((), 0, tl.int32)
    one, two = u, v
    more = tl.sum((one != two).to(tl.int32), 0)
    while more > 0:
        tl.store(first_at + lane, NONE, mask=inside)
        tl.debug_barrier()
        offered = tl.where(one != two, lane, NONE)
        tl.atomic_min(first_at + one, offered, sem="relaxed")  # barriers order them
        tl.atomic_min(first_at + two, offered, sem="relaxed")
        tl.debug_barrier()
        merge = tl.load(first_at + lane, mask=inside, other=NONE, cache_modifier=".cg")
        some = merge < NONE
        merge = tl.where(some, merge, 0)
        far = tl.maximum(far, tl.gather(tl.where(some, tl.gather(packed, merge, 0), none), names, 0))
        one, two = tl.gather(one, merge, 0), tl.gather(two, merge, 0)
        last, _ = joined(tl.where(some, tl.where(one == lane, two, one), lane), more)
        names = tl.gather(last, names, 0)
        tl.store(part + own + level * n, names, mask=inside)
        tl.store(reach + own + level * n, far, mask=inside)
        level += 1
        one, two = tl.gather(names, u, 0), tl.gather(names, v, 0)
        more = tl.sum((one != two).to(tl.int32), 0)
        tl.debug_barrier()
    if FOREST:
        tl.store(part + own + level * n, 0, mask=inside)
        tl.store(reach + own + level * n, tl.max(tl.where(live, packed, none), 0) + lane * 0, mask=inside)
        level += 1
    tl.store(number + 2 * item, level)
    tl.store(number + 2 * item + 1, tl.minimum(steps + components, n))
    if tops is not None:
        tl.store(tops + item * n + lane, NOTHING, mask=inside)
        tl.store(whole + item * n + lane, 0, mask=inside)


@triton.jit
def either(numbers, u, v, inside_u, inside_v):
    """Of the nodes on either side of a tile."""
    return tl.load(numbers + u, mask=inside_u, other=0), tl.load(numbers + v, mask=inside_v, other=0)


@triton.jit
def met(part, reach, u, v, inside_u, inside_v):
    """Of the pairs of a tile, those that are in one part on a level, be it since an earlier one; and those where the
    first node reaches at least as far as the second."""
    part_u, part_v = either(part, u, v, inside_u, inside_v)
    reach_u, reach_v = either(reach, u, v, inside_u, inside_v)
    return part_u[:, None] == part_v[None, :], reach_u[:, None] >= reach_v[None, :]


def levels(geometry, winners, tops=None, whole=None):
    """Part and reach of each node by level, (items, levels, n); how many levels and nodes there are."""
    n, items = geometry.nodes, len(winners)
    shape = shape_of(geometry)
    table = (items, shape["LEVELS"] + 1, n)
    part, reach, number, first_at = new(winners, torch.int32, table, table, (items, 2), (items, n))
    where = (winners, part, reach, number, first_at, tops, whole, n, geometry.components, geometry.winner_slots)
    _levels[(items,)](*where, FOREST=geometry.components > 1, **shape, **EXACT)
    return part, reach, number


def shape_of(geometry):
    """Of a program that has all nodes."""
    levels = max(1, (geometry.nodes - 1).bit_length())
    width = max(16, 1 << levels)
    return {"LEVELS": levels, "N": width, "num_warps": max(1, width // 128)}


def new(like, dtype, *shapes):
    return [torch.empty(shape, dtype=dtype, device=like.device) for shape in shapes]


def resident(warps, dtype):
    """How a tile of pairs is launched: with registers for 16 warps a multiprocessor, which wait for memory in turn. Of
    float64 this would be too few."""
    limit = {} if torch.version.hip or dtype == torch.float64 else {"maxnreg": 128}
    return {"num_warps": warps, **limit}
