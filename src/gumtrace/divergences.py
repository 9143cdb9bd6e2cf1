"""Entropies and divergences for an ELBO: of the structure and of the trace by enumeration or sampling, of the noise in
closed form.

`torch.distributions.kl_divergence(p, q)` and `p.entropy()` are those of the structure, exact where there are few of
them. KL(structure) ≤ KL(trace) ≤ KL(noise), as each is a function of the next: the last two are bounds for the first.
All take `torch.distributions.Independent` of structures too: those of an item are independent, so theirs are added.
"""

from itertools import product
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.kl import register_kl

from gumtrace.estimators.base import advantage, checked_count
from gumtrace.structures.base import Structure
from gumtrace.structures.checks import agree
from gumtrace.structures.finite import expectation, group_by_value, law
from gumtrace.structures.joint import split
from gumtrace.traces.trace import Trace

KL_ADVICE = (
    "gumtrace.divergences.structure_kl estimates it where there is a log_prob, trace_kl a number that is not below it, "
    "and noise_kl(p, q, any_scale=True) is a bound in closed form"
)


@register_kl(Structure, Structure)
def _kl_divergence(p: Structure, q: Structure) -> Tensor:
    """KL(p ‖ q) between the distributions of the structure, (*batch,), by enumeration; differentiable in both."""
    every_p, every_q, _ = _alike("kl_divergence", p, q)
    shape = every_p.batch_shape
    if shape.numel() == 0:
        return p.log_rates.new_zeros(shape)
    if p._items_are_alike() and q._items_are_alike():
        return _few_kl(p, q, shape)  # as they are: a prior that stands for the whole batch is summed over once
    return _stack(
        [_few_kl(*pair, torch.Size()) for pair in zip(_items(every_p), _items(every_q), strict=True)],
        p.log_rates,
        shape,
    )


def _few_kl(p: Structure, q: Structure, shape: torch.Size) -> Tensor:
    """The same, of batches that broadcast to `shape` and whose items have the same structures. Infinite, with gradient
    0, where q cannot make one that p makes."""
    (values, log_p), (others, log_q) = (law("kl_divergence", each, KL_ADVICE) for each in (p, q))
    log_p, log_q = (x.reshape(len(x), *[1] * (1 + len(shape) - x.dim()), *x.shape[1:]) for x in (log_p, log_q))
    first, index = group_by_value(torch.cat([values, others]))
    table = log_q.new_full((len(first), *log_q.shape[1:]), -torch.inf).index_copy(0, index[len(values) :], log_q)
    log_q = table[index[: len(values)]]
    possible = ((log_q > -torch.inf) | (log_p == -torch.inf)).all(0)
    log_p, log_q = (torch.where(possible, x, 0.0) for x in (log_p, log_q))
    return torch.where(possible, expectation(log_p, log_p - log_q), torch.inf)


def structure_entropy(dist: Distribution, samples: int = 8, *, generator: torch.Generator | None = None) -> Tensor:
    """-E log P(X) of the structure, (*batch,), estimated from samples where it has `log_prob`; unbiased, and so is its
    gradient. `dist.entropy()` is exact where there are few structures.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 40, requires_grad=True)
    >>> structure_entropy(gt.Subset(logits, 10)).sum().backward()
    """
    samples = checked_count("structure_entropy", "samples", samples)
    base, dims = split("structure_entropy", dist)
    _check_tractable("structure_entropy", "trace_entropy is not below it", base)
    log_prob = base.log_prob(base.sample((samples,), generator=generator))
    return _add(_with_score(-log_prob.detach(), log_prob), dims)


def structure_kl(
    p: Distribution, q: Distribution, samples: int = 8, *, generator: torch.Generator | None = None
) -> Tensor:
    """E_p[log p(X) - log q(X)] of the structure, (*batch,), estimated from samples of p where it has `log_prob`;
    unbiased, and so are its gradients to both. `torch.distributions.kl_divergence` is exact where there are few
    structures.

    Infinite, with gradient 0, for an item that has a sample which q cannot make.

    >>> import gumtrace as gt
    >>> p, q = gt.Subset(torch.zeros(40), 10), gt.Subset(torch.ones(40), 10)
    >>> round(structure_kl(p, q).item(), 4)
    0.0
    """
    p, q, dims = _alike("structure_kl", p, q)
    _check_tractable("structure_kl", "trace_kl is not below it", p)
    value = p.sample((checked_count("structure_kl", "samples", samples),), generator=generator)
    log_p, log_q = p.log_prob(value), _unchecked(q).log_prob(value)
    possible = log_q.detach() > -torch.inf
    if not agree(p.racing, q.racing):
        possible = possible & cast(Any, q.support).check(value)
    return _add(_estimate(log_p, log_q, possible), dims)


def _check_tractable(name: str, instead: str, dist: Structure) -> None:
    if not dist.has_log_prob:
        raise NotImplementedError(f"{name} needs log_prob, which {type(dist).__name__} does not have; {instead}")


def trace_entropy(dist: Distribution, samples: int = 8, *, generator: torch.Generator | None = None) -> Tensor:
    """-E log P(T), (*batch,), estimated from runs; unbiased, and so is its gradient.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> trace_entropy(gt.Permutation(logits)).sum().backward()
    """
    samples = checked_count("trace_entropy", "samples", samples)
    base, dims = split("trace_entropy", dist)
    log_prob = base.trace_log_prob(base.sample_trace((samples,), generator=generator))
    return _add(_with_score(-log_prob.detach(), log_prob), dims)


def trace_kl(p: Distribution, q: Distribution, samples: int = 8, *, generator: torch.Generator | None = None) -> Tensor:
    """E_p[log p(T) - log q(T)], (*batch,), estimated from runs of p; unbiased, and so are its gradients to both.

    Infinite, with gradient 0, for an item that has a run which q cannot make.

    >>> import gumtrace as gt
    >>> p, q = gt.Permutation(torch.zeros(4)), gt.Permutation(torch.zeros(4))
    >>> trace_kl(p, q)
    tensor(0.)
    """
    p, q, dims = _alike("trace_kl", p, q)
    trace = p.sample_trace((checked_count("trace_kl", "samples", samples),), generator=generator)
    log_q, possible = _log_prob_under(q, p, trace)
    return _add(_estimate(p.trace_log_prob(trace), log_q, possible), dims)


def noise_kl(p: Distribution, q: Distribution, *, any_scale: bool = False) -> Tensor:
    """KL(p ‖ q) between the distributions of the noise, (*batch,): closed form, differentiable in both.

    A bound for the other two, and not a close one: it changes when a constant is added to all logits of one of them,
    which changes no structure. Infinite where a key races under one of them only.

    Args:
        any_scale: the least over all constants that could be added to the logits of q: still a bound for the other two,
            and the same whatever is added.

    >>> import gumtrace as gt
    >>> p, q = gt.Subset(torch.zeros(3), 1), gt.Subset(torch.ones(3), 1)  # the same subsets
    >>> noise_kl(p, q), noise_kl(p, q, any_scale=True)
    (tensor(2.1548), tensor(0.))
    """
    p, q, dims = _alike("noise_kl", p, q)
    if p.is_sharded:
        raise NotImplementedError(f"noise_kl: the keys of a {type(p).__name__} are on several ranks; take trace_kl")
    here, there = p.racing, q.racing
    both = here & there
    gap = torch.where(both, p.log_rates, 0.0) - torch.where(both, q.log_rates, 0.0)
    if any_scale:  # Σ (gap - c) + e^(c - gap) - 1 is least where the mean of e^(c - gap) is 1
        keys = tuple(range(-len(p.key_shape), 0))
        count = both.sum(keys, keepdim=True).clamp(min=1)
        low = torch.where(both, -gap, -torch.inf).logsumexp(keys, keepdim=True)
        gap = torch.where(both, gap + torch.where(low > -torch.inf, low - count.log(), 0.0), 0.0)
    terms = torch.where(both, gap + torch.expm1(-gap), 0.0)
    terms = torch.where(here != there, torch.inf, terms)
    return _add(terms.flatten(-len(p.key_shape)).sum(-1), dims)


def exact_entropy(dist: Distribution) -> Tensor:
    """The entropy of the trace, (*batch,), by enumeration.

    >>> import gumtrace as gt
    >>> exact_entropy(gt.Permutation(torch.zeros(2, 3))).exp()  # of 3! orders, for each of two items
    tensor([6.0000, 6.0000])
    """
    base, dims = split("exact_entropy", dist)
    each = [_item_entropy(item) for item in _items(base)]
    return _add(_stack(each, base.log_rates, base.batch_shape), dims)


def exact_kl(p: Distribution, q: Distribution) -> Tensor:
    """KL between the distributions of the trace, (*batch,), by enumeration.

    Infinite, with gradient 0, where q cannot make some run of p.
    """
    p, q, dims = _alike("exact_kl", p, q)
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    each = [_item_kl(*pair) for pair in zip(_items(p.expand(shape)), _items(q.expand(shape)), strict=True)]
    return _add(_stack(each, p.log_rates, shape), dims)


def _items(dist: Structure) -> list[Structure]:
    """Those of the batch, each unbatched."""
    return [dist.item(index) for index in product(*map(range, dist.batch_shape))]


def _stack(each: list[Tensor], like: Tensor, shape: torch.Size) -> Tensor:
    """Numbers of the items of a batch, which may be empty."""
    return (torch.stack(each) if each else like.new_zeros(0)).reshape(shape)


def _item_entropy(dist: Structure) -> Tensor:
    log_prob = dist.trace_log_prob(dist.enumerate_traces())
    return -(log_prob.exp() * log_prob).sum()


def _item_kl(p: Structure, q: Structure) -> Tensor:
    traces = p.enumerate_traces()
    log_q, possible = _log_prob_under(q, p, traces)
    log_p, log_q = (torch.where(possible.all(), x, 0.0) for x in (p.trace_log_prob(traces), log_q))
    return torch.where(possible.all(), (log_p.exp() * (log_p - log_q)).sum(), torch.inf)


def _with_score(value: Tensor, log_prob: Tensor) -> Tensor:
    """The mean of `value` over the runs, with their score added to its gradient.

    log P itself is detached in `value`: its gradient has mean zero, and would add nothing but noise.
    """
    score = advantage(value.detach(), len(value) > 1) * log_prob
    return (value + score - score.detach()).mean(0)


def _estimate(log_p: Tensor, log_q: Tensor, possible: Tensor) -> Tensor:
    """The mean of log p - log q over runs of p, with the score of p."""
    possible = possible.all(0)  # (*batch,)
    log_p, log_q = (torch.where(possible, x, 0.0) for x in (log_p, log_q))
    return torch.where(possible, _with_score(log_p.detach() - log_q, log_p), torch.inf)


def _unchecked(q: Structure) -> Structure:
    """It would refuse what is impossible; what kernels trust is checked anyway."""
    unchecked = q.expand(q.batch_shape)
    unchecked._validate_args = False
    return unchecked


def _log_prob_under(q: Structure, p: Structure, trace: Trace) -> tuple[Tensor, Tensor]:
    """log q(T) of traces of p, and which of them q can make at all."""
    log_q = _unchecked(q).trace_log_prob(trace)
    possible = log_q.detach() > -torch.inf
    if not agree(p.racing, q.racing):  # where p is done, other keys may still race under q
        possible = possible & q._is_complete(trace)
    return log_q, possible & q._makes(trace)


def _alike(name: str, p: Distribution, q: Distribution) -> tuple[Structure, Structure, int]:
    """Two structures over the same traces, and how many dimensions the structures of an item have."""
    (p_base, dims), (q_base, q_dims) = split(name, p), split(name, q)
    if dims != q_dims:
        raise ValueError(f"{name}: {p} and {q} differ in which of their structures make an item")
    if (reason := p_base.mismatch(q_base)) is not None:
        raise ValueError(f"{name}: {reason}")
    shape = torch.broadcast_shapes(p_base.batch_shape, q_base.batch_shape)
    return _expanded(p_base, shape), _expanded(q_base, shape), dims


def _expanded(dist: Structure, shape: torch.Size) -> Structure:
    return dist if dist.batch_shape == shape else dist.expand(shape)


def _add(each: Tensor, dims: int) -> Tensor:
    """The sum over the structures of an item, which are in the last dimensions. Where it is infinite its gradient is 0
    for all of them."""
    if dims == 0:
        return each
    total = each.flatten(-dims).sum(-1)
    return torch.where(total < torch.inf, total, torch.inf)
