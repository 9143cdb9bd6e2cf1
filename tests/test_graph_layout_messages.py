"""The decoder's kernels against its way in plain torch, in float64: on a GPU where there is one, else in Triton's
interpreter on the CPU. Memory that kernels must fill is poisoned with nan."""

import os

import pytest
import torch
from common import seeded
from updates import gradients_both_ways

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="needs triton: it comes with CUDA builds of torch, or pip install triton")

import gumtrace as gt
from gumtrace.experiments import find
from gumtrace.experiments.config import ESTIMATORS
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
SOFT = {
    "one": (4, 16, 1, 1, 1),
    "smallest": (3, 16, 11, 1, 1),  # 32 receivers a tile
    "smallest-samples": (3, 16, 3, 1, 8),  # eight, which do not fill it
    "frames": (5, 16, 3, 9, 1),
    "samples": (5, 32, 3, 1, 3),
    "paper": (10, 32, 4, 1, 1),  # seven receivers a tile, of two items
    "paper-frames": (10, 16, 1, 9, 1),
    "paper-both": (10, 48, 2, 2, 8),
    "more-samples": (5, 16, 2, 2, 11),  # than are summed up together
    "alone": (17, 16, 2, 1, 2),
    "largest": (32, 16, 1, 1, 1),
}
SOME = ["paper", "more-samples", "alone"]
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


def soft(n, *batch, dtype=torch.float32):
    """Any weights, 0 and 1 among them, nor are they symmetric."""
    weights = (torch.rand(*batch, n, n, generator=seeded(2)) * 1.2 - 0.1).clamp(0, 1)
    return weights.to(DEVICE, dtype).requires_grad_()


def summed(size, dtype=torch.float32, structures=trees):
    """Messages summed, (I, K, n, F, hidden), and gradients to the nodes, all parameters that make them, and soft
    structures."""
    n, hidden, items, count, samples = size
    made, x = decoder(n, hidden, dtype), frames(size, dtype)
    structure = structures(n, items, samples, dtype=dtype)
    wiring = made._prepare(structure, hard=structures is trees)
    assert isinstance(wiring, model._Fused) == (dtype == torch.float32)
    out = model._messages(x, wiring).reshape(items, samples, n, count, hidden)
    weights = torch.randn(out.shape, generator=seeded(3)).to(out)
    inputs = [x, *made.message1.parameters(), *made.message2.parameters(), *[structure] * structure.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


def error(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).norm() / theirs.norm()).item()  # nan where anything is


def errors(ours, theirs):
    return [error(*pair) for pair in zip(ours, theirs, strict=True)]


@every_size
def test_messages_and_gradients(size):
    assert all(e < EXACT for e in errors(summed(size), summed(size, torch.float64)))


@pytest.mark.parametrize("size", SOFT.values(), ids=SOFT)
def test_soft_structures(size):
    assert all(e < EXACT for e in errors(summed(size, structures=soft), summed(size, torch.float64, soft)))


TREES_AND_SOFT = pytest.mark.parametrize(
    ("size", "structures"),
    [(SIZES[name], trees) for name in ("some-left", "both", "paper", "alone")] + [(SOFT[name], soft) for name in SOME],
)


@TREES_AND_SOFT
def test_in_tf32(size, structures):
    """The other sizes of tiles. In the interpreter the products are not rounded."""
    torch.set_float32_matmul_precision("high")
    value, *grads = errors(summed(size, structures=structures), summed(size, torch.float64, structures))
    assert value < (VALUE if DEVICE == "cuda" else EXACT)
    assert all(g < (GRADIENT if DEVICE == "cuda" else EXACT) for g in grads)


@TREES_AND_SOFT
def test_in_half_precision(size, structures):
    expected = summed(size, torch.float64, structures)
    with torch.autocast(DEVICE, HALF):
        found = summed(size, structures=structures)
    assert [x.dtype for x in found] == [HALF, *[torch.float32] * (len(found) - 1)]
    value, *grads = errors(found, expected)
    assert 0 < value < VALUE
    assert all(0 < g < GRADIENT for g in grads)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("structures", [trees, soft])
def test_the_decoder_is_that_of_torch(structures, half):
    """Several steps, each sample with its own structure; frames that share theirs."""
    n, items, samples, steps = 5, 3, 2, 3
    structure, first = structures(n, samples, items), torch.rand(items, n, 2, generator=seeded(1)).to(DEVICE)
    runs = []
    for dtype in (torch.float32, torch.float64):
        made = decoder(n, 32, dtype)
        x, graph = first.to(dtype), structure.detach().to(dtype).requires_grad_(structure.requires_grad)
        hard = structures is trees
        with torch.autocast(DEVICE, HALF, enabled=half and dtype == torch.float32):
            unrolled = made.unroll(x, graph, steps, hard=hard)
            forced = made(unrolled[0].detach(), graph, hard=hard)
        (unrolled.square().sum() + forced.square().sum()).backward()
        leaves = [*made.parameters(), *[graph] * graph.requires_grad]
        runs.append([unrolled.detach(), forced.detach(), *(p.grad for p in leaves)])
    found = errors(*runs)
    assert all(e < (VALUE if half else EXACT) for e in found[:2])
    assert all(e < (GRADIENT if half else EXACT) for e in found[2:])


@pytest.mark.parametrize(("structures", "kept"), [(trees, messages.KEPT), (soft, messages.KEPT), (trees, 0)])
def test_steps_of_a_loop(structures, kept, monkeypatch):
    """Gradients to the weights are made once for all steps, where there is room for that: for all that a backward pass
    reaches, which may be fewer than were announced, and whatever was asked for before."""
    monkeypatch.setattr(messages, "KEPT", kept)
    products, mm = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *given, **out: products.append(1) or mm(*given, **out))
    structure, hard, runs = structures(5, 3, 1), structures is trees, []
    for dtype in (torch.float32, torch.float64):
        made, first = decoder(5, 16, dtype), frames((5, 16, 3, 1, 1), dtype)
        graph = structure.detach().to(dtype).requires_grad_(structure.requires_grad)
        wiring, x, out = made._prepare(graph, hard, steps=4), first, []
        for _ in range(3):
            x = made._step(x, wiring).squeeze(1)
            out.append(x)
        leaves = [first, *made.parameters(), *[graph] * graph.requires_grad]
        found = [*torch.autograd.grad(x.square().sum(), first, retain_graph=True)]
        for reached in (2, 3):
            products.clear()
            found += torch.autograd.grad(out[reached - 1].square().sum(), leaves, retain_graph=True)
            assert len(products) == (0 if dtype == torch.float64 else 2 if kept else 2 * reached)
        runs.append(found)
    assert all(e < EXACT for e in errors(*runs))


def test_frozen_weights_keep_nothing():
    made, structure = decoder(4, 16).requires_grad_(False), soft(4, 2)
    first = torch.rand(2, 4, 2, generator=seeded(1)).to(DEVICE)
    loss = made.unroll(first, structure, 3, hard=False).square().sum()
    plain = made.unroll(first, structure, 3, hard=False, twice=True).square().sum()
    grads = [torch.autograd.grad(x, structure)[0] for x in (loss, plain)]
    assert error(*grads) < EXACT


def test_trees_may_go_as_soft_structures():
    """Samples share their messages then."""
    n, hidden, items, count, samples = size = SIZES["both"]
    made, x, structure = decoder(n, hidden), frames(size), trees(n, items, samples)
    runs = []
    for hard in (True, False):
        out = model._messages(x, made._prepare(structure, hard)).reshape(items, samples, n, count, hidden)
        runs.append([out.detach(), *torch.autograd.grad(out.square().sum(), [x, *made.message2.parameters()])])
    assert all(e < EXACT for e in errors(*runs))


def test_a_sum_of_differences():
    """The gradient to a soft structure against finite differences of what the kernels make: it is linear in it."""
    n, hidden, items, _, samples = size = SOFT["samples"]
    made, x, structure = decoder(n, hidden), frames(size), soft(n, items, samples)

    def total(structure):
        return model._messages(x, made._prepare(structure, hard=False)).double().square().sum()

    (grad,) = torch.autograd.grad(total(structure), structure)
    assert not grad.diagonal(dim1=-2, dim2=-1).any()
    with torch.no_grad():
        for at in [(0, 0, 1, 0), (1, 2, 0, 4), (2, 1, 3, 2)]:
            step = torch.zeros_like(structure)
            step[at] = 0.125
            slope = (total(structure + step) - total(structure - step)) / 0.25
            assert slope.item() == pytest.approx(grad[at].item(), rel=1e-4)


@pytest.mark.parametrize(("name", "structures"), [("paper-both", trees), ("more-samples", soft)])
def test_equal_inputs_give_equal_bits(name, structures):
    size = (SIZES if structures is trees else SOFT)[name]
    runs = [summed(size, structures=structures) for _ in range(2)]
    assert all(x.equal(y) for x, y in zip(*runs, strict=True))


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU runs programs in any order")
@pytest.mark.parametrize(("size", "structures"), [((5, 16, 3, 3, 2), trees), ((10, 16, 3, 1, 2), soft)])
def test_programs_may_run_in_any_order(size, structures, monkeypatch):
    """What one leaves no other changes: the interpreter runs them one by one, here the last first."""
    from triton.runtime.interpreter import interpreter_builder as builder

    def backwards(*place):
        run(*[count - 1 - i for count, i in zip(builder.grid_dim, place, strict=True)])

    expected, run = summed(size, structures=structures), builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", backwards)
    assert all(x.equal(y) for x, y in zip(summed(size, structures=structures), expected, strict=True))


@pytest.mark.parametrize("structures", [trees, soft])
def test_scenes_do_not_depend_on_their_batch(structures):
    n, hidden, items, _, samples = SIZES["both"]
    made, x = decoder(n, hidden), frames(SIZES["both"])
    structure, hard = structures(n, items, samples), structures is trees
    whole = model._messages(x, made._prepare(structure, hard))
    for i in range(items):
        alone = model._messages(x[i : i + 1], made._prepare(structure[i : i + 1], hard))
        assert error(alone[0], whole[i]) < EXACT


@pytest.mark.parametrize("structures", [trees, soft])
def test_a_second_derivative_is_refused(structures):
    made, x, structure = decoder(4, 16), frames(SIZES["one"]), structures(4, 1, 1)
    out = model._messages(x, made._prepare(structure, hard=structures is trees))
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="twice=True"):
        grad.sum().backward()
    second = messages.Repeated(made._prepare(structure, hard=structures is trees).second, 1)
    out = second(torch.rand(1, 4, 1, 2, 2, 16, device=DEVICE, requires_grad=True))
    with pytest.raises(NotImplementedError, match="twice=True"):
        out.sum().backward(create_graph=True)


def test_twice_is_the_way_of_torch():
    made, x, structure = decoder(4, 16), frames(SIZES["one"]), soft(4, 1)
    slopes = []
    for dtype in (torch.float32, torch.float64):
        made, graph = made.to(dtype), structure.detach().to(dtype).requires_grad_()
        out = made.unroll(x.to(dtype)[:, :, 0], graph, 2, hard=False, twice=True)
        (grad,) = torch.autograd.grad(out.square().sum(), graph, create_graph=True)
        slopes.append(torch.autograd.grad(grad.square().sum(), [graph, *made.parameters()]))
    assert all(e < 10 * EXACT for e in errors(*slopes))


@pytest.mark.parametrize("structures", [trees, soft])
def test_compiled_as_one_graph(structures):
    made = decoder(5, 16)
    structure, first = structures(5, 3), torch.rand(3, 5, 2, generator=seeded(1)).to(DEVICE)
    grads = []
    for unroll in (made.unroll, torch.compile(made.unroll, fullgraph=True, backend="aot_eager")):
        loss = unroll(first, structure, 2, hard=structures is trees).square().sum()
        grads.append(torch.autograd.grad(loss, [*made.parameters(), *[structure] * structure.requires_grad]))
    assert all(e < EXACT for e in errors(*grads))


@pytest.mark.parametrize("structures", [trees, soft])
def test_the_operators_are_as_torch_wants_them(structures):
    made, hard = decoder(4, 16), structures is trees
    second = [t.detach() for t in made._prepare(structures(4, 1, 1), hard).second]
    halves = torch.randn(1, 4, 1, 2, 2, 16, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    torch.library.opcheck(messages._grad, (torch.ones(1, 1, 4, 1, 16, device=DEVICE), halves, *second[1:], not hard))
    if not hard:
        second[-1].requires_grad_()
    torch.library.opcheck(messages.sum_messages, (halves, *second))


# --- in training ---

GraphLayout = find("graph-layout")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    config = GraphLayout.config_type(frames=3, nodes=4, train_size=4, test_size=4)
    return GraphLayout.load(config, tmp_path_factory.mktemp("data"), torch.device(DEVICE))


@pytest.mark.parametrize(("estimator", "learn"), [*((name, True) for name in ESTIMATORS), ("REBAR", False)])
@pytest.mark.parametrize("training", ["teacher-forced", "unrolled"])
def test_the_gradients_of_an_update(estimator, learn, training, data, monkeypatch):
    """Second derivatives, which REBAR wants to learn its temperature, come from torch alone."""
    config = GraphLayout.config_type(
        frames=3, nodes=4, hidden=16, critic_hidden=8, estimator=estimator, training=training, extra=4, draws=2
    ).replace(learn_temperature=learn)
    *grads, calls = gradients_both_ways(GraphLayout, config, data, messages, "sum_messages", DEVICE, monkeypatch)
    assert error(*(torch.cat([found[name].flatten() for name in found]) for found in grads)) < 1e-4
    assert bool(calls) == (estimator != "REBAR" or not learn)


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
@pytest.mark.parametrize(
    ("size", "structures"),
    [((10, 256, 128, 1, 1), trees), ((7, 512, 30, 2, 2), trees)]
    + [(size, way) for size in [(10, 256, 100, 9, 1), (32, 80, 20, 1, 1)] for way in (trees, soft)]
    + [(size, soft) for size in [(10, 256, 16, 9, 8), (7, 512, 30, 2, 11), (3, 16, 500, 1, 1)]],
)
def test_larger_sizes(size, structures, precision):
    """Those of the paper, and others at which blocks, warps and programs are all busy."""
    expected = summed(size, torch.float64, structures)
    torch.set_float32_matmul_precision("highest" if precision == "highest" else "high")
    with torch.autocast(DEVICE, HALF, enabled=precision == "half"):
        value, *grads = errors(summed(size, structures=structures), expected)
    # Among millions of sums some are so near zero that float32 sees the other sign.
    assert value < (EXACT if precision == "highest" else VALUE)
    assert all(g < (1e-3 if precision == "highest" else GRADIENT) for g in grads)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("structures", [trees, soft])
def test_in_a_cuda_graph(structures):
    made, structure, first = decoder(10, 64), structures(10, 33), torch.rand(33, 10, 2, generator=seeded(1)).to(DEVICE)

    def gradients():
        loss = made.unroll(first, structure, 3, hard=structures is trees).square().sum()
        return torch.autograd.grad(loss, [*made.parameters(), *[structure] * structure.requires_grad])

    expected = gradients()  # and compiled, before anything is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients()
    for _ in range(2):
        graph.replay()
        assert all(e < EXACT for e in errors(found, expected))
