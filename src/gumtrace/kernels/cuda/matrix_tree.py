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
Items of more than a few nodes are first computed in plain float64, which is several times faster, and `again` says of
which items this was not enough: a weight that is not 0 fell below FAINT, or the result is no finite number. A second
launch computes those, and returns at once where there are none: the host need not know. No weight is lost unseen, since
the product of two that are not below FAINT does not underflow. Above, the sum of a column stays below its length, and
adjoints below n / FAINT.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from gumtrace.kernels.cuda.hyperdual import load, store, zeros
from gumtrace.kernels.cuda.matrix_tree_edges import FOLDED, NO_EDGE, ROOTED, SPREAD, edges, node, share
from gumtrace.kernels.cuda.matrix_tree_walks import back, forth, memory, tile, weigh

LARGEST = 256  # most nodes
SMALLEST = 8  # lanes of an item, at least
LANES = 32  # of a program: smaller items share one
LARGE = 64  # lanes of items with PARTS, where there are no more of them than
FEW = 4  # for each multiprocessor
PARTS = 4
PLAIN = 64  # lanes of items that are computed in float64 first
CELLS = 1024  # of their tiles, four a thread: two programs then fit the registers of a multiprocessor
FAINT = tl.constexpr(1e-150)  # the least weight that they can have
PROCESSORS = 132  # multiprocessors, where there is no GPU to ask (the interpreter)
WARPS = 16  # that one of them has at once, fewer where they would use more memory than
SCRATCH = 96 * 2**20  # bytes, about what the second cache can serve; but no fewer than
FEWEST = 2  # programs each


@triton.jit(do_not_specialize=["items", "n", "root"])
def _marginals(
    u,
    first,
    second,
    sizes,
    values,
    scales,
    out,
    again,
    items,
    n,
    root,
    KIND: tl.constexpr,
    DUAL: tl.constexpr,
    WIDE: tl.constexpr,
    ITEMS: tl.constexpr,
    PARTS: tl.constexpr,
    N: tl.constexpr,
):
    lane, part = tile(PARTS, N)
    member = tl.arange(0, ITEMS)[:, None]
    place = tl.program_id(0).to(tl.int64) * ITEMS + member
    values += place * (2 * DUAL * N * N + DUAL * N + N)
    scales += place * (2 * N * N + N)
    rows, row_scales, cols, col_scales, _, _, tops = memory(values, scales, DUAL, N)
    z0, z1, z2, z3, ze = zeros(ITEMS, N, DUAL, WIDE)
    store(rows, row_scales, lane * (N + 1), None, z0, z1, z2, z3, ze, DUAL, WIDE, N * N)  # loops weigh nothing
    store(cols, col_scales, lane * (N + 1), None, z0, z1, z2, z3, ze, DUAL, WIDE, N * N)
    for start in range(tl.program_id(0) * ITEMS, items, tl.num_programs(0) * ITEMS):
        item = start + member
        some = item < items
        if WIDE & (again is not None):
            some = some & (tl.load(again + item, mask=some, other=0) != 0)
        nodes, most, length = tl.where(some, n, 0), n, n
        if sizes is not None:
            nodes = tl.load(sizes + item, mask=some, other=0)
            nodes = tl.where(nodes > root, nodes, 0)
        if (sizes is not None) | (again is not None):
            most = tl.max(tl.max(nodes, 1), 0)
            length = tl.max(tl.max(tl.where(some, n, 0), 1), 0)  # 0: nothing to be done again
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
        weigh(x, x1, x2, values, scales, n, root, nodes, most, top, KIND, DUAL, WIDE, PARTS, N)
        reached, least = forth(values, scales, nodes, most, DUAL, WIDE, ITEMS, PARTS, N)
        back(values, scales, most, DUAL, WIDE, ITEMS, PARTS, N)
        lost = tl.zeros([ITEMS * PARTS, N], tl.int32)
        for step in range(0, length, PARTS):
            i = step + part
            y, d1, d2 = edges(x, x1, x2, n, root, nodes, i, lane, reached, KIND, DUAL)
            w0, w1, w2, w3, we = load(rows, row_scales, i * N + lane, True, DUAL, WIDE, N * N)
            p = share(y, d1, d2, top, w0, w1, w2, w3, we, DUAL)
            if KIND != ROOTED:
                y, d1, d2 = edges(x, x1, x2, n, root, nodes, lane, i, reached, KIND, DUAL)
                w0, w1, w2, w3, we = load(cols, col_scales, i * N + lane, True, DUAL, WIDE, N * N)
                p += share(y, d1, d2, tl.load(tops + i), w0, w1, w2, w3, we, DUAL)
            if KIND == FOLDED:
                p = tl.where(i < lane, p, 0.0)
            inside = some & (i < n) & (lane < n)
            if not WIDE:
                lost |= (inside & ~(tl.abs(p) < float("inf"))).to(tl.int32)
            if DUAL == 1:
                p = tl.minimum(tl.maximum(p, 0.0), 1.0)  # rounding errors must not leave the polytope
            tl.store(to + node(i, root) * n + node(lane, root), p.to(out.dtype.element_ty), mask=inside)
        if not WIDE:
            lost = tl.max(lost, 1, keep_dims=True)
            if PARTS > 1:
                lost = tl.max(lost, 0, keep_dims=True)
            faint = (tl.min(least, 1, keep_dims=True) < FAINT).to(tl.int32)
            tl.store(again + item, (lost | faint).to(tl.int8), mask=some)
        tl.debug_barrier()  # before the next items take the same memory


def serves(n):
    return n <= LARGEST


def marginals(u, first, second, sizes, root, fold, out):
    """u, tangents and out (items, n, n), sizes (items,) or None for n. Undirected, which a root below 0 says, `fold`
    makes `first` the sum of its triangles; without it the result is symmetric."""
    items, n = u.shape[:2]
    lanes = max(SMALLEST, triton.next_power_of_2(n))
    kind = ROOTED if root >= 0 else FOLDED if fold else SPREAD
    again = None
    if lanes >= PLAIN:
        again = torch.empty(items, dtype=torch.int8, device=u.device)
        _launch(u, first, second, sizes, out, again, root, kind, lanes, False)
    _launch(u, first, second, sizes, out, again, root, kind, lanes, True)


def _launch(u, first, second, sizes, out, again, root, kind, lanes, wide):
    items, n = u.shape[:2]
    duals = 1 + (first is not None) + 2 * (second is not None)
    together, parts, warps = _division(items, lanes, _processors(u.device)) if wide else _plain_division(lanes, duals)
    programs = min(triton.cdiv(items, together), _programs(n * n * together, duals, warps, u.device))
    numbers, exponents = (2 * lanes * lanes + lanes) * duals + lanes, (2 * lanes * lanes + lanes) * wide
    values = torch.empty(programs * together, numbers, dtype=torch.float64, device=u.device)
    scales = torch.empty(programs * together, exponents, dtype=torch.int32, device=u.device)
    where = (u, first, second, sizes, values, scales, out, again, items, n, max(root, 0))
    what = {"KIND": kind, "DUAL": duals, "WIDE": wide, "ITEMS": together, "PARTS": parts, "N": lanes}
    _marginals[(programs,)](*where, **what, num_warps=warps, enable_fp_fusion=True)  # rounding is free here


def _plain_division(lanes, duals):
    """The same for numbers without exponents, of which a thread takes more."""
    parts = CELLS // lanes // (2 if duals > 2 else 1)
    return 1, max(1, parts), max(1, CELLS // 128)


def _division(items, lanes, processors):
    """ITEMS, PARTS, and the warps of a program."""
    if lanes >= LARGE and items <= FEW * processors:
        return 1, PARTS, lanes * PARTS // 64  # two numbers a thread: with more it has to wait for itself
    return max(1, LANES // lanes), 1, max(1, lanes // 64)


@cache
def _programs(cells, duals, warps, device):
    """How many take turns."""
    by_memory = SCRATCH // (2 * cells * (8 * duals + 4))
    return max(FEWEST * _processors(device), min(_processors(device) * WARPS // warps, by_memory))


@cache
def _processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS
