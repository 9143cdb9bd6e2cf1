"""Arborescences: the rows of cycles of large items. A row is a number for each source, and sources do not need each
other: so some sources of an item are one program's, which goes through all cycles."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_edges import around
from gumtrace.kernels.cuda.arborescence_tiles import from_cycles, node_sums, nodes_of
from gumtrace.kernels.cuda.arborescence_turn import wanted
from gumtrace.kernels.cuda.arborescence_weights import NOWHERE, PLACES
from gumtrace.kernels.cuda.formula import (
    EXACT,
    LOG_PROB,
    decision_term,
    finish_decisions,
    known,
    read_key_term,
    read_keys,
)
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.scaled_float import FAR, NOTHING, add, sum_some, total

OTHERS = tl.constexpr(PLACES.value**2)  # beyond all nodes in a list
SOURCES = 32  # of a program that goes through all cycles: a warp
MEMBERS = 2  # of a cycle, read at once
CYCLES = 4  # of a program that adds up rows


@triton.jit
def _cycle_around(links, n, slot, slots):
    """The cycles around supernodes, -1 for none; a node is none."""
    link = around(links, slot, slot < slots, slots)
    return tl.where(link >= n, link, -1)


@triton.jit
def _listed(links, n, slot, slots):
    """Supernodes in the order of their list: nodes, then cycles, and either by the cycle around them. Last those around
    which is none, and cycles in the very next one: its row continues theirs."""
    link = _cycle_around(links, n, slot, slots)
    left_out = (link < 0) | ((slot >= n) & (link == slot + 1))
    return tl.where(left_out, NOWHERE, tl.where(slot < n, 0, OTHERS) + link * PLACES + slot)


@triton.jit
def _before(order, slots, bound, N: tl.constexpr):
    """How many of a list lie below each bound."""
    count = bound * 0
    step = N
    while step > 0:
        here = count + step
        below = tl.load(order + here - 1, mask=here <= slots, other=NOWHERE) < bound
        count = tl.where(below, here, count)
        step = step // 2
    return count


@quick
@triton.jit(do_not_specialize=["n", "slots", "root"])
def _members(winners, links, order, begin, number, n, slots, root, N: tl.constexpr):
    """The list of members, where in it each cycle's nodes and cycles begin, and how many cycles and nodes there are."""
    item = tl.program_id(0).to(tl.int64)
    links += item * slots
    order += item * slots
    begin += item * 2 * n
    slot = tl.arange(0, 2 * N)
    tl.store(order + slot, tl.sort(_listed(links, n, slot, slots)), mask=slot < slots)
    tl.debug_barrier()
    c = tl.arange(0, N)
    tl.store(begin + c, _before(order, slots, (n + c) * PLACES, N), mask=c < n)
    tl.store(begin + n + c, _before(order, slots, OTHERS + (n + c) * PLACES, N), mask=c < n)
    _count(winners + item * slots, links, number + 2 * item, n, slots, root, slot, N)


@triton.jit
def _count(winners, links, number, n, slots, root, slot, N: tl.constexpr):
    """How many cycles and nodes an item has."""
    last = tl.max(_cycle_around(links, n, slot, slots), 0)
    tl.store(number, tl.maximum(last + 1 - n, 0))
    tl.store(number + 1, nodes_of(winners, n, root, N))


@triton.jit
def _read_nodes(order, start, end, beta, rows, h, item, n, u, nodes, MODE: tl.constexpr, MEMBERS: tl.constexpr):
    """Keys of sources (in rows) into the first of the nodes from `start` to `end` in a list."""
    place = start + tl.arange(0, MEMBERS)[None, :]
    node = tl.load(order + place, mask=place < end, other=0) % PLACES
    some = (place < end) & (u < nodes)[:, None]
    return read_keys(beta, rows, h, item, n * n, u[:, None] * n + node, some, MODE)


@quick
@triton.jit(do_not_specialize=["rows", "n", "slots"])
def _up_rows(
    links,
    order,
    begin,
    number,
    sums,
    scales,
    beta,
    rows,
    h,
    n,
    slots,
    MODE: tl.constexpr,
    SOURCES: tl.constexpr,
    MEMBERS: tl.constexpr,
):
    """Rows of all cycles: of the members' rows, without the sources inside."""
    blocks = tl.cdiv(n, SOURCES)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    u = tl.program_id(0) % blocks * SOURCES + tl.arange(0, SOURCES)
    sums += item * n * n
    scales += item * n * n
    links += item * slots
    order += item * slots
    begin += item * 2 * n
    cycles, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
    cycle = tl.load(links + u, mask=u < n, other=-1)  # that the supernode of u becomes part of
    first, end, next_cycle = tl.load(begin), tl.load(begin + 1, mask=n > 1, other=0), tl.load(begin + n)
    x, factor = _read_nodes(order, first, end, beta, rows, h, item, n, u, nodes, MODE, MEMBERS)
    v, e = tl.zeros([SOURCES], beta.dtype.element_ty), tl.full([SOURCES], NOTHING, tl.int32)
    outer = cycles * 0
    for c in range(cycles):
        start, first, end = first, end, tl.load(begin + c + 2)
        first_cycle, next_cycle = next_cycle, tl.load(begin + n + c + 1)
        x_here, factor_here = x, factor  # the next cycle's come while this one is done
        x, factor = _read_nodes(order, first, end, beta, rows, h, item, n, u, nodes, MODE, MEMBERS)
        inside = cycle == n + c
        outside = (u < nodes) & (inside == 0)
        continued = outside & (u * 0 + outer == n + c)
        v, e = tl.where(continued, v, 0.0), tl.where(continued, e, NOTHING)
        while start < first:
            v1, e1 = read_key_term(x_here, factor_here, MODE)
            v1, e1 = sum_some(v1, e1, FAR, outside[:, None], 1)
            v, e = add(v, e, v1, e1)
            start += MEMBERS
            if start < first:
                x_here, factor_here = _read_nodes(order, start, first, beta, rows, h, item, n, u, nodes, MODE, MEMBERS)
        for place in range(first_cycle, next_cycle):
            v1, e1 = from_cycles(sums, scales, n, cycles, u * 0 + tl.load(order + place) % PLACES, u, outside)
            v, e = add(v, e, v1, e1)
        tl.store(sums + c * n + u, v, mask=u < n)
        tl.store(scales + c * n + u, e, mask=u < n)
        outer = tl.load(links + n + c)
        cycle = tl.where(inside, outer, cycle)
        tl.debug_barrier()


@quick
@triton.jit(do_not_specialize=["n", "slots"])
def _row_sums(sums, scales, number, all_v, all_e, n, slots, N: tl.constexpr, CYCLES: tl.constexpr):
    blocks = tl.cdiv(n, CYCLES)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * CYCLES + tl.arange(0, CYCLES)
    u = tl.arange(0, N)[:, None]
    some = (c < tl.load(number + 2 * item)) & (u < n)
    place = item * n * n + c * n + u
    v = tl.load(sums + place, mask=some, other=0.0)
    v, e = total(v, tl.load(scales + place, mask=some, other=NOTHING))
    tl.store(all_v + item * slots + n + c, v, mask=n + c < slots)
    tl.store(all_e + item * slots + n + c, e, mask=n + c < slots)


@quick
@triton.jit(do_not_specialize=["rows", "stream", "n", "slots"])
def _decisions(
    winners,
    all_v,
    all_e,
    beta,
    rows,
    alpha,
    out,
    log_prob,
    z,
    seed,
    stream,
    n,
    slots,
    MODE: tl.constexpr,
    N: tl.constexpr,
):
    """All decisions of an item, from their sums."""
    item = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, 2 * N)
    winner = known(tl.load(winners + item * slots + slot, mask=slot < slots, other=-1), n * n)
    v = tl.load(all_v + item * slots + slot, mask=slot < slots, other=0.0)
    e = tl.load(all_e + item * slots + slot, mask=slot < slots, other=NOTHING)
    log_probs = finish_decisions(
        v, e, beta, rows, alpha, out, z, seed, stream, item, n * n, slots, slot, winner, winner >= 0, MODE
    )
    if MODE == LOG_PROB:
        tl.store(log_prob + item, log_probs.to(beta.dtype.element_ty))


@quick
@triton.jit(do_not_specialize=["rows", "n", "slots", "root"])
def _terms(
    winners,
    links,
    only,
    number,
    term_v,
    term_e,
    alpha,
    h,
    beta,
    rows,
    n,
    slots,
    root,
    MODE: tl.constexpr,
    N: tl.constexpr,
):
    """What each supernode hands to the keys that raced in it; how many cycles and nodes there are."""
    item = tl.program_id(0).to(tl.int64)
    if wanted(only, item):
        slot = tl.arange(0, 2 * N)
        winner = known(tl.load(winners + item * slots + slot, mask=slot < slots, other=-1), n * n)
        dtype: tl.constexpr = beta.dtype.element_ty
        v, e = decision_term(alpha, h, beta, rows, item, n * n, slots, slot, winner, winner >= 0, MODE, dtype)
        tl.store(term_v + item * slots + slot, v, mask=slot < slots)
        tl.store(term_e + item * slots + slot, e, mask=slot < slots)
        _count(winners + item * slots, links + item * slots, number + 2 * item, n, slots, root, slot, N)


@quick
@triton.jit(do_not_specialize=["n", "slots"])
def _down_rows(
    links,
    only,
    sums,
    scales,
    held,
    number,
    term_v,
    term_e,
    n,
    slots,
    SOURCES: tl.constexpr,
):
    """Rows of all cycles: what they and those around them hand to a source that is outside."""
    blocks = tl.cdiv(n, SOURCES)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    if wanted(only, item):
        u = tl.program_id(0) % blocks * SOURCES + tl.arange(0, SOURCES)
        sums += item * n * n
        scales += item * n * n
        held += item * n * n
        links += item * slots
        term_v += item * slots + n
        term_e += item * slots + n
        cycles = tl.load(number + 2 * item)
        cycle = tl.load(links + u, mask=u < n, other=-1)
        for c in range(cycles):
            outer = tl.load(links + n + c)
            inside = cycle == n + c
            tl.store(held + c * n + u, inside.to(tl.int8), mask=u < n)
            cycle = tl.where(inside, outer, cycle)
        tl.debug_barrier()
        v, e = tl.zeros([SOURCES], sums.dtype.element_ty), tl.full([SOURCES], NOTHING, tl.int32)
        for j in range(cycles):
            c = cycles - 1 - j
            outside = tl.load(held + c * n + u, mask=u < n, other=1) == 0
            outer = u * 0 + _cycle_around(links, n, n + c, slots)
            continued = outer == n + c + 1  # the row that was done last
            v1, e1 = from_cycles(sums, scales, n, cycles, outer, u, outside & (continued == 0))
            v1, e1 = tl.where(continued, v, v1), tl.where(continued, e, e1)
            v, e = add(v1, e1, tl.load(term_v + c), tl.load(term_e + c))
            v, e = tl.where(outside, v, 0.0), tl.where(outside, e, NOTHING)
            tl.store(sums + c * n + u, v, mask=u < n)
            tl.store(scales + c * n + u, e, mask=u < n)
            tl.debug_barrier()


def sum_up(geometry, winners, links, sums, scales, mode, beta, h, alpha, out, log_prob, z, seed, stream, tile, warps):
    """Decisions of all items; sums and scales (items, n²) are memory for rows."""
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    order, begin, number = (torch.empty(items, k, dtype=torch.int32, device=beta.device) for k in (slots, 2 * n, 2))
    where = (winners, links, order, begin, number, n, slots, geometry.root)
    _members[(items,)](*where, N=tile, num_warps=warps, **EXACT)
    where = (links, order, begin, number, sums, scales, beta, len(beta), h, n, slots)
    sizes = {"SOURCES": SOURCES, "MEMBERS": MEMBERS}
    _up_rows[(items * triton.cdiv(n, SOURCES),)](*where, MODE=mode, **sizes, num_warps=1, **EXACT)
    every = node_sums(geometry, winners, mode, beta, h, tile)
    sizes = {"N": tile, "CYCLES": CYCLES}
    _row_sums[(items * triton.cdiv(n, CYCLES),)](sums, scales, number, *every, n, slots, **sizes, num_warps=4, **EXACT)
    where = (winners, *every, beta, len(beta), alpha, out, log_prob, z, seed, stream, n, slots)
    _decisions[(items,)](*where, MODE=mode, N=tile, num_warps=warps, **EXACT)


def hand_down(geometry, winners, links, only, sums, scales, held, mode, alpha, h, beta, tile, warps):
    """Write rows of cycles to sums and scales (items, n²). Returns how many cycles and nodes there are, (items, 2), and
    what each supernode hands down, (items, slots): v and e."""
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    number = torch.empty(items, 2, dtype=torch.int32, device=beta.device)
    terms = tuple(torch.empty(items, slots, dtype=kind, device=beta.device) for kind in (beta.dtype, torch.int32))
    where = (winners, links, only, number, *terms, alpha, h, beta, len(beta), n, slots, geometry.root)
    _terms[(items,)](*where, MODE=mode, N=tile, num_warps=warps, **EXACT)
    where = (links, only, sums, scales, held, number, *terms, n, slots)
    _down_rows[(items * triton.cdiv(n, SOURCES),)](*where, SOURCES=SOURCES, num_warps=1, **EXACT)
    return number, terms
