"""Newton's method for X = e^(x_ij + f_i + g_j) with given row and column sums; see relaxations/sinkhorn.py."""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels.cpu.jit import ANY_ORDER, jit, kernel
from gumtrace.kernels.cpu.simd_math import exp64
from gumtrace.kernels.cpu.threads import run

loose = partial(jit, fastmath=ANY_ORDER)


def sinkhorn(x: Tensor, rows: Tensor, cols: Tensor, settings: tuple) -> Tensor:
    """X of scores x (items, n, m), rows sum to `rows` (items, n) and columns to `cols` (items, m), all in float64;
    settings: iterations, tol, spread, cooling, roughly, ridge."""
    out = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    arrays = (y.contiguous().numpy() for y in (x.detach(), rows, cols))
    run(_newton, len(x), x.shape[1] * x.shape[2], *arrays, settings, out.numpy())
    return out


@kernel
def _newton(start, stop, x, rows, cols, settings, out):
    iterations, tol, widest, cooling, roughly, ridge = settings
    n, m = x.shape[1], x.shape[2]
    wide = (m + 7) & ~7  # short loops run fast when they leave no rest
    score, soft, shared = np.zeros((n, wide)), np.zeros((n, wide)), np.zeros((n, wide))
    matrix, bits, line = np.empty((n, n)), np.empty(wide, np.int64), np.empty((2, wide))
    f, mass, sums, move = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for b in range(start, stop):
        out[b] = 0.0
        row, col = np.nonzero(rows[b] > 0.0)[0], np.nonzero(cols[b] > 0.0)[0]
        if row.size == 0:
            continue
        score[:], soft[:], shared[:], line[:] = 0.0, 0.0, 0.0, 0.0
        for i in range(row.size):
            f[i], mass[i] = 0.0, rows[b, row[i]]
            for j in range(col.size):
                score[i, j] = x[b, row[i], col[j]]
        capacity = cols[b][col]
        inner = score[: row.size, : col.size]
        spread = inner.max() - inner.min()
        close = tol + np.finfo(np.float64).eps * spread * n  # no sum is closer than its rounding errors
        heat = min(widest / spread, 1.0) if spread > 0.0 else 1.0  # one over the temperature
        for step in range(iterations):
            _softmax(row.size, col.size, score, heat, f, capacity, soft, shared, line, bits)
            off = 0.0
            for i in range(row.size):
                sums[i] = soft[i].sum()
                move[i] = mass[i] - sums[i]
                off += abs(move[i])
            if step + 1 == iterations or not off > (close if heat == 1.0 else roughly):
                if heat == 1.0:
                    break
                cooler = min(cooling * heat, 1.0)
                for i in range(row.size):
                    f[i] *= cooler / heat
                heat = cooler
                continue
            _multiply(row.size, wide, soft, shared, matrix)
            for i in range(row.size):
                matrix[i, i] += sums[i] + ridge * (1.0 + sums[i])
            _solve(row.size, matrix, move)
            reach = max(move[: row.size].max() - move[: row.size].min(), 1e-30)
            for i in range(row.size):
                f[i] += move[i] * (math.log1p(reach) / reach)  # see the same step in torch
        for i in range(row.size):
            for j in range(col.size):
                out[b, row[i], col[j]] = soft[i, j]


@loose
def _softmax(n, m, score, heat, f, cols, soft, shared, line, bits):
    """soft = cols · softmax over rows of (heat score + f), and shared = soft / cols."""
    top, total = line[0], line[1]
    for j in range(m):
        top[j], total[j] = -np.inf, 0.0
    for i in range(n):
        for j in range(m):
            soft[i, j] = heat * score[i, j] + f[i]
            top[j] = max(top[j], soft[i, j])
    for i in range(n):
        for j in range(m):
            soft[i, j] -= top[j]
        exp64(soft[i], m, bits)
        for j in range(m):
            total[j] += soft[i, j]
    for i in range(n):
        for j in range(m):
            shared[i, j] = soft[i, j] / total[j]
            soft[i, j] = shared[i, j] * cols[j]


@loose
def _multiply(n, m, x, y, out):
    """out = -x yᵀ, below and on the diagonal."""
    for i in range(n):
        for k in range(i + 1):
            total = 0.0
            for j in range(m):
                total += x[i, j] * y[k, j]
            out[i, k] = -total


@loose
def _solve(n, a, x):
    """x = a⁻¹ x by Cholesky's decomposition, in place."""
    for i in range(n):
        for k in range(i + 1):
            total = 0.0
            for j in range(k):
                total += a[i, j] * a[k, j]
            if k < i:
                a[i, k] = (a[i, k] - total) / a[k, k]
            else:
                a[i, i] = math.sqrt(a[i, i] - total)
        total = 0.0
        for j in range(i):
            total += a[i, j] * x[j]
        x[i] = (x[i] - total) / a[i, i]
    for i in range(n - 1, -1, -1):
        x[i] /= a[i, i]
        for j in range(i):
            x[j] -= a[i, j] * x[i]
