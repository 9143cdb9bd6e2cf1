"""The networks of graph layout in half precision, and compiled."""

import copy

import pytest
import torch
from layout_networks import FRAMES, ITEMS, SAMPLES, frames, make, trees
from torch.utils._python_dispatch import TorchDispatchMode

from gumtrace_experiments.graph_layout.decoder import FusedDecoder
from gumtrace_experiments.graph_layout.encoder import Encoder

pytestmark = pytest.mark.usefixtures("one_thread")


# --- half precision ---


class Dtypes(TorchDispatchMode):
    """Notes the size and dtype of what matrix products read."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm"):
            left, right = [x for x in args if torch.is_tensor(x)][-2:]
            self.seen.add((left.shape[-1], right.shape[-1], left.dtype))
        return func(*args, **(kwargs or {}))


def small(network):
    """In float32, wide enough that roundings average out, and a call of it."""
    torch.manual_seed(0)
    if network is Encoder:
        model = Encoder(FRAMES, 5, 64)
        return model, model
    model = FusedDecoder(5, 64)
    structure = trees(5, SAMPLES, 16, dtype=torch.float32)
    return model, lambda x, hard=network == "hard": model(x, structure, hard=hard)


@pytest.mark.parametrize("network", [Encoder, "hard", "soft"])
def test_half_precision(network):
    """A rounding is off by at most 2⁻⁹, relatively; some ten of them follow each other, and most of a sum's cancel."""
    model, call = small(network)
    positions = frames(5, 16, FRAMES, dtype=torch.float32)
    offset = 0 if network is Encoder else positions  # what the decoder adds is not rounded
    runs = []
    for half in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = call(positions)
        assert out.dtype == torch.float32
        out.square().mean().backward()
        runs.append([out.detach() - offset, *(p.grad for p in model.parameters())])
    value, rough = runs[0][0], runs[1][0]
    assert 0 < (value - rough).norm() / value.norm() < 10 * 2**-9
    for exact, rough in zip(*[r[1:] for r in runs], strict=True):
        assert rough.dtype == torch.float32
        assert (exact - rough).norm() < 0.1 * exact.norm()  # a bias's is a sum that cancels: its errors do not


@pytest.mark.parametrize("network", [Encoder, "hard", "soft"])
def test_half_precision_is_for_wide_layers(network):
    _, call = small(network)
    with torch.autocast("cpu", torch.bfloat16), Dtypes() as dtypes:
        call(frames(5, 16, FRAMES, dtype=torch.float32))
    reading, writing = (2 * FRAMES, 1) if network is Encoder else (2, 2)
    for inputs, outputs, dtype in dtypes.seen:
        assert (dtype == torch.float32) == (inputs == reading or outputs == writing)
    assert (64, 64, torch.bfloat16) in dtypes.seen


# --- compiled ---


@pytest.mark.slow
def test_no_graph_breaks():
    n, structure = 5, trees(5, SAMPLES, ITEMS, dtype=torch.float32)
    positions = frames(n, ITEMS, FRAMES, dtype=torch.float32)
    encoder, decoder = make(Encoder, n, torch.float32), make(FusedDecoder, n, torch.float32)
    other = copy.deepcopy(encoder)

    def run(encoder, forward, unroll, twice):
        with torch.autocast("cpu", torch.bfloat16):
            yield encoder(positions)
            yield forward(positions, structure, hard=False, twice=twice)
            yield unroll(positions[:, 0], structure, 2, hard=True, twice=twice)

    parts = [torch.compile(f, fullgraph=True, backend="aot_eager") for f in (encoder, decoder, decoder.unroll)]
    compiled = [*run(*parts, twice=False)]
    for ours, theirs in zip(compiled, run(other, decoder, decoder.unroll, twice=True), strict=True):  # as compiled
        torch.testing.assert_close(ours, theirs)
    sum(x.square().sum() for x in compiled).backward()
    assert all(p.grad.isfinite().all() for p in [*encoder.parameters(), *decoder.parameters()])
