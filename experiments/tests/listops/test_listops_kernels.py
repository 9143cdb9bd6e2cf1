"""The kernels for messages of ListOps against the formula in torch, in float64: on a GPU where there is one, else in
Triton's interpreter on the CPU. Memory that kernels must fill is poisoned, and so is what lies on both sides of it."""

import kernelcases
import pytest
import torch
from common import seeded
from kernel_vs_torch import gradients_both_ways
from kernelcases import DEVICE, LARGE, RECORDED
from listops_networks import make, tokens
from listops_networks import soft as soft_structures

import gumtrace as gt
from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find
from gumtrace_experiments.listops import messages
from gumtrace_experiments.listops.model import Classifier, Masks

ARBORESCENCE = gt.Arborescence(torch.zeros(12, 12), validate_args=False)  # a check would be compiled
SMOOTH = [name for name, cls in ESTIMATORS.items() if cls.differentiates and cls.supports(ARBORESCENCE)]

poisoned = kernelcases.poisoned
pytestmark = [pytest.mark.device, pytest.mark.usefixtures("one_thread", "precision")]

SERVES, EMPTY, EMPTY_LIKE = messages.serves, torch.empty, torch.empty_like
SIZES = {  # tokens, hidden, items, samples, programs in all
    "one": (1, 1, 1, 1, 1),
    "alone": (5, 8, 1, 1, 1),  # one program for all receivers
    "parts": (5, 8, 3, 1, 6),
    "each": (7, 20, 2, 1, 99),  # a program for each receiver
    "samples": (6, 10, 2, 3, 12),
    "wide": (3, 60, 2, 2, 8),
    "long": (50, 7, 1, 1, 4),
    "paper": (50, 60, 1, 1, 8),
    "full": (64, 64, 1, 1, 16),
}
WAYS = {torch.float32: messages.fused, torch.float64: messages.along_all}
EXACT = 5e-6  # of a norm: roundings of 2⁻²⁴, some hundred of them, and they partly cancel
VALUE, GRADIENT = 10 * 2**-9, 0.1  # in TF32: a relu that flips costs a gradient


@pytest.fixture
def precision(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(getattr(request, "param", "highest"))
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """The kernels take what is float32, on the CPU as well; there, the fewer programs the better."""
    monkeypatch.setattr(messages, "serves", lambda structure, hidden: structure.dtype == torch.float32)
    if DEVICE == "cpu":
        monkeypatch.setattr(messages, "PROGRAMS", 6)


@pytest.fixture
def plain_memory(poisoned, monkeypatch):
    """For torch's own tracing, which asks for memory that is none."""
    monkeypatch.setattr(torch, "empty", EMPTY)
    monkeypatch.setattr(torch, "empty_like", EMPTY_LIKE)


def inputs(size, dtype, dropout=0.3):
    """Structures with padding, what tokens receive by and send, the layer, and a gradient that ends before the
    structures do; and which entries stay."""
    n, hidden, items, samples, _ = size
    draw = seeded(1)
    lengths = torch.randint((n + 1) // 2, n + 1, (items,), generator=draw)
    inside = torch.arange(n) < lengths[:, None]
    structure = (torch.rand(samples, items, n, n, generator=draw) * 1.4 - 0.2) * inside[:, :, None] * inside[:, None, :]
    receiving, sending = torch.randn(items, n, hidden, generator=draw), torch.randn(items, n, hidden, generator=draw)
    sending = sending + torch.randn(samples, 1, 1, 1, generator=draw)
    weight, bias = torch.randn(hidden, hidden, generator=draw) / hidden**0.5, torch.randn(hidden, generator=draw)
    grad = torch.randn(samples, items, n, hidden, generator=draw) * inside[..., None]
    grad[:, :, -1] = 0
    keep = torch.rand(items, n, hidden, generator=draw) >= dropout
    made = [x.to(DEVICE, dtype).requires_grad_() for x in (structure, receiving, sending, weight, bias, grad)]
    return made, keep.to(DEVICE)


def found(size, dtype=torch.float32):
    """Messages summed; gradients to all that makes them; gradients of a combination of these, to all that and to the
    gradient they come from."""
    (*given, grad), keep = inputs(size, dtype)
    structure, receiving, sending, *layer = given
    out = WAYS[dtype](structure, receiving, torch.where(keep, sending, -torch.inf), *layer)
    first = torch.autograd.grad(out, given, grad, create_graph=True)
    weights = [torch.randn(x.shape, generator=seeded(2)).to(x) for x in first]
    total = sum((w * x).sum() for w, x in zip(weights, first, strict=True))
    second = torch.autograd.grad(total, [*given, grad])
    return [x.detach() for x in (out, *first, *second)]


def error(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).norm() / theirs.norm().clamp(min=1e-12)).item()  # nan where anything is


def errors(ours, theirs):
    return [error(*pair) for pair in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.slow
def test_messages_and_their_derivatives(size, monkeypatch):
    monkeypatch.setattr(messages, "PROGRAMS", size[-1])
    expected = found(size, torch.float64)
    assert size[0] == 1 or all(x.any() for x in expected)
    assert all(e < EXACT for e in errors(found(size), expected))


@pytest.mark.parametrize("precision", ["high"], indirect=True)
@pytest.mark.parametrize("name", ["samples", "paper"])
@pytest.mark.slow
def test_in_tf32(name, precision):
    """In the interpreter the products are not rounded."""
    value, *grads = errors(found(SIZES[name]), found(SIZES[name], torch.float64))
    assert value < (VALUE if DEVICE == "cuda" else EXACT)
    assert all(g < (GRADIENT if DEVICE == "cuda" else EXACT) for g in grads)


@pytest.mark.parametrize(("which", "frozen"), [(0, True), *((which, False) for which in range(5))])
@pytest.mark.slow
def test_of_one_gradient_alone(which, frozen):
    """Nobody differentiates the others; and the layer need not have one."""
    runs = []
    for dtype, along in WAYS.items():
        (*given, grad), _ = inputs(SIZES["samples"], dtype)
        for x in given[3:]:
            x.requires_grad_(not frozen)
        (first,) = torch.autograd.grad(along(*given), given[which], grad, create_graph=True)
        wanted = [x for x in (*given, grad) if x.requires_grad]
        second = torch.autograd.grad(first.square().sum(), wanted, materialize_grads=True)
        assert first.any()
        assert second[-1].any()
        runs.append([first.detach(), *second])
    assert all(e < EXACT for e in errors(*runs))


@pytest.mark.parametrize("last", [0, 3])
def test_what_stops_early_leaves_zeros(last):
    """In the last round a gradient comes from the first token alone."""
    runs = []
    for dtype, along in WAYS.items():
        (structure, *others, grad), _ = inputs(SIZES["each"], dtype)
        reached = torch.arange(7, device=DEVICE) < last
        given = [(structure * reached[:, None]).detach().requires_grad_(), *others]
        grad = (grad * (torch.arange(7, device=DEVICE) < 1)[:, None]).detach().requires_grad_()
        out = along(*given)
        first = torch.autograd.grad(out, given, grad, create_graph=True)
        runs.append([out.detach(), *first, *torch.autograd.grad(sum(x.square().sum() for x in first), [*given, grad])])
        assert not out[..., last:, :].any()
    assert all(e < EXACT for e in errors(*runs))


def test_what_is_no_number_is_not_passed_over():
    (structure, *others, grad), _ = inputs(SIZES["parts"], torch.float32)
    with torch.no_grad():
        structure[0, 1, 4, 2] = torch.nan
        grad[0, 2] = 0
        grad[0, 2, 4, 3] = torch.nan
    out = messages.fused(structure, *others)
    first = torch.autograd.grad(out, [structure, *others], grad)
    assert out.isnan().any(-1).nonzero().tolist() == [[0, 1, 4]]
    assert first[0].isnan().any(-1).nonzero().tolist() == [[0, 2, 4]]


def test_equal_inputs_give_equal_bits():
    """That says more on a GPU: the interpreter runs programs one by one."""
    assert all(x.equal(y) for x, y in zip(found(SIZES["samples"]), found(SIZES["samples"]), strict=True))


@pytest.mark.skipif(DEVICE == "cuda", reason="turns the order of the interpreter around; a GPU keeps to none")
def test_programs_may_run_in_any_order(monkeypatch):
    """What one leaves no other changes: the interpreter runs them one by one, here the last first."""
    from triton.runtime.interpreter import interpreter_builder as builder

    def backwards(*place):
        run(*[count - 1 - i for count, i in zip(builder.grid_dim, place, strict=True)])

    monkeypatch.setattr(messages, "PROGRAMS", SIZES["samples"][-1])
    expected, run = found(SIZES["samples"]), builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", backwards)
    assert all(x.equal(y) for x, y in zip(found(SIZES["samples"]), expected, strict=True))


def test_a_third_derivative_is_refused():
    (*given, grad), _ = inputs(SIZES["alone"], torch.float32)
    (first,) = torch.autograd.grad(messages.fused(*given), given[0], grad, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), given[2], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        second.sum().backward()


@pytest.mark.usefixtures("plain_memory")
@pytest.mark.slow
def test_the_operators_are_as_torch_wants_them():
    (*given, weight, bias, grad), _ = inputs(SIZES["alone"], torch.float32)
    flat = [*(x.detach().flatten(0, -3).requires_grad_() for x in given), weight, bias]
    grad = grad.detach()[0]
    torch.library.opcheck(messages.sum_messages, flat)
    for to_layer in (True, False):
        torch.library.opcheck(messages._grad, (grad, *flat, to_layer))
        along = [torch.randn_like(x) for x in flat[:3]]
        for layer in (None, torch.randn(9, 8, device=DEVICE)):
            torch.library.opcheck(messages._grad_twice, (*along, layer, grad, *(x.detach() for x in flat), to_layer))


# --- in the classifier and in training ---


def answers(model):
    """With dropout, and gradients to all parameters and the structures."""
    structure = soft_structures(2).to(model.out1.weight).requires_grad_()
    masks = Masks(*(x.to(DEVICE) for x in model.masks(tokens(), seeded())))
    out = model(tokens().to(DEVICE), structure, hard=False, masks=masks)
    weights = torch.randn(out.shape, generator=seeded(4)).to(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [*model.parameters(), structure])]


def test_the_classifier_is_that_of_torch():
    ours, theirs = (answers(make(Classifier, dtype, dropout=0.4).to(DEVICE).train()) for dtype in WAYS)
    assert all(e < EXACT for e in errors(ours, theirs))


@pytest.mark.usefixtures("plain_memory")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch's own compiler
def test_compiled_as_one_graph():
    model = make(Classifier, torch.float32).to(DEVICE).train()
    expected = answers(model)
    model.compile(fullgraph=True, backend="aot_eager")
    assert all(e < EXACT for e in errors(answers(model), expected))


ListOps = find("listops")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    config = ListOps.config_type(longest=12, depth=2, train_size=8, test_size=4)
    return ListOps.load(config, tmp_path_factory.mktemp("data"), torch.device(DEVICE))


@pytest.mark.parametrize(("estimator", "learn"), [*((name, True) for name in SMOOTH), ("REBAR", False)])
@pytest.mark.slow
def test_the_gradients_of_an_update(estimator, learn, data, monkeypatch):
    config = ListOps.config_type(longest=12, depth=2, rounds=2, hidden=12, estimator=estimator, draws=2)
    config = config.replace(learn_temperature=learn)
    ours, theirs, calls = gradients_both_ways(ListOps, config, data, messages, "fused", DEVICE, monkeypatch)
    assert calls == 2 * (2 if estimator == "REBAR" else 1)
    assert all(error(ours[name], theirs[name]) < 1e-3 for name in ours)


# --- on real hardware ---


def test_what_is_served():
    def serves(n, hidden, dtype=torch.float32, items=2):
        return SERVES(torch.empty(items, n, n, dtype=dtype, device=DEVICE), hidden)

    assert all(serves(*size) == (DEVICE == "cuda") for size in [(1, 1), (50, 60), (64, 64)])
    assert not any(serves(*size) for size in [(65, 60), (50, 65)])
    assert not serves(5, 16, torch.float64)
    assert not serves(5, 16, items=0)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert not serves(5, 16)


@pytest.mark.gpu
@LARGE
@pytest.mark.parametrize("precision", ["highest", "high"], indirect=True)
@pytest.mark.parametrize("size", [(50, 60, 100, 1), (50, 60, 33, 1), (37, 32, 20, 4), (20, 16, 700, 1)])
def test_larger_sizes(size, precision):
    """Those of the paper, and others at which multiprocessors are all busy."""
    value, *grads = errors(found((*size, 0)), found((*size, 0), torch.float64))
    exact = torch.get_float32_matmul_precision() == "highest"
    # Among millions of sums some are so near zero that float32 sees the other sign.
    assert value < (EXACT if exact else VALUE)
    assert all(g < (1e-3 if exact else GRADIENT) for g in grads)


@pytest.mark.gpu
@RECORDED
@pytest.mark.usefixtures("plain_memory")
def test_in_a_cuda_graph():
    (*given, grad), _ = inputs((50, 60, 33, 1, 0), torch.float32)

    def gradients():
        (slope,) = torch.autograd.grad(messages.fused(*given), given[0], grad, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [*given, grad])

    expected = gradients()  # and compiled, before anything is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients()
    for _ in range(2):
        graph.replay()
        assert all(e < EXACT for e in errors(found, expected))
