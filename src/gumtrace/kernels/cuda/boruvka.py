"""Minimum spanning forests of large sparse graphs by Borůvka's algorithm, and when their nodes are joined.

Edges come in the order in which Kruskal's algorithm takes them, and their place is their weight. In every round each
component takes the first edge that leaves it, and so at most half of the components are left. All graphs of a batch are
one: that of item i has the nodes from i n on. The host reads nothing back: there are ceil(log2 n) rounds, and those
after the last join do nothing.

What a round leaves behind is a tree of few levels. The root of each component that joins another gets a link to the
root of the new component, the round, and the time: the place of its edge. Two nodes are joined at the largest time on
their ways to where these meet. For along a chain of components, each joined to the next by its first edge, times
fall; so the largest time from c to any component further along the chain is that of c, and where chains of c and d meet
it is the larger of the two (King, Minimum spanning tree verification, 1997).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.geometry import BatchedSpanningTreeGeometry, SparseSpanningTreeGeometry

BLOCK = 1024
HOPS = tl.constexpr(15)  # of a pointer in a launch: each makes ways at least 16 times shorter
NONE = tl.constexpr(2**31 - 1)  # no edge
NEVER = tl.constexpr(127)  # the round of roots that were never joined
CLIMBERS = 128  # edges of a warp: all of them climb as long as one does


@triton.jit
def _lanes(live, stage, count, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return lane, lane < tl.where(tl.load(live + stage) > 0, count, 0)


@triton.jit
def _lower(best, component, place, mask):
    """Most edges come too late, and need no atomic operation to see it."""
    mask = mask & (place < tl.load(best + component, mask=mask, other=0))
    tl.atomic_min(best + component, place, mask=mask, sem="relaxed")


@quick
@triton.jit(do_not_specialize=["stage", "count"])
def _offer(low, high, label, best, live, stage, count, BLOCK: tl.constexpr):
    """Edges between two components offer themselves to both."""
    place, some = _lanes(live, stage, count, BLOCK)
    a = tl.load(label + tl.load(low + place, mask=some, other=0), mask=some, other=0)
    b = tl.load(label + tl.load(high + place, mask=some, other=0), mask=some, other=0)
    _lower(best, a, place, some & (a != b))
    _lower(best, b, place, some & (a != b))


@quick
@triton.jit(do_not_specialize=["stage", "nodes"])
def _join(low, high, label, best, parent, link, time, live, stage, nodes, BLOCK: tl.constexpr):
    """Components join the one at the other end of their edge. Of two that have the same edge, the lower is the root."""
    c, some = _lanes(live, stage, nodes, BLOCK)
    edge = tl.load(best + c, mask=some, other=NONE)
    found = some & (edge != NONE)
    a = tl.load(label + tl.load(low + edge, mask=found, other=0), mask=found, other=0)
    b = tl.load(label + tl.load(high + edge, mask=found, other=0), mask=found, other=0)
    other = tl.where(a == c, b, a)
    mutual = tl.load(best + other, mask=found, other=NONE) == edge
    joins = found & ((mutual == 0) | (c > other))
    own = tl.load(label + c, mask=some, other=0)
    tl.store(parent + c, tl.where(joins, other, own), mask=some)
    tl.store(time + c, edge, mask=joins)
    tl.store(link + c, c.to(tl.int64) * 0 + (stage.to(tl.int64) << 32), mask=joins)
    tl.store(live + stage + 1, 1, mask=tl.max(joins.to(tl.int32), 0) > 0)


@quick
@triton.jit(do_not_specialize=["stage", "nodes"])
def _jump(parent, live, stage, nodes, HOPS: tl.constexpr, BLOCK: tl.constexpr):
    """Others may have jumped already: then ways are shorter still."""
    c, some = _lanes(live, stage, nodes, BLOCK)
    at = tl.load(parent + c, mask=some, other=0)
    for _ in range(HOPS):
        at = tl.load(parent + at, mask=some, other=0)
    tl.store(parent + c, at, mask=some)


@quick
@triton.jit(do_not_specialize=["stage", "nodes"])
def _settle(label, best, parent, link, live, stage, nodes, BLOCK: tl.constexpr):
    """New labels and links, and no offers yet."""
    c, some = _lanes(live, stage, nodes, BLOCK)
    root = tl.load(parent + c, mask=some, other=0)
    at = tl.load(link + c, mask=some, other=0)
    tl.store(label + c, root, mask=some)
    tl.store(best + c, NONE, mask=some)
    tl.store(link + c, at | root.to(tl.int64), mask=some & ((at >> 32) == stage))


def forest(low, high, nodes, items):
    """Of edges (M,) int32, in order, between nodes of so many items: times (items · nodes,) int32, NONE for the root of
    each tree, and links, int64: the round above 32 bits for the root joined. Edges from a node to itself are none."""
    count, device = items * nodes, low.device
    label = torch.arange(count, dtype=torch.int32, device=device)
    parent, link = torch.empty_like(label), torch.full((count,), NEVER.value << 32, device=device)
    time = torch.full((count,), NONE.value, dtype=torch.int32, device=device)
    best = time.clone()
    stages = max(nodes - 1, 0).bit_length()
    live = torch.zeros(stages + 1, dtype=torch.int32, device=device)
    live[:1] = 1
    at_edges, at_nodes = (triton.cdiv(len(low), BLOCK),), (triton.cdiv(count, BLOCK),)
    for stage in range(stages):
        _offer[at_edges](low, high, label, best, live, stage, len(low), BLOCK=BLOCK)
        _join[at_nodes](low, high, label, best, parent, link, time, live, stage, count, BLOCK=BLOCK)
        for _ in range(_jumps(nodes >> stage)):
            _jump[at_nodes](parent, live, stage, count, HOPS=HOPS, BLOCK=BLOCK)
        _settle[at_nodes](label, best, parent, link, live, stage, count, BLOCK=BLOCK)
    return time, link


def _jumps(components):
    """Launches until every pointer is at its root: a node's leads to its component, that of a component further."""
    way = max(components, 1) + 1
    return (way.bit_length() + 3) // 4


@quick
@triton.jit(do_not_specialize=["width", "keys", "nodes", "slots", "blocks"])
def _climb(ends, width, start, link, time, steps, out, keys, nodes, slots, blocks, BLOCK: tl.constexpr):
    item = tl.program_id(0) // blocks
    key = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = key < keys
    if start is not None:
        ends += tl.load(start + item)
    u = tl.load(ends + key, mask=inside, other=0)
    v = tl.load(ends + width.to(tl.int64) + key, mask=inside, other=0)
    loop = u == v
    u += item * nodes
    v += item * nodes
    to_u, to_v = tl.load(link + u), tl.load(link + v)
    last = item * slots + tl.load(steps + item) - 1
    time_of = u * 0 - 1
    going = loop == 0
    while tl.max(going.to(tl.int32), 0) > 0:
        first = (to_u >> 32) <= (to_v >> 32)  # of whichever was joined in an earlier round
        at, way = tl.where(first, u, v), tl.where(first, to_u, to_v)
        apart = going & ((way >> 32) == NEVER)
        going = going & (apart == 0)
        reached = tl.load(time + at, mask=going, other=-1)
        time_of = tl.where(apart, last, tl.maximum(time_of, reached))
        root = (way & 0x7FFFFFFF).to(tl.int32)
        way = tl.load(link + root, mask=going, other=0)
        u, to_u = tl.where(going & first, root, u), tl.where(going & first, way, to_u)
        v, to_v = tl.where(going & (first == 0), root, v), tl.where(going & (first == 0), way, to_v)
        going = going & (u != v)
    removal = tl.where(loop, -2, time_of - item * slots)
    tl.store(out + item.to(tl.int64) * keys + key, removal, mask=inside)


class Ends(NamedTuple):
    """The edges of all graphs in one list, and where in it those of each item are."""

    flat: Tensor  # int32
    width: int  # the offset of an edge's second end from its first
    start: Tensor | None  # (items,) long; None where all items have one graph


def ends_of(geometry: SparseSpanningTreeGeometry | BatchedSpanningTreeGeometry, links: Tensor) -> Ends:
    edges = geometry.edges.to(links.device)
    flat, width = edges.flatten(), edges.shape[-1]
    if isinstance(geometry, SparseSpanningTreeGeometry):
        return Ends(flat, width, None)
    graph = links[:, 0].clamp(0, len(edges) - 1)  # a trace may come from anywhere
    return Ends(flat, width, 2 * width * graph.long())


def removals(geometry, winners, links):
    """The last decision in which each key races, (items, keys) int32: that which joins its ends, or where nothing does,
    the last of all. -1 where there are no decisions, -2 for loops. And how many decisions there are, (items,) int32."""
    items, slots = winners.shape
    ends, nodes, keys = ends_of(geometry, links), geometry.nodes, geometry.keys
    step = torch.arange(slots, dtype=torch.int32, device=winners.device)
    wrong = (winners < 0) | (winners >= keys)
    steps = torch.where(wrong, step, slots).amin(-1) if slots > 0 else winners.new_zeros(items)
    live = step < steps[:, None]
    low, high = flat_ends(ends, torch.where(live, winners, 0), live, nodes)
    time, link = forest(low, high, nodes, items)
    out = torch.empty(items, keys, dtype=torch.int32, device=winners.device)
    blocks = triton.cdiv(keys, CLIMBERS)
    where = (*ends, link, time, steps, out, keys, nodes, slots, blocks)
    _climb[(items * blocks,)](*where, BLOCK=CLIMBERS, num_warps=1)
    return out, steps


def flat_ends(ends, key, live, nodes):
    """The ends of edges (items, M) as nodes of the whole batch, (items · M,) each; equal where an edge is not live."""
    node = torch.arange(len(key), dtype=torch.int32, device=key.device)[:, None] * nodes
    key = key.long() if ends.start is None else key + ends.start[:, None]
    low, high = (flat[key] + node for flat in (ends.flat, ends.flat[ends.width :]))
    return low.flatten(), torch.where(live, high, low).flatten()
