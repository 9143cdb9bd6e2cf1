"""Entropies and divergences for an ELBO: of the noise in closed form, of the trace by sampling or enumeration.

KL(noise) ≥ KL(trace) ≥ KL(structure), as each is a function of the one before: the first two are bounds for the last.
"""

import torch
from torch import Tensor

from gumtrace.estimators.base import advantage
from gumtrace.structures.base import Structure


def noise_kl(p: Structure, q: Structure) -> Tensor:
    """KL(p ‖ q) between the laws of the noise, (*batch,): closed form, differentiable in both.

    Infinite where a key races under p and not under q.

    >>> import gumtrace as gt
    >>> p, q = gt.Subset(torch.zeros(3), 1), gt.Subset(torch.zeros(3), 1)
    >>> noise_kl(p, q)
    tensor(0.)
    """
    _check_alike("noise_kl", p, q)
    here, there = p.racing, q.racing
    both = here & there
    gap = torch.where(both, p.log_rates, 0.0) - torch.where(both, q.log_rates, 0.0)
    terms = torch.where(both, gap + torch.expm1(-gap), 0.0)
    terms = torch.where(here & ~there, torch.inf, terms)
    return terms.flatten(-len(p.key_shape)).sum(-1)


def trace_entropy(dist: Structure, samples: int = 8, *, generator: torch.Generator | None = None) -> Tensor:
    """-E log P(T), (*batch,), estimated from runs; unbiased, and so is its gradient.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> trace_entropy(gt.Permutation(logits)).sum().backward()
    """
    log_prob = dist.trace_log_prob(dist.sample_trace((samples,), generator=generator))
    return _with_score(-log_prob.detach(), log_prob)


def trace_kl(p: Structure, q: Structure, samples: int = 8, *, generator: torch.Generator | None = None) -> Tensor:
    """E_p[log p(T) - log q(T)], (*batch,), estimated from runs of p; unbiased, and so are its gradients to both.

    >>> import gumtrace as gt
    >>> p, q = gt.Permutation(torch.zeros(4)), gt.Permutation(torch.zeros(4))
    >>> trace_kl(p, q)
    tensor(0.)
    """
    _check_alike("trace_kl", p, q)
    trace = p.sample_trace((samples,), generator=generator)
    log_p, log_q = p.trace_log_prob(trace), q.trace_log_prob(trace)
    return _with_score(log_p.detach() - log_q, log_p)


def exact_entropy(dist: Structure) -> Tensor:
    """The entropy of the trace of an unbatched distribution, by enumeration."""
    log_prob = dist.trace_log_prob(dist.enumerate_traces())
    return -(log_prob.exp() * log_prob).sum()


def exact_kl(p: Structure, q: Structure) -> Tensor:
    """KL between the laws of the trace of two unbatched distributions, by enumeration."""
    _check_alike("exact_kl", p, q)
    traces = p.enumerate_traces()
    log_p, log_q = p.trace_log_prob(traces), q.trace_log_prob(traces)
    return (log_p.exp() * (log_p - log_q)).sum()


def _with_score(value: Tensor, log_prob: Tensor) -> Tensor:
    """The mean of `value` over the runs, with their score added to its gradient.

    log P itself is detached in `value`: its gradient has mean zero, and would add nothing but noise.
    """
    score = advantage(value.detach(), len(value) > 1) * log_prob
    return (value + score - score.detach()).mean(0)


def _check_alike(name: str, p: Structure, q: Structure) -> None:
    if type(p) is not type(q) or p.key_shape != q.key_shape:
        raise ValueError(f"{name}: {p} and {q} are not of one kind and size")
