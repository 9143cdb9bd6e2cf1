"""All rounds of the classifier in one kernel, against its formula in torch in float64: on a GPU where there is one,
else in Triton's interpreter on the CPU. Memory that kernels must fill is poisoned, as is what lies on both sides."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, LARGE, RECORDED

from gumtrace_experiments.listops import rounds
from gumtrace_experiments.listops.expressions import VOCABULARY
from gumtrace_experiments.listops.model import Classifier, Masks

poisoned = kernelcases.poisoned
pytestmark = [pytest.mark.device, pytest.mark.usefixtures("one_thread", "in_float32")]
SIZES = {  # tokens, hidden, items, samples, rounds
    "one": (1, 1, 1, 1, 1),
    "short": (5, 8, 3, 2, 2),
    "wide": (4, 60, 2, 1, 3),
    "long": (20, 7, 2, 2, 5),
    "as large as can be": (64, 64, 1, 1, 1),
}
EXACT = 2e-5  # of a norm: some hundred roundings of 2⁻²⁴, in sums that partly cancel
SERVES = rounds.serves


@pytest.fixture
def in_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def made(hidden, count, dtype):
    torch.manual_seed(0)
    classifier = Classifier(hidden, count)
    with torch.no_grad():
        for p in classifier.norm.parameters():
            p.add_(0.3 * torch.randn_like(p))  # or else a scale of 1 and a shift of 0 are not seen
    return classifier.to(DEVICE, dtype)


def expressions(size):
    """Tokens, and structures in which every token but the first has a head before it; the last tokens are padding."""
    n, _, items, samples, _ = size
    draw = seeded(3)
    tokens = torch.randint(len(VOCABULARY), (items, n), generator=draw)
    lengths = torch.randint((n + 1) // 2, n + 1, (items,), generator=draw)
    place = torch.arange(n)
    heads = (torch.rand(samples, items, n, generator=draw) * place).long()
    structure = (heads[..., None, :] == place[:, None]) & (place > 0) & (place < lengths[:, None])[:, None]
    return tokens.to(DEVICE), structure.to(DEVICE)


def found(size, dtype, monkeypatch, dropout=True):
    """The answers, and gradients to all parameters; by the kernel in float32, in torch in float64."""
    monkeypatch.setattr(rounds, "serves", lambda structure, hidden: dtype == torch.float32)
    n, hidden, items, _, count = size
    classifier = made(hidden, count, dtype)
    tokens, structure = expressions(size)
    draw = seeded(4)
    keep = torch.rand(count, items, n, hidden, generator=draw) >= 0.3
    out = torch.rand(items, hidden, generator=draw) >= 0.3
    masks = Masks(keep.to(DEVICE), out.to(DEVICE)) if dropout else None
    answers = classifier(tokens, structure.to(dtype), hard=True, masks=masks)
    grad = torch.randn(answers.shape, generator=draw).to(DEVICE, dtype)
    parameters = dict(classifier.named_parameters())
    return {
        "answers": answers.detach(),
        **dict(zip(parameters, torch.autograd.grad(answers, list(parameters.values()), grad), strict=True)),
    }


def assert_equal(ours, theirs, tolerance=EXACT):
    for name, mine in ours.items():
        expected = theirs[name]
        assert (mine.double() - expected).norm() <= tolerance * (1 + expected.norm()), name


@pytest.mark.parametrize("dropout", [True, False], ids=["dropout", "all"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_answers_and_gradients(size, dropout, monkeypatch):
    ours, theirs = (found(size, dtype, monkeypatch, dropout) for dtype in (torch.float32, torch.float64))
    assert theirs["message2.weight"].any() or size == SIZES["one"]
    assert_equal(ours, theirs)


def test_a_second_derivative_is_refused(monkeypatch):
    monkeypatch.setattr(rounds, "serves", lambda structure, hidden: True)
    classifier = made(8, 2, torch.float32)
    tokens, structure = expressions(SIZES["short"])
    answers = classifier(tokens, structure.float(), hard=True)
    (first,) = torch.autograd.grad(answers.square().sum(), classifier.norm.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@LARGE
def test_at_the_size_of_listops(monkeypatch):
    size = 50, 60, 25, 4, 5
    ours, theirs = (found(size, dtype, monkeypatch) for dtype in (torch.float32, torch.float64))
    assert_equal(ours, theirs, 1e-3)


@RECORDED
def test_under_a_graph(monkeypatch):
    """Twice, with equal bits."""
    monkeypatch.setattr(rounds, "serves", SERVES)
    size = SIZES["long"]
    classifier = made(size[1], size[4], torch.float32)
    tokens, structure = expressions(size)
    structure = structure.float()

    def step():
        answers = classifier(tokens, structure, hard=True)
        return [answers, *torch.autograd.grad(answers.square().sum(), list(classifier.parameters()))]

    expected = [x.detach().clone() for x in step()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        found = step()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
