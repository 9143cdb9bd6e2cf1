"""The kernels of LSTMs that are differentiated twice, against the formula in torch: on a GPU where there is one, else
in Triton's interpreter on the CPU. Memory that kernels must fill is poisoned, as is what lies on both sides of it."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, RECORDED

from gumtrace import BinaryTree
from gumtrace.estimators import RELAX
from gumtrace_experiments.parentheses import critic, recurrence
from gumtrace_experiments.parentheses.critic import LSTMCritic
from gumtrace_experiments.parentheses.data import Split
from gumtrace_experiments.parentheses.encoder import Encoder

poisoned = kernelcases.poisoned
pytestmark = [pytest.mark.device, pytest.mark.usefixtures("one_thread")]
SIZES = {"one": (1, 1, 1, 1), "short": (2, 2, 3, 4), "long": (6, 2, 5, 7), "blocks": (3, 2, 4, 80)}  # n, D, R, hidden


def inputs(size, dtype=torch.float64):
    """Gates, weights, and a gradient to the states."""
    n, d, r, hidden = size
    made = [(n, d, r, 4 * hidden), (d, hidden, 4 * hidden), (n, d, r, hidden)]
    drawn = [_drawn(shape, i, dtype) for i, shape in enumerate(made)]
    return [x.requires_grad_() for x in drawn]


def _drawn(shape, seed, dtype):
    """The same numbers in every dtype."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(DEVICE, dtype)


def found(states, size, dtype=torch.float64):
    """States; gradients to gates and weights; gradients of a combination of these, to both and to the gradient."""
    gates, carry, grad = inputs(size, dtype)
    out = states(gates, carry)
    first = torch.autograd.grad(out, [gates, carry], grad, create_graph=True)
    weights = [_drawn(x.shape, 5 + i, dtype) for i, x in enumerate(first)]
    total = sum((w * x).sum() for w, x in zip(weights, first, strict=True))
    return [x.detach() for x in (out, *first, *torch.autograd.grad(total, [gates, carry, grad]))]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_states_and_their_derivatives(size):
    """In float64, up to its rounding."""
    ours, theirs = found(recurrence.fused, size), found(recurrence.stepwise, size)
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)


def test_in_float32():
    ours, theirs = found(recurrence.fused, SIZES["long"], torch.float32), found(recurrence.stepwise, SIZES["long"])
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-4)


def test_of_the_gates_alone():
    """As RELAX does it: the first derivative in the noise, the second in the weights, which may be frozen."""
    for frozen in (False, True):
        runs = []
        for states in (recurrence.fused, recurrence.stepwise):
            gates, carry, _ = inputs(SIZES["long"])
            carry.requires_grad_(not frozen)
            (first,) = torch.autograd.grad(states(gates, carry).square().sum(), gates, create_graph=True)
            wanted = [gates] if frozen else [gates, carry]
            runs.append([first.detach(), *torch.autograd.grad(first.pow(3).sum(), wanted)])
        for mine, expected in zip(*runs, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)


def test_a_third_derivative_is_refused():
    gates, carry, _ = inputs(SIZES["short"])
    (first,) = torch.autograd.grad(recurrence.fused(gates, carry).sum(), gates, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), gates, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second.sum().backward()


def test_an_update_with_relax(monkeypatch):
    """Gradients to the logits and to the critic."""
    tokens, lengths = torch.tensor([[0, 2, 3, 1], [2, 3, 0, 0]], device=DEVICE), torch.tensor([4, 2], device=DEVICE)
    torch.manual_seed(0)
    own = LSTMCritic(types=2, hidden=3).to(DEVICE, torch.float64)
    runs = []
    for states in (recurrence.fused, recurrence.stepwise):
        monkeypatch.setattr(critic, "states", states)
        relax, logits = RELAX(own, samples=2), torch.zeros_like(tokens, dtype=torch.float64).requires_grad_()
        relax.zero_grad()
        noise = torch.Generator(DEVICE).manual_seed(0)
        context = own.read(Split(tokens, lengths))
        dist = BinaryTree(logits, lengths=lengths)
        relax(dist, lambda trees: trees.double().square().sum(-1), context, generator=noise).mean().backward()
        runs.append([logits.grad, *(p.grad for p in relax.parameters())])
    assert all(expected.any() for expected in runs[1])
    for mine, expected in zip(*runs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-8)


def test_an_encoder_reads_in_both_directions_at_once(monkeypatch):
    """As torch's LSTMs, one after the other: logits, and gradients to all parameters."""
    tokens, lengths = torch.tensor([[0, 2, 3, 1], [2, 3, 0, 0]], device=DEVICE), torch.tensor([4, 2], device=DEVICE)
    torch.manual_seed(0)
    encoder = Encoder(types=2, hidden=3).to(DEVICE, torch.float64)
    runs = []
    for serves in (True, False):
        monkeypatch.setattr(recurrence, "serves", lambda x, serves=serves: serves)
        logits = encoder(Split(tokens, lengths))
        grads = torch.autograd.grad(logits[0].square().sum() + logits[1, :2].sum(), list(encoder.parameters()))
        runs.append([logits[0], logits[1, :2], *grads])
    assert all(expected.any() for expected in runs[1])
    for mine, expected in zip(*runs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)


@RECORDED
def test_under_a_graph():
    size = SIZES["blocks"]
    expected = found(recurrence.fused, size)  # compiles
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    gates, carry, grad = inputs(size)
    with torch.cuda.graph(graph, stream=stream):
        out = recurrence.fused(gates, carry)
        (first,) = torch.autograd.grad(out, gates, grad, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), [gates, carry])
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, expected[0])
    assert all(x.isfinite().all() for x in (first, *second))
