"""Marginals of P(S) ∝ e^{Σ_S u} over k-subsets, and their derivatives: the cumulants of the keys' indicators.

Everything is a sum over the nodes θ of a quadrature, with complex weights w, for coins with complex chances r that are
independent of one another. relaxations/expfamily.py has the reasons, and the same formulas in torch.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gumtrace.kernels.cpu.jit import ANY_ORDER, jit, kernel
from gumtrace.kernels.cpu.threads import run

_kernel = partial(kernel, fastmath=ANY_ORDER)  # sums over keys


@_kernel
def _weights(start, stop, theta, p, k, w):
    """w ∝ e^{-ikθ} Π_i (1 + p_i (e^{iθ} - 1)), scaled so that Σ Re w = 1."""
    nodes = theta.size
    away, sine = 1.0 - np.cos(theta), np.sin(theta)
    re, im = np.empty(nodes), np.empty(nodes)  # float64 always: hundreds of factors would cost float32 a digit
    for item in range(start, stop):
        re[:] = 1.0
        im[:] = 0.0
        for i in range(p.shape[1]):
            chance = np.float64(p[item, i])
            for t in range(nodes):
                a = 1.0 - chance * away[t]
                b = chance * sine[t]
                re[t], im[t] = re[t] * a - im[t] * b, re[t] * b + im[t] * a
        total = 0.0
        for t in range(nodes):
            a, b = math.cos(theta[t] * k[item]), math.sin(theta[t] * k[item])
            re[t], im[t] = re[t] * a + im[t] * b, im[t] * a - re[t] * b
            total += re[t]
        for t in range(nodes):
            w[item, t] = complex(re[t] / total, im[t] / total)


@partial(jit, fastmath=ANY_ORDER)
def _chances(theta, p, re, im):
    """r = p e^{iθ} / (1 + p (e^{iθ} - 1)) of one node."""
    one = p.dtype.type(1.0)
    away = p.dtype.type(1.0 - math.cos(theta))
    sine = p.dtype.type(math.sin(theta))
    for i in range(p.size):
        q = one - p[i]
        a = one - p[i] * away
        b = p[i] * sine
        scale = p[i] / (a * a + b * b)
        re[i] = (one - q * away) * scale
        im[i] = q * sine * scale


@_kernel
def _marginals(start, stop, theta, p, w, out):
    keys = p.shape[1]
    re, im = np.empty(keys, p.dtype), np.empty(keys, p.dtype)
    for item in range(start, stop):
        x = out[item]
        x[:] = 0.0
        for t in range(theta.size):
            _chances(theta[t], p[item], re, im)
            a, b = w[item, t].real, w[item, t].imag
            for i in range(keys):
                x[i] += a * re[i] - b * im[i]


@_kernel
def _covariance(start, stop, theta, p, x, w, grads, out):
    keys = p.shape[1]
    re, im = np.empty(keys, p.dtype), np.empty(keys, p.dtype)
    number = p.dtype.type
    one, two = number(1.0), number(2.0)
    for item in range(start, stop):
        y, g = out[item], grads[item]
        y[:] = 0.0
        for t in range(theta.size):
            _chances(theta[t], p[item], re, im)
            mean_re = mean_im = number(0.0)
            for i in range(keys):
                mean_re += g[i] * re[i]
                mean_im += g[i] * im[i]
            weight = w[item, t]
            mean = weight * complex(mean_re, mean_im)
            a, b = weight.real, weight.imag
            mean_re, mean_im = number(mean.real), number(mean.imag)
            for i in range(keys):
                var_re = re[i] * (one - re[i]) + im[i] * im[i]  # r (1 - r)
                var_im = im[i] * (one - two * re[i])
                y[i] += mean_re * (re[i] - x[item, i]) - mean_im * im[i] + g[i] * (a * var_re - b * var_im)


@_kernel
def _third_cumulant(start, stop, theta, p, x, w, grads, grads_too, out):
    keys = p.shape[1]
    re, im = np.empty(keys, p.dtype), np.empty(keys, p.dtype)
    number = p.dtype.type
    one, two = number(1.0), number(2.0)
    for item in range(start, stop):
        y, g, h = out[item], grads[item], grads_too[item]
        y[:] = 0.0
        for t in range(theta.size):
            _chances(theta[t], p[item], re, im)
            g_re = g_im = h_re = h_im = both_re = both_im = number(0.0)
            for i in range(keys):
                g_re += g[i] * re[i]
                g_im += g[i] * im[i]
                h_re += h[i] * re[i]
                h_im += h[i] * im[i]
                both_re += g[i] * h[i] * (re[i] * (one - re[i]) + im[i] * im[i])
                both_im += g[i] * h[i] * (im[i] * (one - two * re[i]))
            weight, mean_g, mean_h = w[item, t], complex(g_re, g_im), complex(h_re, h_im)
            both = weight * (mean_g * mean_h + complex(both_re, both_im))
            mean_g, mean_h = weight * mean_g, weight * mean_h
            a, b = weight.real, weight.imag
            g_re, g_im = number(mean_g.real), number(mean_g.imag)
            h_re, h_im = number(mean_h.real), number(mean_h.imag)
            both_re, both_im = number(both.real), number(both.imag)
            for i in range(keys):
                var_re = re[i] * (one - re[i]) + im[i] * im[i]  # r (1 - r)
                var_im = im[i] * (one - two * re[i])
                skew_re = var_re * (one - two * re[i]) + two * var_im * im[i]  # r (1 - r) (1 - 2r)
                skew_im = var_im * (one - two * re[i]) - two * var_re * im[i]
                y[i] += both_re * (re[i] - x[item, i]) - both_im * im[i]
                y[i] += (g[i] * h_re + h[i] * g_re) * var_re - (g[i] * h_im + h[i] * g_im) * var_im
                y[i] += g[i] * h[i] * (a * skew_re - b * skew_im)


# As functions of tensors: theta (nodes,) float64; p, x (items, keys); k (items,); g, h (items, keys) with Σ x g = 0


def subset_weights(theta: Tensor, p: Tensor, k: Tensor) -> Tensor:
    """w, (items, nodes) complex."""
    return _run(_weights, torch.empty(len(p), len(theta), dtype=p.dtype.to_complex(), device="cpu"), theta, p, k)


def subset_marginals(theta: Tensor, p: Tensor, w: Tensor) -> Tensor:
    """E[1_i], (items, keys)."""
    return _run(_marginals, torch.empty_like(p), theta, p, w)


def subset_covariance(theta: Tensor, p: Tensor, x: Tensor, w: Tensor, g: Tensor) -> Tensor:
    """Cov(1_i, Σ g 1), (items, keys)."""
    return _run(_covariance, torch.empty_like(p), theta, p, x, w, g)


def subset_third_cumulant(theta: Tensor, p: Tensor, x: Tensor, w: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """κ(1_i, Σ g 1, Σ h 1), (items, keys)."""
    return _run(_third_cumulant, torch.empty_like(p), theta, p, x, w, g, h)


def _run(kernel, out: Tensor, theta: Tensor, p: Tensor, *args: Tensor) -> Tensor:
    run(kernel, len(p), p.shape[1], *(x.detach().numpy() for x in (theta, p, *args, out)))
    return out
