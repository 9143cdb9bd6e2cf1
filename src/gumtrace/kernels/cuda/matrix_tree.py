"""Edge marginals of random trees with their derivatives, by the elimination of cpu/matrix_tree.py, in one launch.

What a node's edges have gained from those that left before is summed up when it leaves itself,

    w_iv = w⁰_iv + Σ_g t_ig w_gv,   w_vj = w⁰_vj + Σ_g t_vg w_gj,      g > v

so a lane is a node and nothing is held but vectors. The way back has sums of the same kind for the adjoints x:

    x_vj = Σ_i t_iv x_ij,   c_i = Σ_j w_vj x_ij,   x_iv = (c_i + 1 - Σ t c) / s_v,      i, j < v

A tile is a few such vectors. Small items lie in it below each other (ITEMS). Larger ones take it for themselves where
they are few: its rows are nodes g, i or j, PARTS of them at a time, and the sums of rows are added up at the end. Then
a walk through nodes is shorter, but takes more threads. One of the two is 1.

Memory is two matrices an item, that programs use in turns. Row v of `rows` holds w⁰_vj, then w_vj, and x_vj once v is
back; row v of `cols` holds w⁰_iv, then t_iv, then x_iv: the transpose of x, so that lanes always read side by side.
Lanes from v on read what is not theirs, even what nobody wrote, and write nothing.

Numbers are v 2^e: no logarithms, and no limit to how far weights spread (but for exponents, which are held at e^±10^8).
"""

from functools import cache

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.hyperdual import inverse, kept, load, normal, plus, store, times, total, totals, zeros
from gumtrace.kernels.cuda.matrix_tree_edges import FOLDED, NO_EDGE, ROOTED, SPREAD, edges, node, share, weights

LARGEST = 128  # most nodes
SMALLEST = 8  # lanes of an item, at least
LANES = 32  # of a program: smaller items share one
LARGE = 64  # lanes of items with PARTS, where there are no more of them than
FEW = 4  # for each multiprocessor
PARTS = 4
PROCESSORS = 132  # multiprocessors, where there is no GPU to ask (the interpreter)
WARPS = 16  # that one of them has at once, fewer where they would use more memory than
SCRATCH = 96 * 2**20  # bytes, about what the second cache can serve; but no fewer than
FEWEST = 2  # programs each


@triton.jit
def _tile(PARTS: tl.constexpr, N: tl.constexpr):
    """Lanes (1, N) and parts (PARTS, 1)."""
    lane = tl.arange(0, N)[None, :]
    if PARTS > 1:
        lane = tl.max_contiguous(lane, (1, 1))  # said so that a thread takes one lane and some parts, not some lanes
    return lane, tl.arange(0, PARTS)[:, None]


@triton.jit
def _memory(values, scales, DUAL: tl.constexpr, N: tl.constexpr):
    """Of an item's memory: `rows`, `cols`, 1 / s_v, all with their exponents, and the tops of columns."""
    cols, sums = values + DUAL * N * N, values + 2 * DUAL * N * N
    return values, scales, cols, scales + N * N, sums, scales + 2 * N * N, sums + DUAL * N


@triton.jit
def _weigh(
    u,
    first,
    second,
    values,
    scales,
    n,
    root,
    nodes,
    most,
    top,
    KIND: tl.constexpr,
    DUAL: tl.constexpr,
    PARTS: tl.constexpr,
    N: tl.constexpr,
):
    """The weights to begin with."""
    rows, row_scales, cols, col_scales, _, _, tops = _memory(values, scales, DUAL, N)
    lane, part = _tile(PARTS, N)
    for step in range(1, most, PARTS):
        v = step + part
        some = (v < most) | (PARTS == 1)
        ahead = some & (lane < v)
        y, d1, d2 = edges(u, first, second, n, root, nodes, lane, v, ahead, KIND, DUAL)
        x0, x1, x2, x3, xe = weights(y, d1, d2, tl.load(tops + v, mask=some, other=0.0), DUAL)
        store(cols, col_scales, v * N + lane, ahead, x0, x1, x2, x3, xe, DUAL, N * N)
        y, d1, d2 = edges(u, first, second, n, root, nodes, v, lane, ahead, KIND, DUAL)
        x0, x1, x2, x3, xe = weights(y, d1, d2, top, DUAL)
        store(rows, row_scales, v * N + lane, ahead, x0, x1, x2, x3, xe, DUAL, N * N)
    tl.debug_barrier()


@triton.jit
def _forth(values, scales, nodes, most, DUAL: tl.constexpr, PARTS: tl.constexpr, N: tl.constexpr):
    """Nodes leave. Returns whether all could be entered."""
    rows, row_scales, cols, col_scales, sums, sum_scales, _ = _memory(values, scales, DUAL, N)
    lane, part = _tile(PARTS, N)
    reached = nodes >= 0
    for back in range(1, most):
        v = most - back
        ahead = lane < v
        c0, c1, c2, c3, ce = load(cols, col_scales, v * N + lane, part == 0, DUAL, N * N)
        r0, r1, r2, r3, re = load(rows, row_scales, v * N + lane, part == 0, DUAL, N * N)
        for step in range(v + 1, most, PARTS):
            g = step + part
            some = (g < most) | (PARTS == 1)
            x0, x1, x2, x3, xe = load(cols, col_scales, g * N + lane, some, DUAL, N * N)
            y0, y1, y2, y3, ye = load(rows, row_scales, g * N + v, some, DUAL, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL)
            c0, c1, c2, c3, ce = plus(c0, c1, c2, c3, ce, x0, x1, x2, x3, xe, DUAL)
            x0, x1, x2, x3, xe = load(rows, row_scales, g * N + lane, some, DUAL, N * N)
            y0, y1, y2, y3, ye = load(cols, col_scales, g * N + v, some, DUAL, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL)
            r0, r1, r2, r3, re = plus(r0, r1, r2, r3, re, x0, x1, x2, x3, xe, DUAL)
        if PARTS > 1:
            c0, c1, c2, c3, ce, r0, r1, r2, r3, re = totals(c0, c1, c2, c3, ce, r0, r1, r2, r3, re, DUAL)
        c0, c1, c2, c3, ce = kept(c0, c1, c2, c3, ce, ahead, DUAL)
        s0, s1, s2, s3, se = total(c0, c1, c2, c3, ce, DUAL)
        entered = s0 > 0
        reached = reached & (entered | (v >= nodes))
        s0, s1, s2, s3, se = normal(tl.where(entered, s0, 1.0), s1, s2, s3, tl.where(entered, se, 0), DUAL)
        s0, s1, s2, s3, se = inverse(s0, s1, s2, s3, se, DUAL)
        store(sums, sum_scales, v, None, s0, s1, s2, s3, se, DUAL, N)
        c0, c1, c2, c3, ce = times(c0, c1, c2, c3, ce, s0, s1, s2, s3, se, DUAL)
        c0, c1, c2, c3, ce = normal(c0, c1, c2, c3, ce, DUAL)
        store(cols, col_scales, v * N + lane, ahead, c0, c1, c2, c3, ce, DUAL, N * N)
        r0, r1, r2, r3, re = normal(r0, r1, r2, r3, re, DUAL)
        store(rows, row_scales, v * N + lane, ahead, r0, r1, r2, r3, re, DUAL, N * N)
        tl.debug_barrier()
    return reached


@triton.jit
def _back(values, scales, most, DUAL: tl.constexpr, ITEMS: tl.constexpr, PARTS: tl.constexpr, N: tl.constexpr):
    """Nodes come back, with the adjoints of their edges."""
    rows, row_scales, cols, col_scales, sums, sum_scales, _ = _memory(values, scales, DUAL, N)
    lane, part = _tile(PARTS, N)
    for v in range(1, most):
        ahead = lane < v
        c0, c1, c2, c3, ce = zeros(ITEMS * PARTS, N, DUAL)
        r0, r1, r2, r3, re = zeros(ITEMS * PARTS, N, DUAL)
        for step in range(0, v, PARTS):
            k = step + part
            some = (k < v) | (PARTS == 1)
            x0, x1, x2, x3, xe = load(rows, row_scales, k * N + lane, some, DUAL, N * N)
            y0, y1, y2, y3, ye = load(cols, col_scales, v * N + k, some, DUAL, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL)
            r0, r1, r2, r3, re = plus(r0, r1, r2, r3, re, x0, x1, x2, x3, xe, DUAL)
            x0, x1, x2, x3, xe = load(cols, col_scales, k * N + lane, some, DUAL, N * N)
            y0, y1, y2, y3, ye = load(rows, row_scales, v * N + k, some, DUAL, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL)
            c0, c1, c2, c3, ce = plus(c0, c1, c2, c3, ce, x0, x1, x2, x3, xe, DUAL)
        if PARTS > 1:
            c0, c1, c2, c3, ce, r0, r1, r2, r3, re = totals(c0, c1, c2, c3, ce, r0, r1, r2, r3, re, DUAL)
        t0, t1, t2, t3, te = load(cols, col_scales, v * N + lane, True, DUAL, N * N)
        present = ahead & (t0 > 0)  # of no edge the adjoint is not needed, and may be too large
        x0, x1, x2, x3, xe = times(t0, t1, t2, t3, te, c0, c1, c2, c3, ce, DUAL)
        x0, x1, x2, x3, xe = kept(x0, x1, x2, x3, xe, present, DUAL)
        x0, x1, x2, x3, xe = total(x0, x1, x2, x3, xe, DUAL)
        x0, x1, x2, x3, xe = plus(-x0, -x1, -x2, -x3, xe, 1.0, 0.0, 0.0, 0.0, 0, DUAL)
        c0, c1, c2, c3, ce = plus(c0, c1, c2, c3, ce, x0, x1, x2, x3, xe, DUAL)
        y0, y1, y2, y3, ye = load(sums, sum_scales, v, True, DUAL, N)
        c0, c1, c2, c3, ce = times(c0, c1, c2, c3, ce, y0, y1, y2, y3, ye, DUAL)
        c0, c1, c2, c3, ce = normal(c0, c1, c2, c3, ce, DUAL)
        c0, c1, c2, c3, ce = kept(c0, c1, c2, c3, ce, present, DUAL)
        r0, r1, r2, r3, re = normal(r0, r1, r2, r3, re, DUAL)
        tl.debug_barrier()  # what lies here has been read
        store(rows, row_scales, v * N + lane, ahead, r0, r1, r2, r3, re, DUAL, N * N)
        store(cols, col_scales, lane * N + v, ahead, r0, r1, r2, r3, re, DUAL, N * N)
        store(cols, col_scales, v * N + lane, ahead, c0, c1, c2, c3, ce, DUAL, N * N)
        store(rows, row_scales, lane * N + v, ahead, c0, c1, c2, c3, ce, DUAL, N * N)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["items", "n", "root"])
def _marginals(
    u,
    first,
    second,
    sizes,
    values,
    scales,
    out,
    items,
    n,
    root,
    KIND: tl.constexpr,
    DUAL: tl.constexpr,
    ITEMS: tl.constexpr,
    PARTS: tl.constexpr,
    N: tl.constexpr,
):
    lane, part = _tile(PARTS, N)
    member = tl.arange(0, ITEMS)[:, None]
    place = tl.program_id(0).to(tl.int64) * ITEMS + member
    values += place * (2 * DUAL * N * N + DUAL * N + N)
    scales += place * (2 * N * N + N)
    rows, row_scales, cols, col_scales, _, _, tops = _memory(values, scales, DUAL, N)
    z0, z1, z2, z3, ze = zeros(ITEMS, N, DUAL)
    store(rows, row_scales, lane * (N + 1), None, z0, z1, z2, z3, ze, DUAL, N * N)  # loops weigh nothing
    store(cols, col_scales, lane * (N + 1), None, z0, z1, z2, z3, ze, DUAL, N * N)
    for start in range(tl.program_id(0) * ITEMS, items, tl.num_programs(0) * ITEMS):
        item = start + member
        some = item < items
        nodes, most = tl.where(some, n, 0), n
        if sizes is not None:
            nodes = tl.load(sizes + item, mask=some, other=0)
            nodes = tl.where(nodes > root, nodes, 0)
            most = tl.max(tl.max(nodes, 1), 0)
        place = item.to(tl.int64) * n * n
        x, x1, x2, to = u + place, first, second, out + place
        if DUAL > 1:
            x1 += place
        if DUAL > 2:
            x2 += place
        top = tl.full([ITEMS * PARTS, N], NO_EDGE, tl.float64)
        for step in range(0, most, PARTS):
            y, d1, d2 = edges(x, x1, x2, n, root, nodes, step + part, lane, some, KIND, 1)
            top = tl.maximum(top, y)
        if PARTS > 1:
            top = tl.max(top, 0, keep_dims=True)
        tl.store(tops + lane, top)
        tl.debug_barrier()
        _weigh(x, x1, x2, values, scales, n, root, nodes, most, top, KIND, DUAL, PARTS, N)
        reached = _forth(values, scales, nodes, most, DUAL, PARTS, N)
        _back(values, scales, most, DUAL, ITEMS, PARTS, N)
        for step in range(0, n, PARTS):
            i = step + part
            y, d1, d2 = edges(x, x1, x2, n, root, nodes, i, lane, reached, KIND, DUAL)
            w0, w1, w2, w3, we = load(rows, row_scales, i * N + lane, True, DUAL, N * N)
            p = share(y, d1, d2, top, w0, w1, w2, w3, we, DUAL)
            if KIND != ROOTED:
                y, d1, d2 = edges(x, x1, x2, n, root, nodes, lane, i, reached, KIND, DUAL)
                w0, w1, w2, w3, we = load(cols, col_scales, i * N + lane, True, DUAL, N * N)
                p += share(y, d1, d2, tl.load(tops + i), w0, w1, w2, w3, we, DUAL)
            if KIND == FOLDED:
                p = tl.where(i < lane, p, 0.0)
            if DUAL == 1:
                p = tl.minimum(tl.maximum(p, 0.0), 1.0)  # rounding errors must not leave the polytope
            inside = some & (i < n) & (lane < n)
            tl.store(to + node(i, root) * n + node(lane, root), p.to(out.dtype.element_ty), mask=inside)
        tl.debug_barrier()  # before the next items take the same memory


def serves(n):
    return n <= LARGEST


def marginals(u, first, second, sizes, root, fold, out):
    """u, tangents and out (items, n, n), sizes (items,) or None for n. Undirected, which a root below 0 says, `fold`
    makes `first` the sum of its triangles; without it the result is symmetric."""
    items, n = u.shape[:2]
    duals = 1 + (first is not None) + 2 * (second is not None)
    tile = max(SMALLEST, triton.next_power_of_2(n))
    together, parts, warps = _division(items, tile, _processors(u.device))
    programs = min(triton.cdiv(items, together), _programs(n * n * together, duals, warps, u.device))
    numbers = (2 * tile * tile + tile) * duals + tile
    values = torch.empty(programs * together, numbers, dtype=torch.float64, device=u.device)
    scales = torch.empty(programs * together, 2 * tile * tile + tile, dtype=torch.int32, device=u.device)
    kind = ROOTED if root >= 0 else FOLDED if fold else SPREAD
    where = (u, first, second, sizes, values, scales, out, items, n, max(root, 0))
    what = {"KIND": kind, "DUAL": duals, "ITEMS": together, "PARTS": parts, "N": tile}
    _marginals[(programs,)](*where, **what, num_warps=warps, enable_fp_fusion=True)  # rounding is free here


def _division(items, tile, processors):
    """ITEMS, PARTS, and the warps of a program."""
    if tile >= LARGE and items <= FEW * processors:
        return 1, PARTS, tile * PARTS // 64  # two numbers a thread: with more it has to wait for itself
    return max(1, LANES // tile), 1, max(1, tile // 64)


@cache
def _programs(cells, duals, warps, device):
    """How many take turns."""
    by_memory = SCRATCH // (2 * cells * (8 * duals + 4))
    return max(FEWEST * _processors(device), min(_processors(device) * WARPS // warps, by_memory))


@cache
def _processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS
