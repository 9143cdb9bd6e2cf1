"""Kruskal's algorithm on lists of edges, of up to ten millions: trace and incidence. A key races until the decision
that joins its ends (boruvka.py), so decisions are a chain and sums over it are scans, over many programs: each sums a
block, one scans the sums of all blocks, and then each scans its own.

Keys are summed in the order of their removal, and not by atomic operations: so sums do not depend on who came first.
Batches go by in chunks of items, as all that is as long as the keys is held some ten times.
"""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.boruvka import NONE, ends_of, flat_ends, forest, removals
from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    LOG_PROB,
    decision_term,
    finish_decisions,
    finish_keys,
    key_term,
    known,
    store_idle,
    winner_code,
)
from gumtrace.kernels.cuda.launch import quick
from gumtrace.kernels.cuda.order import code
from gumtrace.kernels.cuda.sampling import perturb, racing
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, at, total
from gumtrace.kernels.geometry import NOT_A_NUMBER, STUCK, BatchedSpanningTreeGeometry

MOST_DECISIONS = 1 << 23  # a code plus a position must fit an integer
MOST_KEYS = 1 << 30
CHUNK = 1 << 24  # keys or nodes at once
BLOCK = 1024


@triton.jit
def _place(first, blocks, BLOCK: tl.constexpr):
    """Of a program: the row in memory of this chunk, the item, and the places of its block."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    return row, first + row, tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _sum_block(v, e, sums_v, sums_e, out_v, out_e, row, i, size, blocks, LAST: tl.constexpr):
    """The sum of a block, or in the LAST launch, when sums of all blocks are known, sums up to each place."""
    if LAST:
        block = tl.program_id(0) % blocks
        before = tl.program_id(0) - 1
        v, e = tl.associative_scan((v, e), 0, add)
        v_before = tl.load(sums_v + before, mask=block > 0, other=0.0)
        e_before = tl.load(sums_e + before, mask=block > 0, other=NOTHING)
        v, e = add(v, e, v_before, e_before)
        tl.store(out_v + row * size + i, v, mask=i < size)
        tl.store(out_e + row * size + i, e, mask=i < size)
    else:
        v_all, e_all = total(v, e)
        tl.store(sums_v + tl.program_id(0), v_all)
        tl.store(sums_e + tl.program_id(0), e_all)
    return v, e


@quick
@triton.jit(do_not_specialize=["blocks"])
def _scan_blocks(sums_v, sums_e, blocks, BLOCK: tl.constexpr):
    """Sums up to each block of an item, in place."""
    place = tl.program_id(0).to(tl.int64) * blocks
    lane = tl.arange(0, BLOCK)
    v_all, e_all = tl.full((), 0.0, sums_v.dtype.element_ty), tl.full((), NOTHING, tl.int32)
    for start in range(0, blocks, BLOCK):
        i = start + lane
        v = tl.load(sums_v + place + i, mask=i < blocks, other=0.0)
        e = tl.load(sums_e + place + i, mask=i < blocks, other=NOTHING)
        v, e = tl.associative_scan((v, e), 0, add)
        v, e = add(v, e, v_all, e_all)
        tl.store(sums_v + place + i, v, mask=i < blocks)
        tl.store(sums_e + place + i, e, mask=i < blocks)
        v_all, e_all = at(v, e, lane == BLOCK - 1)


@quick
@triton.jit(do_not_specialize=["rows", "first", "keys", "blocks"])
def _sum_keys(
    order,
    beta,
    rows,
    h,
    sums_v,
    sums_e,
    out_v,
    out_e,
    first,
    keys,
    blocks,
    MODE: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, item, i = _place(first, blocks, BLOCK)
    key = tl.load(order + row * keys + i, mask=i < keys, other=0)
    v, e = key_term(beta, rows, h, item, keys, key, i < keys, MODE)
    _sum_block(v, e, sums_v, sums_e, out_v, out_e, row, i, keys, blocks, LAST)


@quick
@triton.jit(do_not_specialize=["rows", "stream", "first", "keys", "slots", "blocks"])
def _finish(
    number,
    sum_v,
    sum_e,
    winners,
    steps,
    beta,
    rows,
    alpha,
    out,
    logs,
    z,
    seed,
    stream,
    first,
    keys,
    slots,
    blocks,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Decisions from the sums over the first so many keys."""
    row, item, b = _place(first, blocks, BLOCK)
    live = b < tl.load(steps + row)
    last = tl.load(number + row * slots + b, mask=live, other=0) - 1
    v = tl.load(sum_v + row * keys + last, mask=last >= 0, other=0.0)
    e = tl.load(sum_e + row * keys + last, mask=last >= 0, other=NOTHING)
    winner = known(tl.load(winners + item * slots + b, mask=live, other=-1), keys)
    log_prob = finish_decisions(v, e, beta, rows, alpha, out, z, seed, stream, item, keys, slots, b, winner, live, MODE)
    if MODE == LOG_PROB:
        tl.store(logs + tl.program_id(0), log_prob)


@quick
@triton.jit(do_not_specialize=["rows", "first", "keys", "slots", "blocks"])
def _sum_decisions(
    winners,
    steps,
    alpha,
    h,
    beta,
    rows,
    sums_v,
    sums_e,
    out_v,
    out_e,
    codes,
    first,
    keys,
    slots,
    blocks,
    MODE: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, item, b = _place(first, blocks, BLOCK)
    dtype: tl.constexpr = beta.dtype.element_ty
    live = b < tl.load(steps + row)
    winner = tl.load(winners + item * slots + b, mask=live, other=-1)
    v, e = decision_term(alpha, h, beta, rows, item, keys, slots, b, winner, live, MODE, dtype)
    v, e = _sum_block(v, e, sums_v, sums_e, out_v, out_e, row, b, slots, blocks, LAST)
    if LAST & (codes is not None):  # in CONDITIONAL
        held = tl.where(live, winner_code(v, e, dtype) + b, code(tl.full((), float("inf"), dtype)))
        tl.store(codes + row * slots + b, held, mask=b < slots)


@quick
@triton.jit(do_not_specialize=["rows", "stream", "first", "keys", "slots", "blocks"])
def _hand_to_keys(
    removal,
    sum_v,
    sum_e,
    codes,
    winners,
    beta,
    rows,
    grad,
    g,
    out,
    more,
    seed,
    stream,
    first,
    keys,
    slots,
    blocks,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, item, key = _place(first, blocks, BLOCK)
    inside = key < keys
    last = tl.load(removal + row * keys + key, mask=inside, other=-2)
    store_idle(out, more, item * keys + key, inside & (last == -2), MODE)
    live = last >= 0
    v = tl.load(sum_v + row * slots + last, mask=live, other=0.0)
    e = tl.load(sum_e + row * slots + last, mask=live, other=NOTHING)
    won = tl.load(winners + item * slots + last, mask=live, other=-1) == key
    cap = key
    if MODE == CONDITIONAL:  # without a decision nothing holds a key
        free = code(tl.full((), float("inf"), beta.dtype.element_ty))
        cap = tl.load(codes + row * slots + last, mask=live, other=free) - (won == 0).to(tl.int32)
    finish_keys(v, e, cap, won, beta, rows, grad, g, out, more, seed, stream, item, keys, key, last >= -1, MODE)


def serves(geometry):
    return geometry.decisions <= MOST_DECISIONS and geometry.keys <= MOST_KEYS


def trace(geometry, source, sizes, seed, winners, links, status):
    items, keys = len(winners), geometry.keys
    size = torch.full((1,), geometry.default_size, device=winners.device) if sizes is None else sizes
    size = size.repeat(items // len(size))
    if isinstance(geometry, BatchedSpanningTreeGeometry):  # whose sizes are the numbers of the graphs
        links[:, 0] = size
        size = geometry.edges.to(size.device)[size.long(), 0, keys]
    wanted = size - geometry.components
    for some in _chunks(geometry, items):
        if seed is None:
            g = source[some]
        else:
            g = torch.empty(some.stop - some.start, keys, dtype=source.dtype, device=source.device)
            perturb(geometry, source, seed, g, some.start)
        _trace(geometry, g, wanted[some], winners[some], links[some], status[some])


def _trace(geometry, g, wanted, winners, links, status):
    """Borůvka's tree, with its edges in order."""
    items, keys = g.shape
    wrong, race = ~(g < torch.inf), racing(geometry, g.device)
    wrong = (wrong if race is None else wrong & race).any(-1)  # (items,)
    g, order = (g + 0.0).sort(dim=-1, descending=True, stable=True)  # -0.0 and 0.0 are one number
    ends = flat_ends(ends_of(geometry, links), order, g > -torch.inf, geometry.nodes)
    time, _ = forest(*ends, geometry.nodes, items)
    time = time.view(items, geometry.nodes).sort(-1)[0]
    found = (time != NONE.value).sum(-1)
    taken = time[:, : winners.shape[1]]
    step = torch.arange(taken.shape[1], device=g.device)
    live = (taken != NONE.value) & (step < wanted[:, None]) & ~wrong[:, None]
    winners.fill_(-1)
    if keys > 0:
        key = order.flatten()[torch.where(live, taken, 0).long()]
        winners[:, : taken.shape[1]] = torch.where(live, key, -1).int()
    links.masked_fill_(wrong[:, None], -1)
    stuck = torch.minimum(found, wanted.clamp(min=0)) != wanted
    status.copy_(torch.where(wrong, NOT_A_NUMBER, torch.where(stuck, STUCK, 0)))


def up(geometry, winners, links, mode, beta, h, alpha, out, log_prob, z, seed, stream):
    keys, slots, device = geometry.keys, geometry.winner_slots, winners.device
    key_blocks, blocks = triton.cdiv(keys, BLOCK), triton.cdiv(slots, BLOCK)
    if mode == LOG_PROB:
        log_prob.zero_()
    if keys == 0 or slots == 0:
        return out.zero_() if z is None else (out.zero_(), z.zero_())
    for some in _chunks(geometry, len(winners)):
        first, items = some.start, some.stop - some.start
        removal, steps = removals(geometry, winners[some], links[some])
        removed, order = removal.neg_().sort(dim=-1, stable=True)  # the last first
        step = torch.arange(slots, dtype=torch.int32, device=device).neg_().expand(items, slots).contiguous()
        number = torch.searchsorted(removed, step, right=True, out_int32=True)  # of keys in each decision
        sums, kept = _sums(items, key_blocks, keys, beta)
        where = (order, beta, len(beta), h, *sums, *kept, first, keys, key_blocks)
        _scan(_sum_keys, items, key_blocks, where, sums, mode)
        logs = torch.empty(items, blocks, dtype=torch.float64, device=device)
        where = (number, *kept, winners, steps, beta, len(beta), alpha, out, logs, z, seed, stream, first, keys, slots)
        _finish[(items * blocks,)](*where, blocks, MODE=mode, BLOCK=BLOCK, **EXACT)
        if mode == LOG_PROB:
            log_prob[some] = logs.sum(-1)


def down(geometry, winners, links, mode, alpha, h, beta, grad, g, out, more, seed, stream):
    keys, slots, device = geometry.keys, geometry.winner_slots, winners.device
    key_blocks, blocks = triton.cdiv(keys, BLOCK), triton.cdiv(slots, BLOCK)
    if keys == 0:
        return
    for some in _chunks(geometry, len(winners)):
        first, items = some.start, some.stop - some.start
        removal, steps = removals(geometry, winners[some], links[some])
        sums, kept = _sums(items, blocks, slots, beta)
        codes = None
        if mode == CONDITIONAL:
            kind = torch.int64 if beta.dtype == torch.float64 else torch.int32
            codes = torch.empty(items, slots, dtype=kind, device=device)
        if slots > 0:
            where = (winners, steps, alpha, h, beta, len(beta), *sums, *kept, codes, first, keys, slots, blocks)
            _scan(_sum_decisions, items, blocks, where, sums, mode)
            if codes is not None:  # each winner strictly below the one before, after rounding
                codes = codes.cummin(-1)[0] - torch.arange(slots, dtype=codes.dtype, device=device)
        where = (removal, *kept, codes, winners, beta, len(beta), grad, g, out, more, seed, stream, first, keys, slots)
        _hand_to_keys[(items * key_blocks,)](*where, key_blocks, MODE=mode, BLOCK=BLOCK, **EXACT)


def _chunks(geometry, items):
    rows = max(1, CHUNK // max(geometry.keys, geometry.nodes, 1))
    return (slice(first, min(first + rows, items)) for first in range(0, items, rows))


def _sums(items, blocks, size, beta):
    """Memory for sums of blocks, and up to each place: numbers v 2^e."""
    shapes = ((items, blocks), (items, size))
    kinds = (beta.dtype, torch.int32)
    return ([torch.empty(shape, dtype=kind, device=beta.device) for kind in kinds] for shape in shapes)


def _scan(kernel, items, blocks, where, sums, mode):
    kernel[(items * blocks,)](*where, MODE=mode, LAST=False, BLOCK=BLOCK, **EXACT)
    _scan_blocks[(items,)](*sums, blocks, BLOCK=BLOCK, **EXACT)
    kernel[(items * blocks,)](*where, MODE=mode, LAST=True, BLOCK=BLOCK, **EXACT)
