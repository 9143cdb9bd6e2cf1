"""G | T: the trace comes back, every time, and the law is right. The first without the second would prove little."""

import pytest
import torch
from cases import small
from common import FALSE_ALARM, name_only, rebuild, seeded

import gumtrace as gt
from gumtrace.traces import formula

CASES = pytest.mark.parametrize(("name", "dist"), [case[:2] for case in small(scale=1.5)], ids=name_only)

SIZES = {
    "subset": lambda n, x: gt.Subset(x(n), n // 3),
    "permutation": lambda n, x: gt.Permutation(x(n)),
    "matching": lambda n, x: gt.Matching(x(n, n)),
    "tree": lambda n, x: gt.SpanningTree(x(n, n)),
    "forest": lambda n, x: gt.SpanningTree(x(n, n), components=n // 4),
    "arborescence": lambda n, x: gt.Arborescence(x(n, n)),
    "binary": lambda n, x: gt.BinaryTree(x(n)),
}


@CASES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.slow
def test_law(name, dist, dtype):
    report = gt.diagnostics.check_conditional(rebuild(dist, dist.logits.to(dtype)), 200_000, generator=seeded(3))
    assert report.broken == 0
    assert report.p_value > FALSE_ALARM


@pytest.mark.parametrize("fault", ["scale", "sign", "shared"])
def test_the_law_test_sees_faults(fault, monkeypatch):
    """The released code of the paper has the first two: its traces are kept, its law is not."""
    right = formula.conditional

    def wrong(logits, sizes, trace, generator):
        g, failed = right(logits, sizes, trace, generator)
        if fault == "scale":
            return g + 0.05, failed
        if fault == "sign":
            return 2 * logits - g.flip(0), failed
        shift = 0.2 * torch.randn(len(g), 1, generator=generator, dtype=g.dtype)  # moves all keys together
        return g + shift, failed

    monkeypatch.setattr(formula, "conditional", wrong)
    dist = gt.SpanningTree(torch.randn(4, 4, generator=seeded()))
    assert gt.diagnostics.check_conditional(dist, 100_000, generator=seeded(3)).p_value < FALSE_ALARM


@CASES
@pytest.mark.slow
def test_law_given_one_trace(name, dist):
    """For a fixed trace: draws of G | T against draws of G that happen to give T."""
    trace = dist.sample_trace(generator=seeded(5))
    noise = dist.perturb((200_000,), generator=seeded(6))
    same = dist.trace(noise).equals(_repeat(trace, 200_000))
    kept = noise[same][:, dist.racing]
    assert len(kept) >= 200  # enough to compare: the seed picks a trace that rejection meets
    drawn = dist.conditional(_repeat(trace, len(kept)), generator=seeded(7))[:, dist.racing]
    deviation = (kept.mean(0) - drawn.mean(0)) / ((kept.var(0) + drawn.var(0)) / len(kept)).sqrt()
    assert (torch.special.erfc(deviation.abs() / 2**0.5) > FALSE_ALARM).all()


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("n", [10, 50])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.slow
def test_round_trip(kind, n, scale, draws):
    """Zero failures in float32, however close the winners come to each other."""
    g = seeded(n)
    dist = SIZES[kind](n, lambda *shape: scale * torch.randn(*shape, generator=g))
    done = 0
    while done < draws:
        trace = dist.sample_trace((min(20_000, draws - done),), generator=g)
        assert dist.trace(dist.conditional(trace, generator=g)).equals(trace).all()
        done += len(trace)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_of_wide_logits(kind, dtype):
    g = seeded(1)
    dist = SIZES[kind](10, lambda *shape: (2e4 * torch.rand(*shape, generator=g) - 1e4).to(dtype))
    trace = dist.sample_trace((1000,), generator=g)
    noise = dist.conditional(trace, generator=g)
    assert noise[..., dist.racing].isfinite().all()
    assert dist.trace(noise).equals(trace).all()
    assert dist.trace_log_prob(trace).isfinite().all()


@CASES
def test_every_trace_comes_back(name, dist):
    """The rare ones too, each with its own conditional."""
    traces = rebuild(dist, dist.logits.float()).enumerate_traces()
    dist = rebuild(dist, dist.logits.float())
    assert dist.trace(dist.conditional(traces, generator=seeded())).equals(traces).all()


def _repeat(trace, count):
    choices, links = (x.expand(count, *x.shape) for x in (trace.choices, trace.links))
    return gt.Trace(trace.layout, choices, links)
