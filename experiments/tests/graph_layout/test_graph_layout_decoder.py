"""The decoder with its kernels against the same in plain torch, in float64: over steps, differentiated, compiled, and
in updates of every estimator. On a GPU where there is one, else in Triton's interpreter on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import layout_decoders
import pytest
import torch
from common import seeded
from kernel_vs_torch import gradients_both_ways
from kernelcases import DEVICE, RECORDED
from layout_decoders import EXACT, GRADIENT, HALF, SIZES, VALUE, decoder, error, errors, frames, soft, trees

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments import find
from gumtrace_experiments.graph_layout import messages, repeated_messages
from gumtrace_experiments.graph_layout.decoder import _messages

everywhere, poisoned, precision = layout_decoders.everywhere, layout_decoders.poisoned, layout_decoders.precision
pytestmark = [pytest.mark.device, pytest.mark.usefixtures("one_thread", "poisoned", "precision")]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("structures", [trees, soft])
@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("structures", "kept"), [(trees, repeated_messages.KEPT), (soft, repeated_messages.KEPT), (trees, 0)]
)
def test_steps_of_a_loop(structures, kept, monkeypatch):
    """Gradients to the weights are made once for all steps, where there is room for that: for all that a backward pass
    reaches, which may be fewer than were announced, and whatever was asked for before."""
    monkeypatch.setattr(repeated_messages, "KEPT", kept)
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


@pytest.mark.parametrize("structures", [trees, soft])
def test_a_second_derivative_is_refused(structures):
    made, x, structure = decoder(4, 16), frames(SIZES["one"]), structures(4, 1, 1)
    out = _messages(x, made._prepare(structure, hard=structures is trees))
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="twice=True"):
        grad.sum().backward()
    again = repeated_messages.RepeatedMessages(made._prepare(structure, hard=structures is trees).messages, 1)
    out = again(torch.rand(1, 4, 1, 2, device=DEVICE, requires_grad=True))
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
@pytest.mark.slow
def test_compiled_as_one_graph(structures):
    made = decoder(5, 16)
    structure, first = structures(5, 3), torch.rand(3, 5, 2, generator=seeded(1)).to(DEVICE)
    grads = []
    for unroll in (made.unroll, torch.compile(made.unroll, fullgraph=True, backend="aot_eager")):
        loss = unroll(first, structure, 2, hard=structures is trees).square().sum()
        grads.append(torch.autograd.grad(loss, [*made.parameters(), *[structure] * structure.requires_grad]))
    assert all(e < EXACT for e in errors(*grads))


@pytest.mark.gpu
@RECORDED
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


# --- in training ---

GraphLayout = find("graph-layout")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    config = GraphLayout.config_type(frames=3, nodes=4, train_size=4, test_size=4)
    return GraphLayout.load(config, tmp_path_factory.mktemp("data"), torch.device(DEVICE))


@pytest.mark.parametrize(("estimator", "learn"), [*((name, True) for name in ESTIMATORS), ("REBAR", False)])
@pytest.mark.parametrize("training", ["teacher-forced", "unrolled"])
@pytest.mark.slow
def test_the_gradients_of_an_update(estimator, learn, training, data, monkeypatch):
    """Second derivatives, which REBAR wants to learn its temperature, come from torch alone."""
    config = GraphLayout.config_type(
        frames=3, nodes=4, hidden=16, critic_hidden=8, estimator=estimator, training=training, extra=4, draws=2
    ).replace(learn_temperature=learn)
    *grads, calls = gradients_both_ways(GraphLayout, config, data, messages, "forward_step", DEVICE, monkeypatch)
    assert error(*(torch.cat([found[name].flatten() for name in found]) for found in grads)) < 1e-4
    assert bool(calls) == (not config.learns_temperature)


@pytest.mark.slow
def test_kernels_run_whatever_is_collected_first():
    """Doctests import them before the tests do: without a GPU they are to be interpreted by then."""
    first, one = str(Path(messages.__file__).parent), "is_that_of_torch and trees-False"
    fresh = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_INTERPRET", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", first, __file__, "-k", one]
    run = subprocess.run(command, capture_output=True, text=True, env=fresh, cwd=Path(__file__).parents[3], timeout=300)
    assert run.returncode == 0, run.stdout
