"""On real hardware, sizes that the interpreter is too slow for: several warps a program, the ends of kernels' ranges,
more than 2^31 keys; and how much memory a step takes."""

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace.benchmark import peak_bytes
from gumtrace.kernels.cpu import ops as cpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: the interpreter has no warps"),
]


def subset(k):
    return lambda x, **kw: gt.Subset(x, k, **kw)


def forest(x, **kw):
    return gt.SpanningTree(x, components=5, **kw)


CASES = {
    "tree-100": ((100, 100), gt.SpanningTree),
    "tree-501": ((501, 501), gt.SpanningTree),
    "tree-1000": ((1000, 1000), gt.SpanningTree),
    "forest-150": ((150, 150), forest),
    "forest-600": ((600, 600), forest),
    "arborescence-100": ((100, 100), gt.Arborescence),
    "arborescence-300": ((300, 300), gt.Arborescence),
    "arborescence-1000": ((1000, 1000), gt.Arborescence),
    "matching-100": ((100, 100), gt.Matching),
    "matching-201": ((201, 203), gt.Matching),
    "matching-1000": ((1000, 1000), gt.Matching),
    "matching-wide": ((40, 300), gt.Matching),
    "matching-wider": ((30, 700), gt.Matching),
    "binary-700": ((700,), gt.BinaryTree),
    "subset-129": ((129,), subset(10)),
    "subset-129-many": ((129,), subset(70)),
    "subset-1000": ((1000,), subset(10)),
    "subset-1500": ((1500,), subset(10)),
    "subset-1500-many": ((1500,), subset(200)),
    "subset-9000-none": ((9000,), subset(0)),
    "subset-9000-one": ((9000,), subset(1)),
    "subset-9000": ((9000,), subset(10)),
    "subset-9000-many": ((9000,), subset(700)),
    "subset-9000-sorted": ((9000,), subset(3000)),
    "permutation-129": ((129,), gt.Permutation),
    "permutation-1000": ((1000,), gt.Permutation),
    "permutation-1500": ((1500,), gt.Permutation),
    "permutation-9000": ((9000,), gt.Permutation),
}


def close(ours, theirs, what):
    """To about 10^-4 of the largest."""
    finite = theirs[theirs.isfinite()].abs()
    scale = max(1.0, finite.max().item()) if len(finite) > 0 else 1.0
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4 * scale, msg=lambda m: f"{what}: {m}")


def inputs(shape, kind):
    """Log-rates and noise of three items, and how long they are."""
    x = torch.randn(3, *shape, generator=seeded(1))
    noise = torch.randn(3, *shape, generator=seeded(2))
    lengths = torch.tensor([min(shape), min(shape) - 1, 2 * min(shape) // 3]) if kind == "ragged" else None
    if kind == "ties":
        x, noise = x.round(), noise.round()
    if kind == "masked":
        idle = torch.rand(x.shape, generator=seeded(3)) < 0.3
        if len(shape) == 1:
            idle[:, : 3 * shape[0] // 5] = False  # enough for any k
        else:
            i = torch.arange(min(shape) - 1)
            idle[:, i, i + 1] = idle[:, i + 1, i] = False  # a path stays, so that graphs stay connected
        x = x.masked_fill(idle, -torch.inf)
    return x, x + noise, lengths


@pytest.mark.parametrize("name", CASES)
def test_every_operator_is_as_on_the_cpu(name):
    from gumtrace.kernels.cuda import ops as cuda

    shape, make = CASES[name]
    for kind in ("random", "ties", "masked", "ragged"):
        x, noise, lengths = inputs(shape, kind)
        d = make(x, lengths=lengths)
        trace = d.trace(noise)
        geometry, rows, sizes = d._layout.geometry, d._rows(), d._row_sizes()
        racing = rows > -torch.inf
        g = noise.reshape(rows.shape).masked_fill(~racing, -torch.inf)
        winners, links = trace.rows()
        on = [None if t is None else t.cuda() for t in (rows, sizes, winners, links)]
        there, sizes_there, trace_there = on[0], on[1], on[2:]
        found = cuda.trace(geometry, g.cuda(), sizes_there)
        assert torch.equal(found[0].cpu(), winners), kind
        assert torch.equal(found[1].cpu(), links), kind

        log_prob, parts = cpu.log_prob(geometry, rows, winners, links)
        totals = cpu.log_totals(geometry, rows, winners, links)
        ours, kept = cuda.log_prob(geometry, there, *trace_there)
        close(ours, log_prob, f"{kind} log_prob")
        close(cuda.log_totals(geometry, there, *trace_there), totals, f"{kind} log_totals")
        grad = torch.randn(3, generator=seeded(4))
        expected = cpu.log_prob_grad(geometry, rows, winners, links, parts, grad)
        close(cuda.log_prob_grad(geometry, there, *trace_there, kept, grad.cuda()), expected, f"{kind} log_prob_grad")

        alpha, h = -totals, torch.randn(totals.shape, generator=seeded(5))
        key_h = torch.randn(rows.shape, generator=seeded(6))
        expected = cpu.to_keys(geometry, winners, links, alpha, rows, h)
        close(cuda.to_keys(geometry, *trace_there, alpha.cuda(), there, h.cuda()), expected, f"{kind} to_keys")
        expected = cpu.to_decisions(geometry, winners, links, alpha, rows, key_h)
        ours = cuda.to_decisions(geometry, *trace_there, alpha.cuda(), there, key_h.cuda())
        close(ours, expected, f"{kind} to_decisions")
        expected = cpu.log_spread(geometry, winners, links, alpha)
        ours = cuda.log_spread(geometry, *trace_there, alpha.cuda()).cpu()
        close(ours[racing], expected[racing], f"{kind} log_spread")

        seed = torch.tensor([7, 8]).cuda()
        g, totals, z, failed = cuda.conditional(geometry, there, sizes_there, *trace_there, seed)
        assert not failed.any(), kind
        again = cpu.trace(geometry, g.cpu(), sizes)
        assert torch.equal(again[0], winners), kind
        assert torch.equal(again[1], links), kind
        given = [t.cpu() for t in (totals, z, g)]
        expected = cpu.conditional_grad(geometry, rows, winners, links, *given, key_h)
        ours = cuda.conditional_grad(geometry, there, *trace_there, totals, z, g, key_h.cuda())
        close(ours, expected, f"{kind} conditional_grad")

        if geometry.winner_slots > 0:
            expected = cpu.indicator(geometry, winners, torch.float32)
            assert torch.equal(cuda.indicator(geometry, trace_there[0], torch.float32).cpu(), expected), kind
        assert torch.equal(make(x.cuda(), lengths=lengths).trace(noise.cuda()).value.cpu(), trace.value), kind


@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ((4, 100, 100), gt.SpanningTree),
        ((4, 100, 100), gt.Arborescence),
        ((4, 100, 100), gt.Matching),
        ((4, 700), gt.BinaryTree),
        ((200, 150, 150), gt.SpanningTree),  # so many that each has one program
        ((2, 512, 512), gt.SpanningTree),
        ((2, 512, 512), gt.Arborescence),
        ((2, 512, 512), gt.Matching),
        ((2, 2048), gt.BinaryTree),
        ((2, 1_000_000), gt.Permutation),
        ((2, 1_000_000), lambda x: gt.Subset(x, 1000)),
        ((2, 131_072), lambda x: gt.Subset(x, 64)),
        ((2, 1000, 1000), gt.Matching),
        ((2, 2048, 2048), gt.SpanningTree),
        ((2, 2048, 2048), gt.Matching),
        ((2, 2048, 2048), gt.Arborescence),
    ],
)
def test_large_items(shape, make):
    """To the end of a kernel's range."""
    check_against_the_cpu(shape, make)


@pytest.mark.parametrize("kind", ["ties", "masked"])
@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ((2048, 2048), gt.SpanningTree),
        ((2048, 2048), gt.Matching),
        ((2048, 2048), gt.Arborescence),
        ((1_000_000,), subset(1000)),
    ],
)
def test_ties_and_masks_of_large_items(shape, make, kind):
    x, noise, _ = inputs(shape, kind)
    check_against_the_cpu(shape, make, x[:2], noise[:2])


@pytest.mark.parametrize(("n", "make"), [((2060, 2060), gt.SpanningTree), ((3000,), gt.BinaryTree)])
def test_larger_items_are_copied_to_the_cpu(n, make):
    with pytest.warns(UserWarning, match=f"no CUDA kernel for a {make.__name__} of this size"):
        check_against_the_cpu((2, *n), make)


def check_against_the_cpu(shape, make, x=None, noise=None):
    if x is None or noise is None:
        x = torch.randn(shape, generator=seeded(4))
        noise = x + torch.randn(shape, generator=seeded(5))
    cpu, cuda = make(x), make(x.cuda())
    trace = cuda.trace(noise.cuda())
    assert trace.to("cpu").equals(cpu.trace(noise)).all()
    torch.testing.assert_close(
        cuda.trace_log_prob(trace).cpu(), cpu.trace_log_prob(cpu.trace(noise)), rtol=1e-5, atol=1e-2
    )
    again = cuda.conditional(trace)
    assert cuda.trace(again).equals(trace).all()


@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ((50, 50), gt.SpanningTree),
        ((10, 10), gt.SpanningTree),
        ((50, 50), gt.Matching),
        ((50, 50), gt.Arborescence),
        ((200,), gt.BinaryTree),
        ((350,), gt.Permutation),
        ((350,), subset(10)),
        ((5, 5), gt.SpanningTree),
        ((200, 200), gt.SpanningTree),
        ((200, 200), gt.Matching),
        ((1500,), gt.Permutation),
    ],
)
def test_a_step_takes_four_times_its_log_rates_at_most(shape, make):
    leaf = torch.randn(4096, *shape, generator=seeded(1)).cuda().requires_grad_()

    def step():
        d = make(leaf, validate_args=False)
        d.trace_log_prob(d.sample_trace()).sum().backward()
        leaf.grad = None

    for _ in range(2):  # compiles, and takes what stays
        step()
    assert peak_bytes(step, "cuda") <= 4 * leaf.nbytes


@pytest.mark.parametrize(("d", "k", "items"), [(131072, 64, 64), (8192, 256, 1024), (10**6, 1000, 8)])
def test_a_step_at_vocabulary_scale_takes_little_memory(d, k, items):
    """At most 1.2 times the log-rates, beyond them and their gradient."""
    leaf = torch.randn(items, d, generator=seeded(1)).cuda().requires_grad_()

    def step():
        distribution = gt.Subset(leaf, k, validate_args=False)
        distribution.trace_log_prob(distribution.sample_trace()).sum().backward()
        leaf.grad = None

    for _ in range(2):  # compiles, and takes what stays
        step()
    assert peak_bytes(step, "cuda") <= 2.2 * leaf.nbytes


def test_more_than_two_billion_keys():
    items = 2**31 // 350 + 1000
    x = torch.zeros(1, 350, device="cuda")
    d = gt.Subset(x, 10)
    g = d.perturb((items,), generator=torch.Generator("cuda").manual_seed(1))
    assert g.numel() > 2**31
    trace = d.trace(g)
    last = g[-500:]
    assert trace[-500:].equals(d.trace(last)).all()
    assert not torch.equal(g[-1], g[0])


def test_more_than_two_billion_keys_in_a_step():
    items = 2**31 // 64**2 + 1000
    leaf = torch.randn(items, 64, 64, device="cuda").requires_grad_()
    assert leaf.numel() > 2**31
    d = gt.SpanningTree(leaf, validate_args=False)
    trace = d.sample_trace()
    log_prob = d.trace_log_prob(trace)
    log_prob.sum().backward()
    for some in (slice(0, 20), slice(items - 20, items)):
        x = leaf.detach()[some].cpu().requires_grad_()
        few = gt.SpanningTree(x)
        expected = few.trace_log_prob(trace[some].to("cpu"))
        expected.sum().backward()
        close(log_prob[some].detach(), expected.detach(), "log_prob")
        close(leaf.grad[some], x.grad, "gradient")
