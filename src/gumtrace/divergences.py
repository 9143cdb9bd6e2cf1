"""Entropies and divergences for an ELBO: of the noise in closed form, of the trace by sampling or enumeration.

KL(noise) ≥ KL(trace) ≥ KL(structure), as each is a function of the one before: the first two are bounds for the last.
"""

import torch
from torch import Tensor

from gumtrace.estimators.base import advantage, checked_count
from gumtrace.structures.base import Structure
from gumtrace.structures.checks import agree
from gumtrace.traces.trace import Trace


def noise_kl(p: Structure, q: Structure) -> Tensor:
    """KL(p ‖ q) between the distributions of the noise, (*batch,): closed form, differentiable in both.

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
    samples = checked_count("trace_entropy", "samples", samples)
    log_prob = dist.trace_log_prob(dist.sample_trace((samples,), generator=generator))
    return _with_score(-log_prob.detach(), log_prob)


def trace_kl(p: Structure, q: Structure, samples: int = 8, *, generator: torch.Generator | None = None) -> Tensor:
    """E_p[log p(T) - log q(T)], (*batch,), estimated from runs of p; unbiased, and so are its gradients to both.

    Infinite, with gradient 0, for an item that has a run which q cannot make.

    >>> import gumtrace as gt
    >>> p, q = gt.Permutation(torch.zeros(4)), gt.Permutation(torch.zeros(4))
    >>> trace_kl(p, q)
    tensor(0.)
    """
    _check_alike("trace_kl", p, q)
    trace = p.sample_trace((checked_count("trace_kl", "samples", samples),), generator=generator)
    log_q, possible = _log_prob_under(q, p, trace)
    possible = possible.all(0)  # (*batch,)
    log_p, log_q = (torch.where(possible, x, 0.0) for x in (p.trace_log_prob(trace), log_q))
    return torch.where(possible, _with_score(log_p.detach() - log_q, log_p), torch.inf)


def exact_entropy(dist: Structure) -> Tensor:
    """The entropy of the trace of an unbatched distribution, by enumeration."""
    log_prob = dist.trace_log_prob(dist.enumerate_traces())
    return -(log_prob.exp() * log_prob).sum()


def exact_kl(p: Structure, q: Structure) -> Tensor:
    """KL between the distributions of the trace of two unbatched distributions, by enumeration.

    Infinite, with gradient 0, where q cannot make some run of p.
    """
    _check_alike("exact_kl", p, q)
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


def _check_alike(name: str, p: Structure, q: Structure) -> None:
    if (reason := p.mismatch(q)) is not None:
        raise ValueError(f"{name}: {reason}")
