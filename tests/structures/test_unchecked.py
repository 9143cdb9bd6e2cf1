"""Without checks nobody looks at values: that would wait for a GPU. Shapes are checked, and what is out of range is
clamped."""

import functools
import warnings
from contextlib import contextmanager

import pytest
import torch
from cases import CYCLE
from operators import every_device, logits
from torch.utils._python_dispatch import TorchDispatchMode

import gumtrace as gt
from gumtrace.kernels import backends
from gumtrace.structures.base import Structure
from gumtrace.traces.trace import Trace

aten = torch.ops.aten
LOOKS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten._unique2.default}


class NoLooking(TorchDispatchMode):
    """Whatever synchronises is an error."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in LOOKS, f"{func} looks at a tensor"
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waiting(device):
    if device == "cpu":
        with NoLooking():
            yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def as_on_cuda(monkeypatch):
    """On the CPU results are looked at, checks or no checks."""
    monkeypatch.setattr(Structure, "_may_sync", property(lambda self: self._validate_args))


def off_policy(make):
    """Another distribution's trace, and a part of it."""

    def step(x, other, numbers):
        d, trace = make(x, numbers), make(other, numbers).sample_trace((2,))
        d.conditional(trace)
        return d.trace_log_prob(trace).sum() + d.trace_log_prob(trace[0]).sum() + d.decision_log_totals(trace).sum()

    return step


def of_value(make):
    return lambda x, other, numbers: make(x, numbers).log_prob(make(other, numbers).sample((2,))).sum()


def learned(make, entries):
    """Estimates by a perceptron that learns from them."""
    made = functools.cache(lambda device: gt.estimators.MLPSurrogate(entries).to(device))  # to move one there waits

    def step(x, *_):
        estimator = gt.estimators.SurrogateREINFORCE(surrogate=made(x.device), samples=2, extra=3)
        return estimator(make(x), lambda value: value[..., 0, :].sum(-1)).sum()

    return step


def subset(x, numbers):
    return gt.Subset(x, numbers[:, None], validate_args=False)


here = functools.cache(CYCLE.to)  # to copy the edges to a GPU waits


def graph(x, lengths=None):
    return gt.SpanningTree.from_edges(x.flatten(-2)[..., :6], here(x.device), 4, lengths=lengths, validate_args=False)


STEPS = {
    "subset": off_policy(subset),
    "bounded-subset": off_policy(lambda x, numbers: gt.Subset(x, numbers[0], most=3, validate_args=False)),
    "permutation": off_policy(lambda x, _: gt.Permutation(x, validate_args=False)),
    "matching": off_policy(lambda x, _: gt.Matching(x, validate_args=False)),
    "tree": off_policy(lambda x, numbers: gt.SpanningTree(x, lengths=numbers + 1, validate_args=False)),
    "arborescence": off_policy(lambda x, _: gt.Arborescence(x, mask=x > -9, validate_args=False)),
    "binary": off_policy(lambda x, _: gt.BinaryTree(x, validate_args=False)),
    "edges": off_policy(lambda x, _: graph(x)),
    "edges-ragged": off_policy(lambda x, numbers: graph(x, numbers + 1)),
    "subset-value": of_value(subset),
    "permutation-value": of_value(lambda x, _: gt.Permutation(x, validate_args=False)),
    "matrix-value": of_value(lambda x, _: gt.Permutation(x, matrix=True, validate_args=False)),
    "binary-value": of_value(lambda x, _: gt.BinaryTree(x, validate_args=False)),
    "surrogate-tree": learned(lambda x: gt.SpanningTree(x, validate_args=False), 6),
    "surrogate-arborescence": learned(lambda x: gt.Arborescence(x, root=1, validate_args=False), 9),
    "surrogate-matching": learned(lambda x: gt.Matching(x, validate_args=False), 16),
}


@every_device
@pytest.mark.parametrize("name", STEPS)
def test_nothing_waits(name, device, as_on_cuda):
    x, other = (logits(4, device=device)[i : i + 3].clone().requires_grad_() for i in (0, 1))
    numbers = torch.tensor([2, 0, 3], device=device)
    STEPS[name](x, other, numbers).backward()  # compiles
    with no_waiting(device):
        STEPS[name](x, other, numbers).backward()
    assert x.grad.isfinite().all()


@every_device
def test_numbers_of_keys_without_a_look(device, as_on_cuda):
    k = torch.tensor([2, 99, -1], device=device)
    x = logits(3, device=device)[:, 0]  # (3, 4)
    trace = gt.Subset(x, k, validate_args=False).sample_trace()
    assert trace.value.sum(-1).tolist() == [2, 4, 0]
    assert trace.choices.shape == (3, 4)
    bounded = gt.Subset(x, k, most=3, validate_args=False).sample_trace()
    assert bounded.value.sum(-1).tolist() == [2, 3, 0]
    assert bounded.choices.shape == (3, 3)


def test_bounds_on_numbers_of_keys():
    x, k = torch.zeros(3, 5), torch.tensor([1, 2, 0])
    assert gt.Subset(x, k).sample_trace().choices.shape == (3, 2)
    assert gt.Subset(x, k, most=4).sample_trace().choices.shape == (3, 4)
    assert gt.Subset(x, k, most=9).sample_trace().choices.shape == (3, 5)
    assert gt.Subset(x, 2, most=4).sample_trace().choices.shape == (3, 2)  # k is known
    with pytest.raises(ValueError, match=r"item \(1,\) of the batch has k = 2, which is not between 0 and 1"):
        gt.Subset(x, k, most=1)
    with pytest.raises(TypeError, match="most must be an integer"):
        gt.Subset(x, k, most=1.5)


def test_shapes_of_traces_are_always_checked(as_on_cuda):
    x = torch.zeros(3, 5)
    d = gt.Subset(x, 2, validate_args=False)
    with pytest.raises(ValueError, match="another structure"):
        d.trace_log_prob(gt.Subset(x, 3).sample_trace())
    trace = d.sample_trace()
    for choices, links in ((trace.choices[:, :1], trace.links), (trace.choices, trace.links.expand(2, 3, 0))):
        with pytest.raises(ValueError, match="slots"):
            d.trace_log_prob(Trace(trace.layout, choices, links))


def test_edges_out_of_range_are_refused_where_they_can_be_seen():
    x = torch.zeros(CYCLE.shape[1])
    with pytest.raises(ValueError, match="names a node outside"):
        gt.SpanningTree.from_edges(x, CYCLE + 1, 4, validate_args=False)

    def sample(x, edges):
        return gt.SpanningTree.from_edges(x, edges, 4, validate_args=False).sample()

    compiled = torch.compile(sample, fullgraph=True, backend="aot_eager")
    assert compiled(x, CYCLE).sum() == 3
    compiled(x, CYCLE + 1)  # some forest, but no memory is read that is not its own


@every_device
def test_edges_out_of_range_without_a_look(device, as_on_cuda):
    x, edges = torch.zeros(CYCLE.shape[1], device=device), CYCLE.to(device)
    d = gt.SpanningTree.from_edges(x, edges + 1, 4, validate_args=False)
    assert d._layout.geometry.edges.tolist() == (CYCLE + 1).clamp(max=3).tolist()
    d = gt.SpanningTree.from_edges(x, edges - 2, 4, validate_args=False)
    assert d._layout.geometry.edges.tolist() == (CYCLE - 2).clamp(min=0).tolist()
    for validate_args in (True, False):
        with pytest.raises(ValueError, match="6 edges of a graph with 0 nodes"):
            gt.SpanningTree.from_edges(x, edges, 0, validate_args=validate_args)
    with pytest.raises(ValueError, match="names a node outside"):
        gt.SpanningTree.from_edges(x, edges + 1, 4, validate_args=True)


def test_backends_say_that_there_is_no_compiler(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "C compiler" in backends._cuda()
    monkeypatch.delenv("CC")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "C compiler" in backends._cuda()
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert "SpanningTree to" in backends._cuda()
