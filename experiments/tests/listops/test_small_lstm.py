"""Small LSTMs, all steps in one kernel, against torch's own: on a GPU where there is one, else in Triton's interpreter
on the CPU. Memory that kernels must fill is poisoned, as is what lies on both sides of it."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, LARGE, RECORDED
from torch import nn

from gumtrace_experiments import small_lstm

poisoned = kernelcases.poisoned
pytestmark = [pytest.mark.device, pytest.mark.usefixtures("one_thread")]
SIZES = {  # LSTMs, items, tokens, size, hidden
    "one": (1, 1, 1, 1, 1),
    "two": (2, 3, 5, 4, 6),
    "several programs": (2, 19, 3, 5, 7),
    "as wide as can be": (1, 2, 3, 4, 64),
}


@pytest.fixture
def in_float32():
    """True products on every device, so that one tolerance does."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def made(size):
    """LSTMs, what they read, and gradients to what they return."""
    many, items, n, width, hidden = size
    torch.manual_seed(0)
    lstms = [nn.LSTM(width, hidden, batch_first=True).to(DEVICE) for _ in range(many)]
    x = torch.randn(items, n, width, generator=seeded(1)).to(DEVICE).requires_grad_()
    grads = torch.randn(many, items, n, hidden, generator=seeded(2)).to(DEVICE)
    return lstms, x, grads


def found(outputs, lstms, x, grads):
    """What they return, and gradients to what they read and to their weights."""
    states = torch.stack(outputs(lstms, x))
    weights = [p for lstm in lstms for p in lstm.parameters()]
    return [states.detach(), *torch.autograd.grad(states, [x, *weights], grads)]


def by_torch(lstms, x):
    with torch.backends.cudnn.flags(enabled=False):
        return [lstm(x)[0] for lstm in lstms]


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_states_and_gradients_are_those_of_torch(size):
    for mine, expected in zip(found(small_lstm.fused, *made(size)), found(by_torch, *made(size)), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def test_items_do_not_see_each_other():
    lstms, x, _ = made(SIZES["several programs"])
    changed = x.detach().clone()
    changed[3] = 7.0
    for before, after in zip(small_lstm.fused(lstms, x), small_lstm.fused(lstms, changed), strict=True):
        differs = (before != after).flatten(1).any(1)
        assert differs.nonzero().flatten().tolist() == [3]


def test_what_is_not_served_is_read_by_torch():
    """Wide ones, and everything that is not on a GPU."""
    lstms, x, _ = made((1, 2, 3, 4, 65))
    assert not small_lstm.serves(lstms, x)
    torch.testing.assert_close(small_lstm.outputs(lstms, x)[0], lstms[0](x)[0])


def test_a_second_derivative_is_refused():
    lstms, x, _ = made(SIZES["two"])
    (first,) = torch.autograd.grad(small_lstm.fused(lstms, x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@RECORDED
def test_under_a_graph():
    lstms, x, grads = made(SIZES["several programs"])
    expected = [each.clone() for each in found(small_lstm.fused, lstms, x, grads)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        again = found(small_lstm.fused, lstms, x, grads)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(mine, other) for mine, other in zip(again, expected, strict=True))


@LARGE
@pytest.mark.usefixtures("in_float32")
def test_at_the_size_of_listops():
    lstms, x, grads = made((2, 100, 50, 60, 60))
    assert small_lstm.serves(lstms, x)
    for mine, expected in zip(
        found(small_lstm.outputs, lstms, x, grads), found(by_torch, lstms, x, grads), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)
