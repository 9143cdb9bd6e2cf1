"""Exact log-probabilities of structures: log P(X), the sum of P(T) over all traces T that give the structure X.

A subset costs one integral over time. A matching or spanning tree costs a sum over all orders in which its m chosen
keys may have come, taken by a dynamic programme over the 2^m sets of them that may be in already.

Rates are λ = e^logit; a logit of -inf is a key that does not race. All is plain torch, differentiable to any order.
It runs in float64, as wide logits cancel down to numbers of order one, and returns the dtype of the logits.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOG_ZERO = {torch.float64: -(2.0**1000), torch.float32: -(2.0**100)}  # its exp is 0, yet no difference of two is nan
MAX_CHOSEN = 20  # 2^20 sets: about 1.2 GB and 3 s an item; each key less halves both
Split = tuple[Tensor, Tensor]  # a logarithm as its large part, without gradient, and what is added to that
CHUNK = 2**22  # terms of the quadrature held at once: 32 MB for each intermediate


class TooManyOrders(ValueError):
    """The log-probability of a structure is known, but would take too long at its size."""


def subset_log_prob(logits: Tensor, chosen: Tensor, most: int) -> Tensor:
    """log of the probability that the chosen keys, bool (*B, d), come before all others; logits (*B, d). Items with
    more than `most` chosen keys get some number.

    With Λ the total rate of the others, the first of which comes at t ~ Exp(Λ), and with τ = log t + log Λ,

        P(S) = ∫ Λ e^{-Λt} Π_{i∈S} (1 - e^{-λ_i t}) dt = ∫ e^f dτ,   f = τ - e^τ + Σ_{i∈S} log(1 - e^{-(λ_i/Λ) e^τ}).

    e^f is entire, log-concave and light-tailed, so the trapezoidal rule converges exponentially. Costs O(d + points·k)
    an item. Memory holds one CHUNK: the backward computes longer sums again.
    """
    x, racing = precise(logits, ~chosen)
    log_zero = LOG_ZERO[x.dtype]
    log_rest = torch.where(chosen, log_zero, x).logsumexp(-1, keepdim=True)  # (*B, 1)
    k = chosen.sum(-1, keepdim=True, dtype=x.dtype)  # (*B, 1)
    is_chosen, keys = chosen.byte().topk(most)  # d may be far above k
    log_ratio = x.gather(-1, keys) - log_rest  # (*B, most)
    log_ratio = log_ratio.masked_fill(is_chosen == 0, -log_zero)  # padding comes at once: adds log 1
    tau, log_step = _quadrature_grid(log_ratio.detach(), k, logits.dtype)  # (*B, points), (*B,)
    chunks = tau.split(max(1, CHUNK // max(1, log_ratio.numel())), -1)
    again = partial(checkpoint, _log_integrand, use_reentrant=False, preserve_rng_state=False)
    integrand = _log_integrand if len(chunks) == 1 else again
    f = torch.cat([integrand(chunk, log_ratio) for chunk in chunks], -1)  # (*B, points)
    log_prob = torch.where((racing & ~chosen).any(-1), f.logsumexp(-1) + log_step, 0.0)  # 0: nobody to beat
    return torch.where((chosen & ~racing).any(-1), -torch.inf, log_prob).to(logits.dtype)


def matching_log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """log P of a greedy matching, logits and 0/1 value (*B, rows, columns); -inf if it is none, or not maximal.

    A key (i, j) races until a chosen key takes row i or column j. Time and memory O(m 2^m), m chosen keys.
    """

    def totals(x: Tensor, keys: Tensor, bit: Tensor) -> tuple[Split, Tensor]:
        grid = bit.unflatten(-1, logits.shape[-2:])  # (G, rows, columns)
        blocked_by = (grid.sum(-1, keepdim=True) | grid.sum(-2, keepdim=True)).flatten(1)
        apart = ((bit == 0) | (blocked_by == bit)).all(-1)  # chosen keys block only themselves
        maximal = ((blocked_by > 0) | (x == LOG_ZERO[x.dtype])).all(-1)
        missed, _ = _mask_log_totals(x, blocked_by, keys.shape[-1])
        return missed, apart & maximal

    return _sum_over_orders("Matching", logits.flatten(-2), value.flatten(-2), totals)


def spanning_tree_log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """log P of Kruskal's tree, or of its forest after m edges, logits and 0/1 value (*B, n, n); -inf if it has a cycle.

    An edge (u, v) races until the chosen edges in so far join u to v. Only u < v is read, of both arguments. That m is
    the number of steps Kruskal takes is for the caller to check. Time and memory O(m 2^m).
    """
    nodes = logits.shape[-1]
    u, v = torch.triu_indices(nodes, nodes, 1, device=logits.device)  # (K,) each

    def totals(x: Tensor, keys: Tensor, bit: Tensor) -> tuple[Split, Tensor]:
        path, joined, acyclic = _tree_paths(u[keys], v[keys], nodes)
        path = torch.where(joined, path, 2 ** keys.shape[-1] - 1)[:, u, v]  # (G, K); no path: races to the end
        _, met = _mask_log_totals(x, path, keys.shape[-1])  # by the set of edges missing
        return (met[0].flip(-1), met[1].flip(-1)), acyclic  # reversed: by its complement

    return _sum_over_orders("SpanningTree", logits[..., u, v], value[..., u, v], totals)


def precise(logits: Tensor, zero: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logits in the working precision, LOG_ZERO for the keys that do not race, and the mask of those that do. None that
    races is as low as LOG_ZERO.

    Where there is `zero`, bool, the largest of those keys is at 0: their sum is precise then, however large they are.
    """
    racing = logits > -torch.inf
    work = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no float64
    x, log_zero = logits.to(work), LOG_ZERO[work]
    if zero is not None and x.shape[-1] > 0:
        top = torch.where(racing & zero, x.detach(), -torch.inf).amax(-1, keepdim=True)
        x = x - torch.where(top.isfinite(), top, 0.0)
    bound = -log_zero / 1024
    return torch.where(racing, x.clamp(-bound, bound), log_zero), racing


def _log_integrand(tau: Tensor, log_ratio: Tensor) -> Tensor:  # tau (*B, points), log_ratio (*B, k)
    y = tau.unsqueeze(-1) + log_ratio.unsqueeze(-2)  # (*B, points, k)
    log_cdf = (-torch.expm1(-y.clamp(-40, 7).exp())).log()  # log(1 - e^{-e^y}): 0 above 7
    return tau - tau.exp() + torch.where(y < -40, y, log_cdf).sum(-1)  # and y below -40


@torch.no_grad()
def _quadrature_grid(log_ratio: Tensor, k: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Evenly spaced τ over all of e^f that matters, (*B, points), and the log of the spacing, (*B,).

    f' = 1 + Σψ(y_i) - e^τ, where ψ(y) = e^y / (e^{e^y} - 1) falls from 1 to 0, so the mode has e^τ = s in [1, 1 + k].
    From there f falls by s(e^R - 1 - R) at least over R to the right and s(L - 1 + e^-L) over L to the left, more than
    `drop` if L = r + r²/2, R = log(1 + L), r = √(2 drop / s). Slow chosen keys make peaks 1/√k wide, fast ones cut the
    left tail short; so that end is searched for, and a grid as wide as what matters needs no more points for any shape.
    Hardest is k = 0, where e^{τ - e^τ} spans drop + 4 and the rule errs by e^{-π²/step}.
    """
    drop, points = (38.0, 224) if dtype == torch.float64 else (19.0, 96)  # e^-drop: 3e-17, 6e-9

    def rising(tau: Tensor) -> Tensor:
        z = (tau + log_ratio).clamp(-40, 7).exp()  # (*B, k)
        return 1 + (z / z.expm1()).sum(-1, keepdim=True) > tau.exp()

    mode = _bisect(rising, 0.0 * k, k.log1p(), rounds=24)  # (*B, 1), as all below
    reach = (2 * drop / mode.exp()).sqrt() + drop / mode.exp()
    cut = _log_integrand(mode, log_ratio) - drop
    left = _bisect(lambda tau: _log_integrand(tau, log_ratio) < cut, mode - reach, mode, rounds=10)
    step = (mode + reach.log1p() - left) / (points - 1)
    return left + step * torch.arange(points, device=step.device), step.squeeze(-1).log()


def _bisect(below: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, rounds: int) -> Tensor:
    """A point just below where `below` turns from true to false."""
    for width in [(high - low) / 2**i for i in range(1, rounds + 1)]:
        low = torch.where(below(low + width), low + width, low)
    return low


def _sum_over_orders(name: str, logits: Tensor, value: Tensor, totals: Callable[..., tuple[Split, Tensor]]) -> Tensor:
    """log Σ over the orders of the chosen keys of Π λ_e / Λ(A), A those before e; logits and 0/1 value (*B, K).

    Items with equally many chosen keys run as one group. `totals` gets a group's logits (G, K), its chosen keys (G, m)
    and every key's bit (G, K), 0 if not chosen; it gives log Λ(A) in two parts (G, 2^m), and which items are possible,
    (G,).
    """
    batch_shape = torch.Size(logits.shape[:-1])  # some subclasses of tensors have a plain tuple
    x = precise(logits)[0].reshape(batch_shape.numel(), logits.shape[-1])  # (N, K)
    chosen = value.reshape(x.shape) > 0.5
    size = chosen.sum(-1)
    sizes = [int(m) for m in size.unique()]  # tolist() refuses some subclasses of tensors
    if sizes and sizes[-1] > MAX_CHOSEN:
        item = tuple(map(int, np.unravel_index(int(size.argmax()), batch_shape)))
        raise TooManyOrders(
            f"{name}: item {item} has {sizes[-1]} chosen keys, but log_prob sums over all sets of them and takes "
            f"at most {MAX_CHOSEN}; use trace_log_prob instead"
        )
    log_prob = x[:, :0].sum(-1)  # (N,) zeros, in the graph
    for m in sizes:
        group = (size == m).nonzero()[:, 0]  # (G,)
        keys = chosen[group].nonzero()[:, 1].reshape(len(group), m)
        bit = torch.where(chosen[group], 2 ** (chosen[group].cumsum(-1) - 1).clamp(min=0), 0)  # (G, K)
        log_totals, possible = totals(x[group], keys, bit)
        log_rates = x[group].gather(-1, keys)  # (G, m)
        possible = possible & (log_rates > LOG_ZERO[x.dtype]).all(-1)
        result = torch.where(possible, _order_log_prob(log_rates, log_totals), -torch.inf)
        log_prob = log_prob.index_copy(0, group, result)
    return log_prob.reshape(batch_shape).to(logits.dtype)


def _order_log_prob(log_rates: Tensor, log_totals: Split) -> Tensor:
    """The dynamic programme, by size of A: P(A) = Σ_{e∈A} P(A∖e) λ_e / Λ(A∖e), from P(∅) = 1."""
    m = log_rates.shape[-1]  # rates (G, m), totals (G, 2^m)
    top, log_sum = log_totals
    sets = torch.arange(2**m, device=log_rates.device)
    has = (sets.unsqueeze(-1) & 2 ** torch.arange(m, device=sets.device)) > 0  # (2^m, m)
    size, rank = has.sum(-1), torch.zeros_like(sets)  # rank: place among sets of its size
    log_prob, before = log_rates[:, :0].sum(-1, keepdim=True), sets[:1]
    for level in range(1, m + 1):
        rank[before] = torch.arange(len(before), device=sets.device)
        now = (size == level).nonzero()[:, 0]  # (S,)
        last = has[now].nonzero()[:, 1]  # (S·level,) the key that came last
        previous = rank[now.repeat_interleave(level) - 2**last]
        log_prob = (log_prob - log_sum[:, before]).index_select(-1, previous)
        log_prob = log_prob + (log_rates.index_select(-1, last) - top[:, before].index_select(-1, previous))
        log_prob, before = log_prob.unflatten(-1, (-1, level)).logsumexp(-1), now  # (G, S)
    return log_prob[:, 0]


def _mask_log_totals(x: Tensor, mask: Tensor, m: int) -> tuple[Split, Split]:
    """For each set A of m bits, (G, 2^m): log Σ e^x over keys whose mask misses A, and over those whose mask meets A.

    Bit by bit an index over masks turns into one over sets, in O(m 2^m). It only adds, so it loses no digits.
    """  # x, mask (G, K)
    top = x.new_full((len(x), 2**m), LOG_ZERO[x.dtype]).scatter_reduce(-1, mask, x.detach(), "amax")
    total = torch.zeros_like(top).scatter_add(-1, mask, (x - top.gather(-1, mask)).exp())
    missed = top, torch.where(total > 0, total, 1.0).log()  # by mask as yet
    met = torch.full_like(top, LOG_ZERO[x.dtype]), torch.zeros_like(top)
    for e in range(m):
        off, on = _unstack(missed, e)
        both = _log_sum(*_unstack(met, e))
        missed = _stack(_log_sum(off, on), off)
        met = _stack(both, _log_sum(both, on))  # a set with e meets `on` as well
    return missed, met


def _log_sum(a: Split, b: Split) -> Split:
    """log(e^a + e^b)."""
    top = torch.maximum(a[0], b[0])
    parts = [log_sum + (its_top - top) for its_top, log_sum in (a, b)]
    return top, torch.stack(parts).logsumexp(0)  # logaddexp has no second derivative where one is nothing


def _unstack(x: Split, e: int) -> tuple[Split, Split]:
    """By mask, (G, 2^m) -> (G, -1, 2^e) of the masks without and with bit e."""
    (top_off, top_on), (off, on) = (t.reshape(len(t), -1, 2, 2**e).unbind(2) for t in x)
    return (top_off, off), (top_on, on)


def _stack(off: Split, on: Split) -> Split:
    """The way back."""
    top, log_sum = (torch.stack(pair, 2).flatten(1) for pair in zip(off, on, strict=True))
    return top, log_sum


def _tree_paths(u: Tensor, v: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bits of the path between two nodes, whether there is one, (G, n, n), and whether edges (G, m) make no cycle."""
    items = torch.arange(len(u), device=u.device)
    path = u.new_zeros(len(u), nodes, nodes)
    joined = torch.eye(nodes, dtype=torch.bool, device=u.device).repeat(len(u), 1, 1)
    acyclic = items >= 0  # all true
    for e, (a, b) in enumerate(zip(u.T, v.T, strict=True)):  # joins the trees of a and b
        acyclic = acyclic & ~joined[items, a, b]
        across = joined[items, a].unsqueeze(2) & joined[items, b].unsqueeze(1)
        through = path[items, a].unsqueeze(2) | path[items, b].unsqueeze(1) | 2**e
        path = torch.where(across, through, torch.where(across.mT, through.mT, path))
        joined = joined | across | across.mT
    return path, joined, acyclic
