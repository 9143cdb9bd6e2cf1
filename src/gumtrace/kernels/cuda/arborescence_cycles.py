"""Arborescences: the cycles of large items, where the first choice of every node is known.

Along first choices every node comes to the root or into a cycle: nodes are in components, each with one cycle. A path
as arborescence_trace.py grows it contracts the cycle of a component and continues from there. It meets the component
itself, and contracts what lies between; or a new one, which comes on top; or one below, and contracts all from there
on; or what leads to the root. So of each node it is enough to know which component on the path it is in, and whether it
is in that one's cycle. Cycles get the numbers that they get there.

What is rare is left to arborescence_trace.py: equal weights from one source, a span too wide for E, nodes that cannot
be reached.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_reduce import reduce_weights, whole_extent
from gumtrace.kernels.cuda.arborescence_turn import wanted
from gumtrace.kernels.cuda.arborescence_weights import NOWHERE, PLACES
from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.noise import row_of
from gumtrace.kernels.cuda.order import code

TIED = tl.constexpr(2**30)  # beside a node: equal weights were met


@triton.jit
def _lighter(e1, packed1, into1, e2, packed2, into2):
    """Of two sources that with the smaller weight."""
    first = (e1 < e2) | ((e1 == e2) & (packed1 < packed2))
    tied = tl.where((e1 == e2) & (e1 < float("inf")), TIED, 0)
    return tl.where(first, e1, e2), tl.where(first, packed1, packed2), tl.where(first, into1, into2) | tied


@triton.jit
def _merge(e, target, held, into, equal):
    """The better of two rows: what is held, and reduced weights into a member."""
    equal |= (e == held) & (e < float("inf"))
    better = e < held
    return tl.where(better, e, held), tl.where(better, target, into), equal


@triton.jit
def _components(choice, jumps, n, u, inside, LOG: tl.constexpr):
    """The least node of the cycle that each node comes to."""
    jump, lowest = choice, u
    for k in range(LOG):  # 2^k choices at once
        half = jumps + k % 2 * n  # others may still read what was written before
        tl.store(half + u, jump * PLACES + lowest, mask=inside)
        tl.debug_barrier()
        there = tl.load(half + jump, mask=inside, other=0)
        jump, lowest = there // PLACES, tl.minimum(lowest, there % PLACES)
    half = jumps + LOG % 2 * n
    tl.store(half + u, lowest, mask=inside)
    tl.debug_barrier()
    return tl.load(half + jump, mask=inside, other=0)


@triton.jit
def _walk(weights, first, links, n, u, x, last, slot, nodes, held, into, equal, members):
    """Nodes from x on along first choices become members of a cycle: to the one before `last`, or before one that is in
    a cycle already. Some threads may see links to this cycle, others not yet."""
    link = tl.load(links + x)
    e = tl.load(weights + x * n + u, mask=u < nodes, other=float("inf"))
    x = tl.where((link < 0) | (link == slot), x, -1)
    while x >= 0:
        then = tl.load(first + x)
        link = tl.load(links + then)
        more = ((link < 0) | (link == slot)) & (then != last)
        e_then = tl.load(weights + then * n + u, mask=u < nodes * more, other=float("inf"))
        tl.store(links + x, slot)
        members |= u == x
        held, into, equal = _merge(e, u * 0 + x, held, into, equal)
        x = tl.where(more, then, -1)
        e = e_then
    return held, into, equal, members


@triton.jit
def _contract_all(
    turned,
    weights,
    first,
    components,
    targets,
    tops,
    winners,
    links,
    n,
    u,
    nodes,
    place,
    component,
    N: tl.constexpr,
):
    """Winners and links of all cycles of an item. Returns whether a source had equal weights into two members, or a
    cycle is not entered."""
    UNTOUCHED: tl.constexpr = N  # places: on the path below N,
    DONE: tl.constexpr = N + 1  # or what leads to the root
    sources = u < nodes
    members = u < 0  # of the cycle that their component has now
    tied = u < 0
    depth = tl.full((), 0, tl.int32)  # components on the path
    slot = n + depth
    top = slot * 0 - 1  # the last cycle, -1 where a component begins
    held = tl.full(u.shape, float("inf"), tl.float64)
    into = u * 0
    meets = depth
    x = tl.min(tl.where(place == UNTOUCHED, u * PLACES + component, NOWHERE), 0)
    wrong = x < 0
    while x < NOWHERE:
        if top < 0:  # the component of node x, the least in its cycle
            x = x % PLACES
            place = tl.where(component == x, meets, place)
            depth += 1
            held = tl.full(u.shape, float("inf"), tl.float64)
            last = x
        else:
            tl.store(links + top, slot)
            last = x * 0 - 1
        equal = u < 0
        held, into, equal, members = _walk(
            weights, first, links, n, u, x, last, slot, nodes, held, into, equal, members
        )
        for level in range(meets, depth - 1):
            below = tl.load(tops + level)
            tl.store(links + below, slot)
            key = tl.load(winners + below)
            e = tl.load(weights + key % n * n + u, mask=sources, other=float("inf"))
            target = tl.load(targets + level * n + u, mask=sources, other=0).to(tl.int32)
            held, into, equal = _merge(e, target, held, into, equal)
            x = key // n
            held, into, equal, members = _walk(
                weights, first, links, n, u, x, last, slot, nodes, held, into, equal, members
            )
        place = tl.where((place > meets) & (place < N), meets, place)
        depth = meets + 1
        drop = members & (place == meets)
        held = tl.where(drop, float("inf"), held)
        tied |= equal & (drop == 0)
        tl.debug_barrier()
        least, packed, target = tl.reduce((held, u * PLACES + place, into), 0, _lighter)
        if target >= TIED:  # equal weights: by G
            g = tl.load(turned + into * n + u, mask=held == least, other=float("-inf"))
            best = (held == least) & (code(g) == tl.max(code(g), 0))
            packed = tl.min(tl.where(best, u * PLACES + place, NOWHERE), 0)
            target = tl.max(tl.where(u == packed // PLACES, into, 0), 0)
        tl.store(winners + slot, packed // PLACES * n + target)
        wrong |= least == float("inf")
        held -= least
        at = packed % PLACES
        top = slot
        slot += 1
        x = packed // PLACES
        meets = at
        if at == UNTOUCHED:
            tl.store(weights + target * n + u, held, mask=sources)  # a member's row is not read again
            tl.store(targets + (depth - 1) * n + u, into.to(tl.int16), mask=sources)
            tl.store(tops + depth - 1, top)
            x = tl.load(components + x)
            meets = depth
            top = top * 0 - 1
        elif at == DONE:
            place = tl.where(place < N, DONE, place)
            x = tl.min(tl.where(place == UNTOUCHED, u * PLACES + component, NOWHERE), 0)
            depth = depth * 0
            meets = depth
            top = top * 0 - 1
        x = tl.where(wrong, NOWHERE, x)
    return wrong | (tl.max(tied.to(tl.int32), 0) > 0)


@quick
@triton.jit(do_not_specialize=["size_rows", "strips", "n", "slots", "root"])
def _cycles(
    sizes,
    size_rows,
    only,
    turned,
    first,
    low_at,
    high_at,
    wrong_at,
    strips,
    jumps,
    components,
    weights,
    targets,
    tops,
    winners,
    links,
    status,
    left,
    n,
    slots,
    root,
    N: tl.constexpr,
    LOG: tl.constexpr,
    STRIPS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    leave = item < 0
    if wanted(only, item):
        nodes = n
        if sizes is not None:
            nodes = tl.load(sizes + row_of(item, size_rows))
        wrong, _, wide = whole_extent(low_at, high_at, wrong_at, item, strips, STRIPS)
        first += item * n
        winners += item * slots
        links += item * slots
        slot = tl.arange(0, 2 * N)
        chosen = tl.load(first + slot, mask=slot < n, other=-1)
        chosen = tl.where((chosen >= 0) & (wrong == 0), chosen * n + slot, -1)
        tl.store(winners + slot, chosen, mask=slot < slots)
        tl.store(links + slot, -1, mask=slot < slots)
        u = tl.arange(0, N)
        chosen = tl.load(first + u, mask=u < n, other=-1)
        free = (u < nodes) & (u != root)
        leave = wide | (tl.max((free & (chosen < 0)).to(tl.int32), 0) > 0)
        leave = leave & (wrong == 0)
        tl.store(status + item, (wrong.to(tl.int32) * 2).to(tl.int8))
        if (wrong | leave) == 0:
            chosen = tl.where(free, chosen, u)
            component = _components(chosen, jumps + item * 2 * n, n, u, u < n, LOG)
            components += item * n
            tl.store(components + u, component, mask=u < n)
            tl.debug_barrier()
            place = tl.where(free & (component != root), N, N + 1)
            rows = item * (n // 2)
            leave = _contract_all(
                turned + item * n * n,
                weights + item * n * n,
                first,
                components,
                targets + rows * n,
                tops + rows,
                winners,
                links,
                n,
                u,
                nodes,
                place,
                component,
                N,
            )
    tl.store(left + item, leave.to(tl.int8))


def contract(geometry, sizes, only, turned, first, extents, weights, targets, winners, links, status, tile, warps):
    """Traces of items from their turned G, first choices and extents. Returns which ones are left, (items,) of 0 and
    1."""
    n, (items, device) = geometry.nodes, (len(winners), winners.device)
    jumps, components, tops = (torch.empty(items, k, dtype=torch.int32, device=device) for k in (2 * n, n, n // 2))
    left = torch.empty(items, dtype=torch.int8, device=device)
    read = (sizes, 1 if sizes is None else len(sizes), only, turned, first, *extents)
    reduce_weights(read, weights, n, tile)
    scratch = (jumps, components, weights, targets, tops)
    what = (winners, links, status, left, n, geometry.winner_slots, geometry.root)
    sizes = {"N": tile, "LOG": tile.bit_length() - 1, "STRIPS": triton.next_power_of_2(extents[-1])}
    _cycles[(items,)](*read, *scratch, *what, **sizes, num_warps=warps, **EXACT)
    return left
