"""Trees of graphs given by their edges on real hardware, one large one or many: the decisions and gradients of the CPU,
and nothing that waits."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from common import seeded
from kernelcases import FULL

import gumtrace as gt
from gumtrace.kernels.cuda import sparse_tree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not FULL, reason="needs a CUDA device; the kernels run in the interpreter, in test_cuda_sparse_tree.py"
    ),
]


def graph(nodes, edges):
    """A path through all nodes in some order, and other edges."""
    order = torch.randperm(nodes, generator=seeded(1))
    more = torch.randint(nodes, (2, edges - nodes + 1), generator=seeded(2))
    return torch.cat([torch.stack([order[1:], order[:-1]]), more], 1)


SIZES = [(2, 3, 1), (1000, 5000, 1), (1025, 4000, 30), (30_000, 300_000, 1), (200_000, 1_000_000, 1000)]


@pytest.mark.parametrize(("nodes", "edges", "components"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_cpu(nodes, edges, components, dtype):
    check_against_the_cpu(nodes, edges, components, dtype)


def test_masked_edges():
    """Among all but those of the path, which keeps the graph connected."""
    mask = torch.rand(300_000, generator=seeded(5)) > 0.3
    mask[:29_999] = True
    trace = check_against_the_cpu(30_000, 300_000, 1, torch.float32, mask)
    assert mask[trace.winners.flatten().long()].all()


def check_against_the_cpu(nodes, edges, components, dtype, mask=None):
    ends = graph(nodes, edges)
    x = torch.randn(edges, generator=seeded(3), dtype=dtype)
    noise = (x + torch.randn(2, edges, generator=seeded(4), dtype=dtype)).mul(64).round().div(64)  # with ties
    found = []
    for device in ("cpu", "cuda"):
        leaf = x.to(device).requires_grad_()
        racing = None if mask is None else mask.to(device)
        d = gt.SpanningTree.from_edges(leaf, ends.to(device), nodes, components, mask=racing)
        trace = d.trace(noise.to(device))
        assert d.trace(d.conditional(trace)).equals(trace).all()
        log_prob = d.trace_log_prob(trace)
        (grad,) = torch.autograd.grad(log_prob.sum(), leaf)
        found.append([trace.winners.cpu(), trace.value.cpu(), log_prob.detach().cpu(), grad.cpu()])
    (winners, value, log_prob, grad), ours = found[0], found[1]
    assert torch.equal(ours[0], winners)
    assert torch.equal(ours[1], value)
    near = 1e-5 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(ours[2], log_prob, rtol=near, atol=near)
    torch.testing.assert_close(ours[3], grad, rtol=100 * near, atol=10 * near)
    return trace.to("cpu")


@pytest.mark.parametrize(("nodes", "edges", "components"), SIZES)
def test_conditional_gives_the_trace_back(nodes, edges, components):
    x = 3 * torch.randn(edges, generator=seeded(3)).cuda()
    d = gt.SpanningTree.from_edges(x.requires_grad_(), graph(nodes, edges).cuda(), nodes, components)
    trace = d.sample_trace((3,))
    g = d.conditional(trace)
    assert d.trace(g.detach()).equals(trace).all()
    (grad,) = torch.autograd.grad(g.sum(), x)
    assert grad.isfinite().all()


def test_chunks_of_a_batch(monkeypatch):
    """The same items, and the same noise, however many go by at once."""
    d = gt.SpanningTree.from_edges(torch.zeros(5000, device="cuda"), graph(1000, 5000).cuda(), 1000)
    found = []
    for chunk in (sparse_tree.CHUNK, 12_000):
        monkeypatch.setattr(sparse_tree, "CHUNK", chunk)
        torch.cuda.manual_seed(5)
        trace = d.sample_trace((9,))
        found.append((trace.winners, d.trace_log_prob(trace), d.conditional(trace)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def molecules(device, leaf, **settings):
    """Graphs of 2 to 40 nodes, and one of 3,000."""
    sizes = [*range(2, 41), 3000, 5]
    edges = [graph(nodes, 2 * nodes) for nodes in sizes]
    count = [each.shape[1] for each in edges]
    given = [each.to(device) for each in edges]
    return gt.SpanningTree.from_edges(list(leaf[: sum(count)].split(count)), given, sizes, **settings)


@pytest.mark.parametrize("components", [1, 2])
def test_different_graphs_equal_the_cpu(components):
    x, found, noise = torch.randn(10_000, generator=seeded(3)), [], None
    for device in ("cpu", "cuda"):
        leaf = x.to(device).requires_grad_()
        d = molecules(device, leaf, components=components)
        if noise is None:
            noise = d.perturb((3,), generator=seeded(4)).detach().mul(64).round().div(64)  # with ties
        trace = d.trace(noise.to(device))
        log_prob = d.trace_log_prob(trace)
        (grad,) = torch.autograd.grad(log_prob.sum(), leaf)
        found.append([trace.winners, trace.links, trace.value, log_prob.detach(), grad])
    *exact, log_prob, grad = zip(*found, strict=True)
    for theirs, ours in exact:
        assert torch.equal(ours.cpu(), theirs)
    torch.testing.assert_close(log_prob[1].cpu(), log_prob[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad[1].cpu(), grad[0], rtol=1e-3, atol=1e-4)


def test_different_graphs_do_not_wait():
    """Once the distribution is made."""
    leaf = torch.randn(10_000, device="cuda", requires_grad=True)
    step(molecules("cuda", leaf, validate_args=False), leaf)  # compiles
    d = molecules("cuda", leaf, validate_args=False)
    with no_waiting():
        trace = step(d, leaf)
    assert leaf.grad.isfinite().all()
    assert d.trace(d.conditional(trace).detach()).equals(trace).all()
    assert torch.equal(trace.to("cpu").edges(), trace.edges().cpu())
    assert molecules("cpu", leaf.detach().cpu()).mismatch(d) is None


def test_different_graphs_in_a_cuda_graph():
    """Other logits of the same graphs, and new noise at every replay."""
    leaf = torch.randn(10_000, device="cuda", requires_grad=True)
    d = molecules("cuda", leaf.detach(), validate_args=False)
    edges = d.flat(d.log_rates).shape[-1]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(d.with_log_rates(d.padded(leaf[:edges])), leaf)
    torch.cuda.current_stream().wait_stream(stream)
    leaf.grad = None
    with torch.cuda.graph(graph):
        trace = step(d.with_log_rates(d.padded(leaf[:edges])), leaf)
    graph.replay()
    first = trace.winners.clone()
    graph.replay()
    assert not torch.equal(trace.winners, first)
    assert d.support.check(trace.value).all()
    assert leaf.grad.isfinite().all()


def step(d, leaf):
    leaf.grad = None
    trace = d.sample_trace()
    (d.trace_log_prob(trace) + d.conditional(trace).logsumexp(-1)).sum().backward()
    return trace


@contextmanager
def no_waiting():
    """Whatever synchronises with the device is an error."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_does_not_wait():
    leaf = torch.randn(5000, device="cuda", requires_grad=True)
    d = gt.SpanningTree.from_edges(leaf, graph(1000, 5000).cuda(), 1000, validate_args=False)
    step(d, leaf)  # compiles
    with no_waiting():
        step(d, leaf)
    assert leaf.grad.isfinite().all()


def test_ten_million_edges():
    """Of a million nodes: the tree is one, its log-probability finite, and gradients of a log-probability sum to 0."""
    nodes, edges = 10**6, 10**7
    x = torch.randn(edges, generator=seeded(1)).cuda().requires_grad_()
    d = gt.SpanningTree.from_edges(x, graph(nodes, edges).cuda(), nodes, validate_args=False)
    trace = d.sample_trace()
    assert trace.winners.unique().numel() == nodes - 1
    log_prob = d.trace_log_prob(trace)
    (grad,) = torch.autograd.grad(log_prob, x)
    assert log_prob.isfinite()
    assert grad.double().sum().abs() < 1e-5 * nodes
    assert d.trace(d.conditional(trace)).equals(trace)
