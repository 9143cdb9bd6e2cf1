"""The walks of matrix_tree.py through the nodes of an item, which has the formulas and where numbers lie."""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.hyperdual import inverse, kept, load, normal, plus, store, times, total, totals, zeros
from gumtrace.kernels.cuda.matrix_tree_edges import edges, weights


@triton.jit
def tile(PARTS: tl.constexpr, N: tl.constexpr):
    """Lanes (1, N) and parts (PARTS, 1)."""
    lane = tl.arange(0, N)[None, :]
    if PARTS > 1:
        lane = tl.max_contiguous(lane, (1, 1))  # said so that a thread takes one lane and some parts, not some lanes
    return lane, tl.arange(0, PARTS)[:, None]


@triton.jit
def memory(values, scales, DUAL: tl.constexpr, N: tl.constexpr):
    """Of an item's memory: `rows`, `cols`, 1 / s_v, all with their exponents, and the tops of columns."""
    cols, sums = values + DUAL * N * N, values + 2 * DUAL * N * N
    return values, scales, cols, scales + N * N, sums, scales + 2 * N * N, sums + DUAL * N


@triton.jit
def weigh(
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
    WIDE: tl.constexpr,
    PARTS: tl.constexpr,
    N: tl.constexpr,
):
    """The weights to begin with."""
    rows, row_scales, cols, col_scales, _, _, tops = memory(values, scales, DUAL, N)
    lane, part = tile(PARTS, N)
    for step in range(1, most, PARTS):
        v = step + part
        some = (v < most) | (PARTS == 1)
        ahead = some & (lane < v)
        y, d1, d2 = edges(u, first, second, n, root, nodes, lane, v, ahead, KIND, DUAL)
        x0, x1, x2, x3, xe = weights(y, d1, d2, tl.load(tops + v, mask=some, other=0.0), DUAL, WIDE)
        store(cols, col_scales, v * N + lane, ahead, x0, x1, x2, x3, xe, DUAL, WIDE, N * N)
        y, d1, d2 = edges(u, first, second, n, root, nodes, v, lane, ahead, KIND, DUAL)
        x0, x1, x2, x3, xe = weights(y, d1, d2, top, DUAL, WIDE)
        store(rows, row_scales, v * N + lane, ahead, x0, x1, x2, x3, xe, DUAL, WIDE, N * N)
    tl.debug_barrier()


@triton.jit
def forth(
    values,
    scales,
    nodes,
    most,
    DUAL: tl.constexpr,
    WIDE: tl.constexpr,
    ITEMS: tl.constexpr,
    PARTS: tl.constexpr,
    N: tl.constexpr,
):
    """Nodes leave. Returns whether all could be entered and, unless WIDE, the least weight of each lane."""
    rows, row_scales, cols, col_scales, sums, sum_scales, _ = memory(values, scales, DUAL, N)
    lane, part = tile(PARTS, N)
    reached = nodes >= 0
    least = tl.full([ITEMS, N], 1.0, tl.float64)
    for back in range(1, most):
        v = most - back
        ahead = lane < v
        c0, c1, c2, c3, ce = load(cols, col_scales, v * N + lane, part == 0, DUAL, WIDE, N * N)
        r0, r1, r2, r3, re = load(rows, row_scales, v * N + lane, part == 0, DUAL, WIDE, N * N)
        for step in range(v + 1, most, PARTS):
            g = step + part
            some = (g < most) | (PARTS == 1)
            read = some
            if not WIDE:
                read = some & ahead  # bound by memory: half of the lanes need nothing
            x0, x1, x2, x3, xe = load(cols, col_scales, g * N + lane, read, DUAL, WIDE, N * N)
            y0, y1, y2, y3, ye = load(rows, row_scales, g * N + v, some, DUAL, WIDE, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL, WIDE)
            c0, c1, c2, c3, ce = plus(c0, c1, c2, c3, ce, x0, x1, x2, x3, xe, DUAL, WIDE)
            x0, x1, x2, x3, xe = load(rows, row_scales, g * N + lane, read, DUAL, WIDE, N * N)
            y0, y1, y2, y3, ye = load(cols, col_scales, g * N + v, some, DUAL, WIDE, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL, WIDE)
            r0, r1, r2, r3, re = plus(r0, r1, r2, r3, re, x0, x1, x2, x3, xe, DUAL, WIDE)
        if PARTS > 1:
            c0, c1, c2, c3, ce, r0, r1, r2, r3, re = totals(c0, c1, c2, c3, ce, r0, r1, r2, r3, re, DUAL, WIDE)
        c0, c1, c2, c3, ce = kept(c0, c1, c2, c3, ce, ahead, DUAL, WIDE)
        if not WIDE:
            least = tl.minimum(least, tl.where(c0 > 0, c0, 1.0))
            least = tl.minimum(least, tl.where(ahead & (r0 > 0), r0, 1.0))
        s0, s1, s2, s3, se = total(c0, c1, c2, c3, ce, DUAL, WIDE)
        entered = s0 > 0
        reached = reached & (entered | (v >= nodes))
        s0, s1, s2, s3, se = normal(tl.where(entered, s0, 1.0), s1, s2, s3, tl.where(entered, se, 0), DUAL, WIDE)
        s0, s1, s2, s3, se = inverse(s0, s1, s2, s3, se, DUAL, WIDE)
        store(sums, sum_scales, v, None, s0, s1, s2, s3, se, DUAL, WIDE, N)
        c0, c1, c2, c3, ce = times(c0, c1, c2, c3, ce, s0, s1, s2, s3, se, DUAL, WIDE)
        c0, c1, c2, c3, ce = normal(c0, c1, c2, c3, ce, DUAL, WIDE)
        store(cols, col_scales, v * N + lane, ahead, c0, c1, c2, c3, ce, DUAL, WIDE, N * N)
        r0, r1, r2, r3, re = normal(r0, r1, r2, r3, re, DUAL, WIDE)
        store(rows, row_scales, v * N + lane, ahead, r0, r1, r2, r3, re, DUAL, WIDE, N * N)
        tl.debug_barrier()
    return reached, least


@triton.jit
def back(
    values,
    scales,
    most,
    DUAL: tl.constexpr,
    WIDE: tl.constexpr,
    ITEMS: tl.constexpr,
    PARTS: tl.constexpr,
    N: tl.constexpr,
):
    """Nodes come back, with the adjoints of their edges."""
    rows, row_scales, cols, col_scales, sums, sum_scales, _ = memory(values, scales, DUAL, N)
    lane, part = tile(PARTS, N)
    for v in range(1, most):
        ahead = lane < v
        c0, c1, c2, c3, ce = zeros(ITEMS * PARTS, N, DUAL, WIDE)
        r0, r1, r2, r3, re = zeros(ITEMS * PARTS, N, DUAL, WIDE)
        for step in range(0, v, PARTS):
            k = step + part
            some = (k < v) | (PARTS == 1)
            read = some
            if not WIDE:
                read = some & ahead
            x0, x1, x2, x3, xe = load(rows, row_scales, k * N + lane, read, DUAL, WIDE, N * N)
            y0, y1, y2, y3, ye = load(cols, col_scales, v * N + k, some, DUAL, WIDE, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL, WIDE)
            r0, r1, r2, r3, re = plus(r0, r1, r2, r3, re, x0, x1, x2, x3, xe, DUAL, WIDE)
            x0, x1, x2, x3, xe = load(cols, col_scales, k * N + lane, read, DUAL, WIDE, N * N)
            y0, y1, y2, y3, ye = load(rows, row_scales, v * N + k, some, DUAL, WIDE, N * N)
            x0, x1, x2, x3, xe = times(x0, x1, x2, x3, xe, y0, y1, y2, y3, ye, DUAL, WIDE)
            c0, c1, c2, c3, ce = plus(c0, c1, c2, c3, ce, x0, x1, x2, x3, xe, DUAL, WIDE)
        if PARTS > 1:
            c0, c1, c2, c3, ce, r0, r1, r2, r3, re = totals(c0, c1, c2, c3, ce, r0, r1, r2, r3, re, DUAL, WIDE)
        t0, t1, t2, t3, te = load(cols, col_scales, v * N + lane, True, DUAL, WIDE, N * N)
        present = ahead & (t0 > 0)  # of no edge the adjoint is not needed, and may be too large
        x0, x1, x2, x3, xe = times(t0, t1, t2, t3, te, c0, c1, c2, c3, ce, DUAL, WIDE)
        x0, x1, x2, x3, xe = kept(x0, x1, x2, x3, xe, present, DUAL, WIDE)
        x0, x1, x2, x3, xe = total(x0, x1, x2, x3, xe, DUAL, WIDE)
        x0, x1, x2, x3, xe = plus(-x0, -x1, -x2, -x3, xe, 1.0, 0.0, 0.0, 0.0, 0, DUAL, WIDE)
        c0, c1, c2, c3, ce = plus(c0, c1, c2, c3, ce, x0, x1, x2, x3, xe, DUAL, WIDE)
        y0, y1, y2, y3, ye = load(sums, sum_scales, v, True, DUAL, WIDE, N)
        c0, c1, c2, c3, ce = times(c0, c1, c2, c3, ce, y0, y1, y2, y3, ye, DUAL, WIDE)
        c0, c1, c2, c3, ce = normal(c0, c1, c2, c3, ce, DUAL, WIDE)
        c0, c1, c2, c3, ce = kept(c0, c1, c2, c3, ce, present, DUAL, WIDE)
        r0, r1, r2, r3, re = normal(r0, r1, r2, r3, re, DUAL, WIDE)
        tl.debug_barrier()  # what lies here has been read
        store(rows, row_scales, v * N + lane, ahead, r0, r1, r2, r3, re, DUAL, WIDE, N * N)
        store(cols, col_scales, lane * N + v, ahead, r0, r1, r2, r3, re, DUAL, WIDE, N * N)
        store(cols, col_scales, v * N + lane, ahead, c0, c1, c2, c3, ce, DUAL, WIDE, N * N)
        store(rows, row_scales, lane * N + v, ahead, c0, c1, c2, c3, ce, DUAL, WIDE, N * N)
        tl.debug_barrier()
