"""Marginals of P(S) ∝ e^{Σ_S u} over k-subsets S, and their derivatives: cumulants of the keys' indicators.

S are the heads among independent coins with chances p = sigmoid(u + ν), given that there are k of them; ν may be
anything. With N the number of heads, [N = k] is the mean of e^{iθ(N - k)} over the circle. So S is a mixture over θ of
coins that are independent again, with complex weights w and complex chances r = sigmoid(u + ν + iθ):

    w(θ) ∝ e^{-ikθ} Π_j (1 + p_j (e^{iθ} - 1)),  Σ_θ w = 1,      x_i = Σ_θ w r_i
    Cov(1_i, G)  = Σ_θ w [ (r_i - x_i) M_G + r_i (1 - r_i) g_i ],      G = Σ_j g_j 1_j, shifted to mean 0
    κ(1_i, G, H) = Σ_θ w [ (r_i - x_i) M_GH + r_i (1 - r_i) (g_i M_H + h_i M_G + g_i h_i (1 - 2 r_i)) ]
    M_G = Σ_j g_j r_j,      M_GH = M_G M_H + Σ_j g_j h_j r_j (1 - r_j),      the means of G and of GH at θ

A sum over 2m evenly spaced θ is exact but for the chance that N - k is another multiple of 2m. With the ν that makes k
the mean of N, m = O(√k) nodes (the others are their conjugates) give all digits, and the weights do not cancel.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gumtrace.kernels.backends import own_kernel

CHUNK = 2**24  # complex numbers held at once by the formulas in torch


def marginals(z: Tensor, k: Tensor, smallest: int, largest: int) -> Tensor:
    """x (B, d) of k-subsets, k (B,) between smallest and largest; z = u + ν (B, d) with Σ sigmoid(z) = k."""
    return _Marginals.apply(z, k, nodes(z, smallest, largest))  # type: ignore[return-value]


def nodes(z: Tensor, smallest: int, largest: int) -> Tensor:
    """θ in (0, π), (m,) float64 on the device of z (B, d), so many that |N - k| >= 2m has no weight.

    By Bennett's inequality, the chance is e^{-v h(2m / v)} at most, h(t) = (1 + t) log(1 + t) - t, where
    v = Σ p (1 - p) <= k (1 - k / d) is the variance of N. It is compared to P(N = k), about 1 / √(2πv), and
    derivatives come with factors of order k.
    """
    d = z.shape[-1]
    k = min(max(smallest, d // 2), largest)  # where the bound on v is largest
    v = max(k * (1 - k / d), 1e-9)
    drop = 3 - math.log(torch.finfo(z.dtype).eps) + 1.5 * math.log1p(v)
    m = 1
    while 2 * m <= max(largest, d - smallest) and (v + 2 * m) * math.log1p(2 * m / v) - 2 * m < drop:
        m += 1
    return (torch.arange(m, dtype=torch.float64, device=z.device) + 0.5) * (math.pi / m)


class _Marginals(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, k, theta):
        p = z.sigmoid()
        w = _rows(_weights, theta, p, k)
        x = _rows(_marginals, theta, p, w).clamp_(0, 1)
        ctx.theta = theta
        ctx.save_for_backward(z, k, p, x, w)
        return x

    @staticmethod
    def backward(ctx, *grads):
        z, k, p, x, w = ctx.saved_tensors
        return _Covariance.apply(z, grads[0], k, p, x.detach(), w, ctx.theta), None, None


class _Covariance(torch.autograd.Function):
    """Cov(1, Σ g 1), the Jacobian times g; p, x and w are functions of z and come along to save time."""

    @staticmethod
    def forward(ctx, z, g, k, p, x, w, theta):
        ctx.theta = theta
        ctx.save_for_backward(z, g, k, p, x, w)
        return _rows(_covariance, theta, p, x, w, _centred(g, x, k))

    @staticmethod
    def backward(ctx, *grads):
        z, g, k, p, x, w = ctx.saved_tensors
        h, theta = grads[0], ctx.theta
        to_g = _Covariance.apply(z, h, k, p, x, w, theta)
        if torch.is_grad_enabled():  # for third derivatives p, x and w must have a graph as well
            theta = theta.to(z)
            p = z.sigmoid()
            w = _weights(theta, p, k)
            x = _marginals(theta, p, w)
            to_z = _third_cumulant(theta, p, x, w, _centred(g, x, k), _centred(h, x, k))
        else:
            g, h = _centred(g, x, k), _centred(h, x, k)
            to_z = _rows(_third_cumulant, theta, p, x, w, g, h)
        return to_z, to_g, None, None, None, None, None


def _centred(g: Tensor, x: Tensor, k: Tensor) -> Tensor:
    """Shifted so that Σ g 1 has mean zero, which changes no cumulant, as Σ 1 is always k."""
    return g - (x * g).sum(-1, keepdim=True) / k[:, None].clamp(min=1)


def _rows(formula: Callable, theta: Tensor, *args: Tensor) -> Tensor:
    """A formula by its kernel where there is one; else in torch, on so many rows at a time that memory stays
    bounded."""
    kernel = own_kernel(f"subset{formula.__name__}", args[0].device.type)
    if kernel is not None and not torch.compiler.is_compiling():
        return kernel(theta, *(x.contiguous() for x in args))
    size = max(1, CHUNK // (args[0].shape[-1] * len(theta)))
    theta = theta.to(args[0])
    return torch.cat([formula(theta, *part) for part in zip(*(x.split(size) for x in args), strict=True)])


# The formulas in torch. Shapes: theta (m,), p, x, g, h (B, d), w (B, m), k (B,); (B, d, m) inside.


def _weights(theta: Tensor, p: Tensor, k: Tensor) -> Tensor:
    p = p.unsqueeze(-1)
    c, s = 1 - theta.cos(), theta.sin()
    log_size = torch.log1p(-2 * p * (1 - p) * c).sum(-2) / 2  # (B, m)
    mean = p.detach()  # taken away before the sum, as many angles would be large against what is left of them
    angle = (torch.atan2(p * s, 1 - p * c) - mean * theta).sum(-2) + (mean.sum(-2) - k[:, None]) * theta
    w = torch.polar(log_size.exp(), angle)
    return w / w.real.sum(-1, keepdim=True)


def _chances(theta: Tensor, p: Tensor) -> Tensor:
    p, turn = p.unsqueeze(-1), torch.polar(torch.ones_like(theta), theta)
    return p * turn / (1 + p * (turn - 1))


def _marginals(theta: Tensor, p: Tensor, w: Tensor) -> Tensor:
    return (w.unsqueeze(-2) * _chances(theta, p)).real.sum(-1)


def _covariance(theta: Tensor, p: Tensor, x: Tensor, w: Tensor, g: Tensor) -> Tensor:
    r, w, x, g = _chances(theta, p), w.unsqueeze(-2), x.unsqueeze(-1), g.unsqueeze(-1)
    mean = (g * r).sum(-2, keepdim=True)  # (B, 1, m)
    return (w * ((r - x) * mean + r * (1 - r) * g)).real.sum(-1)


def _third_cumulant(theta: Tensor, p: Tensor, x: Tensor, w: Tensor, g: Tensor, h: Tensor) -> Tensor:
    r, w, x, g, h = _chances(theta, p), w.unsqueeze(-2), x.unsqueeze(-1), g.unsqueeze(-1), h.unsqueeze(-1)
    var = r * (1 - r)
    mean_g, mean_h = (g * r).sum(-2, keepdim=True), (h * r).sum(-2, keepdim=True)  # (B, 1, m)
    both = mean_g * mean_h + (g * h * var).sum(-2, keepdim=True)
    return (w * ((r - x) * both + var * (g * mean_h + h * mean_g + g * h * (1 - 2 * r)))).real.sum(-1)
