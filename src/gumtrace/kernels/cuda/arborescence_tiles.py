"""Arborescences: what is done for each key alone, in tiles of a program each where items are large and few. Rows of
cycles, which depend on each other, are made in arborescence_rows.py."""

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.arborescence_turn import wanted
from gumtrace.kernels.cuda.formula import (
    CONDITIONAL,
    EXACT,
    GRAD,
    SHARE,
    decision_term,
    finish_keys,
    key_term,
    known,
    store_idle,
    winner_code,
)
from gumtrace.kernels.cuda.order import code
from gumtrace.kernels.cuda.scaled_float import NOTHING, add, total

ROWS, COLS = 16, 64  # sources and targets of a tile


@triton.jit
def nodes_of(winners, n, root, N: tl.constexpr):
    """How many nodes an item has: padding has no winner."""
    v = tl.arange(0, N)
    winner = known(tl.load(winners + v, mask=v < n, other=-1), n * n)
    return tl.max(tl.where(winner >= 0, v, root), 0) + 1


@triton.jit
def from_cycles(sums, scales, n, cycles, cycle, source, mask):
    """What the cycles that hold a key's target and not its source hand to it: the row of the innermost."""
    row = cycle - n
    place = row * n + source
    some = mask & (row.to(tl.uint32) < cycles.to(tl.uint32))  # negative ones, for no cycle, are large so
    return tl.load(sums + place, mask=some, other=0.0), tl.load(scales + place, mask=some, other=NOTHING)


@triton.jit
def write_losers(
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
    target,
    beta,
    rows,
    grad,
    g,
    out,
    more,
    seed,
    stream,
    item,
    MODE: tl.constexpr,
):
    """Keys of some sources (rows, 1) and targets, all as losers, from what each target's node hands to them."""
    no_cap = code(tl.full((), float("inf"), beta.dtype.element_ty))
    keys = n * n
    key = source * n + target
    racing = (source < nodes) & (source != target) & (winner >= 0)
    v1, e1 = from_cycles(sums, scales, n, cycles, cycle, source, racing)
    v1, e1 = add(v, e, v1, e1)
    finish_keys(v1, e1, no_cap, key < 0, beta, rows, grad, g, out, more, seed, stream, item, keys, key, racing, MODE)
    store_idle(out, more, item * keys + key, (source < n) & (target < n) & (racing == 0), MODE)


@triton.jit
def write_winners(
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
    MODE: tl.constexpr,
    N: tl.constexpr,
):
    """The winners, over what they got as losers."""
    dtype: tl.constexpr = beta.dtype.element_ty
    keys = n * n
    slot = tl.arange(0, 2 * N)
    key = known(tl.load(own + slot, mask=slot < slots, other=-1), keys)
    won = key >= 0
    key = tl.maximum(key, 0)
    target = key % n
    win = known(tl.load(own + target, mask=won, other=-1), keys)
    v, e = decision_term(alpha, h, beta, rows, item, keys, slots, target, win, win >= 0, MODE, dtype)
    cycle = tl.load(own_links + target, mask=won, other=-1)
    v1, e1 = from_cycles(sums, scales, n, cycles, cycle, key // n, won)
    v, e = add(v, e, v1, e1)
    cap = code(tl.full((), float("inf"), dtype))
    if MODE == CONDITIONAL:
        cap = winner_code(v, e, dtype)
    finish_keys(v, e, cap, won, beta, rows, grad, g, out, more, seed, stream, item, keys, key, won, MODE)


@triton.jit(do_not_specialize=["rows", "n", "slots", "root"])
def _node_sums(
    winners,
    node_v,
    node_e,
    beta,
    rows,
    h,
    n,
    slots,
    root,
    MODE: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Of some nodes, the sums over their in-edges."""
    blocks = tl.cdiv(n, COLS)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    target = tl.program_id(0) % blocks * COLS + tl.arange(0, COLS)
    nodes = nodes_of(winners + item * slots, n, root, N)
    winner = known(tl.load(winners + item * slots + target, mask=target < n, other=-1), n * n)
    v, e = tl.zeros([COLS], beta.dtype.element_ty), tl.full([COLS], NOTHING, tl.int32)
    for start in range(0, nodes, ROWS):
        source = start + tl.arange(0, ROWS)[:, None]
        racing = (source < nodes) & (source != target) & (winner >= 0)
        v1, e1 = key_term(beta, rows, h, item, n * n, source * n + target, racing, MODE)
        v1, e1 = total(v1, e1)
        v, e = add(v, e, v1, e1)
    tl.store(node_v + item * slots + target, v, mask=target < n)
    tl.store(node_e + item * slots + target, e, mask=target < n)


@triton.jit(do_not_specialize=["rows", "stream", "n", "slots"])
def _losers(
    winners,
    links,
    only,
    sums,
    scales,
    number,
    term_v,
    term_e,
    beta,
    rows,
    grad,
    g,
    out,
    more,
    seed,
    stream,
    n,
    slots,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    blocks = tl.cdiv(n, COLS)
    tiles = tl.cdiv(n, ROWS) * blocks
    item = (tl.program_id(0) // tiles).to(tl.int64)
    if wanted(only, item):
        place = tl.program_id(0) % tiles
        source = place // blocks * ROWS + tl.arange(0, ROWS)[:, None]
        target = place % blocks * COLS + tl.arange(0, COLS)
        cycles, nodes = tl.load(number + 2 * item), tl.load(number + 2 * item + 1)
        winner = known(tl.load(winners + item * slots + target, mask=target < n, other=-1), n * n)
        cycle = tl.load(links + item * slots + target, mask=target < n, other=-1)
        v = tl.load(term_v + item * slots + target, mask=target < n, other=0.0)
        e = tl.load(term_e + item * slots + target, mask=target < n, other=NOTHING)
        sums += item * n * n
        scales += item * n * n
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
            target,
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


@triton.jit(do_not_specialize=["rows", "stream", "n", "slots"])
def _winners(
    winners,
    links,
    only,
    sums,
    scales,
    number,
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
    n,
    slots,
    MODE: tl.constexpr,
    N: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    if wanted(only, item):
        own, own_links = winners + item * slots, links + item * slots
        sums += item * n * n
        scales += item * n * n
        cycles = tl.load(number + 2 * item)
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


def node_sums(geometry, winners, mode, beta, h, tile):
    """Sums over the in-edges of every node, (items, slots) each, of which the nodes' are written: v and e."""
    n, slots, items = geometry.nodes, geometry.winner_slots, len(winners)
    node_v, node_e = (torch.empty(items, slots, dtype=kind, device=beta.device) for kind in (beta.dtype, torch.int32))
    where = (winners, node_v, node_e, beta, len(beta), h, n, slots, geometry.root)
    sizes = {"N": tile, "ROWS": ROWS, "COLS": COLS}
    _node_sums[(items * triton.cdiv(n, COLS),)](*where, MODE=mode, **sizes, num_warps=4, **EXACT)
    return node_v, node_e


def write_keys(geometry, items, where, terms, alpha, h, what, mode, tile, warps):
    """All keys of all items, from the rows of their cycles and what their nodes hand to them."""
    n = geometry.nodes
    what = (*what, n, geometry.winner_slots)
    grid = (items * triton.cdiv(n, ROWS) * triton.cdiv(n, COLS),)
    _losers[grid](*where, *terms, *what, MODE=mode, ROWS=ROWS, COLS=COLS, num_warps=4, **EXACT)
    if mode in (GRAD, CONDITIONAL, SHARE):
        _winners[(items,)](*where, alpha, h, *what, MODE=mode, N=tile, num_warps=warps, **EXACT)
