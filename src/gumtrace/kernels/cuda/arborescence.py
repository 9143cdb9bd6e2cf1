"""Arborescences: what a trace sums to and hands out, and G | T drawn until it gives the trace back. How a trace and its
tree are found is in arborescence_trace.py and arborescence_heads.py.

Decisions are supernodes, members before the cycle that holds them. Key (u, v) raced in those that hold v and not u.
So a supernode has a row of numbers, one for each source outside: `up` adds the members' rows and drops the sources that
are inside now, `down` adds a cycle's number to the row of the cycle around it. Only cycles keep their rows, in memory
that programs use in turns. Nodes need none: all their edges are done at once, in the order of the keys.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_heads import around
from gumtrace.kernels.cuda.arborescence_heads import heads as heads  # of this structure's functions,
from gumtrace.kernels.cuda.arborescence_trace import NOWHERE, layout, wanted
from gumtrace.kernels.cuda.arborescence_trace import trace as trace  # and this
from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    GRAD,
    LOG_PROB,
    SHARE,
    decision_term,
    finish_decisions,
    finish_keys,
    key_term,
    known,
    store_idle,
    winner_code,
)
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.noise import MINIMA, log_exponential
from gumtrace.kernels.cuda.order import code
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, total
from gumtrace.kernels.geometry import DEVICE_ATTEMPTS

LARGEST = 512  # most nodes


@quick
@triton.jit(do_not_specialize=["rows", "stream", "items", "n", "slots", "root"])
def _up(
    winners,
    links,
    sums,
    scales,
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


@triton.jit
def _from_cycles(sums, scales, n, cycles, cycle, source, mask):
    """What the cycles that hold a key's target and not its source hand to it: the row of the innermost."""
    row = cycle - n
    place = row * n + source
    some = mask & (row.to(tl.uint32) < cycles.to(tl.uint32))  # negative ones, for no cycle, are large so
    return tl.load(sums + place, mask=some, other=0.0), tl.load(scales + place, mask=some, other=NOTHING)


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
    no_cap = code(tl.full((), float("inf"), dtype))
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
                v1, e1 = _from_cycles(sums, scales, n, cycles, next_cycle, u, outside)
                win = known(tl.load(own + n + c), keys)
                v2, e2 = decision_term(alpha, h, beta, rows, item, keys, slots, n + c, win, win >= 0, MODE, dtype)
                v1, e1 = add(v1, e1, v2, e2)
                tl.store(sums + c * n + u, tl.where(outside, v1, 0.0), mask=u < n)
                tl.store(scales + c * n + u, tl.where(outside, e1, NOTHING), mask=u < n)
                tl.debug_barrier()
            winner = known(tl.load(own + u, mask=u < n, other=-1), keys)
            nodes = tl.max(tl.where(winner >= 0, u, root), 0) + 1  # padding has no winner
            v, e = decision_term(alpha, h, beta, rows, item, keys, slots, u, winner, winner >= 0, MODE, dtype)
            for start in range(0, n, ROWS):  # all as losers
                source = start + tl.arange(0, ROWS)[:, None]
                key = source * n + u
                racing = (source < nodes) & (source != u) & (winner >= 0)
                v1, e1 = _from_cycles(sums, scales, n, cycles, cycle, source, racing)
                v1, e1 = add(v, e, v1, e1)
                finish_keys(
                    v1, e1, no_cap, key < 0, beta, rows, grad, g, out, more, seed, stream, item, keys, key, racing, MODE
                )
                store_idle(out, more, item * keys + key, (source < n) & (u < n) & (racing == 0), MODE)
            if (MODE == GRAD) | (MODE == CONDITIONAL) | (MODE == SHARE):  # and the winners over them
                tl.debug_barrier()
                key = known(tl.load(own + slot, mask=slot < slots, other=-1), keys)
                won = key >= 0
                key = tl.maximum(key, 0)
                target = key % n
                win = known(tl.load(own + target, mask=won, other=-1), keys)
                v, e = decision_term(alpha, h, beta, rows, item, keys, slots, target, win, win >= 0, MODE, dtype)
                cycle = tl.load(own_links + target, mask=won, other=-1)
                v1, e1 = _from_cycles(sums, scales, n, cycles, cycle, key // n, won)
                v, e = add(v, e, v1, e1)
                cap = no_cap
                if MODE == CONDITIONAL:
                    cap = winner_code(v, e, dtype)
                finish_keys(v, e, cap, won, beta, rows, grad, g, out, more, seed, stream, item, keys, key, won, MODE)
            tl.debug_barrier()  # before the next item takes the same memory


@quick
@triton.jit(do_not_specialize=["stream", "slots"])
def _recheck(
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


def serves(geometry):
    return geometry.nodes <= LARGEST


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    tile, warps, programs = layout(geometry.nodes, len(winners), winners.device)
    sums, scales = _rows(geometry.nodes, programs, beta)
    where = (winners, links, sums, scales, beta, len(beta), h, alpha, out, log_prob, z, seed, stream)
    sizes = (len(winners), geometry.nodes, geometry.winner_slots, geometry.root)
    _up[(programs,)](*where, *sizes, MODE=mode, N=tile, ROWS=256 * warps // tile, num_warps=warps, **EXACT)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream, only=None):
    if geometry.nodes == 0:
        return
    tile, warps, programs = layout(geometry.nodes, len(winners), winners.device)
    sums, scales = _rows(geometry.nodes, programs, beta)
    held = torch.empty(scales.shape, dtype=torch.int8, device=beta.device)
    where = (winners, links, only, sums, scales, held, alpha, h, beta, len(beta), grad, g, out, more, seed, stream)
    sizes = (len(winners), geometry.nodes, geometry.winner_slots, geometry.root)
    _down[(programs,)](*where, *sizes, MODE=mode, N=tile, ROWS=128 * warps // tile, num_warps=warps, **EXACT)


def redraw(geometry, logits, sizes, winners, links, seed, g, totals, z, failed):
    """Run each G | T again, and draw anew, with its minima, what lost its trace. `failed` says who did to the last."""
    if geometry.nodes == 0:
        return
    tile, warps, _ = layout(geometry.nodes, len(winners), winners.device)
    failed.fill_(True)
    only = failed.view(torch.int8)
    again, again_links = torch.empty_like(winners), torch.empty_like(links)
    status = torch.empty(len(winners), dtype=torch.int8, device=g.device)
    for attempt in range(1, DEVICE_ATTEMPTS + 1):
        last, stream = attempt == DEVICE_ATTEMPTS, 2 * attempt
        trace(geometry, g, sizes, None, again, again_links, status, only)
        where = (winners, links, again, again_links, status, totals, z, seed, stream, only, g, geometry.winner_slots)
        _recheck[(len(winners),)](*where, DRAW=not last, N=tile, num_warps=warps, **EXACT)
        if not last:
            down(geometry, winners, links, CONDITIONAL, z, None, logits, None, None, g, None, seed, stream, only)


def _rows(n, programs, like):
    sums = torch.empty(programs, n * n, dtype=like.dtype, device=like.device)
    return sums, torch.empty(programs, n * n, dtype=torch.int32, device=like.device)
