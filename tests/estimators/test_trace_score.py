"""T-REINFORCE of small batches on CUDA, whose gradient is computed with the value: what the operations give that it
stands for. On a GPU where there is one, else in Triton's interpreter on the CPU, as if its tensors were on CUDA."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, RECORDED
from torch.distributions import Independent

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.estimators import score
from gumtrace.estimators.base import joined
from gumtrace.kernels.cuda import ops as cuda
from gumtrace.structures.joint import as_structure

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("served_by_triton")]
served_by_triton = kernelcases.served_by_triton

AHEAD = "TraceScoreBackward"
# In sizes and a dtype that other tests compile kernels for on a GPU.
DTYPES = [torch.float32] if DEVICE == "cuda" else [torch.float32, torch.float64]


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=seeded(1), dtype=dtype).to(DEVICE).requires_grad_()


def first(value):
    return value[..., 0].double()


def gradients(loss, inputs):
    """First and second derivatives."""
    weights = torch.arange(1.0, 1 + loss.numel(), dtype=loss.dtype, device=DEVICE).reshape(loss.shape)
    (plain,) = torch.autograd.grad((loss * weights).mean(), inputs[:1], retain_graph=True)
    once = torch.autograd.grad((loss * weights).mean(), inputs, create_graph=True)
    return plain, *once, *torch.autograd.grad(sum((x**2).sum() for x in once), inputs)


@pytest.mark.parametrize(("samples", "leave_one_out"), [(1, False), (3, True), (3, False), (4, True)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("structures", [0, 1])
def test_the_same_numbers_up_to_rounding(samples, leave_one_out, dtype, structures):
    logits = leaf(*(3, 2)[: 1 + structures], 12, dtype=dtype)
    weight = torch.randn(12, generator=seeded(2), dtype=dtype).to(DEVICE).requires_grad_()
    dist = as_structure("test", Independent(gt.Subset(logits, 4), structures))
    e = E.TraceREINFORCE(samples=samples, leave_one_out=leave_one_out)
    given = dist, lambda x: (x * weight).flatten(1 + len(dist.batch_shape)).sum(-1) ** 2, None
    one = e.estimate(*given, seeded(3))
    several = joined(*e.surrogate_loss(*given, seeded(3)))
    assert one.grad_fn.name() == AHEAD
    assert one.dtype == several.dtype
    torch.testing.assert_close(one, several)
    ours, theirs = (gradients(loss, [logits, weight]) for loss in (one, several))
    largest = max(x.abs().max().item() for x in theirs)
    rounding = 50 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding * largest)


def test_nothing_is_launched_in_backward(monkeypatch):
    logits = leaf(3, 9)
    wide = E.TraceREINFORCE()(gt.Permutation(logits), first).sum()  # losses of another dtype take more than one node
    loss = E.TraceREINFORCE()(gt.Permutation(logits), lambda x: first(x).to(logits.dtype)).sum()
    monkeypatch.delattr(cuda, "_down")
    for one in (loss, wide):
        (grad,) = torch.autograd.grad(one, logits)
        assert grad.isfinite().all()


def test_large_batches_are_left_to_backward(monkeypatch):
    monkeypatch.setattr(cuda, "SMALL", 2 * 3 * 9)
    d = gt.Permutation(leaf(3, 9))
    losses = [E.TraceREINFORCE(samples=k)(d, lambda x: x[..., 0].float()) for k in (2, 3)]
    assert [loss.grad_fn.name() for loss in losses] == [AHEAD, "_ScoredBackward"]


def test_no_score_where_logits_need_no_gradient():
    """They may change before backward, too."""
    scale, logits = torch.ones((), device=DEVICE, requires_grad=True), torch.zeros(3, 9, device=DEVICE)
    loss = E.TraceREINFORCE(samples=2)(gt.Permutation(logits), lambda x: scale * x[..., 0])
    logits += 1
    (grad,) = torch.autograd.grad(loss.sum(), scale)
    assert grad == loss.sum()


def test_what_the_score_keeps_is_known_to_torch():
    """Hooks see all of it, and backward frees it."""
    seen, logits = [], leaf(3, 9)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or len(seen) - 1, lambda i: seen[i]):
        loss = E.TraceREINFORCE(samples=2)(gt.Permutation(logits), lambda x: x[..., 0].float())
    assert sorted(tuple(x.shape) for x in seen) == [(2, 3), (2, 3, 0), (2, 3, 9), (3, 9), (3, 9)]
    loss.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.sum().backward()


def test_gradients_of_a_batch_of_weights():
    """What is left to backward, torch can map; the kernels of larger batches it cannot."""
    logits = leaf(3, 9)
    loss = E.TraceREINFORCE(samples=2)(gt.Permutation(logits), lambda x: x[..., 0].float(), generator=seeded(2))
    weights = torch.eye(3, device=DEVICE)
    (each,) = torch.autograd.grad(loss, logits, weights, is_grads_batched=True, retain_graph=True)
    expected = [torch.autograd.grad(loss[i], logits, retain_graph=True)[0] for i in range(3)]
    torch.testing.assert_close(each, torch.stack(expected))


def test_a_loss_that_is_not_finite_leaves_other_items_alone():
    logits = leaf(3, 9)
    d = gt.Permutation(logits, validate_args=False)
    bad = torch.tensor([0.0, torch.nan, 0.0], device=DEVICE)
    ours, usual = (E.TraceREINFORCE()(d, lambda x, of=of: x[..., 0] + of, generator=seeded(2)) for of in (bad, 0.0))
    (grad,) = torch.autograd.grad(ours.sum(), logits)
    (expected,) = torch.autograd.grad(usual.sum(), logits)
    assert grad[1].isnan().all()
    torch.testing.assert_close(grad[::2], expected[::2])


class Mode(E.TraceREINFORCE):
    def draw(self, dist, generator):
        trace = dist.trace(dist.log_rates.detach().expand(self.samples, *dist.log_rates.shape))
        return trace, dist.trace_log_prob(trace)


def test_a_way_to_draw_of_ones_own():
    d = gt.Permutation(torch.zeros(1, 9, device=DEVICE, requires_grad=True))
    assert Mode(samples=2)(d, first) == 0  # ties are broken by index
    estimator = E.TraceREINFORCE(samples=2)
    estimator.draw = Mode(samples=2).draw
    assert estimator(d, first) == 0


def test_a_structure_with_a_log_probability_of_its_own():
    class Tempered(gt.Permutation):
        def trace_log_prob(self, trace):
            return 2 * super().trace_log_prob(trace)

    logits = leaf(3, 9)
    losses = [
        E.TraceREINFORCE()(Independent(kind(logits), 1), lambda x: x[..., 0, 0].float(), generator=seeded(2))
        for kind in (gt.Permutation, Tempered)
    ]
    grads = [torch.autograd.grad(loss, logits)[0] for loss in losses]
    torch.testing.assert_close(2 * grads[0], grads[1])


def test_a_log_probability_that_was_replaced():
    d = gt.Permutation(leaf(3, 9))
    d.trace_log_prob = lambda trace: torch.zeros(trace.shape, device=DEVICE).requires_grad_()
    loss = E.TraceREINFORCE()(d, lambda x: x[..., 0].float())
    assert loss.grad_fn.name() == "_ScoredBackward"


@kernelcases.needs_cuda("the interpreter has one device")
@pytest.mark.gpu
def test_losses_on_the_cpu():
    """A kernel would take their address for one on the device."""
    d = gt.Permutation(leaf(3, 9), validate_args=False)
    loss = E.TraceREINFORCE()(d, lambda x: x[..., 0].float().cpu())
    assert loss.grad_fn.name() == "_ScoredBackward"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
def test_compiled_code_leaves_it_to_backward(monkeypatch):
    """Whatever torch.compile makes of methods."""
    monkeypatch.setattr(score, "_is_method", lambda method, function: True)
    logits = leaf(3, 9)

    def estimate(x):
        return E.TraceREINFORCE()(gt.Permutation(x, validate_args=False), lambda x: x[..., 0].float()).sum()

    torch._dynamo.reset()
    torch.compile(estimate, fullgraph=True, backend="aot_eager")(logits).backward()
    assert logits.grad.isfinite().all()


def test_a_structure_that_writes_into_its_traces():
    class Wrong(gt.Subset):
        def sample_trace(self, *args, **kwargs):
            trace = super().sample_trace(*args, **kwargs)
            trace.choices[..., 0] = 99
            return trace

    with pytest.raises(ValueError, match="numbers that are not keys"):
        E.TraceREINFORCE()(Wrong(leaf(3, 9), 2), lambda x: x[..., 0])


@RECORDED
@pytest.mark.gpu
def test_graphs_leave_it_to_backward():
    """There launches cost the host nothing."""
    d = gt.Permutation(leaf(3, 9), validate_args=False)
    graph = torch.cuda.CUDAGraph()
    E.TraceREINFORCE()(d, lambda x: x[..., 0].float())  # compiles
    with torch.cuda.graph(graph):
        loss = E.TraceREINFORCE()(d, lambda x: x[..., 0].float())
    assert loss.grad_fn.name() == "_ScoredBackward"
