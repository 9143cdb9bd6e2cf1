"""What four ranks check of `ShardedSubset`, each for its own keys, beside a `Subset` of all keys in the same process.

A check gets a group and makes the same tensors on all ranks. A failure on one rank ends all of them.
"""

import gc
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from common import seeded
from sharded import counting  # benchmarks/

import gumtrace as gt
from gumtrace.estimators import DecisionREINFORCE, DecisionTerms, NoiseREINFORCE, StructureREINFORCE, TraceREINFORCE

SIZES = [((), 37, 5), ((3,), 20, 20), ((2, 2), 300, 70), ((2,), 5, 0), ((2,), 3, 2), ((0,), 6, 2)]  # batch, d, k


def cut(group, d: int, seed: int) -> slice:
    """The keys of this rank: pieces of random sizes, some of them empty."""
    cuts = torch.randint(0, d + 1, (dist.get_world_size(group) - 1,), generator=seeded(seed)).sort().values
    ends = [0, *cuts.tolist(), d]
    return slice(ends[dist.get_rank(group)], ends[dist.get_rank(group) + 1])


def two(group, full, k, seed=0, mask=None):
    """All keys as a `Subset`, those of this rank as a `ShardedSubset`, and which they are; logits need gradients."""
    here = cut(group, full.shape[-1], seed)
    x, y = full.clone().requires_grad_(), full[..., here].clone().requires_grad_()
    piece = None if mask is None else mask[..., here]
    return gt.Subset(x, k, mask=mask), gt.ShardedSubset(y, k, group=group, mask=piece), here


def close(a, b, factor=50.0):
    torch.testing.assert_close(a, b, rtol=factor * torch.finfo(a.dtype).eps, atol=factor * torch.finfo(a.dtype).eps)


def same_as_one(group):
    """Traces and noise to the bit; all else to rounding."""
    for dtype in (torch.float32, torch.float64):
        for seed, (batch, d, k) in enumerate(SIZES):
            full = 3 * torch.randn(*batch, d, generator=seeded(seed), dtype=dtype)
            mask = torch.rand(d, generator=seeded(seed)) < 0.8 if d == 37 else None
            one, many, here = two(group, full, k, seed, mask)
            assert (many.offset, many.total_keys) == (here.start, d)
            # The generators of other ranks count for nothing.
            g, h = seeded(seed), seeded(seed + dist.get_rank(group))
            trace, ours = one.sample_trace((4,), generator=g), many.sample_trace((4,), generator=h)
            assert torch.equal(trace.winners, ours.winners)
            assert torch.equal(trace.value[..., here], ours.value)
            noise, piece = one.perturb((2,), generator=g), many.perturb((2,), generator=h)
            assert torch.equal(noise[..., here], piece)
            assert torch.equal(one.trace(noise).winners, many.trace(piece).winners)
            assert torch.equal(one.mode[..., here], many.mode)
            close(one.noise_log_prob(noise), many.noise_log_prob(piece))
            close(one.decision_log_totals(trace), many.decision_log_totals(ours))
            same_gradients(one, many, here, lambda d, t: d.trace_log_prob(t), trace)
            g, h = seeded(seed), seeded(seed)
            given, ours = one.conditional(trace, generator=g), many.conditional(trace, generator=h)
            close(given[..., here], ours)
            assert torch.equal(many.trace(ours.detach()).winners, trace.winners)
            wide = one.expand((2, *batch)).sample_trace(generator=seeded(9))
            assert torch.equal(wide.winners, many.expand((2, *batch)).sample_trace(generator=seeded(9)).winners)


def same_gradients(one, many, here, log_prob, trace):
    a, b = log_prob(one, trace), log_prob(many, trace)
    close(a, b)
    weights = torch.randn(a.shape, generator=seeded(1), dtype=a.dtype)
    (grad,), (ours,) = (torch.autograd.grad((p * weights).sum(), d.logits) for p, d in ((a, one), (b, many)))
    close(grad[..., here], ours, 500.0)


def higher_derivatives(group):
    """The gradient of a gradient, of log P(T) and of G | T: numbers of other ranks are in both."""
    full = torch.randn(2, 12, generator=seeded(3), dtype=torch.float64)
    one, many, here = two(group, full, 4)
    trace = one.sample_trace((3,), generator=seeded(0))
    weights = torch.randn(12, generator=seeded(1), dtype=torch.float64)

    def twice(d, weights, total):
        chances = d.trace_log_prob(trace).square().sum()
        given = total((d.conditional(trace, generator=seeded(2)) * weights).square().sum())
        (grad,) = torch.autograd.grad(chances + given, d.logits, create_graph=True)
        (again,) = torch.autograd.grad(total((grad * weights).square().sum()), d.logits)
        return grad, again

    for whole, ours in zip(twice(one, weights, lambda x: x), twice(many, weights[here], many.sum_ranks), strict=True):
        close(whole[..., here], ours, 5000.0)


def hundred_seeds(group):
    one, many, _ = two(group, torch.randn(1000, generator=seeded(0)), 8)
    for seed in range(100):
        trace, ours = (d.sample_trace(generator=seeded(seed)) for d in (one, many))
        assert torch.equal(trace.winners, ours.winners)


def ties(group):
    """The lower number wins, also where the other is on another rank; -0.0 and 0.0 are one number."""
    one, many, here = two(group, torch.zeros(50, 16), 6)
    noise = torch.randint(-1, 2, (50, 16), generator=seeded(0)).float() * torch.tensor([1.0, -1.0]).repeat(8)
    trace, ours = one.trace(noise), many.trace(noise[:, here])
    assert torch.equal(trace.winners, ours.winners)


def extremes(group):
    """Rates beside which others vanish, and a piece without a key that races."""
    for scale in (1e3, 1e30):
        full = (scale * torch.randn(40, 9, generator=seeded(4))).round()
        full[:, ::2] = full[:, :1]  # equal ones
        one, many, here = two(group, full, 4)
        same_gradients(one, many, here, lambda d, t: d.trace_log_prob(t), one.sample_trace(generator=seeded(0)))
    idle = torch.zeros(8)
    idle[cut(dist.group.WORLD, 8, 0)] = -torch.inf if dist.get_rank(group) == 0 else 0.0
    dist.broadcast(idle, dist.get_global_rank(group, 0), group=group)
    one, many, here = two(group, idle, 2)
    same_gradients(one, many, here, lambda d, t: d.trace_log_prob(t), one.sample_trace((3,), generator=seeded(0)))


def estimators(group):
    """The gradient of a loss of all keys, which each rank has a part of; and of one of the trace."""
    full = torch.randn(3, 15, generator=seeded(5), dtype=torch.float64)
    cost = torch.randn(15, generator=seeded(6), dtype=torch.float64)
    one, many, here = two(group, full, 4)

    def whole(x):
        return (x @ cost).square()

    def parts(x):
        return many.sum_ranks(x @ cost[here]).square()

    def compare(estimator, objective, ours, **kwargs):
        losses = [estimator(d, f, generator=seeded(1), **kwargs) for d, f in ((one, objective), (many, ours))]
        close(losses[0], losses[1])
        grad, piece = (torch.autograd.grad(x.sum(), d.logits)[0] for x, d in zip(losses, (one, many), strict=True))
        assert grad.abs().max() > 0.1
        close(grad[..., here], piece, 500.0)

    def of_trace(trace):
        return cost[trace.winners].cumsum(-1).square().sum(-1)

    terms = DecisionTerms(lambda trace: cost[trace.winners])
    for estimator in (TraceREINFORCE(samples=8), NoiseREINFORCE(samples=8)):
        compare(estimator, whole, parts)
        compare(estimator, of_trace, of_trace, on="trace")
    compare(DecisionREINFORCE(samples=8), terms, terms, on="trace")
    several = torch.distributions.Independent(many, 1)
    loss = TraceREINFORCE()(several, lambda x: parts(x).sum(-1), generator=seeded(0))
    assert loss.shape == ()
    with refused(ValueError, "dist.sum_ranks adds"):
        TraceREINFORCE()(gt.ShardedSubset(full[..., here] + 9, 4, group=group), lambda x: x @ (1 + cost[here].abs()))
    with refused(NotImplementedError, "StructureREINFORCE: it needs all keys"):
        StructureREINFORCE()(many, parts)
    with refused(NotImplementedError, "several ranks; take trace_kl"):
        gt.divergences.noise_kl(many, many)
    close(gt.divergences.trace_kl(many, many), torch.zeros(3, dtype=torch.float64))


def refusals(group):
    """What is wrong on one rank is an error on all, and the next call works."""
    rank, odd = dist.get_rank(group), dist.get_rank(group) == 1
    x = torch.zeros(2, 5)

    def make(logits=x, k=3, **kwargs):
        return gt.ShardedSubset(logits, k, group=group, **kwargs)

    wrong: Callable = lambda ours, theirs: theirs if odd else ours  # noqa: E731
    total = 5 * dist.get_world_size(group)
    good = make()
    trace = good.sample_trace()
    with refused(ValueError, "k must be the same on all ranks, got 3 on rank 0, 4 on rank 1"):
        make(k=wrong(3, 4))
    with refused(ValueError, r"the batch shape must be the same on all ranks, got \(2,\) on rank 0, \(3,\) on rank 1"):
        make(wrong(x, torch.zeros(3, 5)))
    with refused(ValueError, "the dtype must be the same"):
        make(wrong(x, x.double()))
    with refused(ValueError, f"k = 50 is more than the {total} keys"):
        make(k=50)
    with refused(ValueError, "k must be at least 0"):
        make(k=-1)
    with refused((TypeError, ValueError), "mask must be a bool tensor"):
        make(mask=wrong(None, x))
    with refused(ValueError, r"item \(1,\) of the batch has a nan"):
        make(wrong(x, x.index_fill(0, torch.tensor(1), torch.nan)))
    with refused(ValueError, r"item \(0,\) of the batch has fewer than k keys"):
        make(wrong(x - torch.inf, x.masked_fill(torch.arange(5) < 3, -torch.inf)))
    with refused((NotImplementedError, ValueError), "must be on the CPU"):
        make(wrong(x, x.to("meta")))
    with refused(ValueError, r"item \(1,\) of the batch has a nan"):
        bad = make(wrong(x, x.index_fill(0, torch.tensor(1), torch.nan)), validate_args=False)
        bad.sample()
    with refused(ValueError, "sample . batch shape must be the same"):
        good.sample(wrong((2,), (3,)))
    with refused(ValueError, "same methods in the same order, got sample_trace on rank 0, perturb on rank 1"):
        wrong(good.sample_trace, good.perturb)()
    with refused(ValueError, "is -inf at a key that races|does not end in"):
        good.trace(wrong(x, x - torch.inf))
    with refused(ValueError, r"the trace \(a checksum\) must be the same"):
        other = trace.clone()
        other.choices[:] = other.choices.flip(-1) if odd else other.choices
        good.trace_log_prob(other)
    with refused(ValueError, "need a gradient must be the same on all ranks, got False on rank 0, True on rank 1"):
        make(x.clone().requires_grad_(odd)).conditional(trace)  # whose backward would wait for the others
    with refused((TypeError, ValueError), "expected a trace"):
        good.trace_log_prob(wrong(trace, None))
    assert torch.equal(
        good.sample((2,), generator=seeded(rank)).sum(-1), good.sample((2,), generator=seeded(rank)).sum(-1)
    )


@contextmanager
def refused(kind, message: str):
    """An error of one line, on this rank as on all."""
    with pytest.raises(kind, match=message) as error:
        yield
    assert "\n" not in str(error.value)


def bytes_sent(group):
    """O(k) for a row, whatever d is."""
    for d in (64, 4096):
        for rows in (1, 10):
            for k in (1, 16):
                many = gt.ShardedSubset(torch.zeros(rows, d), k, group=group)
                sizes: list[int] = []
                with counting(sizes):
                    trace = many.sample_trace()
                assert sum(sizes) == 32 + rows * (8 + 16 * k)
                sizes.clear()
                with counting(sizes):
                    many.trace_log_prob(trace)
                assert sum(sizes) == 32 + rows * 24 * k


CHECKS = (same_as_one, higher_derivatives, hundred_seeds, ties, extremes, estimators, refusals, bytes_sent)


def run(rank: int, size: int, store: str) -> None:
    """All checks, with all ranks and with half of them."""
    torch.set_num_threads(1)
    files = dist.FileStore(store, size)
    dist.init_process_group("gloo", store=files, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    try:
        checks(rank)
    finally:
        dist.destroy_process_group()
        # A caught error keeps its frames alive, and these keep a group alive, whose threads may abort the process when
        # Python ends.
        gc.collect()


def checks(rank: int) -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for group in (dist.group.WORLD, halves[rank // 2]):
        for check in CHECKS:
            check(group)
    with refused(ValueError, "not in the group"):
        gt.ShardedSubset(torch.zeros(3), 1, group=halves[1 - rank // 2])
