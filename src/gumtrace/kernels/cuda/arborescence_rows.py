"""Arborescences: the rows of cycles of large items. A row is a number for each source, and sources do not need each
other: so some sources of an item are one program's, which goes through all cycles."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_heads import around
from gumtrace.kernels.cuda.arborescence_tiles import from_cycles, node_sums, nodes_of
from gumtrace.kernels.cuda.arborescence_turn import wanted
from gumtrace.kernels.cuda.formula import EXACT, LOG_PROB, decision_term, finish_decisions, key_term, known
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, total

SLOTS = 64  # supernodes of a program that lists members
SOURCES = 32  # of a program that goes through all cycles: a warp
MEMBERS = 4  # of a cycle, read at once
CYCLES = 4  # of a program that adds up rows


@triton.jit
def _cycle_around(links, n, slot, slots):
    """The cycles around supernodes, -1 for none; a node is none."""
    link = around(links, slot, slot < slots, slots)
    return tl.where(link >= n, link, -1)


@quick
@triton.jit(do_not_specialize=["n", "slots", "root"])
def _members(winners, links, order, begin, number, n, slots, root, N: tl.constexpr, SLOTS: tl.constexpr):
    """The members of cycle after cycle, in order, and where each cycle's begin; how many cycles and nodes there are."""
    blocks = tl.cdiv(slots + 1, SLOTS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    links += item * slots
    mine = tl.program_id(0) % blocks * SLOTS + tl.arange(0, SLOTS)
    link = _cycle_around(links, n, mine, slots)
    before, place = mine * 0, mine * 0
    last = n - 1
    for start in range(0, slots, SLOTS):
        other = start + tl.arange(0, SLOTS)
        link2 = _cycle_around(links, n, other, slots)
        last = tl.maximum(last, tl.max(link2, 0))
        some = (link2 >= 0)[None, :]
        inner, outer = other[None, :], link2[None, :]
        before += tl.sum((some & (outer < mine[:, None])).to(tl.int32), 1)
        earlier = (outer < link[:, None]) | ((outer == link[:, None]) & (inner < mine[:, None]))
        place += tl.sum((some & earlier).to(tl.int32), 1)
    tl.store(order + item * slots + place, mine, mask=link >= 0)
    tl.store(begin + item * n + mine - n, before, mask=(mine >= n) & (mine < 2 * n))
    if tl.program_id(0) % blocks == 0:
        tl.store(number + 2 * item, last + 1 - n)
        tl.store(number + 2 * item + 1, nodes_of(winners + item * slots, n, root, N))


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
    cycles, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
    cycle = tl.load(links + u, mask=u < n, other=-1)  # that the supernode of u becomes part of
    end = tl.load(begin + item * n)
    for c in range(cycles):
        start = end
        end = tl.load(begin + item * n + c + 1)
        around_it = tl.load(links + n + c)
        inside = cycle == n + c
        outside = (u < nodes) & (inside == 0)
        v, e = tl.zeros([SOURCES], beta.dtype.element_ty), tl.full([SOURCES], NOTHING, tl.int32)
        for first in range(start, end, MEMBERS):
            place = first + tl.arange(0, MEMBERS)[:, None]
            member = tl.load(order + item * slots + place, mask=place < end, other=-1)
            is_node = (member >= 0) & (member < n)
            v1, e1 = key_term(beta, rows, h, item, n * n, u * n + member, is_node & outside, MODE)
            v2, e2 = from_cycles(sums, scales, n, cycles, member, u, outside)
            v1, e1 = total(tl.where(is_node, v1, v2), tl.where(is_node, e1, e2))
            v, e = add(v, e, v1, e1)
        tl.store(sums + c * n + u, v, mask=u < n)
        tl.store(scales + c * n + u, e, mask=u < n)
        cycle = tl.where(inside, around_it, cycle)
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
        last = tl.max(_cycle_around(links + item * slots, n, slot, slots), 0)
        tl.store(number + 2 * item, tl.maximum(last + 1 - n, 0))
        tl.store(number + 2 * item + 1, nodes_of(winners + item * slots, n, root, N))


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
            around_it = tl.load(links + n + c)
            inside = cycle == n + c
            tl.store(held + c * n + u, inside.to(tl.int8), mask=u < n)
            cycle = tl.where(inside, around_it, cycle)
        tl.debug_barrier()
        for j in range(cycles):
            c = cycles - 1 - j
            outside = tl.load(held + c * n + u, mask=u < n, other=1) == 0
            v, e = tl.load(term_v + c), tl.load(term_e + c)
            outer = u * 0 + _cycle_around(links, n, n + c, slots)
            v1, e1 = from_cycles(sums, scales, n, cycles, outer, u, outside)
            v1, e1 = add(v1, e1, v, e)
            tl.store(sums + c * n + u, tl.where(outside, v1, 0.0), mask=u < n)
            tl.store(scales + c * n + u, tl.where(outside, e1, NOTHING), mask=u < n)
            tl.debug_barrier()


def sum_up(geometry, winners, links, sums, scales, mode, beta, h, alpha, out, log_prob, z, seed, stream, tile, warps):
    """Decisions of all items; sums and scales (items, n²) are memory for rows."""
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    order, begin, number = (torch.empty(items, k, dtype=torch.int32, device=beta.device) for k in (slots, n, 2))
    where = (winners, links, order, begin, number, n, slots, geometry.root)
    _members[(items * triton.cdiv(slots + 1, SLOTS),)](*where, N=tile, SLOTS=SLOTS, num_warps=4, **EXACT)
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
