"""The formula where the keys are on several ranks: `gumtrace.traces.formula`, in which sums over keys are sums over
ranks.

    Λ_b = Σ_ranks Σ_{k here} A[b, k] λ_k

Every rank has all winners, and its own columns of A. Functions work on flat batches: logits x (batch, keys) of this
rank, winners (items, k) as numbers among all keys, items = samples x batch.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gumtrace.kernels import geometry, ops
from gumtrace.kernels.geometry import SubsetShardGeometry
from gumtrace.traces.process_group import Ranks


def decision_log_prob(x: Tensor, shard: SubsetShardGeometry, winners: Tensor, ranks: Ranks) -> Tensor:
    """(items, decisions); 0 where there was none."""
    ref, rest, own = _log_totals(x, shard, winners, ranks)
    return torch.where(winners >= 0, (own - ref) - rest, 0.0).to(x.dtype)  # large log-rates cancel first


def decision_log_totals(x: Tensor, shard: SubsetShardGeometry, winners: Tensor, ranks: Ranks) -> Tensor:
    """log Λ, (items, decisions); 0 where there was no decision."""
    ref, rest, _ = _log_totals(x, shard, winners, ranks)
    return torch.where(winners >= 0, ref + rest, 0.0).to(x.dtype)


def conditional(x: Tensor, shard: SubsetShardGeometry, winners: Tensor, seed: Tensor, ranks: Ranks) -> Tensor:
    """G | T, (items, keys), from the noise that `gumtrace.kernels.cpu.conditional` draws for the same keys."""
    items, k = winners.shape
    here = winners_here(shard, winners).long()
    item, place = ((here >= 0) & (here < shard.keys)).nonzero(as_tuple=True)
    key = here[item, place]
    unchosen = torch.ones(items, shard.keys, dtype=torch.bool).index_put((item, key), torch.tensor(False))

    ref, rest, _ = _log_totals(x, shard, winners, ranks)
    minima = _log_exponential(k, items * shard.total, k, items, seed, x.dtype).double()
    z = ranks.each(minima - (ref + rest))  # log of every minimum
    chain = torch.arange(k, dtype=torch.int32).expand(items, k)  # the winners alone, each of its own decision
    shared = ops.log_spread(geometry.subset(k, k), chain, chain[:, :0], z)  # log of their sums so far
    nodes = _Rounded.apply(-shared.to(x.dtype), _in_order(-shared.detach().to(x.dtype)))  # G of the winners

    x = ops.repeat(x, items)
    racing = x > -torch.inf
    late = _fresh(shard, winners, unchosen, seed, x.dtype) - torch.where(racing, x, 0.0)
    if k > 0:
        last = shared[:, -1:].to(x.dtype)
        late = last + softplus(late - last, threshold=50.0)  # log(e^last + e^late)
        below = torch.nextafter(nodes[:, -1:].detach(), torch.tensor(-torch.inf, dtype=x.dtype))
        g = _Rounded.apply(-late, torch.minimum(-late.detach(), below))
    else:
        g = -late
    return g.masked_fill(~racing, -torch.inf).index_put((item, key), nodes[item, place])


def winners_here(shard: SubsetShardGeometry, winners: Tensor) -> Tensor:
    """Winners as numbers among the keys of this rank, and the number of these where they are elsewhere."""
    inside = (winners >= shard.first) & (winners < shard.first + shard.keys)
    return torch.where(inside, winners - shard.first, torch.where(winners < 0, -1, shard.keys)).int()


def _log_totals(x: Tensor, shard: SubsetShardGeometry, winners: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    """log Λ as a constant and a rest, and the log-rates of the winners: all (items, decisions) in float64."""
    here = winners_here(shard, winners)
    item, place = ((here >= 0) & (here < shard.keys)).nonzero(as_tuple=True)
    rates = x[item % max(len(x), 1), here[item, place].long()].double()
    own = rates.new_zeros(winners.shape).index_put((item, place), rates)
    return _LogTotals.apply(x, own, shard, here, ranks)  # type: ignore[return-value]


class _LogTotals(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, own: Tensor, shard: SubsetShardGeometry, here: Tensor, ranks: Ranks):
        ctx.shard, ctx.ranks = shard, ranks
        links = here.new_empty(len(here), shard.link_slots)
        parts = ops.log_prob(shard, x, here, links)[1]  # (items, 2, decisions)
        ref = ranks.maximum(parts[:, 0])
        part = torch.where(ref > -torch.inf, (parts[:, 0] - ref + parts[:, 1]).exp(), 0.0)
        total, own = ranks.total(torch.stack([part, own], 1)).unbind(1)
        rest = total.log()
        ctx.save_for_backward(x, here, links, ref, rest)
        ctx.mark_non_differentiable(ref)
        return ref, rest, own.clone()

    @staticmethod
    def backward(ctx, _, to_rest, to_own):  # type: ignore[override]
        """dΛ_b / Λ_b = Σ_k A[b, k] e^(x_k - ref_b) dx_k / e^rest_b: what every rank has of the sum."""
        x, here, links, ref, rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is asked for
            rest = _LogTotals.apply(x, torch.zeros_like(ref), ctx.shard, here, ctx.ranks)[1]  # type: ignore[index]
        h = ctx.ranks.each(to_rest * (-rest).exp())
        samples = (slice(i, i + len(x)) for i in range(0, len(here), max(len(x), 1)))
        # One sample after the other: numbers for all their keys at once would be as many copies of the logits.
        parts = (ops.to_keys(ctx.shard, here[s], links[s], -ref[s], x, h[s]) for s in samples)
        first = next(parts, None)
        to_x = torch.zeros_like(x) if first is None else sum(parts, first)
        return to_x, ctx.ranks.each(to_own), None, None, None


class _Rounded(torch.autograd.Function):
    """The second, in place of the first from which it differs by rounding: the gradient is that of the first."""

    @staticmethod
    def forward(ctx, exact: Tensor, rounded: Tensor):
        return rounded.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        return grad, None


def _in_order(g: Tensor) -> Tensor:
    """G of winners (items, k), each strictly below the one before."""
    lowest = torch.finfo(g.dtype).min / 2
    columns: list[Tensor] = []
    for column in g.clamp(min=lowest).unbind(-1):
        if columns:
            column = torch.minimum(column, torch.nextafter(columns[-1], column.new_tensor(-torch.inf)))
        columns.append(column)
    return torch.stack(columns, -1) if columns else g


def _log_exponential(n: int, first: int, total: int, items: int, seed: Tensor, dtype: torch.dtype) -> Tensor:
    """log of standard exponentials, (items, n): of item i those at the places i total + first and after it."""
    places = geometry.subset_shard(n, 0, first, total)
    return -ops.perturb(places, torch.zeros(1, n, dtype=dtype), items, seed)


def _fresh(shard: SubsetShardGeometry, winners: Tensor, unchosen: Tensor, seed: Tensor, dtype: torch.dtype) -> Tensor:
    """log of the exponentials of keys that were not chosen, (items, keys). The stream of an item has the k of the
    winners first, then those of all others in their order: here, a stretch of it."""
    items, k = winners.shape
    stream = _log_exponential(shard.keys + k, shard.first, shard.total, items, seed, dtype)
    start = k - (winners < shard.first).sum(-1, keepdim=True)
    place = torch.arange(shard.keys + k)
    stretch = (place >= start) & (place < start + unchosen.sum(-1, keepdim=True))
    return torch.zeros(unchosen.shape, dtype=dtype).masked_scatter(unchosen, stream[stretch])
