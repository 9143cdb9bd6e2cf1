"""Arithmetic of hyper-dual numbers x + x₁ ε₁ + x₂ ε₂ + x₃ ε₁ε₂ with ε₁² = ε₂² = 0, which carry derivatives along.

The last component of a function of them is the function itself, its derivative in one direction or the mixed one in
two, for one, two or four components. Components are the leading dimension of arrays (components, rows, columns).
"""

from functools import partial

import numpy as np

from gumtrace.kernels.cpu.jit import ANY_ORDER, inlined, jit

# Component LEFT of x times component RIGHT of y is a part of component INTO of x y: the first 1, 3 or 9 of these.
LEFT = np.array([0, 0, 1, 0, 2, 0, 3, 1, 2])
RIGHT = np.array([0, 1, 0, 2, 0, 3, 0, 2, 1])
INTO = np.array([0, 1, 1, 2, 2, 3, 3, 3, 3])
PRODUCTS = np.array([0, 1, 3, 0, 9])  # by the number of components

loose = partial(jit, fastmath=ANY_ORDER)
loose_inlined = partial(inlined, fastmath=ANY_ORDER)


@jit
def rounded(n):
    """The next multiple of 8: short loops run fast when they leave no rest."""
    return (n + 7) & ~7


@loose_inlined
def spread(n, t, v, row, y):
    """y[i, :n] += t[v, i] row[0, :n], for all i < v."""
    for i in range(v):
        if t.shape[0] == 2:  # a backward pass: the loops below in one
            t0, t1 = t[0, v, i], t[1, v, i]
            for j in range(n):
                y[0, i, j] += t0 * row[0, 0, j]
                y[1, i, j] += t0 * row[1, 0, j] + t1 * row[0, 0, j]
            continue
        for k in range(PRODUCTS[t.shape[0]]):
            left, right, into = LEFT[k], RIGHT[k], INTO[k]
            factor = t[left, v, i]
            for j in range(n):
                y[into, i, j] += factor * row[right, 0, j]


@loose_inlined
def collect(n, t, v, x, w, row, c):
    """row[0, :n] = Σ t[v, i] x[i, :n] over i < v, and c[0, i] = Σ w[v, :n] x[i, :n]."""
    row[:], c[:] = 0.0, 0.0
    for i in range(v):
        if t.shape[0] == 2:
            t0, t1, c0, c1 = t[0, v, i], t[1, v, i], 0.0, 0.0
            for j in range(n):
                x0, x1 = x[0, i, j], x[1, i, j]
                row[0, 0, j] += t0 * x0
                row[1, 0, j] += t0 * x1 + t1 * x0
                c0 += w[0, v, j] * x0
                c1 += w[0, v, j] * x1 + w[1, v, j] * x0
            c[0, 0, i], c[1, 0, i] = c0, c1
            continue
        for k in range(PRODUCTS[t.shape[0]]):
            left, right, into = LEFT[k], RIGHT[k], INTO[k]
            factor, total = t[left, v, i], 0.0
            for j in range(n):
                row[into, 0, j] += factor * x[right, i, j]
                total += w[left, v, j] * x[right, i, j]
            c[into, 0, i] += total


@inlined
def divide(n, x, a, y, b):
    """x[a, :n] /= y[b], one number."""
    duals, inverse = x.shape[0], 1.0 / y[0, b]
    for i in range(n):
        x[0, a, i] *= inverse
    if duals > 1:
        for i in range(n):
            x[1, a, i] = (x[1, a, i] - x[0, a, i] * y[1, b]) * inverse
    if duals > 2:
        for i in range(n):
            x[2, a, i] = (x[2, a, i] - x[0, a, i] * y[2, b]) * inverse
            crossed = x[1, a, i] * y[2, b] + x[2, a, i] * y[1, b]
            x[3, a, i] = (x[3, a, i] - x[0, a, i] * y[3, b] - crossed) * inverse
