"""Reading and writing the edges of relaxed trees, in the order in which their nodes are eliminated."""

import numpy as np

from gumtrace.kernels.cpu.jit import inlined
from gumtrace.kernels.tree_marginals import HELD, NO_EDGE, UNDIRECTED


@inlined
def load_edges(u, order, size, root, log_w):
    """log_w[i, j] = u[i, j] less the maximum of its column, which no marginal depends on; nodes in order."""
    span, complete = 0.0, True
    for j in range(size):
        top, bottom = -np.inf, np.inf
        for i in range(size):
            a, c = order[i], order[j]
            if root == UNDIRECTED and a > c:
                a, c = c, a
            x = np.float64(u[a, c])
            if i == j or j == 0 or x == -np.inf:
                log_w[i, j] = NO_EDGE
                complete = complete and (i == j or j == 0)
            else:
                log_w[i, j] = x
                top, bottom = max(top, x), min(bottom, x)
        for i in range(size):
            if log_w[i, j] > NO_EDGE:
                log_w[i, j] = max(log_w[i, j] - top, HELD)
        span = max(span, top - bottom)
    return span, complete


@inlined
def load_tangents(tangents, log_w, order, size, root, w):
    """w = e^(ε₁ tangent₁ + ε₂ tangent₂), the weights relative to their values."""
    for i in range(size):
        for j in range(size):
            a, c = order[i], order[j]
            if root == UNDIRECTED and a > c:
                a, c = c, a
            edge = log_w[i, j] > NO_EDGE
            w[0, i, j] = 1.0
            for k in range(tangents.shape[0]):
                w[k + 1, i, j] = tangents[k, a, c] if edge else 0.0
            if tangents.shape[0] == 2:
                w[3, i, j] = w[1, i, j] * w[2, i, j]


@inlined
def store_marginals(w, adjoint, order, size, root, out):
    """The last component of w times adjoint."""
    duals = w.shape[0]
    for i in range(size):
        for j in range(size):
            if i == j:
                continue
            p = 0.0
            for k in range(duals):
                p += w[k, i, j] * adjoint[duals - 1 - k, i, j]
            a, c = order[i], order[j]
            if root == UNDIRECTED and a > c:
                a, c = c, a
            p += out[a, c]  # undirected, the other direction
            out[a, c] = min(max(p, 0.0), 1.0) if duals == 1 else p  # rounding errors must not leave the polytope


@inlined
def copy_rows(x, v, y, u):
    """y[:, u] = x[:, v]."""
    for z in range(x.shape[0]):
        for j in range(x.shape[2]):
            y[z, u, j] = x[z, v, j]
