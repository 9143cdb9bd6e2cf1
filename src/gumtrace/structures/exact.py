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

FLOOR = -(2.0**100)  # for log 0: its exp is 0, yet FLOOR - FLOOR is no nan, here or in a gradient; exact in float32
MAX_CHOSEN = 20  # 2^20 sets: about 1.2 GB and 3 s an item; each key less halves both
CHUNK = 2**22  # terms of the quadrature held at once: 32 MB for each intermediate


def subset_log_prob(logits: Tensor, chosen: Tensor, most: int) -> Tensor:
    """log of the probability that the chosen keys, bool (*B, d), come before all others; logits (*B, d). Items with
    more than `most` chosen keys get some number.

    With Λ the total rate of the others, the first of which comes at t ~ Exp(Λ), and with τ = log t + log Λ,

        P(S) = ∫ Λ e^{-Λt} Π_{i∈S} (1 - e^{-λ_i t}) dt = ∫ e^f dτ,   f = τ - e^τ + Σ_{i∈S} log(1 - e^{-(λ_i/Λ) e^τ}).

    e^f is entire, log-concave and light-tailed, so the trapezoidal rule converges exponentially. Costs O(d + points·k)
    an item. Memory holds one CHUNK: the backward computes longer sums again.
    """
    x, racing = _precise(logits)
    log_rest = torch.where(chosen, FLOOR, x).logsumexp(-1, keepdim=True)  # (*B, 1)
    k = chosen.sum(-1, keepdim=True, dtype=x.dtype)  # (*B, 1)
    is_chosen, keys = chosen.byte().topk(most)  # d may be far above k
    log_ratio = x.gather(-1, keys) - log_rest  # (*B, most)
    log_ratio = log_ratio.masked_fill(is_chosen == 0, -FLOOR)  # padding comes at once: adds log 1
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

    def totals(x: Tensor, keys: Tensor, bit: Tensor) -> tuple[Tensor, Tensor]:
        grid = bit.unflatten(-1, logits.shape[-2:])  # (G, rows, columns)
        blocked_by = (grid.sum(-1, keepdim=True) | grid.sum(-2, keepdim=True)).flatten(1)
        apart = ((bit == 0) | (blocked_by == bit)).all(-1)  # chosen keys block only themselves
        maximal = ((blocked_by > 0) | (x == FLOOR)).all(-1)
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

    def totals(x: Tensor, keys: Tensor, bit: Tensor) -> tuple[Tensor, Tensor]:
        path, joined, acyclic = _tree_paths(u[keys], v[keys], nodes)
        path = torch.where(joined, path, 2 ** keys.shape[-1] - 1)[:, u, v]  # (G, K); no path: races to the end
        _, met = _mask_log_totals(x, path, keys.shape[-1])  # by the set of edges missing
        return met.flip(-1), acyclic  # reversed: by its complement

    return _sum_over_orders("SpanningTree", logits[..., u, v], value[..., u, v], totals)


def _precise(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in the working precision, FLOOR for the keys that do not race, and the mask of those that do."""
    racing = logits > -torch.inf
    work = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no float64
    return torch.where(racing, logits.to(work), FLOOR), racing


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


def _sum_over_orders(name: str, logits: Tensor, value: Tensor, totals: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    """log Σ over the orders of the chosen keys of Π λ_e / Λ(A), A those before e; logits and 0/1 value (*B, K).

    Items with equally many chosen keys run as one group. `totals` gets a group's logits (G, K), its chosen keys (G, m)
    and every key's bit (G, K), 0 if not chosen; it gives log Λ(A), (G, 2^m), and which items are possible, (G,).
    """
    batch_shape = logits.shape[:-1]
    x = _precise(logits)[0].reshape(batch_shape.numel(), logits.shape[-1])  # (N, K)
    chosen = value.reshape(x.shape) > 0.5
    sizes = (size := chosen.sum(-1)).unique().tolist()
    if sizes and sizes[-1] > MAX_CHOSEN:
        item = tuple(map(int, np.unravel_index(int(size.argmax()), batch_shape)))
        raise ValueError(
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
        possible = possible & (log_rates > FLOOR).all(-1)
        result = torch.where(possible, _order_log_prob(log_rates, log_totals), -torch.inf)
        log_prob = log_prob.index_copy(0, group, result)
    return log_prob.reshape(batch_shape).to(logits.dtype)


def _order_log_prob(log_rates: Tensor, log_totals: Tensor) -> Tensor:
    """The dynamic programme, by size of A: P(A) = Σ_{e∈A} P(A∖e) λ_e / Λ(A∖e), from P(∅) = 1."""
    m = log_rates.shape[-1]  # rates (G, m), totals (G, 2^m)
    sets = torch.arange(2**m, device=log_rates.device)
    has = (sets.unsqueeze(-1) & 2 ** torch.arange(m, device=sets.device)) > 0  # (2^m, m)
    size, rank = has.sum(-1), torch.zeros_like(sets)  # rank: place among sets of its size
    log_prob, before = log_rates[:, :0].sum(-1, keepdim=True), sets[:1]
    for level in range(1, m + 1):
        rank[before] = torch.arange(len(before), device=sets.device)
        now = (size == level).nonzero()[:, 0]  # (S,)
        last = has[now].nonzero()[:, 1]  # (S·level,) the key that came last
        previous = rank[now.repeat_interleave(level) - 2**last]
        log_prob = (log_prob - log_totals[:, before]).index_select(-1, previous) + log_rates.index_select(-1, last)
        log_prob, before = log_prob.unflatten(-1, (-1, level)).logsumexp(-1), now  # (G, S)
    return log_prob[:, 0]


def _mask_log_totals(x: Tensor, mask: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """For each set A of m bits, (G, 2^m): log Σ e^x over keys whose mask misses A, and over those whose mask meets A.

    Bit by bit an index over masks turns into one over sets, in O(m 2^m). It only adds, so it loses no digits.
    """  # x, mask (G, K)
    top = x.new_full((len(x), 2**m), FLOOR).scatter_reduce(-1, mask, x.detach(), "amax")
    total = torch.zeros_like(top).scatter_add(-1, mask, (x - top.gather(-1, mask)).exp())
    missed = torch.where(total > 0, total, 1.0).log() + top  # by mask as yet
    met = torch.full_like(missed, FLOOR)
    for e in range(m):
        missed, met = (t.reshape(len(x), -1, 2, 2**e) for t in (missed, met))  # masks without and with bit e
        off, on = missed.unbind(2)  # a set with e meets `on` as well
        missed = torch.stack((missed.logsumexp(2), off), 2)
        met = torch.stack((met.logsumexp(2), torch.cat((met, on.unsqueeze(2)), 2).logsumexp(2)), 2)
    return missed.flatten(1), met.flatten(1)


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
