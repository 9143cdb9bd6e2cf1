"""What the decoder computes again for every structure: against the decoder as it is written down in float64, and its
kernels against plain torch. On a GPU where there is one, else in Triton's interpreter on the CPU."""

import layout_decoders
import layout_networks
import pytest
import torch
from common import seeded
from kernelcases import DEVICE
from layout_decoders import EXACT, GRADIENT, HALF, VALUE, errors
from layout_networks import make

from gumtrace_experiments.graph_layout import messages, node_update, repeated_messages
from gumtrace_experiments.graph_layout.decoder import SHARED, Decoder, FusedDecoder
from gumtrace_experiments.graph_layout.layers import Layer
from gumtrace_experiments.graph_layout.node_update import NodeUpdate, PlainUpdate

precision = layout_decoders.precision
pytestmark = pytest.mark.usefixtures("one_thread", "precision")
SIZES = {  # items, samples, n, frames, hidden
    "one": (1, 1, 3, 1, 16),
    "frames": (3, 1, 5, 4, 16),
    "samples": (2, 8, 4, 1, 32),
    "both": (3, 5, 5, 3, 16),
    "odd-width": (2, 3, 5, 2, 48),
    "wide": (2, 2, 4, 1, 512),  # fewer rows a program
}


# --- the whole decoder, in float64 ---


@pytest.mark.parametrize("samples", [1, SHARED - 1, SHARED, 8])
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("unrolled", [True, False])
def test_several_structures_are_as_each_alone(unrolled, hard, samples):
    """Positions and all parameters get the gradients that the plain decoder gives them; soft structures do, too."""
    n, items, frames = 5, 3, 4
    structure = (layout_networks.trees if hard else layout_networks.soft)(n, samples, items)
    weights, runs = torch.randn(samples, items, frames, n, 2, generator=seeded(5), dtype=torch.float64), []
    for network in (Decoder, FusedDecoder):
        model = make(network, n)
        positions = layout_networks.frames(n, items, frames).requires_grad_()
        graph = structure.clone().requires_grad_(not hard)
        given = {"hard": hard} if network is FusedDecoder else {}
        out = model.unroll(positions[:, 0], graph, frames, **given) if unrolled else model(positions, graph, **given)
        leaves = [positions, *model.parameters(), *[graph] * (not hard)]
        runs.append([out.detach(), *torch.autograd.grad((weights * out).sum(), leaves)])
    for ours, plain in zip(*runs, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


def test_the_first_step_is_shared(monkeypatch):
    """Its messages are made once for all samples, and those of later steps for each."""
    model, seen = make(FusedDecoder, 5), []
    real = FusedDecoder._step
    monkeypatch.setattr(FusedDecoder, "_step", lambda self, x, wiring: seen.append(len(x)) or real(self, x, wiring))
    for samples in (SHARED - 1, SHARED):
        seen.clear()
        structure = layout_networks.trees(5, samples, 2)
        model.unroll(layout_networks.frames(5, 2), structure, 3, hard=True)
        assert seen == ([2, 6, 6] if samples == SHARED else [4, 4, 4])


# --- the update of nodes alone ---


def update(size, kind, dtype, kernels=False, half=False):
    """What three steps make of nodes, and all gradients; in the end of each, the mean over samples is where it begins
    anew."""
    items, samples, n, frames, hidden = size
    shapes = [(hidden,), (hidden, 2), (hidden, hidden), (hidden,), (hidden, hidden), (2,), (2, hidden)]
    wide = [False, False, True, True, True, False, False]
    generator = seeded(3)
    leaves = [torch.randn(shape, generator=generator).mul(shape[-1] ** -0.5).to(DEVICE, dtype) for shape in shapes]
    leaves = [x.requires_grad_() for x in leaves]
    used = [x.to(HALF) if half and w else x for x, w in zip(leaves, wide, strict=True)]
    layers = [Layer(used[0], (used[1], used[2])), Layer(used[3], (used[4],)), Layer(used[5], (used[6],))]
    made = PlainUpdate(*layers) if kind is PlainUpdate else NodeUpdate(*layers, times=4, kernels=kernels)
    x = torch.randn(items, n, frames, 2, generator=generator).to(DEVICE, dtype).requires_grad_()
    received = torch.randn(3, items, samples, n, frames, hidden, generator=generator).to(DEVICE, dtype).requires_grad_()
    weights = torch.randn(items, samples, n, frames, 2, generator=generator).to(DEVICE, dtype)
    moved, total = x, 0.0
    for step in received:
        out = made(moved, step.to(HALF) if half else step)
        total, moved = total + (out * weights).sum(), out.mean(1)
    return [out.detach(), *torch.autograd.grad(total, [x, received, *leaves])]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_an_update_is_that_of_autograd(size):
    for ours, plain in zip(
        update(size, NodeUpdate, torch.float64), update(size, PlainUpdate, torch.float64), strict=True
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("grads", [True, False])
def test_steps_without_gradients_keep_nothing(grads, monkeypatch):
    """Neither layers of nodes nor messages at the pairs."""
    tapes, repeated = [], []
    for module, kept in ((node_update, tapes), (repeated_messages, repeated)):
        real = module._Tape
        monkeypatch.setattr(module, "_Tape", lambda *given, r=real, k=kept: k.append(r(*given)) or k[-1])
    model = make(FusedDecoder, 5, torch.float32).to(DEVICE)
    start, structure = (
        x.to(DEVICE, torch.float32) for x in (layout_networks.frames(5, 2), layout_networks.trees(5, 3, 2))
    )
    with torch.set_grad_enabled(grads):
        model.unroll(start, structure, 4, hard=True)
    assert [len(tape.wide) for tape in tapes] == [grads]
    assert len(repeated) == (grads and messages.serves(structure, model.out2.in_features))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.device
@pytest.mark.slow
def test_kernels(size, half, monkeypatch):
    """Memory that they must fill is poisoned with nan."""
    monkeypatch.setattr(torch, "empty", lambda *given, real=torch.empty, **more: real(*given, **more).fill_(torch.nan))
    value, *grads = errors(
        update(size, NodeUpdate, torch.float32, kernels=True, half=half), update(size, PlainUpdate, torch.float64)
    )
    assert value < (VALUE if half else EXACT)
    assert all(e < (GRADIENT if half else EXACT) for e in grads)


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.device
def test_programs_of_several_tiles(programs, monkeypatch):
    """Of 225 rows; a device that is large has more of them before a program gets a second tile."""
    monkeypatch.setattr(node_update, "PROGRAMS", programs)
    test_kernels(SIZES["both"], False, monkeypatch)


@pytest.mark.device
def test_a_gradient_without_memory_of_its_own():
    """That of a plain sum."""
    grads = []
    for kind, dtype in ((NodeUpdate, torch.float32), (PlainUpdate, torch.float64)):
        sizes = [(8, 2), (8, 8), (8, 8), (2, 8)]
        own, received, second, last = [torch.randn(size, generator=seeded(3)).to(DEVICE, dtype) for size in sizes]
        bias, moves = torch.zeros(8, device=DEVICE, dtype=dtype), torch.zeros(2, device=DEVICE, dtype=dtype)
        last.requires_grad_()
        layers = [Layer(bias, (own, received)), Layer(bias, (second,)), Layer(moves, (last,))]
        made = kind(*layers, times=1, kernels=True) if kind is NodeUpdate else kind(*layers)
        shapes = [(2, 3, 1, 2), (2, 2, 3, 1, 8)]
        made(*[torch.randn(size, generator=seeded(4)).to(DEVICE, dtype) for size in shapes]).sum().backward()
        grads.append([last.grad])
    assert max(errors(*grads)) < EXACT


def test_half_precision_without_kernels():
    value, *grads = errors(
        update(SIZES["both"], NodeUpdate, torch.float32, half=True), update(SIZES["both"], PlainUpdate, torch.float64)
    )
    assert 0 < value < VALUE
    assert all(0 < e < GRADIENT for e in grads)


def test_rows_of_a_program_fit():
    for hidden in (16, 48, 256, 512):
        options = node_update._options(hidden)
        assert options["WIDTH"] >= hidden > options["WIDTH"] // 2
        assert 1 <= options["ROWS"] * options["WIDTH"] <= node_update.MOST
