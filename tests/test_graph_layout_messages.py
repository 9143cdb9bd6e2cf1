"""The decoder's kernels for trees against its way in plain torch, in float64: on a GPU where there is one, else in
Triton's interpreter on the CPU. Memory that kernels must fill is poisoned with nan."""

import os

import pytest
import torch
from common import seeded

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="needs triton: it comes with CUDA builds of torch, or pip install triton")

import gumtrace as gt
from gumtrace.experiments.graph_layout import messages, model
from gumtrace.experiments.graph_layout.model import Decoder

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned", "precision")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter multiplies the bits of bfloat16
SERVES = messages.serves
SIZES = {  # nodes, hidden, items, frames, samples
    "one": (4, 16, 1, 1, 1),
    "smallest": (3, 16, 11, 1, 1),  # ten scenes a program
    "some-left": (4, 32, 9, 1, 1),  # eight scenes a program
    "frames": (5, 16, 7, 3, 1),
    "samples": (5, 32, 3, 1, 2),
    "both": (5, 16, 5, 3, 2),
    "odd-width": (5, 48, 4, 1, 1),
    "paper": (10, 32, 4, 1, 1),
    "paper-both": (10, 16, 3, 3, 2),
    "alone": (17, 16, 2, 1, 1),  # one scene a program
    "largest": (32, 16, 2, 1, 1),
}
every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
EXACT = 5e-6  # of a norm: roundings of 2⁻²⁴, some hundred of them, and they partly cancel
VALUE, GRADIENT = 10 * 2**-9, 0.1  # in half precision and TF32, as for the model: a relu that flips costs a gradient


@pytest.fixture
def poisoned(monkeypatch):
    empty = torch.empty

    def poison(*args, **kwargs):
        x = empty(*args, **kwargs)
        return x.fill_(torch.nan) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty", poison)


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """The kernels take what is float32, on the CPU as well."""
    monkeypatch.setattr(messages, "serves", lambda structure, hidden: structure.dtype == torch.float32)


def decoder(n, hidden, dtype=torch.float32):
    torch.manual_seed(0)
    made = Decoder(n, hidden)
    for layer in [*made.message1, *made.message2]:
        torch.nn.init.normal_(layer.bias, std=0.3)
    return made.to(DEVICE, dtype)


def frames(size, dtype=torch.float32):
    n, _, items, count, _ = size
    x = torch.rand(items, n, count, 2, generator=seeded(1)) * 2 - 1
    return x.to(DEVICE, dtype).requires_grad_()


def trees(n, *batch, dtype=torch.float32):
    return gt.SpanningTree(torch.zeros(n, n)).sample(batch, generator=seeded(2)).to(DEVICE, dtype)


def summed(size, dtype=torch.float32):
    """Messages summed, (I, K, n, F, hidden), and gradients to the nodes and all parameters that make them."""
    n, hidden, items, count, samples = size
    made, x = decoder(n, hidden, dtype), frames(size, dtype)
    wiring = made._prepare(trees(n, items, samples, dtype=dtype), hard=True)
    assert isinstance(wiring, model._Fused) == (dtype == torch.float32)
    out = model._messages(x, wiring).reshape(items, samples, n, count, hidden)
    weights = torch.randn(out.shape, generator=seeded(3)).to(out)
    parameters = [*made.message1.parameters(), *made.message2.parameters()]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x, *parameters])]


def error(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).norm() / theirs.norm()).item()  # nan where anything is


def errors(ours, theirs):
    return [error(*pair) for pair in zip(ours, theirs, strict=True)]


@every_size
def test_messages_and_gradients(size):
    assert all(e < EXACT for e in errors(summed(size), summed(size, torch.float64)))


@pytest.mark.parametrize("name", ["some-left", "both", "paper", "alone"])
def test_in_tf32(name):
    """The other sizes of tiles. In the interpreter the products are not rounded."""
    torch.set_float32_matmul_precision("high")
    value, *grads = errors(summed(SIZES[name]), summed(SIZES[name], torch.float64))
    assert value < (VALUE if DEVICE == "cuda" else EXACT)
    assert all(g < (GRADIENT if DEVICE == "cuda" else EXACT) for g in grads)


@pytest.mark.parametrize("name", ["some-left", "both", "paper", "alone"])
def test_in_half_precision(name):
    expected = summed(SIZES[name], torch.float64)
    with torch.autocast(DEVICE, HALF):
        found = summed(SIZES[name])
    assert [x.dtype for x in found] == [HALF, *[torch.float32] * (len(found) - 1)]
    value, *grads = errors(found, expected)
    assert 0 < value < VALUE
    assert all(0 < g < GRADIENT for g in grads)


@pytest.mark.parametrize("half", [False, True])
def test_the_decoder_is_that_of_torch(half):
    """Several steps, each sample with its own tree; frames that share theirs."""
    n, items, samples, steps = 5, 3, 2, 3
    structure, first = trees(n, samples, items), torch.rand(items, n, 2, generator=seeded(1)).to(DEVICE)
    runs = []
    for dtype in (torch.float32, torch.float64):
        made = decoder(n, 32, dtype)
        x, tree = first.to(dtype), structure.to(dtype)
        with torch.autocast(DEVICE, HALF, enabled=half and dtype == torch.float32):
            unrolled = made.unroll(x, tree, steps, hard=True)
            forced = made(unrolled[0].detach(), tree, hard=True)
        (unrolled.square().sum() + forced.square().sum()).backward()
        runs.append([unrolled.detach(), forced.detach(), *(p.grad for p in made.parameters())])
    found = errors(*runs)
    assert all(e < (VALUE if half else EXACT) for e in found[:2])
    assert all(e < (GRADIENT if half else EXACT) for e in found[2:])


def test_equal_inputs_give_equal_bits():
    size = SIZES["paper-both"]
    assert all(x.equal(y) for x, y in zip(summed(size), summed(size), strict=True))


def test_scenes_do_not_depend_on_their_batch():
    n, hidden, items, _, samples = SIZES["both"]
    made, x = decoder(n, hidden), frames(SIZES["both"])
    structure = trees(n, items, samples)
    whole = model._messages(x, made._prepare(structure, hard=True))
    for i in range(items):
        alone = model._messages(x[i : i + 1], made._prepare(structure[i : i + 1], hard=True))
        assert error(alone[0], whole[i]) < EXACT


def test_a_second_derivative_is_refused():
    made, x = decoder(4, 16), frames(SIZES["one"])
    out = model._messages(x, made._prepare(trees(4, 1, 1), hard=True))
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        grad.sum().backward()


def test_compiled_as_one_graph():
    made = decoder(5, 16)
    structure, first = trees(5, 3), torch.rand(3, 5, 2, generator=seeded(1)).to(DEVICE)
    grads = []
    for unroll in (made.unroll, torch.compile(made.unroll, fullgraph=True, backend="aot_eager")):
        loss = unroll(first, structure, 2, hard=True).square().sum()
        grads.append(torch.autograd.grad(loss, [*made.parameters()]))
    assert all(e < EXACT for e in errors(*grads))


def test_the_operator_is_as_torch_wants_it():
    made = decoder(4, 16)
    second = messages.Second(*[t.detach() for t in made._prepare(trees(4, 1, 1), hard=True).second])
    halves = torch.randn(1, 4, 1, 2, 2, 16, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    torch.library.opcheck(messages.tree_messages, (halves, *second))
    torch.library.opcheck(messages._grad, (torch.ones(1, 1, 4, 1, 16, device=DEVICE), halves, *second[1:]))


# --- on real hardware ---

GPU = pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device; the interpreter knows no such thing")


def test_what_is_served():
    def serves(n, hidden, dtype=torch.float32, items=2):
        return SERVES(torch.empty(items, 1, n, n, dtype=dtype, device=DEVICE), hidden)

    assert all(serves(*size) == (DEVICE == "cuda") for size in [(3, 16), (10, 256), (32, 512)])
    assert not any(serves(*size) for size in [(2, 16), (33, 16), (5, 8), (5, 24), (5, 528)])
    assert not serves(5, 16, torch.float64)
    assert not serves(5, 16, items=0)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("precision", ["highest", "high", "half"])
@pytest.mark.parametrize("size", [(10, 256, 128, 1, 1), (10, 256, 100, 9, 1), (7, 512, 30, 2, 2), (32, 80, 20, 1, 1)])
def test_larger_sizes(size, precision):
    """Those of the paper, and others at which blocks, warps and programs are all busy."""
    expected = summed(size, torch.float64)
    torch.set_float32_matmul_precision("highest" if precision == "highest" else "high")
    with torch.autocast(DEVICE, HALF, enabled=precision == "half"):
        value, *grads = errors(summed(size), expected)
    # Among millions of sums some are so near zero that float32 sees the other sign.
    assert value < (EXACT if precision == "highest" else VALUE)
    assert all(g < (1e-3 if precision == "highest" else GRADIENT) for g in grads)


@pytest.mark.gpu
@GPU
def test_in_a_cuda_graph():
    made, structure, first = decoder(10, 64), trees(10, 33), torch.rand(33, 10, 2, generator=seeded(1)).to(DEVICE)

    def gradients():
        loss = made.unroll(first, structure, 3, hard=True).square().sum()
        return torch.autograd.grad(loss, [*made.parameters()])

    expected = gradients()  # and compiled, before anything is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients()
    for _ in range(2):
        graph.replay()
        assert all(e < EXACT for e in errors(found, expected))
