"""Inclusion probabilities of k-subsets: the chance of each key to be among the first k to arrive.

Key i arrives at e^s with density a_i = u e^{-u}, u = λ_i e^s, and is chosen if at most k - 1 others came before it:

    P(i ∈ S) = ∫ a_i H_i ds = ∫ p_i φ + a_i (H_i - W) ds,      H_i = P(N_i <= k - 1),  p_i = 1 - e^{-u}.

N_i(s) counts the other keys that have arrived; φ is any density, W = ∫_s^∞ φ, and ∫ a_i W = ∫ p_i φ by parts. Now
a_i H_i is about keys that arrive as one of the first k, and a_i (1 - H_i) about keys that arrive later. So nothing
matters after a time at which k keys must be there, nor, if W is 1 there, before one at which k + 1 keys cannot be: all
keys share one interval, and φ is a normal density that fits into it. What is integrated is entire in s and vanishes at
both ends: the trapezoidal rule converges exponentially, and the same number of points serves thousands of keys.
Derivatives

    ∂P(i ∈ S) / ∂logit_j = -∫ a_i a_j P(N_ij = k - 1) ds,      i ≠ j, N_ij without both of them,

make a symmetric matrix whose rows sum to 0, as a constant added to all logits changes nothing.
"""

import math
from functools import partial
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from gumtrace.kernels.backends import own_kernel
from gumtrace.kernels.operators import is_traced
from gumtrace.structures.exact import precise

HELD = 2**24  # numbers (rows, points, keys) that the formula in torch holds at once, for each intermediate
NARROWEST = 0.25  # interval of log-times


class Rule(NamedTuple):
    """The trapezoidal rule on an interval, (points,): places from -1/2 to 1/2, W there, and φ times the spacing."""

    places: Tensor
    late: Tensor
    middle: Tensor


def inclusion_probs(logits: Tensor, k: Tensor, most: int) -> Tensor:
    """(*B, d): the probability of each key to be among the first k to arrive, logits (*B, d), k (*B,) up to `most`.
    Keys at -inf never arrive. Where no more than k keys race, all of them are chosen.

    Exact to the precision of the dtype. Costs O(d · k · points) an item, and three times as much for the derivative.
    """
    if logits.numel() * most == 0:
        return torch.where(logits.isnan(), logits, 0.0)  # zeros, in the graph
    shape, k = logits.shape, k.expand(logits.shape[:-1])
    logits, k = _once(logits, k)
    x, racing = (part.reshape(-1, logits.shape[-1]) for part in precise(logits))  # (N, d)
    k, count = k.reshape(-1), racing.sum(-1)  # (N,)
    sure = torch.where(racing & (k >= count)[:, None], 1.0, 0.0).to(x.dtype)
    is_open = (k > 0) & (k < count)  # some keys are chosen, and not all: the others get numbers that do no harm
    x, k, count = torch.where(is_open[:, None], x, 0.0), torch.where(is_open, k, 1), count.clamp(min=2)
    drop = 39.0 if logits.dtype == torch.float64 else 18.0  # e^-drop: 1e-17, 2e-8
    with torch.no_grad():
        pivot, shift, width = _interval(x, count, k, most, drop)
    probs = _probs(x - pivot + shift, width, k, most, _rule(_points(most, logits.dtype), drop, x))
    probs = torch.where(is_open[:, None] & racing, probs, sure)
    return probs.reshape(logits.shape).to(logits.dtype).expand(shape)


def _once(logits: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Without the repetitions of items that were expanded, as those of one structure for a whole batch are."""
    if is_traced([logits, k]):
        return logits, k
    for dim in range(k.dim()):
        if logits.stride(dim) == 0 and k.stride(dim) == 0:
            logits, k = logits.narrow(dim, 0, 1), k.narrow(dim, 0, 1)
    return logits, k


def _points(most: int, dtype: torch.dtype) -> int:
    """Multiples of 48, which kernels take apart. The count has a standard deviation of √k at most, and is the narrower
    in time for it; the intervals of ten kinds of logits needed no more for errors below 1e-8 and 1e-14."""
    return 48 * (max(2, -(-isqrt(most) // 14)) if dtype == torch.float64 else -(-(isqrt(most) + 1) // 26))


def _rule(points: int, drop: float, like: Tensor) -> Rule:
    """φ reaches e^-drop at the ends."""
    places = torch.arange(points, dtype=like.dtype, device=like.device) / (points - 1) - 0.5
    reach = 2 * math.sqrt(2 * drop)  # the interval in standard deviations
    z = reach * places
    return Rule(
        places, torch.erfc(z / math.sqrt(2)) / 2, (-z.square() / 2).exp() * (reach / (points - 1)) / math.tau**0.5
    )


def _interval(x: Tensor, count: Tensor, k: Tensor, most: int, drop: float) -> tuple[Tensor, Tensor, Tensor]:
    """The k-th largest of the logits x (N, d), what to add to their differences from it for the interval of log-times
    to be around 0, both (N, 1), and how long it is, (N,).

    By inequalities of Chernoff's kind, with e^-drop for the chance of what is left out. A sum of independent 0/1
    variables with mean μ is j or more with the chance e^-drop at most if μ <= j e^-fall(drop / j), where
    r - 1 + e^-r >= δ for r = fall(δ), and j - 1 or less if μ >= j - 1 + √(2 (j - 1) drop) + drop. Means have bounds by
    the fastest of the keys, and by Jensen's inequality.
    """
    top = x.sort(-1, descending=True).values  # (N, d)
    k, count = k[:, None], count[:, None]
    pivot = top.gather(-1, k - 1)  # from here all that matters is small, however large the logits are
    top = top - pivot
    rank = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
    few = slice(min(most + 1, x.shape[-1]))
    m, rest = rank[few], top.flip(-1).logcumsumexp(-1).flip(-1)[:, few]  # log of the rates of all but the m fastest

    def fall(delta: Tensor) -> Tensor:
        return torch.minimum(delta + 1, (2 * delta).sqrt() + delta)

    # Before `start`, not even the m fastest and k + 1 - m others can have arrived.
    j, others = (k + 1 - m).clamp(min=1), (count - m).clamp(min=1)
    mean = j * (-fall(drop / j)).exp()
    start = (-torch.log1p(-mean / others) * others).log() - rest
    start = start.masked_fill(m > k, -torch.inf).amax(-1, keepdim=True)

    # After `stop`, of the l fastest there are not l - k + 1 missing.
    j = (rank + 2 - k).clamp(min=1)  # l = rank + 1
    missing = ((rank + 1) / j).log() + fall(drop / j)  # u of the slowest of them, at most
    stop = (missing.log() - top).masked_fill((rank + 1 < k) | (rank >= count), torch.inf).amin(-1, keepdim=True)

    # Or the m fastest are there, and k - m others.
    left = (k - 1 - m).clamp(min=0)
    mean = left + (2 * left * drop).sqrt() + drop
    enough = (rest - top[:, few]).exp()  # the mean is this times 1 - e^{-u} of the fastest of the others, at least
    by_others = (-torch.log1p(-mean / enough)).log() - top[:, few]
    by_fastest = pad((drop + (m + 1).log()).log() - top[:, few], (1, 0), value=-torch.inf)[:, :-1]
    stop_too = torch.maximum(by_others, by_fastest).masked_fill((m >= k) | (mean >= enough), torch.inf)
    stop = torch.minimum(stop, stop_too.amin(-1, keepdim=True))
    return pivot, (start + stop) / 2, (stop - start).clamp(min=NARROWEST).squeeze(-1)


def _probs(y: Tensor, width: Tensor, k: Tensor, most: int, rule: Rule) -> Tensor:
    """The integrals (N, d) over an interval (N,) around 0 of log-times, for logits y (N, d)."""
    if not is_traced([y]) and _served(y, most, rule):
        return _Kernel.apply(y, width, k, most, rule)  # type: ignore[return-value]
    return _by_parts(y, width, k, most, rule)


def _served(y: Tensor, most: int, rule: Rule) -> bool:
    """Whether the device has kernels for such items."""
    if own_kernel("subset_probs", y.device.type) is None:
        return False
    serves = own_kernel("subset_probs_serves", y.device.type)  # none: all of them
    return serves is None or serves(y.shape[-1], most, len(rule.places))


def _by_parts(y: Tensor, width: Tensor, k: Tensor, most: int, rule: Rule) -> Tensor:
    """The formula in torch, so many items at a time that memory suffices."""
    rows = max(1, HELD // (y.shape[-1] * len(rule.places)))
    formula = partial(_formula, most=most, rule=rule)
    if len(y) > rows:
        formula = partial(checkpoint, formula, use_reentrant=False, preserve_rng_state=False)
    parts = zip(y.split(rows), width.split(rows), k.split(rows), strict=True)
    return torch.cat([formula(*part) for part in parts])  # type: ignore[misc]


class _Kernel(torch.autograd.Function):
    """The device's own kernels; the formula in torch where the derivative is to be differentiated."""

    @staticmethod
    def forward(ctx, y, width, k, most, rule):
        probs, slope = _own("probs", y)(y, width, k, most, *rule)
        ctx.most, ctx.rule = most, rule
        ctx.save_for_backward(y, width, k, probs, slope)
        return probs

    @staticmethod
    def backward(ctx, *grads):
        y, width, k, probs, slope = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            again = _by_parts(y, width, k, ctx.most, ctx.rule)
            return *torch.autograd.grad(again, y, grad, create_graph=True), None, None, None, None
        grad = grad - (probs * grad).sum(-1, keepdim=True) / k[:, None]  # which changes nothing but rounding
        to_y = slope * grad - _own("pairs", y)(y, width, k, ctx.most, ctx.rule.places, grad)
        return to_y, None, None, None, None


def _own(name: str, like: Tensor) -> Any:
    return own_kernel(f"subset_{name}", like.device.type)


# The formula in torch ------------------------------------------------------------------------------


def _formula(y: Tensor, width: Tensor, k: Tensor, most: int, rule: Rule) -> Tensor:
    """`_probs`, differentiable as often as one likes: y (N, d), width and k (N,)."""
    s = width[:, None] * rule.places  # (N, points)
    u = (y[:, None, :] + s[..., None]).clamp(max=7.0).exp()  # (N, points, d); e^{-e^7} is 0
    q, p = (-u).exp(), -torch.expm1(-u)
    excess = u * q * (_at_most(q, p, k, most) - rule.late[:, None])
    return (rule.middle[:, None] * p).sum(-2) + excess.sum(-2) * (width / (len(rule.places) - 1))[:, None]


def _at_most(q: Tensor, p: Tensor, k: Tensor, most: int) -> Tensor:
    """P(at most k - 1 others have arrived) for each key, all (N, points, d); k (N,).

    The polynomials q + p z of pairs of keys are multiplied, those of pairs of pairs, and so on, up to z^(most - 1).
    Back from the last product, each factor is replaced by what the others make of it. Only positive numbers are added.
    """
    levels = [torch.stack((q, p), -1)[..., :most]]  # (N, points, nodes, coefficients)
    while levels[-1].shape[-2] > 1:
        if levels[-1].shape[-2] % 2:
            one = torch.zeros_like(levels[-1][..., :1, :])
            one[..., 0] = 1.0
            levels[-1] = torch.cat((levels[-1], one), -2)
        levels.append(_times(levels[-1][..., 0::2, :], levels[-1][..., 1::2, :], most))
    size = levels.pop().shape[-1]
    weight = (torch.arange(size, device=q.device) < k[:, None]).to(q.dtype)[:, None, None, :]  # (N, 1, 1, coefficients)
    while levels:
        level = levels.pop()
        size = level.shape[-1] if levels else 1  # of the keys themselves, the constant alone
        weight = weight[..., : level.shape[-2] // 2, :]  # without what was added to make the number even
        even, odd = level[..., 0::2, :], level[..., 1::2, :]
        weight = torch.stack((_correlate(weight, odd, size), _correlate(weight, even, size)), -2).flatten(-3, -2)
    return weight[..., : q.shape[-1], 0].expand(q.shape)


def _times(a: Tensor, b: Tensor, most: int) -> Tensor:
    """The product of two polynomials, its first `most` coefficients."""
    size = min(a.shape[-1] + b.shape[-1] - 1, most)
    terms = (a[..., m : m + 1] * b[..., : size - m] for m in range(min(a.shape[-1], size)))
    return torch.stack([pad(term, (m, size - m - term.shape[-1])) for m, term in enumerate(terms)]).sum(0)


def _correlate(weight: Tensor, b: Tensor, size: int) -> Tensor:
    """Σ_n b[n] weight[m + n], m < size: the weights of a factor's coefficients, from those of its product with b."""
    weight = pad(weight, (0, max(0, size + b.shape[-1] - 1 - weight.shape[-1])))
    return sum(
        (b[..., n : n + 1] * weight[..., n : n + size] for n in range(b.shape[-1])), torch.zeros_like(b[..., :1])
    )
