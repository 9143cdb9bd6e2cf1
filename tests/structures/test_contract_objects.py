"""What every structure promises as an object: traces that are indexed and compared, copies, names and signatures."""

import copy
import inspect
import io
import math
import pickle

import pytest
import torch
from cases import every, generator
from contract import assert_same, everything
from torch.utils._pytree import tree_map

import gumtrace as gt

# Traces -----------------------------------------------------------------------------------------------


@every
def test_indexing_a_trace(case):
    d = case((2, 3))
    trace = d.sample_trace((5,))
    log_prob = d.trace_log_prob(trace)
    assert len(trace) == 5
    for index in (1, -1, slice(1, 4), torch.tensor([4, 0, 0]), slice(None, None, 2)):
        assert_same(trace[index].value, trace.value[index])
        assert_same(d.trace_log_prob(trace[index]), log_prob[index])
    assert_same(trace[..., 0].value, trace.value[:, :, 0])
    assert_same(trace[2, 1].value, trace.value[2, 1])
    assert_same(trace[2, 1, 0].value, trace.value[2, 1, 0])
    assert [t.shape for t in trace] == [(2, 3)] * 5


@every
def test_a_single_trace_has_neither_items_nor_length(case):
    trace = case().sample_trace()
    with pytest.raises(IndexError, match="single trace"):
        trace[0]
    with pytest.raises(TypeError, match="single trace"):
        len(trace)
    with pytest.raises(IndexError):
        case((3,)).sample_trace()[3]


@every
def test_equality_of_traces(case):
    d = case((3,))
    trace = d.sample_trace((50,), generator=generator(1))
    other = d.sample_trace((50,), generator=generator(2))
    same = trace.equals(other)
    assert same.dtype == torch.bool
    assert trace.equals(trace).all()
    assert_same(same, other.equals(trace))
    assert_same(d.trace_log_prob(trace)[same], d.trace_log_prob(other)[same])
    assert_same(trace.value[same], other.value[same])
    assert same.all() == case.certain


@every
def test_traces_are_light(case):
    trace = case.build(case.logits((3,)).requires_grad_()).sample_trace((2,))
    moved = trace.to("cpu")
    assert moved.equals(trace).all()
    assert trace.device == torch.device("cpu")
    assert not trace.winners.is_floating_point()
    assert repr(trace).startswith("Trace(shape=(2, 3)")
    assert trace.to("meta").device.type == "meta"


# As a Python object -----------------------------------------------------------------------------------


def _pickled(x):
    return pickle.loads(pickle.dumps(x))


def _saved(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every
@pytest.mark.parametrize("again", [_pickled, _saved, copy.copy, copy.deepcopy], ids=lambda f: f.__name__)
def test_copies(case, again):
    d = case((3,))
    trace = d.sample_trace((2,))
    copied, copied_trace = again(d), again(trace)
    assert repr(copied) == repr(d)
    assert_same(everything(copied), everything(d))
    assert copied_trace.equals(trace).all()
    assert_same(copied_trace.value, trace.value)
    assert_same(copied.trace_log_prob(copied_trace), d.trace_log_prob(trace))


@every
def test_repr(case):
    d = case((2, 3))
    assert repr(d) == f"{type(d).__name__}(batch_shape=(2, 3), event_shape={case.event}, dtype=torch.float32)"


# The public interface ---------------------------------------------------------------------------------


def test_public_names():
    assert sorted(gt.__all__) == [
        *sorted([*gt.structures.__all__, "Trace"]),
        "backends",
        "diagnostics",
        "divergences",
        "estimators",
        "losses",
        "plotting",
        "relax",
        "steps",
    ]
    assert all(hasattr(gt, name) for name in gt.__all__)


SIGNATURES = {
    gt.Subset: "logits, k",
    gt.Permutation: "logits, matrix=False",
    gt.Matching: "logits",
    gt.SpanningTree: "logits, components=1",
    gt.SpanningTree.from_edges: "logits, edge_index, num_nodes, components=1",
    gt.Arborescence: "logits, root=0",
    gt.BinaryTree: "logits",
    gt.Custom: "logits, algorithm",
}


@pytest.mark.parametrize("make", SIGNATURES, ids=lambda f: f.__qualname__)
def test_constructors(make):
    parameters = inspect.signature(make).parameters.values()
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    written = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in positional]
    assert ", ".join(written) == SIGNATURES[make]
    assert {"mask", "lengths", "validate_args"} <= {p.name for p in parameters}


@every
def test_methods(case):
    d = case((3,))
    assert isinstance(d, torch.distributions.Distribution)
    drawn = {"sample": (), "sample_trace": (), "perturb": (), "conditional": (d.sample_trace(),)}
    for name, args in drawn.items():
        getattr(d, name)(*args, generator=generator())
    for name in ("sample", "sample_trace", "perturb"):
        getattr(d, name)(torch.Size([2]))
    assert not d.has_rsample


class Wrapped(torch.Tensor):
    """Holds a tensor, on which all operations are done."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda x: x.held if isinstance(x, cls) else x, (args, kwargs or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, func(*args, **kwargs))


@pytest.mark.parametrize("name", ["Subset", "Permutation", "Matching", "SpanningTree"])
def test_log_prob_of_a_tensor_subclass(name):
    shape = (2, 4) if name in ("Subset", "Permutation") else (2, 4, 4)
    d = getattr(gt, name)(torch.arange(32.0)[: math.prod(shape)].reshape(shape) / 8, *[2] * (name == "Subset"))
    value = d.sample((3,))
    assert torch.equal(d.log_prob(Wrapped(value)).held, d.log_prob(value))
