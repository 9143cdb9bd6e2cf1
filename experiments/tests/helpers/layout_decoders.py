"""For tests of the decoder's kernels against its way in plain torch, in float64: small decoders and their inputs, how
far apart results may be, and memory that tells who did not write it."""

import pytest
import torch
from common import seeded
from kernelcases import DEVICE

import gumtrace as gt
from gumtrace_experiments.graph_layout import messages
from gumtrace_experiments.graph_layout.decoder import FusedDecoder, _Fused, _messages

HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter multiplies the bits of bfloat16
SIZES = {  # nodes, hidden, items, frames, samples
    "one": (4, 16, 1, 1, 1),
    "smallest": (3, 16, 11, 1, 1),
    "some-left": (4, 32, 9, 1, 1),
    "frames": (5, 16, 7, 3, 1),
    "samples": (5, 32, 3, 1, 2),
    "both": (5, 16, 5, 3, 2),
    "odd-width": (5, 48, 4, 1, 1),
    "paper": (10, 32, 4, 1, 1),
    "paper-both": (10, 16, 3, 3, 2),
    "alone": (17, 16, 2, 1, 1),
    "largest": (32, 16, 2, 1, 1),
}
SOFT = {
    "one": (4, 16, 1, 1, 1),
    "smallest": (3, 16, 11, 1, 1),
    "smallest-samples": (3, 16, 3, 1, 8),
    "frames": (5, 16, 3, 9, 1),
    "samples": (5, 32, 3, 1, 3),
    "paper": (10, 32, 4, 1, 1),
    "paper-frames": (10, 16, 1, 9, 1),
    "paper-both": (10, 48, 2, 2, 8),
    "more-samples": (5, 16, 2, 2, 37),  # than are summed up together
    "alone": (17, 16, 2, 1, 2),
    "largest": (32, 16, 1, 1, 1),
}
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
    made = FusedDecoder(n, hidden)
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
    assert isinstance(wiring, _Fused) == (dtype == torch.float32)
    out = _messages(x, wiring).reshape(items, samples, n, count, hidden)
    weights = torch.randn(out.shape, generator=seeded(3)).to(out)
    inputs = [x, *made.message1.parameters(), *made.message2.parameters(), *[structure] * structure.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


def error(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).norm() / theirs.norm()).item()  # nan where anything is


def errors(ours, theirs):
    return [error(*pair) for pair in zip(ours, theirs, strict=True)]
