"""Losses and scores in one node of autograd's graph: the same numbers as the operations that it stands for."""

import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.estimators.base import joined


def _gradients(loss, inputs):
    """First and second derivatives."""
    weights = torch.arange(1.0, 1 + loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    (plain,) = torch.autograd.grad((loss * weights).mean(), inputs[:1], retain_graph=True)
    first = torch.autograd.grad((loss * weights).mean(), inputs, create_graph=True)
    return plain, *first, *torch.autograd.grad(sum((x**2).sum() for x in first), inputs)


@pytest.mark.parametrize("estimator", [E.TraceREINFORCE, E.NoiseREINFORCE])
@pytest.mark.parametrize(("samples", "leave_one_out"), [(1, False), (2, True), (3, True), (3, False), (4, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_numbers(estimator, samples, leave_one_out, dtype):
    logits = torch.randn(3, 4, 4, generator=seeded(1)).requires_grad_()
    weight = torch.randn(4, 4, generator=seeded(2), dtype=dtype).requires_grad_()
    e = estimator(samples=samples, leave_one_out=leave_one_out)
    given = gt.SpanningTree(logits), lambda x: (x * weight).sum((-2, -1)) ** 2, None
    one = e.estimate(*given, seeded(3))
    several = joined(*e.surrogate_loss(*given, seeded(3)))
    assert one.dtype == several.dtype
    assert torch.equal(one, several)
    results = (_gradients(loss, [logits, weight]) for loss in (one, several))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_losses_and_scores_are_one_node():
    logits = torch.zeros(3, 4, 4, requires_grad=True)
    loss = E.TraceREINFORCE(samples=2)(gt.SpanningTree(logits), lambda x: x[..., 0, 1])
    node, names = loss.grad_fn, []  # the loss is kept: in torch 2.5 nodes end with it
    while node is not None:
        names.append(type(node).__name__)
        node = next((before for before, _ in node.next_functions if before is not None), None)
    assert names[0] == "_ScoredBackward"
    assert "MeanBackward1" not in names


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
