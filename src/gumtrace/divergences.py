"""Entropies and divergences for an ELBO: of the noise in closed form, of the trace by sampling or enumeration.

KL(noise) ≥ KL(trace) ≥ KL(structure), as each is a function of the one before: the first two are bounds for the last.
All take `torch.distributions.Independent` of structures too: those of an item are independent, so theirs are added.
"""

from itertools import product

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.estimators.base import advantage, checked_count
from gumtrace.structures.base import Structure
from gumtrace.structures.checks import agree
from gumtrace.structures.joint import split
from gumtrace.traces.trace import Trace


def noise_kl(p: Distribution, q: Distribution) -> Tensor:
    """KL(p ‖ q) between the distributions of the noise, (*batch,): closed form, differentiable in both.

    Infinite where a key races under p and not under q.

    >>> import gumtrace as gt
    >>> p, q = gt.Subset(torch.zeros(3), 1), gt.Subset(torch.zeros(3), 1)
    >>> noise_kl(p, q)
    tensor(0.)
    """
    p, q, dims = _alike("noise_kl", p, q)
    here, there = p.racing, q.racing
    both = here & there
    gap = torch.where(both, p.log_rates, 0.0) - torch.where(both, q.log_rates, 0.0)
    terms = torch.where(both, gap + torch.expm1(-gap), 0.0)
    terms = torch.where(here & ~there, torch.inf, terms)
    return _add(terms.flatten(-len(p.key_shape)).sum(-1), dims)


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
    possible = possible.all(0)  # (*batch,)
    log_p, log_q = (torch.where(possible, x, 0.0) for x in (p.trace_log_prob(trace), log_q))
    return _add(torch.where(possible, _with_score(log_p.detach() - log_q, log_p), torch.inf), dims)


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


def _log_prob_under(q: Structure, p: Structure, trace: Trace) -> tuple[Tensor, Tensor]:
    """log q(T) of traces of p, and which of them q can make at all."""
    unchecked = q.expand(q.batch_shape)
    unchecked._validate_args = False  # it would refuse traces that are impossible; what kernels trust is checked anyway
    log_q = unchecked.trace_log_prob(trace)
    possible = log_q.detach() > -torch.inf
    if not agree(p.racing, q.racing):  # where p is done, other keys may still race under q
        possible = possible & q._is_complete(trace)
    return log_q, possible


def _alike(name: str, p: Distribution, q: Distribution) -> tuple[Structure, Structure, int]:
    """Two structures over the same traces, and how many dimensions the structures of an item have."""
    (p_base, dims), (q_base, q_dims) = split(name, p), split(name, q)
    if dims != q_dims:
        raise ValueError(f"{name}: {p} and {q} differ in which of their structures make an item")
    if (reason := p_base.mismatch(q_base)) is not None:
        raise ValueError(f"{name}: {reason}")
    return p_base, q_base, dims


def _add(each: Tensor, dims: int) -> Tensor:
    """The sum over the structures of an item, which are in the last dimensions. Where it is infinite its gradient is 0
    for all of them."""
    if dims == 0:
        return each
    total = each.flatten(-dims).sum(-1)
    return torch.where(total < torch.inf, total, torch.inf)
