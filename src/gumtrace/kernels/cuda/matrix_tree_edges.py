"""Edges of the graphs whose trees matrix_tree.py weighs: what is read of them, and what it makes them."""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.scaled_float import exponential, scaled

# Undirected, log-weights and a second tangent lie above the diagonal. FOLDED, the first tangent is the sum of both
# triangles, and the result lies above the diagonal; SPREAD, it is the other way round.
ROOTED, SPREAD, FOLDED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
NO_EDGE = tl.constexpr(-1e300)  # below every log-weight; unlike -inf it can be subtracted from -inf


@triton.jit
def node(k, root):
    """The node at place k: the root comes first, and nodes leave from the last to the first."""
    return tl.where(k == 0, root, tl.where(k == root, 0, k))


@triton.jit
def edges(u, first, second, n, root, nodes, i, j, mask, KIND: tl.constexpr, DUAL: tl.constexpr):
    """Of edges i -> j the log-weights, -inf where there is none, and the tangents."""
    place = node(i, root) * n + node(j, root)
    if KIND != ROOTED:
        place = tl.minimum(i, j) * n + tl.maximum(i, j)
    mask = mask & (i != j) & (i < nodes) & (j < nodes) & (j * nodes > 0)  # none enters the root
    y = tl.load(u + place, mask=mask, other=float("-inf")).to(tl.float64)
    mask = mask & (y > float("-inf"))
    d1, d2 = 0.0, 0.0
    if DUAL > 1:
        d1 = tl.load(first + place, mask=mask, other=0.0).to(tl.float64)
        if KIND == FOLDED:
            d1 += tl.load(first + tl.maximum(i, j) * n + tl.minimum(i, j), mask=mask, other=0.0).to(tl.float64)
    if DUAL > 2:
        d2 = tl.load(second + place, mask=mask, other=0.0).to(tl.float64)
    return tl.where(mask, y, float("-inf")), d1, d2


@triton.jit
def weights(y, d1, d2, top, DUAL: tl.constexpr, WIDE: tl.constexpr):
    """Weights relative to the largest of their column, which no marginal depends on."""
    x0, e = exponential(y - top)
    if not WIDE:
        x0, e = scaled(x0, tl.maximum(e, -1022)), 0  # never 0 for an edge: too small a number must be found
    x1, x2, x3 = 0.0, 0.0, 0.0
    if DUAL > 1:
        x1 = x0 * d1
    if DUAL > 2:
        x2 = x0 * d2
        x3 = x1 * d2
    return x0, x1, x2, x3, e


@triton.jit
def share(y, d1, d2, top, x0, x1, x2, x3, xe, DUAL: tl.constexpr):
    """The last component of weights times x."""
    v, e = exponential(y - top)
    p = x0
    if DUAL == 2:
        p = x1 + d1 * x0
    if DUAL == 4:
        p = x3 + d1 * x2 + d2 * (x1 + d1 * x0)
    return tl.where(v > 0, scaled(v * p, e + xe), 0.0)
