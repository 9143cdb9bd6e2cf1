"""Arborescences: what a trace sums to and hands out, and G | T drawn until it gives the trace back. How a trace and its
tree are found is in arborescence_trace.py and arborescence_edges.py. Large items, where they are few, are shared among
programs: their traces by arborescence_cycles.py, the rest by arborescence_rows.py and arborescence_tiles.py.

Decisions are supernodes, members before the cycle that holds them. Key (u, v) raced in those that hold v and not u.
So a supernode has a row of numbers, one for each source outside: `up` adds the members' rows and drops the sources that
are inside now, `down` adds a cycle's number to the row of the cycle around it. Only cycles keep their rows, in memory
that programs use in turns. Nodes need none: all their edges are done at once, in the order of the keys.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_edges import around
from gumtrace.kernels.cuda.arborescence_edges import entering as entering  # of this structure's functions,
from gumtrace.kernels.cuda.arborescence_recheck import recheck
from gumtrace.kernels.cuda.arborescence_rows import hand_down, sum_up
from gumtrace.kernels.cuda.arborescence_tiles import (
    from_cycles,
    node_sums,
    nodes_of,
    write_keys,
    write_losers,
    write_winners,
)
from gumtrace.kernels.cuda.arborescence_trace import layout
from gumtrace.kernels.cuda.arborescence_trace import trace as trace  # and this
from gumtrace.kernels.cuda.arborescence_turn import is_large, wanted
from gumtrace.kernels.cuda.arborescence_weights import NOWHERE
from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    GRAD,
    LOG_PROB,
    SHARE,
    decision_term,
    finish_decisions,
    key_term,
    known,
)
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, total
from gumtrace.kernels.geometry import DEVICE_ATTEMPTS

LARGEST = 2048  # most nodes: a program has a lane for every two, and at most 1024 lanes


@quick
@triton.jit(do_not_specialize=["rows", "stream", "items", "n", "slots", "root"])
def _up(
    winners,
    links,
    sums,
    scales,
    node_v,
    node_e,
    beta,
    rows,
    h,
    alpha,
    out,
    log_prob,
    z,
    seed,
    stream,
    items,
    n,
    slots,
    root,
    MODE: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
):
    dtype: tl.constexpr = beta.dtype.element_ty
    keys = n * n
    u = tl.arange(0, N)
    slot = tl.arange(0, 2 * N)
    sums += tl.program_id(0).to(tl.int64) * keys
    scales += tl.program_id(0).to(tl.int64) * keys
    for i in range(tl.program_id(0), items, tl.num_programs(0)):
        item = tl.full((), 0, tl.int64) + i
        own, own_links = winners + item * slots, links + item * slots
        winner = known(tl.load(own + u, mask=u < n, other=-1), keys)
        nodes = tl.max(tl.where(winner >= 0, u, root), 0) + 1  # padding has no winner
        if node_v is not None:  # summed before, in tiles
            v = tl.load(node_v + item * slots + u, mask=u < n, other=0.0)
            e = tl.load(node_e + item * slots + u, mask=u < n, other=NOTHING)
        else:
            v, e = tl.zeros([N], dtype), tl.full([N], NOTHING, tl.int32)
            for start in range(0, n, ROWS):
                source = start + tl.arange(0, ROWS)[:, None]
                racing = (source < nodes) & (source != u) & (winner >= 0)
                v1, e1 = key_term(beta, rows, h, item, keys, source * n + u, racing, MODE)
                v1, e1 = total(v1, e1)
                v, e = add(v, e, v1, e1)
        log_probs = finish_decisions(
            v, e, beta, rows, alpha, out, z, seed, stream, item, keys, slots, u, winner, winner >= 0, MODE
        )
        link = around(own_links, slot, slot < slots, slots)
        cycle = tl.load(own_links + u, mask=u < n, other=-1)  # that the supernode of u becomes part of
        v, e = tl.zeros([N], dtype), tl.full([N], NOTHING, tl.int32)
        for s in range(n, tl.max(link, 0) + 1):
            inside = cycle == s
            outside = (u < nodes) & (inside == 0)
            v1, e1 = tl.zeros([N], dtype), tl.full([N], NOTHING, tl.int32)
            member = tl.min(tl.where(link == s, slot, NOWHERE), 0)
            while member < NOWHERE:
                if member < n:
                    v2, e2 = key_term(beta, rows, h, item, keys, u * n + member, outside, MODE)
                else:
                    v2 = tl.load(sums + (member - n) * n + u, mask=outside, other=0.0)
                    e2 = tl.load(scales + (member - n) * n + u, mask=outside, other=NOTHING)
                v1, e1 = add(v1, e1, v2, e2)
                member = tl.min(tl.where((link == s) & (slot > member), slot, NOWHERE), 0)
            tl.store(sums + (s - n) * n + u, v1, mask=outside)
            tl.store(scales + (s - n) * n + u, e1, mask=outside)
            v1, e1 = total(v1, e1)
            v = tl.where(u == s - n, v1, v)
            e = tl.where(u == s - n, e1, e)
            cycle = tl.where(inside, tl.load(own_links + s), cycle)
            tl.debug_barrier()
        winner = known(tl.load(own + n + u, mask=n + u < slots, other=-1), keys)
        tl.debug_barrier()  # where n is no power of two, some of these slots were written beside the nodes'
        log_probs += finish_decisions(
            v, e, beta, rows, alpha, out, z, seed, stream, item, keys, slots, n + u, winner, winner >= 0, MODE
        )
        if MODE == LOG_PROB:
            tl.store(log_prob + item, log_probs.to(dtype))


@quick
@triton.jit(do_not_specialize=["rows", "stream", "items", "n", "slots", "root"])
def _down(
    winners,
    links,
    only,
    sums,
    scales,
    held,
    alpha,
    h,
    beta,
    rows,
    grad,
    g,
    out,
    more,
    seed,
    stream,
    items,
    n,
    slots,
    root,
    MODE: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
):
    dtype: tl.constexpr = beta.dtype.element_ty
    keys = n * n
    u = tl.arange(0, N)
    slot = tl.arange(0, 2 * N)
    sums += tl.program_id(0).to(tl.int64) * keys
    scales += tl.program_id(0).to(tl.int64) * keys
    held += tl.program_id(0).to(tl.int64) * keys
    for i in range(tl.program_id(0), items, tl.num_programs(0)):
        item = tl.full((), 0, tl.int64) + i
        if wanted(only, item):
            own, own_links = winners + item * slots, links + item * slots
            link = around(own_links, slot, slot < slots, slots)
            cycles = tl.maximum(tl.max(link, 0) + 1 - n, 0)
            cycle = tl.load(own_links + u, mask=u < n, other=-1)
            outer = cycle
            for c in range(cycles):
                inside = outer == n + c
                tl.store(held + c * n + u, inside.to(tl.int8), mask=u < n)
                outer = tl.where(inside, tl.load(own_links + n + c), outer)
            tl.debug_barrier()
            for j in range(cycles):
                c = cycles - 1 - j
                outside = tl.load(held + c * n + u, mask=u < n, other=1) == 0
                next_cycle = u * 0 + around(own_links, n + c, True, slots)
                v1, e1 = from_cycles(sums, scales, n, cycles, next_cycle, u, outside)
                win = known(tl.load(own + n + c), keys)
                v2, e2 = decision_term(alpha, h, beta, rows, item, keys, slots, n + c, win, win >= 0, MODE, dtype)
                v1, e1 = add(v1, e1, v2, e2)
                tl.store(sums + c * n + u, tl.where(outside, v1, 0.0), mask=u < n)
                tl.store(scales + c * n + u, tl.where(outside, e1, NOTHING), mask=u < n)
                tl.debug_barrier()
            nodes = nodes_of(own, n, root, N)
            winner = known(tl.load(own + u, mask=u < n, other=-1), keys)
            v, e = decision_term(alpha, h, beta, rows, item, keys, slots, u, winner, winner >= 0, MODE, dtype)
            for start in range(0, n, ROWS):
                source = start + tl.arange(0, ROWS)[:, None]
                write_losers(
                    sums,
                    scales,
                    n,
                    cycles,
                    nodes,
                    cycle,
                    v,
                    e,
                    winner,
                    source,
                    u,
                    beta,
                    rows,
                    grad,
                    g,
                    out,
                    more,
                    seed,
                    stream,
                    item,
                    MODE,
                )
            if (MODE == GRAD) | (MODE == CONDITIONAL) | (MODE == SHARE):
                tl.debug_barrier()
                write_winners(
                    own,
                    own_links,
                    sums,
                    scales,
                    n,
                    slots,
                    cycles,
                    alpha,
                    h,
                    beta,
                    rows,
                    grad,
                    g,
                    out,
                    more,
                    seed,
                    stream,
                    item,
                    MODE,
                    N,
                )
            tl.debug_barrier()  # before the next item takes the same memory


def serves(geometry):
    return geometry.nodes <= LARGEST


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    n, items = geometry.nodes, winners.shape[0]
    tile, warps, programs = layout(n, items, winners.device)
    sums, scales = _rows(n, programs, beta)
    if is_large(n) and items <= programs:  # each has its own memory
        what = (mode, beta, h, alpha, out, log_prob, z, seed, stream)
        sum_up(geometry, winners, links, sums, scales, *what, tile, warps)
        return
    nodes = node_sums(geometry, winners, mode, beta, h, tile) if is_large(n) else (None, None)
    where = (winners, links, sums, scales, *nodes, beta, beta.shape[0], h, alpha, out, log_prob, z, seed, stream)
    sizes = (items, n, geometry.winner_slots, geometry.root)
    _up[(programs,)](*where, *sizes, MODE=mode, N=tile, ROWS=256 * warps // tile, num_warps=warps, **EXACT)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream, only=None):
    n, items = geometry.nodes, winners.shape[0]
    if n == 0:
        return
    tile, warps, programs = layout(n, items, winners.device)
    sums, scales = _rows(n, programs, beta)
    held = torch.empty(scales.shape, dtype=torch.int8, device=beta.device)
    what = (beta, beta.shape[0], grad, g, out, more, seed, stream)
    if is_large(n) and items <= programs:
        rows = (only, sums, scales, held, mode, alpha, h, beta, tile, warps)
        number, terms = hand_down(geometry, winners, links, *rows)
        where = (winners, links, only, sums, scales, number)
        write_keys(geometry, items, where, terms, alpha, h, what, mode, tile, warps)
        return
    where = (winners, links, only, sums, scales, held, alpha, h, *what, items, n, geometry.winner_slots, geometry.root)
    _down[(programs,)](*where, MODE=mode, N=tile, ROWS=128 * warps // tile, num_warps=warps, **EXACT)


def redraw(geometry, logits, sizes, winners, links, seed, g, totals, z, failed):
    """Run each G | T again, and draw anew, with its minima, what lost its trace. `failed` says who did to the last."""
    if geometry.nodes == 0:
        return
    tile, warps, _ = layout(geometry.nodes, winners.shape[0], winners.device)
    failed.fill_(True)
    only = failed.view(torch.int8)
    again, again_links = torch.empty_like(winners), torch.empty_like(links)
    status = torch.empty(winners.shape[0], dtype=torch.int8, device=g.device)
    for attempt in range(1, DEVICE_ATTEMPTS + 1):
        last, stream = attempt == DEVICE_ATTEMPTS, 2 * attempt
        trace(geometry, g, sizes, None, again, again_links, status, only)
        where = (winners, links, again, again_links, status, totals, z, seed, stream, only, g, geometry.winner_slots)
        recheck[(winners.shape[0],)](*where, DRAW=not last, N=tile, num_warps=warps, **EXACT)
        if not last:
            down(geometry, winners, links, CONDITIONAL, z, None, logits, None, None, g, None, seed, stream, only)


def _rows(n, programs, like):
    sums = torch.empty(programs, n * n, dtype=like.dtype, device=like.device)
    return sums, torch.empty(programs, n * n, dtype=torch.int32, device=like.device)
