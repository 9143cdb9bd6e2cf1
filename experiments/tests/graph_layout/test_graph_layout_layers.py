"""Unrolled, the decoder makes gradients to its weights once for all steps: they are those of autograd, which makes them
at every step (twice=True)."""

import copy
import weakref

import pytest
import torch
from common import seeded
from torch.utils._python_dispatch import TorchDispatchMode

import gumtrace as gt
from gumtrace_experiments.graph_layout.decoder import FusedDecoder
from gumtrace_experiments.graph_layout.layers import Layer, Repeated

pytestmark = pytest.mark.usefixtures("one_thread")

N, HIDDEN, ITEMS, STEPS = 5, 12, 3, 4
EXACT = {"rtol": 1e-10, "atol": 1e-10}
both_structures = pytest.mark.parametrize("hard", [True, False])


def decoder(dtype=torch.float64):
    torch.manual_seed(0)
    return FusedDecoder(N, HIDDEN).to(dtype)


def scene(hard, samples=2, dtype=torch.float64):
    """The first frame, and structures of as many samples."""
    first = torch.rand(ITEMS, N, 2, dtype=dtype, generator=seeded(1)) * 2 - 1
    if hard:
        return first, gt.SpanningTree(torch.zeros(N, N, dtype=dtype)).sample((samples, ITEMS), generator=seeded(2))
    return first, torch.rand(samples, ITEMS, N, N, dtype=dtype, generator=seeded(3)).requires_grad_()


def loss_of(frames):
    weights = torch.randn(frames.shape, dtype=frames.dtype, generator=seeded(4))
    return (frames * weights).sum()


def leaves(model, *others):
    return [*(p for p in model.parameters() if p.requires_grad), *(x for x in others if x.requires_grad)]


def both(model, first, structure, hard):
    """Losses: ours, and that of autograd."""
    return [loss_of(model.unroll(first, structure, STEPS, hard=hard, twice=twice)) for twice in (False, True)]


def assert_alike(runs, **close):
    for ours, theirs in zip(*runs, strict=True):
        assert ours.abs().max() > 1e-6
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, **close)


@both_structures
@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_those_of_autograd(hard, samples, dtype):
    model, (first, structure) = decoder(dtype), scene(hard, samples, dtype)
    first.requires_grad_()
    runs = [torch.autograd.grad(loss, leaves(model, first, structure)) for loss in both(model, first, structure, hard)]
    assert_alike(runs, **(EXACT if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}))


@both_structures
def test_in_half_precision(hard):
    """Autograd rounds what it adds up at every step; we do not."""
    torch.manual_seed(0)
    model, runs = FusedDecoder(N, 64), []
    first, structure = scene(hard, 8, torch.float32)
    exact = torch.autograd.grad(loss_of(model.unroll(first, structure, STEPS, hard=hard)), leaves(model, structure))
    with torch.autocast("cpu", torch.bfloat16):
        losses = both(model, first, structure, hard)
    for loss in losses:
        assert loss.dtype == torch.float32
        runs.append(torch.autograd.grad(loss, leaves(model, structure)))
    for ours, theirs, wanted in zip(*runs, exact, strict=True):
        assert ours.dtype == torch.float32
        assert 0 < (ours - wanted).norm() < 0.1 * wanted.norm()
        assert (ours - theirs).norm() < 0.05 * wanted.norm()


class Count(TorchDispatchMode):
    """Products and sums, by shape of the result."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("mm", "sum"):
            self.made.append(tuple(out.shape))
        return out


def test_every_wide_weight_gets_one_product():
    model, (first, structure) = decoder(), scene(True)
    loss = loss_of(model.unroll(first, structure, STEPS, hard=True))
    with Count() as count:
        loss.backward()
    assert count.made.count((4 * HIDDEN, 2)) == 1
    assert count.made.count((HIDDEN, HIDDEN)) == 2  # of out1, and of out2
    assert sum(shape in [(4 * HIDDEN,), (1, 4 * HIDDEN)] for shape in count.made) == 1


def test_a_loss_of_the_first_frames():
    """And of those steps alone: what no gradient reaches, or was never made, adds nothing."""
    model, (first, structure), runs = decoder(), scene(False, 1), []
    for twice, steps in ((False, STEPS), (True, None)):
        x, made = first[:, :, None], []
        wiring = model._prepare(structure.transpose(0, 1), False, twice, steps)
        for _ in range(STEPS - 1):
            x = model._step(x, wiring).squeeze(1)
            made.append(x)
        runs.append(torch.autograd.grad(loss_of(made[1]), leaves(model, structure)))
    assert_alike(runs, **EXACT)


def test_some_gradients_now_and_others_later():
    """What one backward pass leaves behind is not part of the next."""
    model, (first, structure) = decoder(), scene(False)
    wanted = torch.autograd.grad(both(model, first, structure, False)[1], leaves(model, structure))
    frames = model.unroll(first, structure, STEPS, hard=False)
    torch.autograd.grad(loss_of(frames), structure, retain_graph=True)
    torch.autograd.grad(frames[..., 0, :, :].sum(), [*model.out2.parameters()], retain_graph=True)
    for retain in (True, False):
        found = torch.autograd.grad(loss_of(frames), leaves(model, structure), retain_graph=retain)
        assert_alike([found, wanted], **EXACT)
    with pytest.raises(RuntimeError, match="second time"):
        loss_of(frames).backward()


def test_gradients_are_added_to_those_there_are():
    model, (first, structure) = decoder(), scene(True)
    for _ in range(2):
        loss_of(model.unroll(first, structure, STEPS, hard=True)).backward()
    wanted = torch.autograd.grad(both(model, first, structure, True)[1], [*model.parameters()])
    assert_alike([[p.grad for p in model.parameters()], [2 * x for x in wanted]], **EXACT)


@pytest.mark.parametrize("frozen", ["", "weight", "bias", "out", "message", "out1.weight"])
def test_frozen_parameters(frozen):
    """All of them, or those whose names have this in it."""
    model, (first, structure) = decoder(), scene(False)
    for name, p in model.named_parameters():
        p.requires_grad_(frozen not in name)
    runs = []
    for loss in both(model, first, structure, False):
        loss.backward()
        runs.append([structure.grad, *(p.grad for p in model.parameters() if p.requires_grad)])
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        structure.grad = None
        model.zero_grad()
    assert_alike(runs, **EXACT)


def test_without_gradients():
    model, (first, structure) = decoder(), scene(True)
    frames = model.unroll(first, structure, STEPS, hard=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            again = model.unroll(first, structure, STEPS, hard=True)
        assert not again.requires_grad
        assert torch.equal(again, frames)


def test_a_second_derivative_is_refused():
    model, (first, structure) = decoder(), scene(False)
    loss = loss_of(model.unroll(first, structure, STEPS, hard=False))
    with pytest.raises(NotImplementedError, match="twice=True"):
        torch.autograd.grad(loss, structure, create_graph=True)


def test_weights_that_changed_meanwhile_are_refused():
    model, (first, structure) = decoder(), scene(True)
    loss = loss_of(model.unroll(first, structure, STEPS, hard=True))
    with torch.no_grad():
        model.out2.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Hook:
    """Lives as long as the graph it is in."""

    def __call__(self, grad):
        pass


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_left_in_memory(whole):
    """Without the help of the garbage collector, which knows nothing of graphs. And if only x is asked for, too."""
    layer = Layer(torch.zeros(2, requires_grad=True), (torch.eye(2, requires_grad=True),))
    repeated, x = Repeated(layer, times=3, rows=4), torch.ones(4, 2, requires_grad=True)
    inputs, hooks, y = [x, *([layer.bias] if whole else [])], [], x
    for _ in range(3):
        y, hook = repeated(y).sigmoid(), Hook()
        y.register_hook(hook)
        hooks.append(weakref.ref(hook))
    del hook
    torch.autograd.grad(y.sum(), inputs, retain_graph=True)
    assert all(hook() for hook in hooks)
    assert [x is None for x in repeated.seen] == [whole] * 3
    del y, repeated
    assert not any(hook() for hook in hooks)


def test_nothing_is_left_in_the_model():
    model = decoder()
    before = copy.deepcopy(model)
    model.unroll(*scene(True), STEPS, hard=True).sum().backward()
    assert [*model.state_dict()] == [*before.state_dict()]
    frames = [m.unroll(*scene(True), STEPS, hard=True) for m in (before, copy.deepcopy(model))]
    assert torch.equal(*frames)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch's own compiler
def test_compiled_steps_are_those_of_autograd():
    model, (first, structure) = decoder(), scene(True)
    wanted = torch.autograd.grad(both(model, first, structure, True)[1], [*model.parameters()])
    model.compile(backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(loss_of(model.unroll(first, structure, STEPS, hard=True)), [*model.parameters()])
    assert_alike([found, wanted], **EXACT)
