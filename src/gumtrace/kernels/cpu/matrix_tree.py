"""Edge marginals of random arborescences by the matrix-tree theorem, with their first and second derivatives.

The weight of all trees together is Z = Π s_v, where nodes leave one by one and s_v is what enters v at its turn:

    s_v = Σ_i w_iv,   t_i = w_iv / s_v,   w_ij += t_i w_vj        (loops i -> i are dropped)

Nothing is subtracted, so this is accurate however badly the Laplacian is conditioned (Grassmann, Taksar and Heyman).
The marginals are w ∂ log Z / ∂w, by the same steps backwards. Their derivatives come from running both
sweeps on hyper-dual numbers.

Weights are held as they are where float64 has the range, and by their logarithms where it has not; this takes n³ / 3
numbers of memory and five times as long.
"""

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels.cpu.arrays import copy_row
from gumtrace.kernels.cpu.hyperdual import (
    INTO,
    LEFT,
    PRODUCTS,
    RIGHT,
    collect,
    divide,
    loose,
    loose_inlined,
    rounded,
    spread,
)
from gumtrace.kernels.cpu.jit import inlined, jit, kernel
from gumtrace.kernels.cpu.matrix_tree_edges import copy_rows, load_edges, load_tangents, store_marginals
from gumtrace.kernels.cpu.simd_math import exp64
from gumtrace.kernels.cpu.threads import run
from gumtrace.kernels.tree_marginals import NO_EDGE

SPAN = 600.0  # widest column held as weights: e^-100 of its least entry is still a normal number

DONE, TOO_WIDE, NO_TREE = 0, 1, 2


def tree_marginals(u: Tensor, along: Tensor, sizes: Tensor, root: int) -> Tensor:
    """u (items, n, n), along (0, 1 or 2, items, n, n), sizes (items,)."""
    out = torch.empty(u.shape, dtype=u.dtype, device="cpu")
    arrays = (x.detach().cpu().contiguous().numpy() for x in (u, along, sizes))
    run(_marginals, len(u), u.shape[-1] ** 2, *arrays, root, out.numpy())
    return out.to(u.device)


@kernel
def _marginals(start, stop, u, tangents, nodes, root, out):
    """out[b] = the marginals of item b differentiated along every tangent: u and out (items, n, n), tangents
    (0, 1 or 2, items, n, n).

    Undirected, everything is read and written above the diagonal only. An item without a tree is 0.
    """
    n, duals = u.shape[1], 1 << tangents.shape[0]
    log_w, order, s = np.empty((n, n)), np.empty(n, np.int64), np.empty((duals, n))
    start_w, t = np.empty((duals, n, n)), np.empty((duals, n, n))
    w, adjoint = np.empty((duals, n, rounded(n))), np.empty((duals, n, rounded(n)))
    value, bits, total = np.empty((n, rounded(n))), np.empty(rounded(n), np.int64), np.empty(duals)
    row, c = np.empty((duals, 1, rounded(n))), np.empty((duals, 1, n))
    through = np.empty(0)
    for b in range(start, stop):
        out[b] = 0
        size = nodes[b]
        if size < 2 or size <= root:
            continue
        for i in range(n):
            order[i] = i
        if root > 0:
            order[0], order[root] = root, 0  # the root stays to the end, and nodes leave from the last to the first
        span, complete = load_edges(u[b], order, size, root, log_w)
        load_tangents(tangents[:, b], log_w, order, size, root, start_w)
        result = TOO_WIDE
        if span < SPAN:
            result = _by_weights(log_w, start_w, size, complete, s, t, w, adjoint, value, bits, row, c, total)
        if result == TOO_WIDE:
            if through.size == 0:
                through = np.empty((n - 1) * n * (2 * n - 1) // 6)
            result = _by_logarithms(log_w, start_w, size, s, t, through, w, adjoint, bits, row, c, total)
        if result == DONE:
            store_marginals(start_w, adjoint, order, size, root, out[b])


@loose_inlined
def _by_weights(log_w, start_w, size, complete, s, t, w, adjoint, value, bits, row, c, total):
    """adjoint = w ∂ log Z / ∂w, relative to the value of w. Arrays behind it are scratch, made once for all items."""
    duals, wide = w.shape[0], w.shape[2]
    for i in range(size):
        for j in range(size):
            value[i, j] = log_w[i, j]
        exp64(value[i], size, bits)
        for z in range(duals):
            for j in range(size):
                w[z, i, j] = start_w[z, i, j] * value[i, j]
            for j in range(size, wide):
                w[z, i, j] = 0.0
    for v in range(size - 1, 0, -1):
        for z in range(duals):
            s[z, v] = 0.0
            for i in range(v):
                t[z, v, i] = w[z, i, v]
                s[z, v] += w[z, i, v]
        if s[0, v] == 0.0:
            return NO_TREE
        divide(v, t, v, s, v)
        if not complete and _faint(w[0], t[0, v], v):
            return TOO_WIDE
        copy_rows(w, v, row, 0)
        spread(rounded(v), t, v, row, w)  # what this writes behind v is never read
    adjoint[:] = 0.0
    for v in range(1, size):
        collect(rounded(v), t, v, adjoint, w, row, c)
        copy_rows(row, 0, adjoint, v)
        _enter(v, t, s, None, c, total, adjoint)
    for z in range(duals):
        for i in range(size):
            for j in range(size):
                adjoint[z, i, j] *= value[i, j]
    return DONE


@jit
def _faint(w, t, v):
    """A path through v joins nodes that had no edge, with a weight near the end of the range."""
    limit = np.exp(-SPAN)
    least = np.inf
    for j in range(v):
        if w[v, j] > 0.0:
            least = min(least, w[v, j])
    for i in range(v):
        if t[i] > 0.0 and t[i] * least < limit:
            for j in range(v):
                if i != j and w[i, j] == 0.0 and w[v, j] > 0.0 and t[i] * w[v, j] < limit:
                    return True
    return False


@loose
def _by_logarithms(log_w, start_w, size, s, t, through, w, adjoint, bits, row, c, total):
    """The same by a = log w, relative to w in all places.

    `through` keeps the shares q of the paths i -> v -> j in the new w_ij, for all v.
    """
    duals, wide = w.shape[0], w.shape[2]
    a, gap, share = np.empty_like(log_w), np.empty(wide), np.empty((size, size))
    for i in range(size):
        copy_row(log_w[i], size, a[i])
    for i in range(size):
        for z in range(duals):
            copy_row(start_w[z, i], size, w[z, i])
    paths = adjoint  # which has no other use yet
    for v in range(size - 1, 0, -1):
        entering = _share(a, v, share[v])
        if entering == NO_EDGE:
            return NO_TREE
        for z in range(duals):
            s[z, v] = 0.0
            for i in range(v):
                t[z, v, i] = w[z, i, v]
                s[z, v] += share[v, i] * w[z, i, v]
        divide(v, t, v, s, v)
        if duals > 1:
            copy_rows(w, v, row, 0)
            for z in range(duals):
                for i in range(v):
                    paths[z, i, :v] = 0.0
            spread(v, t, v, row, paths)
        for i in range(v):
            q = _squares(through, v, i)
            _mix(v, a[i, v] - entering, a[v], a[i], q, gap, bits)
            a[i, i] = NO_EDGE
            q[i] = 0.0
            for z in range(1, duals):
                for j in range(v):
                    w[z, i, j] += q[j] * (paths[z, i, j] - w[z, i, j])
    paths = w  # whose rows before v are not needed any more, when v is back
    adjoint[:] = 0.0
    for v in range(1, size):
        for i in range(v):
            q = _squares(through, v, i)
            for z in range(duals):
                for j in range(v):
                    paths[z, i, j] = q[j] * adjoint[z, i, j]
                    adjoint[z, i, j] -= paths[z, i, j]
        collect(v, t, v, paths, w, row, c)
        copy_rows(row, 0, adjoint, v)
        _enter(v, t, s, share, c, total, adjoint)
    return DONE


@inlined
def _enter(v, t, s, share, c, total, adjoint):
    """The adjoints of the edges i -> v: (c + share (1 - Σ t c)) / s, where c_i is what comes back from paths i -> v."""
    duals = c.shape[0]
    for z in range(duals):
        total[z] = 1.0 if z == 0 else 0.0
    for k in range(PRODUCTS[duals]):
        for i in range(v):
            total[INTO[k]] -= t[LEFT[k], v, i] * c[RIGHT[k], 0, i]
    for z in range(duals):
        for i in range(v):
            c[z, 0, i] += total[z] if share is None else total[z] * share[v, i]
    divide(v, c, 0, s, v)
    for z in range(duals):
        for i in range(v):
            # of an edge that is not there it is not needed, and may be too large
            adjoint[z, i, v] = c[z, 0, i] if t[0, v, i] > 0.0 else 0.0


@jit
def _squares(through, v, i):
    """Row i of the square of v; the squares of 1, 2, ... v - 1 come before it."""
    begin = (v - 1) * v * (2 * v - 1) // 6 + i * v
    return through[begin : begin + v]


@jit
def _share(a, v, share):
    """The log of the weight that enters v, and the shares of its edges."""
    top, total = NO_EDGE, 0.0
    for i in range(v):
        top = max(top, a[i, v])
    if top == NO_EDGE:
        return top
    for i in range(v):
        share[i] = np.exp(a[i, v] - top)
        total += share[i]
    for i in range(v):
        share[i] /= total
    return top + np.log(total)


@loose
def _mix(n, t, x, y, q, gap, bits):
    """y = log(e^y + e^(t + x)), and q the share of the second in it."""
    for j in range(n):
        gap[j] = -abs(y[j] - (t + x[j]))
    exp64(gap, n, bits)
    for j in range(n):
        e, new = gap[j], t + x[j]
        z = e / (2.0 + e)  # log(1 + e) = 2 artanh z, and z <= 1/3: sixteen terms
        square = z * z
        p = 1.0 / 31.0
        p = p * square + 1.0 / 29.0
        p = p * square + 1.0 / 27.0
        p = p * square + 1.0 / 25.0
        p = p * square + 1.0 / 23.0
        p = p * square + 1.0 / 21.0
        p = p * square + 1.0 / 19.0
        p = p * square + 1.0 / 17.0
        p = p * square + 1.0 / 15.0
        p = p * square + 1.0 / 13.0
        p = p * square + 1.0 / 11.0
        p = p * square + 1.0 / 9.0
        p = p * square + 1.0 / 7.0
        p = p * square + 1.0 / 5.0
        p = p * square + 1.0 / 3.0
        p = p * square + 1.0
        q[j] = (1.0 if new > y[j] else e) / (1.0 + e)
        y[j] = max(y[j], new) + 2.0 * z * p
