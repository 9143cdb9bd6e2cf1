"""On real hardware: the same traces as the CPU a million times over, the law of the noise drawn inside the kernels, and
what a training step needs of CUDA: no waiting, graphs, torch.compile, autocast."""

import warnings

import pytest
import torch
from common import FALSE_ALARM, seeded

import gumtrace as gt
from gumtrace.diagnostics import enumerate_traces

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="needs a CUDA device; the kernels themselves run in the interpreter, in test_cuda.py",
    ),
]

MAKE = {
    "subset": ((12,), lambda x, **kw: gt.Subset(x, 4, **kw)),
    "permutation": ((9,), gt.Permutation),
    "matching": ((6, 7), gt.Matching),
    "tree": ((8, 8), gt.SpanningTree),
    "forest": ((8, 8), lambda x, **kw: gt.SpanningTree(x, components=3, **kw)),
    "arborescence": ((7, 7), gt.Arborescence),
    "binary": ((15,), gt.BinaryTree),
}


def wheel(x, **kw):
    """Six nodes in a ring and one in the middle, with the edges made on the device: to copy them there waits."""
    rim = torch.arange(6, device=x.device)
    ring, spokes = torch.stack([rim, (rim + 1) % 6]), torch.stack([rim, torch.full_like(rim, 6)])
    return gt.SpanningTree.from_edges(x, torch.cat([ring, spokes], 1), 7, **kw)


LONG = {  # selected in rounds, sorted by torch, of edges, or several programs an item
    "subset-long": ((1500,), lambda x, **kw: gt.Subset(x, 100, **kw)),
    "permutation-long": ((1500,), gt.Permutation),
    "tree-large": ((150, 150), gt.SpanningTree),
    "matching-large": ((140, 150), gt.Matching),
    "edges": ((12,), wheel),
}
every_structure = pytest.mark.parametrize("name", MAKE)
and_long_ones = pytest.mark.parametrize("name", [*MAKE, *LONG])
ITEMS = 1_000_000


def logits_of(name, kind, items=ITEMS, device="cpu"):
    shape, _ = (MAKE | LONG)[name]
    x = torch.randn(items, *shape, generator=seeded(1))
    if kind == "ties":
        x = (2 * x).round() / 2
    if kind == "masked":
        idle = torch.rand(x.shape, generator=seeded(2)) < 0.15
        if len(shape) == 2 and shape[0] == shape[1]:  # a path stays, so that graphs stay connected
            i = torch.arange(shape[0] - 1)
            idle[:, i, i + 1] = idle[:, i + 1, i] = False
        if name == "subset":
            idle[:, :4] = False
        x = x.masked_fill(idle, -torch.inf)
    return x.to(device)


@every_structure
@pytest.mark.parametrize("kind", ["random", "ties", "masked"])
def test_the_same_traces_a_million_times(name, kind):
    x = logits_of(name, kind)
    make = MAKE[name][1]
    cpu, cuda = make(x), make(x.cuda())
    assert cuda.trace(x.cuda()).to("cpu").equals(cpu.trace(x)).all()


@every_structure
def test_conditional_gives_a_million_traces_back(name):
    d = MAKE[name][1](logits_of(name, "random", device="cuda"))
    trace = d.sample_trace()
    assert d.trace(d.conditional(trace)).equals(trace).all()


@every_structure
def test_the_law_of_a_million_samples(name):
    shape, make = {
        "subset": ((5,), lambda x: gt.Subset(x, 2)),
        "permutation": ((4,), gt.Permutation),
        "matching": ((3, 3), gt.Matching),
        "tree": ((4, 4), gt.SpanningTree),
        "forest": ((4, 4), lambda x: gt.SpanningTree(x, components=2)),
        "arborescence": ((4, 4), gt.Arborescence),
        "binary": ((5,), gt.BinaryTree),
    }[name]
    d = make(torch.randn(shape, generator=seeded(3), dtype=torch.float64).float().cuda())
    law = enumerate_traces(d)
    rows = torch.cat(law.outcomes.rows(), -1)  # (outcomes, slots)
    drawn = torch.cat(d.sample_trace((ITEMS,)).rows(), -1)
    counts = torch.stack([(drawn == row).all(-1).sum() for row in rows]).double()
    expected = ITEMS * law.log_prob.double().exp()
    assert counts.sum() == ITEMS
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(rows) - 1) / 2, dtype=torch.float64, device="cuda")
    assert torch.special.gammaincc(freedom, statistic / 2) > FALSE_ALARM


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_law_of_the_noise(dtype):
    """10^7 Gumbel draws against their distribution function, in the tails too, and neighbours against each other."""
    d = gt.Permutation(torch.zeros(1000, dtype=dtype, device="cuda"))
    g = d.perturb((10_000,), generator=torch.Generator("cuda").manual_seed(0))
    assert g.isfinite().all()
    u = torch.exp(-torch.exp(-g.double())).flatten().sort().values
    steps = torch.arange(1, len(u) + 1, device="cuda", dtype=torch.float64) / len(u)
    distance = (steps - u).abs().max() * len(u) ** 0.5
    assert 2 * torch.exp(-2 * distance**2) > FALSE_ALARM  # Kolmogorov's tail
    small = (g.double() > 11.0).sum().item()  # E < 1.7e-5: rare large G decide most races
    expected = g.numel() * -torch.expm1(-torch.exp(torch.tensor(-11.0, dtype=torch.float64))).item()
    assert abs(small - expected) < 5 * expected**0.5
    for a, b in ((g[:, 1:], g[:, :-1]), (g[1:], g[:-1])):
        r = torch.corrcoef(torch.stack([a.flatten().double(), b.flatten().double()]))[0, 1]
        assert abs(r.item()) * a.numel() ** 0.5 < 5


@every_structure
def test_seeds(name):
    d = MAKE[name][1](logits_of(name, "random", 100, "cuda"))
    one, two = (d.sample(generator=torch.Generator("cuda").manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, d.sample(generator=torch.Generator("cuda").manual_seed(6)))


def step(name, leaf):
    d = (MAKE | LONG)[name][1](leaf, validate_args=False)
    trace = d.sample_trace((2,))
    g = d.conditional(trace)
    return d.trace_log_prob(trace).sum() + torch.where(g.isneginf(), 0.0, g).sum(), trace.value


@and_long_ones
def test_a_step_does_not_wait(name):
    leaf = logits_of(name, "random", 64, "cuda").requires_grad_()
    step(name, leaf)[0].backward()  # compiles
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        step(name, leaf)[0].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@and_long_ones
def test_cuda_graph(name):
    leaf = logits_of(name, "random", 64, "cuda").requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            leaf.grad = None
            step(name, leaf)[0].backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    leaf.grad = None
    with torch.cuda.graph(graph):
        loss, value = step(name, leaf)
        loss.backward()
    graph.replay()
    first, grad = value.clone(), leaf.grad.clone()
    graph.replay()
    assert not torch.equal(first, value)  # new noise at every replay
    assert grad.isfinite().all()
    assert leaf.grad.isfinite().all()


def test_items_without_a_kernel_are_refused_inside_a_cuda_graph():
    cannot = torch.zeros(4, 4, dtype=torch.bool)
    cannot[0, 1] = True
    dist = gt.SpanningTree(torch.zeros(4, 4, device="cuda"), components=2, validate_args=False)
    dist = dist.constrained(cannot_link=cannot)
    check_refusal(dist)


@pytest.mark.filterwarnings("ignore:gumtrace has no CUDA kernel")
def test_larger_items_are_refused_inside_a_cuda_graph():
    check_refusal(gt.BinaryTree(torch.zeros(1, 3000, device="cuda"), validate_args=False))


def check_refusal(dist):
    dist.sample_trace()
    with pytest.raises(RuntimeError, match="a CUDA graph cannot record"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        dist.sample_trace()


@pytest.mark.parametrize("name", [*MAKE, "edges"])  # which kernels an operator runs, the compiler does not see
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
def test_torch_compile(name):
    torch.compiler.reset()  # one function for all names: it may be compiled anew a few times only
    leaf = logits_of(name, "random", 64, "cuda").requires_grad_()
    loss, value = torch.compile(lambda x: step(name, x), fullgraph=True)(leaf)
    loss.backward()
    assert leaf.grad.isfinite().all()
    assert (MAKE | LONG)[name][1](leaf.detach()).support.check(value).all()


@every_structure
def test_autocast(name):
    x = logits_of(name, "random", 64, "cuda")
    weight = torch.eye(x.shape[-1], device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss, _ = step(name, x @ weight)
    loss.backward()
    assert weight.grad.isfinite().all()


def test_backends_say_so():
    assert "triton" in gt.backends()["cuda"]
