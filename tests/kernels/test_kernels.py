"""The floor of it all: vector functions, noise, sorting."""

import numpy as np
import pytest
import torch
from common import FALSE_ALARM, seeded
from scipy import stats

import gumtrace as gt
from gumtrace.kernels.cpu import arrays, ops, order, simd_math, subset
from gumtrace.kernels.cpu.incidence import CLOSE
from gumtrace.kernels.cpu.jit import kernel

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


parts = (order.extent, order.kth_largest, order.order_codes, order.rank_sort, order.sort_racing, order.top_racing)
extent, kth_largest, order_codes, rank_sort, sort_racing, top_racing = (kernel(part.py_func) for part in parts)
log_exponential_row = kernel(simd_math.log_exponential_row.py_func)


@kernel
def exponential(x):
    simd_math.exp_row(x, x.size, arrays.integer_row(x, x.size))


@kernel
def logarithm(x):
    simd_math.log_row(x, x.size, arrays.integer_row(x, x.size))


@DTYPES
def test_exp(dtype):
    x = np.linspace(-86.9 if dtype is np.float32 else -700, 3, 1_000_003).astype(dtype)
    y = x.copy()
    exponential(y)
    assert np.abs(y / np.exp(x.astype(np.longdouble)) - 1).max() < 2 * np.finfo(dtype).eps
    ends = np.array([-np.inf, -1e30, 0.0], dtype)
    exponential(ends)
    assert ends.tolist() == [0, 0, 1]


@DTYPES
def test_log(dtype):
    for x in (np.geomspace(1e-37, 1e37, 1_000_003), np.linspace(0.999, 1.001, 1_000_003)):
        y = x.astype(dtype)
        exact = np.log(y.astype(np.longdouble))
        logarithm(y)
        error = np.abs(y - exact)
        assert (error <= 2 * np.finfo(dtype).eps * np.maximum(np.abs(exact), np.finfo(dtype).tiny)).all()


@DTYPES
def test_noise_has_the_law_of_an_exponential(dtype):
    n = 1_000_000
    row, spare = np.empty(n, dtype), np.empty(n, dtype)
    scratch = np.empty(n, np.int32 if dtype is np.float32 else np.int64)
    log_exponential_row(np.array([1, 2], np.uint64), 0, row, n, spare, scratch)
    e = np.exp(row.astype(np.float64))
    assert stats.kstest(e, "expon").pvalue > FALSE_ALARM
    assert (
        stats.kstest(e[e < 1e-3] / 1e-3, lambda t: -np.expm1(-1e-3 * t) / -np.expm1(-1e-3)).pvalue > FALSE_ALARM
    )  # the winners' tail
    assert stats.kstest(e[e > 7] - 7, "expon").pvalue > FALSE_ALARM  # and the losers'
    assert abs(np.corrcoef(e[1:], e[:-1])[0, 1]) < 5 / n**0.5
    assert len(np.unique(row)) > 0.9 * n  # float32 draws do tie, but not because uniforms are coarse


@DTYPES
def test_noise_of_the_extreme_uniforms_is_finite(dtype, monkeypatch):
    """All bits zero, all bits one, and the last bit either way: E is never 0, inf or nan."""
    for bits in (0, 1, 2**64 - 1, 2**64 - 2, 2**63, 2**63 - 1):
        z = np.uint64(bits)
        w = dtype(np.int64((z >> np.uint64(1)) | np.uint64(1))) * dtype(2.0**-64)
        assert 0 < w <= 0.5
        for e in (-np.log(w), -np.log1p(-w)):
            assert 0 < e < 45
            assert np.isfinite(np.log(e))


def test_noise_depends_on_seed_and_position_only():
    a, b, c = (np.empty(64, np.float32) for _ in range(3))
    spare, scratch = np.empty(64, np.float32), np.empty(64, np.int32)
    log_exponential_row(np.array([1, 2], np.uint64), 0, a, 64, spare, scratch)
    log_exponential_row(np.array([1, 2], np.uint64), 32, b, 32, spare, scratch)
    log_exponential_row(np.array([1, 3], np.uint64), 0, c, 64, spare, scratch)
    assert (a[32:] == b[:32]).all()
    assert not (a == c).any()


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 100_000])
def test_sort_racing(count):
    g = np.random.default_rng(count).integers(-3, 4, count).astype(np.float32)
    g[::7] = -np.inf
    expected = [k for k in np.argsort(-g, kind="stable") if g[k] > -np.inf]
    assert sort_racing(g, g.size).tolist() == expected


@DTYPES
@pytest.mark.parametrize("order", ["random", "tied", "ascending", "descending"])
def test_sort_racing_stops_at_k(dtype, order):
    """Room is filled never, once, or with every key; ties, 0.0 and -0.0 included, go by index across fillings."""
    g = np.random.default_rng(0).standard_normal(3000)
    if order == "tied":
        g = np.round(g) * np.where(np.arange(3000) % 2, 1.0, -1.0)
    elif order != "random":
        g = np.sort(g)[:: 1 if order == "ascending" else -1]
    g = g.astype(dtype)
    g[::7] = -np.inf
    expected = [k for k in np.argsort(-g, kind="stable") if g[k] > -np.inf]
    for k in (0, 1, 2, 65, 500, 1499, 1500, 2571, 2999, 4000):
        assert sort_racing(g, k).tolist() == expected[:k]


@pytest.mark.parametrize("k", [0, 1, 2, 7, 64, 100])
def test_top_racing(k):
    g = np.random.default_rng(k).integers(-5, 6, 100).astype(np.float64)
    g[3:40] = -np.inf
    out = np.empty(k, np.int32)
    count = top_racing(g, k, out)
    assert count == min(k, 63)
    assert out[:count].tolist() == [i for i in np.argsort(-g, kind="stable") if g[i] > -np.inf][:k]


@pytest.mark.parametrize("d", [subset.LONG, subset.LONG + 1])
@pytest.mark.parametrize("k", [1, subset.DEEP, subset.DEEP + 1, 64])
def test_the_first_k_are_the_same_by_heap_and_by_candidates(d, k):
    g = torch.randn(3, d, generator=seeded()).mul(64).round()  # with ties
    g[1], g[2, ::3] = g[1].sort().values, -torch.inf
    expected = g.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    found = gt.Subset(torch.zeros(3, d), k, mask=g > -torch.inf).trace(g).winners.long()
    assert torch.equal(found, expected)


@DTYPES
def test_order_codes_and_extent(dtype):
    rng = np.random.default_rng(0)
    g = np.concatenate([rng.standard_normal(50) * 10.0 ** rng.integers(-30, 30, 50), [0.0, -0.0, -np.inf, np.inf]])
    g = g.astype(dtype)
    codes = np.empty(g.size, np.int32 if dtype is np.float32 else np.int64)
    order_codes(g, codes)
    assert ((g[:, None] < g) == (codes[:, None] < codes)).all()  # and so equal numbers have equal codes
    assert codes[-1] == -codes[-2]
    finite = g[np.isfinite(g)]
    assert extent(g, g.size - 1, codes) == (finite.min(), finite.max())
    assert extent(g[52:], 1, codes) == (np.inf, -np.inf)


def test_rank_sort():
    codes = np.random.default_rng(0).integers(-5, 6, 60).astype(np.int32)
    keys = np.random.default_rng(1).permutation(60).astype(np.int32)
    out = np.empty(40, np.int32)
    rank_sort(codes, keys, 40, out)
    assert out.tolist() == [int(keys[i]) for i in sorted(range(40), key=lambda i: (-codes[i], keys[i]))]


@pytest.mark.parametrize("span", [1.0, CLOSE - 0.1, CLOSE + 0.1, 1e4])
@pytest.mark.parametrize("make", [gt.SpanningTree, gt.Matching, gt.Arborescence])
def test_one_exponent_or_many(make, span):
    """Logits that lie close together share one exponent; log P(T) and its gradient are those of the formula."""
    x = torch.rand(5, 7, 7, generator=seeded(), dtype=torch.float64)
    x = ((x - x.min()) / (x.max() - x.min()) * span).float().double().requires_grad_()
    d = make(x)
    trace = d.sample_trace(generator=seeded())
    expected = torch.zeros((), dtype=torch.float64)
    for item, choices, links in zip(x.flatten(1), *trace.rows(), strict=True):
        keys = ops.racing_keys(trace.layout.geometry, choices, links)
        for winner, racing in zip(choices.tolist(), keys, strict=True):
            if winner >= 0:
                expected = expected + item[winner] - item[torch.from_numpy(racing).long()].logsumexp(0)
    (slope,) = torch.autograd.grad(expected, x)
    for dtype, rounding in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        leaf = x.detach().to(dtype).requires_grad_()
        total = make(leaf).trace_log_prob(trace).sum()
        total.backward()
        assert abs(total.item() - expected.item()) < rounding * max(1.0, abs(expected.item()))
        assert (leaf.grad - slope).abs().max() < rounding


@DTYPES
@pytest.mark.parametrize("n", [2, 3, 50])
def test_kth_largest(dtype, n):
    x = np.random.default_rng(n).integers(-n // 3, n // 3 + 1, n).astype(dtype)
    expected = np.sort(x)[::-1]
    for k in range(1, n):
        assert kth_largest(x.copy(), n, k) == (expected[k - 1], expected[k])


def test_only_the_upper_triangle_is_drawn():
    """The lower one is neither read nor drawn: nan there changes nothing, and G is -inf."""
    logits = torch.zeros(3, 5, 5)
    poisoned = torch.where(torch.ones(5, 5).triu(1).bool(), logits, torch.nan)
    a, b = (gt.SpanningTree(x).perturb((4,), generator=seeded()) for x in (logits, poisoned))
    assert a.equal(b)
    assert a[..., *torch.tril_indices(5, 5)].isneginf().all()


def test_backends_names_the_cpu():
    assert gt.backends()["cpu"].startswith("numba")


def test_trace_memory_is_at_most_that_of_the_logits():
    x = torch.zeros(16, 50, 50)
    dists = [gt.Matching(x), gt.SpanningTree(x), gt.Arborescence(x)]
    dists += [f(x[..., 0]) for f in (gt.Permutation, gt.BinaryTree, lambda y: gt.Subset(y, 10))]
    for dist in dists:
        trace = dist.sample_trace()
        used = sum(t.numel() * t.element_size() for t in (trace.choices, trace.links))
        assert used <= dist.logits.numel() * dist.logits.element_size()
