"""The decoder's kernels for messages against its way in plain torch, in float64: on a GPU where there is one, else in
Triton's interpreter on the CPU. Memory that kernels must fill is poisoned with nan."""

import layout_decoders
import pytest
import torch
from kernelcases import DEVICE, LARGE
from layout_decoders import (
    EXACT,
    GRADIENT,
    HALF,
    SIZES,
    SOFT,
    VALUE,
    decoder,
    error,
    errors,
    frames,
    soft,
    summed,
    trees,
)

from gumtrace_experiments.graph_layout import messages
from gumtrace_experiments.graph_layout.decoder import _messages

everywhere, poisoned, precision = layout_decoders.everywhere, layout_decoders.poisoned, layout_decoders.precision
pytestmark = [pytest.mark.device, pytest.mark.usefixtures("one_thread", "poisoned", "precision")]

SERVES = messages.serves
every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
SOME = ["paper", "more-samples", "alone"]
TREES_AND_SOFT = pytest.mark.parametrize(
    ("size", "structures"),
    [(SIZES[name], trees) for name in ("some-left", "both", "paper", "alone")] + [(SOFT[name], soft) for name in SOME],
)


@every_size
@pytest.mark.slow
def test_messages_and_gradients(size):
    assert all(e < EXACT for e in errors(summed(size), summed(size, torch.float64)))


@pytest.mark.parametrize("size", SOFT.values(), ids=SOFT)
@pytest.mark.slow
def test_soft_structures(size):
    assert all(e < EXACT for e in errors(summed(size, structures=soft), summed(size, torch.float64, soft)))


@TREES_AND_SOFT
@pytest.mark.slow
def test_in_tf32(size, structures):
    """In the interpreter the products are not rounded."""
    torch.set_float32_matmul_precision("high")
    value, *grads = errors(summed(size, structures=structures), summed(size, torch.float64, structures))
    assert value < (VALUE if DEVICE == "cuda" else EXACT)
    assert all(g < (GRADIENT if DEVICE == "cuda" else EXACT) for g in grads)


@TREES_AND_SOFT
@pytest.mark.slow
def test_in_half_precision(size, structures):
    expected = summed(size, torch.float64, structures)
    with torch.autocast(DEVICE, HALF):
        found = summed(size, structures=structures)
    assert [x.dtype for x in found] == [HALF, *[torch.float32] * (len(found) - 1)]
    value, *grads = errors(found, expected)
    assert 0 < value < VALUE
    assert all(0 < g < GRADIENT for g in grads)


def test_trees_may_go_as_soft_structures():
    """Samples share their messages then."""
    n, hidden, items, count, samples = size = SIZES["both"]
    made, x, structure = decoder(n, hidden), frames(size), trees(n, items, samples)
    runs = []
    for hard in (True, False):
        out = _messages(x, made._prepare(structure, hard)).reshape(items, samples, n, count, hidden)
        runs.append([out.detach(), *torch.autograd.grad(out.square().sum(), [x, *made.message2.parameters()])])
    assert all(e < EXACT for e in errors(*runs))


def test_a_sum_of_differences():
    """The gradient to a soft structure against finite differences of what the kernels make: it is linear in it."""
    n, hidden, items, _, samples = size = SOFT["samples"]
    made, x, structure = decoder(n, hidden), frames(size), soft(n, items, samples)

    def total(structure):
        return _messages(x, made._prepare(structure, hard=False)).double().square().sum()

    (grad,) = torch.autograd.grad(total(structure), structure)
    assert not grad.diagonal(dim1=-2, dim2=-1).any()
    with torch.no_grad():
        for at in [(0, 0, 1, 0), (1, 2, 0, 4), (2, 1, 3, 2)]:
            step = torch.zeros_like(structure)
            step[at] = 0.125
            slope = (total(structure + step) - total(structure - step)) / 0.25
            assert slope.item() == pytest.approx(grad[at].item(), rel=1e-4)


@pytest.mark.parametrize(("name", "structures"), [("paper-both", trees), ("more-samples", soft)])
@pytest.mark.slow
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
    whole = _messages(x, made._prepare(structure, hard))
    for i in range(items):
        alone = _messages(x[i : i + 1], made._prepare(structure[i : i + 1], hard))
        assert error(alone[0], whole[i]) < EXACT


@pytest.mark.parametrize("structures", [trees, soft])
def test_the_operators_are_as_torch_wants_them(structures):
    made, hard = decoder(4, 16), structures is trees
    given = [t.detach() for t in vars(made._prepare(structures(4, 1, 1), hard).messages).values()]
    x = torch.randn(1, 4, 1, 2, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    out, *kept = messages.sum_messages(x, *given, True)
    pairs = (12 if hard else 24, 16)
    assert [x.shape for x in kept] == [pairs, out.shape if hard else pairs]
    first, _, *others = given
    torch.library.opcheck(messages._grad, (torch.ones_like(out), x, first, *others, *kept, not hard))
    if not hard:
        given[-1].requires_grad_()
    torch.library.opcheck(messages.sum_messages, (x, *given, True))


@pytest.mark.parametrize("structures", [trees, soft])
def test_what_is_not_kept_comes_in_parts(structures, monkeypatch):
    """Without gradients, as few items at a time as fit: here one."""
    n, hidden, items, _, samples = SIZES["both"]
    made, x = decoder(n, hidden), frames(SIZES["both"])
    wiring = made._prepare(structures(n, items, samples), structures is trees)
    with torch.no_grad():
        whole = _messages(x, wiring)
        monkeypatch.setattr(messages, "AT_ONCE", 1)
        assert error(_messages(x, wiring), whole) < EXACT  # products of fewer rows may round otherwise


def test_what_is_served():
    def serves(n, hidden, dtype=torch.float32, items=2):
        return SERVES(torch.empty(items, 1, n, n, dtype=dtype, device=DEVICE), hidden)

    assert all(serves(*size) == (DEVICE == "cuda") for size in [(3, 16), (10, 256), (32, 512)])
    assert not any(serves(*size) for size in [(2, 16), (33, 16), (5, 8), (5, 24), (5, 528)])
    assert not serves(5, 16, torch.float64)
    assert not serves(5, 16, items=0)


@pytest.mark.gpu
@LARGE
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
