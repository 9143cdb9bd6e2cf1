"""Losses and scores in one node of autograd's graph: the same numbers as the operations that it stands for."""

import pytest
import torch
from common import seeded
from torch.distributions import Independent

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.estimators.base import joined
from gumtrace.structures.joint import as_structure
from gumtrace.traces import formula


def _gradients(loss, inputs):
    """First and second derivatives."""
    weights = torch.arange(1.0, 1 + loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    (plain,) = torch.autograd.grad((loss * weights).mean(), inputs[:1], retain_graph=True)
    first = torch.autograd.grad((loss * weights).mean(), inputs, create_graph=True)
    return plain, *first, *torch.autograd.grad(sum((x**2).sum() for x in first), inputs)


@pytest.mark.parametrize(("samples", "leave_one_out"), [(1, False), (2, True), (3, True), (3, False), (4, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_numbers(samples, leave_one_out, dtype):
    logits = torch.randn(3, 4, 4, generator=seeded(1)).requires_grad_()
    e = E.NoiseREINFORCE(samples=samples, leave_one_out=leave_one_out)
    one, several = _both_ways(e, gt.SpanningTree(logits), logits, dtype)
    assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


@pytest.mark.parametrize(("samples", "leave_one_out"), [(1, False), (2, True), (3, True), (3, False), (4, True)])
@pytest.mark.parametrize("of_loss", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("structures", [0, 1, 2])
def test_the_score_of_traces_is_that_of_the_operations_up_to_rounding(
    samples, leave_one_out, of_loss, dtype, structures
):
    """The losses' weights and the derivative of the mean multiply it one after the other, not both at once. Losses that
    are wider than logits are left to the operations."""
    batch = (3, 2, 2)[: 1 + structures]
    logits = torch.randn(*batch, 4, 4, generator=seeded(1), dtype=dtype).requires_grad_()
    e = E.TraceREINFORCE(samples=samples, leave_one_out=leave_one_out)
    one, several = _both_ways(e, Independent(gt.SpanningTree(logits), structures), logits, of_loss)
    assert one[0].grad_fn.name() == (
        "TraceScoreBackward" if torch.finfo(of_loss).bits <= torch.finfo(dtype).bits else "_ScoredBackward"
    )
    assert one[0].dtype == several[0].dtype
    assert torch.equal(one[0], several[0])
    largest = max(x.abs().max().item() for x in several)
    rounding = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(one, several, rtol=rounding, atol=rounding * largest)


def _both_ways(e, dist, logits, dtype):
    """The value of an estimate, and its derivatives, by one node and by the operations that it stands for."""
    weight = torch.randn(4, 4, generator=seeded(2), dtype=dtype).requires_grad_()
    given = as_structure("test", dist), lambda x: (x * weight).flatten(1 + len(dist.batch_shape)).sum(-1) ** 2, None
    for loss in (e.estimate(*given, seeded(3)), joined(*e.surrogate_loss(*given, seeded(3)))):
        yield loss, *_gradients(loss, [logits, weight])


@pytest.mark.parametrize("estimator", [E.TraceREINFORCE, E.NoiseREINFORCE])
def test_losses_and_scores_are_one_node(estimator):
    names = _names_of_nodes(estimator)
    assert names[0] in ("TraceScoreBackward", "_ScoredBackward")
    assert "MeanBackward1" not in names


def test_nothing_is_left_of_the_score_for_backward():
    assert "_DifferentiableBackward" in _names_of_nodes(E.StructureREINFORCE, gt.Permutation, (3, 4))
    assert "_DifferentiableBackward" not in _names_of_nodes(E.TraceREINFORCE, gt.Permutation, (3, 4))


def _names_of_nodes(estimator, structure=gt.SpanningTree, shape=(3, 4, 4)):
    logits = torch.zeros(shape, requires_grad=True)
    loss = estimator(samples=2)(structure(logits), lambda x: x.flatten(2).float().sum(-1))
    node, names = loss.grad_fn, []  # the loss is kept: in torch 2.5 nodes end with it
    while node is not None:
        names.append(type(node).__name__)
        node = next((before for before, _ in node.next_functions if before is not None), None)
    return names


def test_no_score_where_logits_need_no_gradient(monkeypatch):
    """They may change before backward, too."""
    monkeypatch.setattr(formula, "score", None)
    scale, logits = torch.ones((), requires_grad=True), torch.zeros(3, 4, 4)
    loss = E.TraceREINFORCE(samples=2)(gt.SpanningTree(logits), lambda x: scale * x[..., 0, 1])
    logits += 1
    (grad,) = torch.autograd.grad(loss.sum(), scale)
    assert grad == loss.sum()


def test_what_the_score_keeps_is_known_to_torch():
    """Hooks see all of it, and backward frees it."""
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or len(seen) - 1, lambda i: seen[i]):
        logits = torch.zeros(3, 4, requires_grad=True)
        loss = E.TraceREINFORCE(samples=2)(gt.Permutation(logits), lambda x: x[..., 0].float())
    assert sorted(tuple(x.shape) for x in seen) == [(2, 3), (2, 3, 0), (2, 3, 4), (3, 4), (3, 4)]
    loss.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.sum().backward()


def test_gradients_of_a_batch_of_weights():
    logits = torch.randn(3, 4, generator=seeded(1)).requires_grad_()
    loss = E.TraceREINFORCE(samples=2)(gt.Permutation(logits), lambda x: x[..., 0].float(), generator=seeded(2))
    (each,) = torch.autograd.grad(loss, logits, torch.eye(3), is_grads_batched=True, retain_graph=True)
    expected = [torch.autograd.grad(loss[i], logits, retain_graph=True)[0] for i in range(3)]
    assert torch.equal(each, torch.stack(expected))


def test_losses_that_only_float64_can_hold():
    logits = torch.randn(3, 4, generator=seeded(1)).requires_grad_()
    large, usual = (
        E.TraceREINFORCE()(gt.Permutation(logits), lambda x, of=of: x[..., 0].double() * of, generator=seeded(2))
        for of in (1e100, 1.0)
    )
    grads = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (large * 1e-100, usual)]
    torch.testing.assert_close(*grads)


class Mode(E.TraceREINFORCE):
    def draw(self, dist, generator):
        trace = dist.trace(dist.log_rates.detach().expand(self.samples, *dist.log_rates.shape))
        return trace, dist.trace_log_prob(trace)


def test_a_way_to_draw_of_ones_own():
    d = gt.Permutation(torch.zeros(1, 4, requires_grad=True))
    loss = Mode(samples=2)(d, lambda x: x[..., 0].double())
    assert loss == 0  # ties are broken by index
    estimator = E.TraceREINFORCE(samples=2)
    estimator.draw = Mode(samples=2).draw
    assert estimator(d, lambda x: x[..., 0].double()) == 0


def test_a_structure_with_a_log_probability_of_its_own():
    class Tempered(gt.Permutation):
        def trace_log_prob(self, trace):
            return 2 * super().trace_log_prob(trace)

    logits = torch.randn(3, 4, generator=seeded(1)).requires_grad_()
    grads = [
        torch.autograd.grad(
            E.TraceREINFORCE()(Independent(kind(logits), 1), lambda x: x[..., 0, 0].float(), generator=seeded(2)),
            logits,
        )[0]
        for kind in (gt.Permutation, Tempered)
    ]
    torch.testing.assert_close(2 * grads[0], grads[1])


def test_a_structure_that_writes_into_its_traces():
    class Wrong(gt.Subset):
        def sample_trace(self, *args, **kwargs):
            trace = super().sample_trace(*args, **kwargs)
            trace.choices[..., 0] = 99
            return trace

    with pytest.raises(ValueError, match="numbers that are not keys"):
        E.TraceREINFORCE()(Wrong(torch.zeros(3, 4, requires_grad=True), 2), lambda x: x[..., 0])


def test_losses_that_the_objective_fills_again():
    """They are read once, before it is called again."""
    logits, kept = torch.zeros(2, 3, requires_grad=True), torch.zeros(4, 2)
    d, grads = gt.Subset(logits, 1), []

    def objective(x):
        return kept.copy_(x[..., 0])

    for leave_one_out in (True, False):
        for fresh in (True, False):
            e = E.TraceREINFORCE(samples=4, leave_one_out=leave_one_out)
            loss = e(d, (lambda x: x[..., 0]) if fresh else objective, generator=seeded(1))
            kept.fill_(torch.nan)
            grads.append((loss.detach(), *torch.autograd.grad(loss.sum(), logits)))
    for a, b in (grads[:2], grads[2:]):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_estimator_with_a_surrogate_of_its_own():
    class Twice(E.TraceREINFORCE):
        def surrogate_loss(self, dist, objective, context, generator):
            loss, surrogate = super().surrogate_loss(dist, objective, context, generator)
            return loss, 2 * surrogate

    logits = torch.randn(3, 4, generator=seeded(1)).requires_grad_()
    grads = [
        torch.autograd.grad(e(gt.Subset(logits, 2), lambda x: x[..., 0], generator=seeded(2)).sum(), logits)[0]
        for e in (E.TraceREINFORCE(), Twice())
    ]
    torch.testing.assert_close(2 * grads[0], grads[1])
