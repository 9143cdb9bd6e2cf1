"""The kernels as operators of torch: compiled without a break at any size, checked by torch's own checks."""

from types import SimpleNamespace

import pytest
import torch
from operators import every_device, every_structure, finite, logits, step

import gumtrace as gt
from gumtrace.kernels import operators, ops
from gumtrace.kernels.backends import backend
from gumtrace.kernels.geometry import flatten_geometry
from gumtrace.traces.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
SIZES = ((3, 4), (5, 6), (2, 7))  # batch, n: torch takes a size for a variable once it has changed


@pytest.fixture(autouse=True)
def _fresh():
    """Torch gives up on a function that it has compiled too often: these are compiled anew for every structure."""
    torch._dynamo.reset()


ON_CUDA = [pytest.param("cuda", None, marks=pytest.mark.gpu)] if torch.cuda.is_available() else []


@every_structure
@pytest.mark.parametrize(("device", "dynamic"), [("cpu", None), ("cpu", True), *ON_CUDA])
@pytest.mark.slow
def test_compiles_without_a_break(make, device, dynamic):
    compiled = torch.compile(lambda x: step(make, x), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch, n in SIZES:
        x = logits(batch, device=device, n=n).requires_grad_()
        loss, value = compiled(x)
        loss.backward()
        assert x.grad.isfinite().all()
        assert x.grad.abs().sum() > 0
        assert make(x.detach()).support.check(value).all()


@every_device
@every_structure
@pytest.mark.slow
def test_compiled_log_probs_are_the_same(make, device):
    """Of the distribution's own trace, of another's, of a part of one."""
    x, other = logits(3, device=device), logits(4, device=device)[1:]
    trace = make(other).sample_trace((2,))

    def log_prob(x, choices, links):
        theirs = Trace(make(x)._layout, choices, links)
        return make(x).trace_log_prob(theirs).sum(0) + make(x).trace_log_prob(theirs[0])

    grads = []
    for f in (log_prob, torch.compile(log_prob, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        f(leaf, trace.choices, trace.links).square().sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[0], grads[1])


@every_device
@pytest.mark.parametrize("name", ["Subset", "Subset-by-item", "Permutation", "Permutation-matrix", "BinaryTree"])
@pytest.mark.slow
def test_compiled_log_probs_of_values(name, device):
    k = torch.tensor([2, 0, 3], device=device) if "item" in name else 2
    structure, more = name.split("-")[0], {"matrix": True} if "matrix" in name else {}
    more |= {"k": k} if structure == "Subset" else {}

    def make(x, **also):
        return getattr(gt, structure)(x, **more, **also)

    x = logits(3, device=device)[..., 0, :]
    value = make(x).sample()
    compiled = torch.compile(
        lambda x, value: make(x, validate_args=False).log_prob(value), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(x, value), make(x).log_prob(value))


@pytest.mark.slow
@every_device
def test_inductor_of_strided_logits(device):
    """Inductor takes strides from what the operators say of their results, and checks them as it runs."""

    def loss(w):
        d = gt.Permutation(w.T, validate_args=False)  # rows that do not lie in one piece
        trace = d.sample_trace()
        return d.trace_log_prob(trace).sum() + finite(d.conditional(trace).sin()), trace.value

    off = {"fx_graph_cache": False}  # an earlier run's graph would be taken as it is
    with torch._inductor.config.patch(off), torch._functorch.config.patch(enable_autograd_cache=False):
        compiled = torch.compile(loss, fullgraph=True)
        for batch in (5, 3):
            w = logits(device=device, n=6)[:, :batch].clone().requires_grad_()
            result, order = compiled(w)
            result.backward()
            assert w.grad.isfinite().all()
            assert (order.sort(-1).values == torch.arange(6, device=device)).all()


def calls(d):
    """Arguments for every operator that a structure has."""

    def rows(x, grad=False):  # that do not lie in one piece: results do, whatever the strides of what came in
        return x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_(grad)

    geometry, x, sizes = d._layout.geometry, d._rows(), d._row_sizes()
    seed = torch.tensor([1, 2], device=x.device)
    winners, links = map(rows, d.sample_trace((2,)).rows())
    _, kept = ops.log_prob(geometry, x, winners, links)
    gains = x.masked_fill(x.isneginf(), 0.0)  # finite, as `Structure` makes them
    stats = ops.decisions(geometry, x, gains, winners, links)
    g, totals, z, _ = ops.conditional(geometry, x, sizes, winners, links, seed)
    twice, h = x.repeat(2, 1), torch.ones_like(totals, dtype=x.dtype)  # (items, keys), (items, decisions)
    alpha = -totals.to(x.dtype)
    found = {
        ops.check_logits: (rows(x),),
        ops.perturb: (rows(x, True), 6, seed),
        ops.trace: (rows(g), sizes),
        ops.sample: (rows(x), sizes, 6, seed),
        ops.indicator: (winners, x.dtype),
        ops.log_prob: (rows(x, True), winners, links),
        ops.log_prob_grad: (rows(x), winners, links, rows(kept), h.sum(-1)),
        ops.decisions: (rows(x, True), rows(gains), winners, links),
        ops.log_totals: (rows(twice, True), winners, links),
        ops.to_keys: (winners, links, rows(alpha, True), rows(twice, True), rows(h, True)),
        ops.to_decisions: (winners, links, rows(alpha, True), rows(twice, True), rows(torch.ones_like(g), True)),
        ops.log_spread: (winners, links, rows(z.to(x.dtype), True)),
        ops.conditional: (rows(x, True), sizes, winners, links, seed),
        ops.conditional_grad: (rows(x), winners, links, rows(totals), rows(z), rows(g), rows(torch.ones_like(g))),
    }
    if hasattr(backend(x.device.type), "decisions_grad"):  # CUDA has none of its own
        gradient = rows(torch.ones_like(stats[0]))
        found[ops.decisions_grad] = (rows(x), rows(gains), winners, links, *map(rows, stats), gradient)
    if d.has_distinct_kernel:
        found[ops.distinct] = (rows(x), sizes, 6, seed)
    if isinstance(d, gt.Arborescence):
        found[ops.arborescence_edges] = (winners, links)
    if isinstance(d, gt.Permutation):
        found[ops.arrangement] = (winners,)
    return {operator: (*flatten_geometry(geometry), *args) for operator, args in found.items()}


@every_device
@every_structure
@pytest.mark.slow
def test_torch_checks_the_operators(make, device):
    """Schemas, shapes and strides of fake results, autograd, AOT with variable sizes."""
    for operator, args in calls(make(logits(3, device=device))).items():
        torch.library.opcheck(operator.registered, args)


@every_device
def test_expanded_and_transposed_logits(device):
    """Kernels read rows in memory order: views are laid out first."""
    x = logits(device=device).mT.expand(3, 4, 4)
    d, plain = gt.SpanningTree(x), gt.SpanningTree(x.contiguous())
    trace = plain.sample_trace()
    torch.testing.assert_close(d.trace_log_prob(trace), plain.trace_log_prob(trace))


def test_kernels_run_on_the_device_of_their_tensors(monkeypatch):
    """Triton launches on the current device, which may be another one; no second one is needed to see which is set."""
    guarded, seen = [], []
    geometry = gt.Permutation(torch.zeros(3))._layout.geometry

    class Guard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            guarded.append(self.device.index)

        def __exit__(self, *_):
            guarded.append("out")

    class Kernels:
        @staticmethod
        def check_logits(geometry, x):
            seen.append((x.device.index, len(guarded)))

    monkeypatch.setattr(operators, "backend", lambda device_type: Kernels)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    for index in (0, 1):
        ops.check_logits.run("cuda", geometry, SimpleNamespace(device=torch.device(f"cuda:{index}")))
    assert seen == [(0, 0), (1, 1)]
    assert guarded == [1, "out"]
