"""Soft trees on real hardware: the numbers and derivatives of the CPU, and what a training step needs of CUDA: no
waiting, graphs, torch.compile."""

import warnings

import pytest
import torch
from common import seeded
from kernelcases import FULL
from torch.autograd import gradcheck, gradgradcheck

import gumtrace as gt
from gumtrace.relaxations import trees

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not FULL, reason="needs a CUDA device; the kernel itself runs in the interpreter, in test_cuda_matrix_tree.py"
    ),
]

STRUCTURES = {
    "tree": gt.SpanningTree,
    "arborescence": gt.Arborescence,
    "root": lambda x, **kw: gt.Arborescence(x, root=3, **kw),
}
every_structure = pytest.mark.parametrize("make", STRUCTURES.values(), ids=STRUCTURES)


@every_structure
def test_derivatives(make):
    g = torch.randn(2, 5, 5, generator=seeded(), dtype=torch.float64).cuda().requires_grad_()
    d = make(torch.zeros(2, 5, 5, device="cuda"), lengths=torch.tensor([5, 4], device="cuda"))
    assert gradcheck(lambda x: gt.relax(d, x, 0.7), g)
    assert gradgradcheck(lambda x: gt.relax(d, x, 0.7), g)
    temperature = torch.tensor([0.7, 0.5], dtype=torch.float64, device="cuda", requires_grad=True)
    assert gradcheck(lambda t: gt.relax(d, g.detach(), t), temperature)


# Ragged items in float64, by the kernels of test_cuda_matrix_tree.py, which has larger ones too. Whole items in float32
# need others, which take long to compile: a tile where numbers have exponents, and two that are first computed without.
CASES = [(name, n, torch.float64) for name in STRUCTURES for n in (10, 50, 64, 100, 128)]
CASES += [
    *((name, 10, torch.float32) for name in STRUCTURES),
    ("tree", 50, torch.float32),
    ("root", 100, torch.float32),
]


@pytest.mark.parametrize(("name", "n", "dtype"), CASES)
def test_equals_the_cpu(name, n, dtype, monkeypatch):
    monkeypatch.setattr(trees, "sweeps", None)
    make = STRUCTURES[name]
    x = torch.randn(40, n, n, generator=seeded(n), dtype=dtype)
    weight = torch.randn(x.shape, generator=seeded(1), dtype=dtype)
    found = []
    for device in ("cpu", "cuda"):
        leaf = x.to(device).requires_grad_()
        lengths = torch.tensor([n, n - 3] * 20, device=device) if dtype == torch.float64 else None
        d = make(leaf.detach(), lengths=lengths)
        soft = gt.relax(d, leaf, 0.1)
        (slope,) = torch.autograd.grad((soft * weight.to(device)).sum(), leaf, create_graph=True)
        (curve,) = torch.autograd.grad((slope * weight.to(device)).sum(), leaf)
        found.append([t.detach().cpu() for t in (soft, slope, curve)])
    for theirs, ours, scale in zip(*found, (1, 10, 100), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=scale * (1e-5 if dtype == torch.float32 else 1e-11))


@every_structure
def test_more_items_than_programs(make):
    x = torch.randn(20_000, 10, 10, generator=seeded(), dtype=torch.float64)
    cpu, cuda = (gt.relax(make(x.to(device)), x.to(device), 0.5).cpu() for device in ("cpu", "cuda"))
    torch.testing.assert_close(cuda, cpu, rtol=0, atol=1e-12)


def step(make, leaf):
    d = make(leaf, validate_args=False)
    loss = gt.relax(d, d.perturb(), 0.5).square().sum()
    (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
    slope.square().sum().backward()


@every_structure
def test_a_step_does_not_wait(make):
    leaf = torch.randn(64, 10, 10, device="cuda", requires_grad=True)
    step(make, leaf)  # compiles
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        step(make, leaf)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_structure
def test_cuda_graph(make):
    leaf = torch.randn(64, 10, 10, device="cuda", requires_grad=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            leaf.grad = None
            step(make, leaf)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    leaf.grad = None
    with torch.cuda.graph(graph):
        step(make, leaf)
    graph.replay()
    first = leaf.grad.clone()
    graph.replay()
    assert leaf.grad.isfinite().all()
    assert not torch.equal(first, leaf.grad)  # new noise at every replay


@every_structure
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
def test_torch_compile(make):
    leaf = torch.randn(8, 10, 10, device="cuda", requires_grad=True)
    d = make(leaf.detach(), validate_args=False)

    def loss(x):
        return gt.relax(d, x, 0.5).square().sum()

    losses = [f(leaf) for f in (loss, torch.compile(loss, fullgraph=True))]
    slopes = [torch.autograd.grad(x, leaf)[0] for x in losses]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*slopes)
