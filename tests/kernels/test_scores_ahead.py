"""Gradients of small log-probabilities, which CUDA's kernels compute with the value. On a GPU where there is one, else
in Triton's interpreter on the CPU, as if its tensors were on CUDA."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, RECORDED

import gumtrace as gt
from gumtrace.kernels import ops
from gumtrace.kernels.cuda import ops as cuda
from gumtrace.kernels.geometry import flatten_geometry

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("served_by_triton")]

MAKE = {  # in sizes and a dtype that other tests compile kernels for on a GPU
    "subset": ((12,), lambda x: gt.Subset(x, 4)),
    "permutation": ((9,), gt.Permutation),
    "matching": ((6, 7), gt.Matching),
    "tree": ((8, 8), gt.SpanningTree),
    "arborescence": ((7, 7), gt.Arborescence),
    "binary": ((15,), gt.BinaryTree),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
every_structure = pytest.mark.parametrize(("shape", "make"), MAKE.values(), ids=MAKE)


served_by_triton = kernelcases.served_by_triton


def gradients(make, x, samples=(3,)):
    """First derivatives with and without a graph of their own, and second ones, for a weight of each trace."""
    d = make(x)
    trace = d.sample_trace(samples, generator=seeded(2))
    weight = torch.randn(trace.shape, generator=seeded(3)).to(x.device)
    total = (d.trace_log_prob(trace) * weight).sum()
    (plain,) = torch.autograd.grad(total, x, retain_graph=True)
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    return plain, first.detach(), *torch.autograd.grad((first**2).sum(), x)


@every_structure
@pytest.mark.parametrize("samples", [(), (3,)], ids=["one", "three"])
def test_the_same_gradients(shape, make, samples, monkeypatch):
    x = torch.randn(2, *shape, generator=seeded(1)).to(DEVICE).requires_grad_()
    ahead = gradients(make, x, samples)
    torch.testing.assert_close(ahead[0], ahead[1], **CLOSE)
    monkeypatch.setattr(cuda, "SMALL", 0)
    for a, b in zip(ahead, gradients(make, x, samples), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@every_structure
def test_backward_launches_nothing(shape, make, monkeypatch):
    x = torch.randn(2, *shape, generator=seeded(1)).to(DEVICE).requires_grad_()
    d = make(x)
    loss = d.trace_log_prob(d.sample_trace((3,))).sum()
    monkeypatch.delattr(cuda, "_down")
    loss.backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0


def test_large_ones_are_left_to_backward(monkeypatch):
    monkeypatch.setattr(cuda, "SMALL", 2 * 3 * 12 - 1)
    x = torch.zeros(2, 12, device=DEVICE, requires_grad=True)
    d = gt.Subset(x, 4)
    traces = [d.sample_trace((samples,)) for samples in (2, 3)]
    small, large = (d.trace_log_prob(trace).sum() for trace in traces)
    monkeypatch.delattr(cuda, "_down")
    small.backward()
    with pytest.raises(NameError, match="_down"):
        large.backward()


def test_one_row_for_all_items():
    """Log-rates that were expanded are not contiguous."""
    x = torch.randn(1, 12, generator=seeded(1)).to(DEVICE).requires_grad_()
    d = gt.Subset(x, 4).expand((4,))
    trace = d.sample_trace()
    (grad,) = torch.autograd.grad(d.trace_log_prob(trace).sum(), x)
    (expected,) = torch.autograd.grad(d.trace_log_prob(trace).sum(), x, create_graph=True)
    torch.testing.assert_close(grad, expected, **CLOSE)


def test_nothing_ahead_without_a_gradient(monkeypatch):
    d = gt.Subset(torch.zeros(2, 12, device=DEVICE), 4)
    monkeypatch.delattr(cuda, "_down")
    assert d.trace_log_prob(d.sample_trace()).isfinite().all()


def test_in_transforms():
    """There a score of one item is no score of all."""
    x = torch.randn(2, 12, generator=seeded(1)).to(DEVICE)
    trace = gt.Subset(x, 4).sample_trace()

    def total(x):
        return gt.Subset(x, 4, validate_args=False).trace_log_prob(trace).sum()

    x.requires_grad_()
    expected = torch.autograd.grad(total(x), x)[0]
    torch.testing.assert_close(torch.func.grad(total)(x), expected, **CLOSE)
    torch.testing.assert_close(torch.func.jacrev(total)(x), expected, **CLOSE)


def test_none_are_computed_ahead_where_torch_may_trace(monkeypatch):
    """Nor in the operator that is registered with torch, whatever calls it."""
    x = torch.randn(2, 12, generator=seeded(1)).to(DEVICE).requires_grad_()
    d = gt.Subset(x, 4)
    winners, links = d.sample_trace().rows()
    monkeypatch.delattr(cuda, "item_scores")
    with pytest.raises(AttributeError, match="item_scores"):
        ops.log_prob(d._geometry, x, winners, links)
    log_prob, _ = ops.log_prob.registered(*flatten_geometry(d._geometry), x, winners, links)
    assert log_prob.isfinite().all()


@RECORDED
@pytest.mark.gpu
def test_none_are_computed_ahead_in_a_graph():
    """The host has nothing to do there, and the device one kernel less."""
    x = torch.zeros(2, 12, device=DEVICE, requires_grad=True)
    d = gt.Subset(x, 4, validate_args=False)

    eager, graph = d.trace_log_prob(d.sample_trace()), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = d.trace_log_prob(d.sample_trace())
    assert eager.grad_fn.saved_tensors[-1] is not None
    assert recorded.grad_fn.saved_tensors[-1] is None
