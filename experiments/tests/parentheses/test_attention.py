"""Attention with relations in one kernel, against its formula in torch in float64: on a GPU where there is one, else in
Triton's interpreter on the CPU. Memory that kernels must fill is poisoned, as is what lies on both sides of it."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, LARGE, RECORDED

from gumtrace_experiments.parentheses import attention
from gumtrace_experiments.parentheses.insertion_model import Block, Decoder, Seen
from gumtrace_experiments.parentheses.insertion_order import relations

poisoned = kernelcases.poisoned
pytestmark = [pytest.mark.device, pytest.mark.usefixtures("one_thread", "in_float32")]
SIZES = {  # sequences, tokens, heads, columns of a head
    "one": (1, 1, 1, 1),
    "short": (3, 4, 2, 5),
    "more than 16 elements": (2, 16, 1, 4),
    "wide": (2, 3, 2, 32),
    "as large as can be": (1, 62, 1, 64),
}
EXACT = 2e-6  # of a norm: some dozen roundings of 2⁻²⁴


@pytest.fixture
def in_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def found(size, dtype, monkeypatch):
    """What a block returns, and gradients to what it reads and to its parameters: by the kernel in float32."""
    monkeypatch.setattr(attention, "serves", lambda heads: dtype == torch.float32)
    sequences, n, count, columns = size
    torch.manual_seed(0)
    block = Block(count * columns, count).to(DEVICE, dtype)
    order = torch.stack([torch.randperm(n, generator=seeded(i)) for i in range(sequences)])
    seen = Seen.by(relations(order.to(DEVICE)))
    shape = sequences, n + 2, count * columns
    x, grad = (torch.randn(shape, generator=seeded(i)).to(DEVICE, dtype) for i in (8, 9))
    parameters = dict(block.named_parameters())
    out = block(x.requires_grad_(), seen)
    grads = torch.autograd.grad(out, [x, *parameters.values()], grad)
    return dict(zip(["out", "x", *parameters], [out.detach(), *grads], strict=True))


def assert_equal(ours, theirs, tolerance):
    for name, mine in ours.items():
        expected = theirs[name]
        assert (mine.double() - expected).norm() <= tolerance * (1 + expected.norm()), name


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_block_and_its_gradients(size, monkeypatch):
    ours, theirs = (found(size, dtype, monkeypatch) for dtype in (torch.float32, torch.float64))
    assert size == SIZES["one"] or theirs["relative"].any(-1).all()
    assert_equal(ours, theirs, EXACT)


def test_log_probabilities_of_insertions(monkeypatch):
    """Of the whole decoder, with several orders of each sequence."""
    torch.manual_seed(0)
    decoder = Decoder(words=4, hidden=8, layers=2, heads=2).to(DEVICE)
    tokens = torch.randint(4, (3, 5), generator=seeded(0)).to(DEVICE)
    order = torch.stack([torch.randperm(5, generator=seeded(i)) for i in range(6)]).view(2, 3, 5).to(DEVICE)
    lengths = torch.tensor([5, 5, 5], device=DEVICE)
    totals = []
    for serves in (True, False):
        monkeypatch.setattr(attention, "serves", lambda heads, serves=serves: serves)
        totals.append(decoder(tokens, order, lengths).total)
    torch.testing.assert_close(*totals, rtol=1e-5, atol=1e-5)


def operands():
    """Queries, keys and values of two sequences, which elements are left or right of which, the three vectors."""
    heads = torch.randn(2, 6, 3, 2, 4, generator=seeded(0)).to(DEVICE).requires_grad_()
    order = torch.stack([torch.randperm(4, generator=seeded(i)) for i in range(2)]).to(DEVICE)
    seen = Seen.by(relations(order))
    return heads, seen.left, seen.right, torch.randn(3, 4, generator=seeded(1)).to(DEVICE).requires_grad_()


def test_a_second_derivative_is_refused():
    heads, *others = operands()
    (first,) = torch.autograd.grad(attention.attend(heads, *others).square().sum(), heads, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@RECORDED
def test_under_a_graph():
    heads, left, right, relative = operands()

    def step():
        out = attention.attend(heads, left, right, relative)
        return [out, *torch.autograd.grad(out.square().sum(), [heads, relative])]

    expected = [x.detach().clone() for x in step()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        again = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(mine, other) for mine, other in zip(again, expected, strict=True))


@LARGE
def test_at_the_size_of_the_experiment(monkeypatch):
    size = 400, 20, 8, 32
    ours, theirs = (found(size, dtype, monkeypatch) for dtype in (torch.float32, torch.float64))
    assert_equal(ours, theirs, 1e-4)
