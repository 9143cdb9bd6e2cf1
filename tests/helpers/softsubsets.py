"""What the tests of soft subsets share."""

import math

import torch
from common import seeded

from gumtrace.relaxations.subset import relax_subset


def randn(*shape, scale=1.0, seed=0, dtype=torch.float64):
    return (scale * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)).to(dtype)


def check_membership(x, k):
    """0 <= x <= 1 exactly; Σx = k up to rounding, also that of u + ν, which may be as low as -log d."""
    k = torch.as_tensor(k).expand(x.shape[:-1]).double()
    assert ((x >= 0) & (x <= 1)).all()
    rounding = torch.finfo(x.dtype).eps * (3 + math.log(x.shape[-1]))
    assert ((x.double().sum(-1) - k).abs() <= rounding * k).all()


def two_derivatives(u, k, kind, device="cpu"):
    """x, a product with its Jacobian, and the gradient of that, on the CPU again."""
    g = randn(*u.shape, seed=1, dtype=u.dtype).to(device)
    u = u.to(device).requires_grad_()
    x = relax_subset(u, k.to(device), kind)
    (grad,) = torch.autograd.grad(x, u, g, create_graph=True)
    (again,) = torch.autograd.grad(grad, u, g)
    return [t.detach().cpu() for t in (x, grad, again)]
