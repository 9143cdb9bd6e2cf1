"""Soft k-subsets: four smooth maps from scores u (*S, d) into the polytope {x ∈ [0, 1]^d, Σx = k}.

    euclidean     the point nearest to u                  x = clip(u + ν, 0, 1)
    categorical   argmax ⟨u, x⟩ - Σ x log x               x = min(1, e^{u + ν})
    binary        argmax ⟨u, x⟩ + Σ entropy of a coin x   x = 1 / (1 + e^{-u - ν})
    expfamily     marginals of P(S) ∝ e^{Σ_S u}           coins with log odds u, given that k of them fall heads

The first three differ in one increasing function only, and ν is the root of Σx = k. With w the slopes of that function
at the root, they have the Jacobian diag(w) - w wᵀ / Σw. As w is a function of x, so is the backward: further
derivatives are taken through x again.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gumtrace.kernels.backends import own_kernel
from gumtrace.relaxations import expfamily
from gumtrace.relaxations.transforms import refuse_transforms

# x as a function of u + ν, and the slope of that function as one of x (0 * x: a slope with derivative 0, not with none)
_MAPS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "euclidean": (lambda y: y.clamp(0, 1), lambda x: ((x > 0) & (x < 1)) + 0 * x),
    "categorical": (lambda y: y.clamp(max=0).exp(), lambda x: torch.where(x < 1, x, 0.0)),
    "binary": (torch.sigmoid, lambda x: x * (1 - x)),
}
KINDS = ("expfamily", *_MAPS)
HALVINGS = {torch.float32: 28, torch.float64: 57}  # of a bracket 2 log d wide, down to rounding


def relax_subset(u: Tensor, k: int | Tensor, kind: str = "expfamily") -> Tensor:
    """A soft subset of k keys, x (*S, d) with 0 <= x <= 1 and Σx = k; differentiable as often as one likes.

    Args:
        u: scores (*S, d), perturbed logits over a temperature; the lower that is, the nearer x comes to the top k.
            Keys with -inf take no part: their x and its gradient are 0.
        k: how many, an int or integers that broadcast to (*S,). Where fewer keys race, x is 1 for all of them.
        kind: "expfamily", "euclidean", "categorical" or "binary".

    Costs O(d) an item, times √k for "expfamily", and the search for ν.

    >>> relax_subset(torch.tensor([0.0, 0.0, 1.0, -torch.inf]), 2, "euclidean")
    tensor([0.5000, 0.5000, 1.0000, 0.0000])
    """
    if kind not in KINDS:
        raise ValueError(f"relax_subset: unknown kind {kind!r}: choose from {', '.join(KINDS)}")
    refuse_transforms("relax_subset")
    sizes, smallest, largest = _sizes(u, k)
    if u.numel() == 0:
        return u.clone()
    rows = u.reshape(-1, u.shape[-1])  # (B, d)
    if kind == "expfamily":
        sizes = sizes.minimum((rows > -torch.inf).sum(-1))  # the quadrature knows no subset of more keys than there are
        x = expfamily.marginals(_Coins.apply(rows, sizes, largest), sizes, smallest, largest)  # type: ignore[arg-type]
    else:
        x = _Separable.apply(rows, sizes, largest, kind)
    return x.reshape(u.shape)  # type: ignore[union-attr]


class _Separable(torch.autograd.Function):
    """The maps that act on each key alone, once ν is known."""

    @staticmethod
    def forward(ctx, u, k, largest, kind):
        x = _MAPS[kind][0](_shift(u, k, largest, kind))
        ctx.kind = kind
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        w = _MAPS[ctx.kind][1](x)
        # In a corner all slopes are next to zero, and so is w times any mean: it only has to stay finite, twice.
        share = w / w.sum(-1, keepdim=True).clamp(min=torch.finfo(w.dtype).eps ** 2)
        return w * (grads[0] - (share * grads[0]).sum(-1, keepdim=True)), None, None, None


class _Coins(torch.autograd.Function):
    """u + ν, log odds of coins of which k fall heads in the mean. Given that k do, ν is a constant."""

    @staticmethod
    def forward(ctx, u, k, largest):
        z = _shift(u, k, largest, "binary")
        ctx.save_for_backward(z.isfinite())
        return z

    @staticmethod
    def backward(ctx, *grads):
        return torch.where(ctx.saved_tensors[0], grads[0], 0.0), None, None


def _shift(u: Tensor, k: Tensor, largest: int, kind: str) -> Tensor:
    """u + ν (B, d), of u (B, d) and k (B,); -inf for keys that do not race, and ±inf for all where there is no root."""
    kernel = own_kernel("subset_shift", u.device.type)
    shifted = None if kernel is None or torch.compiler.is_compiling() else kernel(kind, u, k)
    return _search(u, k, largest, kind) if shifted is None else shifted  # None: the kernel does not take such rows


def _search(u: Tensor, k: Tensor, largest: int, kind: str) -> Tensor:
    """The same in torch: bisection down to rounding, then two steps of Newton's method for what is left of k - Σx.

    It works with u - centre, the k-th largest score, so that nothing that matters is lost to rounding. Seen from there,
    the root has a bracket that is narrow however wide the scores are.
    """
    shape, slope = _MAPS[kind]
    racing = u > -torch.inf
    k, n = k[:, None], racing.sum(-1, keepdim=True)  # (B, 1), as all below that is not (B, d)
    chosen, others = k.clamp(min=1).to(u.dtype), (n - k).clamp(min=1).to(u.dtype)
    ranks = torch.cat((torch.minimum(k, n) - 1, torch.minimum(k, n - 1)), -1).clamp(min=0)  # (B, 2)
    top = u.topk(min(largest + 1, u.shape[-1])).values
    centre, runner_up = top.gather(-1, ranks).nan_to_num(neginf=0.0).split(1, -1)
    if kind == "euclidean":  # at 0 there are k - 1 keys above 0 at most, at 1 the top k are at 1
        low, high = torch.zeros_like(centre), torch.ones_like(centre)
    elif kind == "categorical":  # at `low` the k-th key and the others make 1 at most, at 0 the top k are at 1
        low, high = -others.log1p(), torch.zeros_like(centre)
    else:  # midway to the runner-up, give or take what the numbers of keys on both sides can do
        low, high = ((centre - runner_up) / 2 + by for by in (-others.log(), chosen.log()))
    v = u - centre  # (B, d)
    above, ties = v > 0, v == 0
    share = (k - above.sum(-1, keepdim=True)).to(u.dtype) / ties.sum(-1, keepdim=True)
    limit = torch.where(ties, share, above.to(u.dtype))  # of x when cold: keys close to it will add no noise
    width = high - low
    for _ in range(HALVINGS[u.dtype]):
        width = width / 2
        excess = (shape(v + (low + width)) - limit).sum(-1, keepdim=True)
        low = torch.where(excess < 0, low + width, low)
    for _ in range(2):
        x = shape(v + low)
        step = (limit - x).sum(-1, keepdim=True) / slope(x).sum(-1, keepdim=True)
        low = low + step.nan_to_num(0.0).clamp(-width, width)
    z = torch.where(k < n, v + low, torch.inf)
    return torch.where(racing & (k > 0), z, -torch.inf)


def _sizes(u: Tensor, k: int | Tensor) -> tuple[Tensor, int, int]:
    """k of every row (B,), and its bounds."""
    # A number is filled in on the device: a copy from the CPU synchronises, and a CUDA graph refuses it.
    given = torch.full((), k, device=u.device) if isinstance(k, int) else torch.as_tensor(k, device=u.device)
    if given.is_floating_point() or given.dtype == torch.bool:
        raise TypeError(f"relax_subset: k must be an int or an integer tensor, got {given.dtype}")
    try:
        sizes = given.long().expand(u.shape[:-1]).reshape(-1)
    except RuntimeError:
        raise ValueError(f"relax_subset: k {tuple(given.shape)} does not fit scores {tuple(u.shape)}") from None
    if isinstance(k, int):  # no need to read it from the device
        low = high = k
    else:
        low, high = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    if low < 0 or high > u.shape[-1]:
        bad = low if low < 0 else high
        raise ValueError(f"relax_subset: k must lie between 0 and the number of keys {u.shape[-1]}, got {bad}")
    return sizes, low, high
