"""The Triton kernels against their CPU twins: on a GPU where there is one, else in Triton's interpreter on the CPU.

Outputs that a kernel must fill are poisoned with nan, or with an impossible integer, before it runs.
"""

import os

import pytest
import torch
from common import seeded

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton", reason="needs triton: it comes with CUDA builds of torch, or pip install triton")

from gumtrace.kernels import kinds  # noqa: E402
from gumtrace.kernels.cpu import ops as cpu  # noqa: E402
from gumtrace.kernels.cuda import ops as cuda  # noqa: E402
from gumtrace.kernels.cuda import spanning_tree_trace  # noqa: E402
from gumtrace.kernels.kinds import Geometry  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def subset(d, k):
    return Geometry(kinds.SUBSET, d, k, k, 0, k)


def permutation(d):
    return Geometry(kinds.PERMUTATION, d, d, d, 0, d)


def matching(n, m):
    return Geometry(kinds.MATCHING, n * m, n, n, 0, n, m)


def spanning_tree(n, components=1):
    steps = max(n - components, 0)
    return Geometry(kinds.SPANNING_TREE, n * n, steps, steps, 0, n, 0, components)


def arborescence(n, root=0):
    slots = max(n, 2 * n - 2)
    return Geometry(kinds.ARBORESCENCE, n * n, slots, slots, slots, n, 0, root)


def binary_tree(n):
    return Geometry(kinds.BINARY_TREE, n, n, 0, n, n)


GEOMETRIES = {
    "subset": subset(21, 5),
    "subset-all": subset(6, 6),
    "subset-none": subset(5, 0),
    "subset-many": subset(90, 70),
    "permutation": permutation(19),
    "permutation-one": permutation(1),
    "matching": matching(6, 6),
    "matching-wide": matching(5, 33),
    "matching-one": matching(1, 1),
    "matching-none": matching(0, 3),
    "tree": spanning_tree(7),
    "tree-two": spanning_tree(2),
    "tree-one": spanning_tree(1),
    "forest": spanning_tree(8, 3),
    "arborescence": arborescence(7),
    "arborescence-root": arborescence(6, 4),
    "arborescence-two": arborescence(2, 1),
    "arborescence-one": arborescence(1),
    "binary": binary_tree(13),
    "binary-one": binary_tree(1),
    "binary-full": binary_tree(32),
}
SCALES = {"random": 1.0, "ties": 1.0, "masked": 1.0, "wide": 5000.0}
BATCH, SAMPLES = 3, 2
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
FULL = torch.cuda.is_available()  # the interpreter is slow: there each test takes the kinds that can tell it most


def kinds_for(*few):
    """float32 with these kinds of log-rates, float64 with the last of them; all of both on a GPU."""
    pairs = [(torch.float32, kind) for kind in (SCALES if FULL else few)]
    pairs += [(torch.float64, kind) for kind in (SCALES if FULL else few[-1:])]
    return pytest.mark.parametrize(("dtype", "kind"), pairs, ids=[f"{str(d)[6:]}-{kind}" for d, kind in pairs])


def sizes_of(geometry, kind):
    """Ragged items among the masked ones, where the kernel asks for sizes."""
    if kind == "masked" and geometry.kind in (kinds.SPANNING_TREE, kinds.ARBORESCENCE) and geometry.n > 3:
        least = max(geometry.extra + 1, 2)
        return torch.tensor([geometry.n, least, geometry.n - 1], dtype=torch.int32)
    if kind == "masked" and geometry.kind == kinds.SUBSET and geometry.n > 1:
        return torch.tensor([geometry.n, 0, geometry.n - 1], dtype=torch.int32)
    return None


def rates(geometry, kind, dtype, rows=BATCH):
    """Log-rates (rows, keys): normal, rounded so that many are equal, with keys that do not race, or huge."""
    x = SCALES[kind] * torch.randn(rows, geometry.keys, generator=seeded(geometry.keys), dtype=dtype)
    if kind == "ties":
        x = x.round()
    if kind == "masked":
        sizes = sizes_of(geometry, kind)
        if geometry.kind in (kinds.SPANNING_TREE, kinds.ARBORESCENCE):
            keep = torch.rand(x.shape, generator=seeded(1)) < 0.9
            n = geometry.n
            for row in range(rows):
                nodes = n if sizes is None else int(sizes[row % len(sizes)])
                grid = keep[row].view(n, n)
                for v in range(1, nodes):  # a path through all nodes, so that the rest may be missing
                    grid[v - 1, v] = grid[v, v - 1] = True
                grid[nodes:] = False
                grid[:, nodes:] = False
        elif geometry.kind == kinds.SUBSET:
            spare = max(geometry.keys - geometry.n, 0)
            keep = torch.ones(x.shape, dtype=torch.bool)
            keep[:, :spare] = torch.rand(rows, spare, generator=seeded(1)) < 0.5
        else:
            keep = torch.rand(x.shape, generator=seeded(1)) < 0.6
        x = x.masked_fill(~keep, -torch.inf)
    return x


def noise(geometry, kind, dtype):
    """G for SAMPLES x BATCH items; ties stay ties."""
    x = rates(geometry, kind, dtype).repeat(SAMPLES, 1)
    if kind == "ties":
        return x
    return x + torch.randn(x.shape, generator=seeded(2), dtype=dtype)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What comes from torch.empty holds nan or -77 until a kernel writes it."""
    real = torch.empty

    def empty(*args, **kwargs):
        out = real(*args, **kwargs)
        return out.fill_(float("nan")) if out.is_floating_point() else out.fill_(-77 if out.dtype != torch.bool else 1)

    monkeypatch.setattr(cuda.torch, "empty", empty)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """The interpreter scans lane by lane."""
    if DEVICE == "cpu":
        monkeypatch.setattr(spanning_tree_trace, "SMALLEST", 4)


def on(device, *tensors):
    return [None if t is None else t.to(device) for t in tensors]


def same(ours, theirs, rtol=2e-5, atol=2e-5):
    torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=rtol, atol=atol)


def twin_traces(geometry, kind, dtype):
    sizes = sizes_of(geometry, kind)
    g = noise(geometry, kind, dtype)
    return g, sizes, cpu.trace(geometry, g, sizes)


@every_geometry
@kinds_for("random", "ties", "masked")
def test_traces_are_the_same(geometry, dtype, kind):
    g, sizes, (winners, links, status) = twin_traces(geometry, kind, dtype)
    ours = cuda.trace(geometry, *on(DEVICE, g, sizes))
    for mine, theirs in zip(ours, (winners, links, status), strict=True):
        assert torch.equal(mine.cpu(), theirs)


@every_geometry
@kinds_for("masked")
def test_sampling_is_the_trace_of_its_noise(geometry, dtype, kind):
    x, sizes = on(DEVICE, rates(geometry, kind, dtype), sizes_of(geometry, kind))
    seed = torch.tensor([3, 4], device=DEVICE)
    fused = cuda.sample(geometry, x, sizes, SAMPLES * BATCH, seed)
    apart = cuda.trace(geometry, cuda.perturb(geometry, x, SAMPLES * BATCH, seed), sizes)
    assert all(torch.equal(a, b) for a, b in zip(fused, apart, strict=True))


@every_geometry
@kinds_for("masked", "wide")
def test_log_probs_and_gradients(geometry, dtype, kind):
    x = rates(geometry, kind, dtype)
    _, _, (winners, links, _) = twin_traces(geometry, kind, dtype)
    log_prob, totals = cpu.log_prob(geometry, x, winners, links)
    ours = cuda.log_prob(geometry, *on(DEVICE, x, winners, links))
    same(ours[0], log_prob)
    assert ours[1].dtype == dtype
    log_totals = cuda.log_totals(geometry, *on(DEVICE, x, winners, links))
    same(log_totals, totals.to(dtype), atol=1e-5 if dtype == torch.float32 else 1e-9, rtol=1e-6)
    grad = torch.randn(SAMPLES * BATCH, generator=seeded(5), dtype=dtype)
    expected = cpu.log_prob_grad(geometry, x, winners, links, totals, grad)
    same(cuda.log_prob_grad(geometry, *on(DEVICE, x, winners, links, ours[1], grad)), expected)


@pytest.mark.parametrize("geometry", [subset(45, 20), permutation(45)], ids=["subset", "permutation"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_rows_longer_than_a_block(geometry, dtype, monkeypatch):
    module = cuda.STRUCTURES[geometry.kind]
    monkeypatch.setattr(module, "IN_REGISTERS", 32)
    monkeypatch.setattr(module, "BLOCK", 16)
    for kind in SCALES if FULL else ["masked"]:
        test_traces_are_the_same(geometry, dtype, kind)
        test_sampling_is_the_trace_of_its_noise(geometry, dtype, kind)
        test_log_probs_and_gradients(geometry, dtype, kind)
        test_maps(geometry, dtype, kind)
        test_conditional_gives_the_trace_back(geometry, dtype, kind)


@every_geometry
@kinds_for("masked")
def test_maps(geometry, dtype, kind):
    """The bilinear maps behind second derivatives."""
    x = rates(geometry, kind, dtype).repeat(SAMPLES, 1)
    _, _, (winners, links, _) = twin_traces(geometry, kind, dtype)
    totals = cpu.log_prob(geometry, x, winners, links)[1].to(dtype)
    h = torch.randn(totals.shape, generator=seeded(6), dtype=dtype)
    near = 1e-4 if dtype == torch.float32 and kind != "wide" else 2e-3 if dtype == torch.float32 else 1e-8
    expected = cpu.to_keys(geometry, winners, links, -totals, x, h)
    same(cuda.to_keys(geometry, *on(DEVICE, winners, links, -totals, x, h)), expected, near, near)
    h = torch.randn(x.shape, generator=seeded(7), dtype=dtype)
    expected = cpu.to_decisions(geometry, winners, links, -totals, x, h)
    same(cuda.to_decisions(geometry, *on(DEVICE, winners, links, -totals, x, h)), expected, near, near)
    racing = x > -torch.inf  # of the others one side says nothing, the other what they would have shared
    expected = cpu.log_spread(geometry, winners, links, -totals)
    same(cuda.log_spread(geometry, *on(DEVICE, winners, links, -totals)).cpu()[racing], expected[racing], near, near)


@every_geometry
@kinds_for("masked", "wide")
def test_conditional_gives_the_trace_back(geometry, dtype, kind):
    x, sizes = rates(geometry, kind, dtype), sizes_of(geometry, kind)
    seed = torch.tensor([8, 9], device=DEVICE)
    here = on(DEVICE, x, sizes)
    winners, links, _ = cuda.sample(geometry, *here, SAMPLES * BATCH, seed)
    g, totals, z, failed = cuda.conditional(geometry, *here, winners, links, seed + 1)
    same(totals, cpu.log_prob(geometry, x, winners.cpu(), links.cpu())[1], atol=1e-5, rtol=1e-6)
    assert not failed.any()
    again = cpu.trace(geometry, g.cpu(), sizes)
    assert torch.equal(again[0], winners.cpu())
    assert torch.equal(again[1], links.cpu())
    grad = torch.randn(g.shape, generator=seeded(11), dtype=dtype)
    expected = cpu.conditional_grad(geometry, x, *(t.cpu() for t in (winners, links, totals, z, g)), grad)
    ours = cuda.conditional_grad(geometry, here[0], winners, links, totals, z, g, grad.to(DEVICE))
    near = 1e-4 if dtype == torch.float32 else 1e-8
    same(ours, expected, near, near)


@pytest.mark.parametrize("kind", ["random", "ties", "masked"])
def test_arborescence_heads(kind):
    geometry = arborescence(9, 2)
    _, _, (winners, links, _) = twin_traces(geometry, kind, torch.float32)
    ours = cuda.arborescence_heads(geometry, *on(DEVICE, winners, links))
    assert torch.equal(ours.cpu(), cpu.arborescence_heads(geometry, winners, links))


def test_arborescences_that_lost_their_trace_are_drawn_anew():
    geometry = arborescence(34, 3)  # a tile wider than a warp
    x = rates(geometry, "random", torch.float32, rows=2)
    seed = torch.tensor([8, 9], device=DEVICE)
    (here,) = on(DEVICE, x)
    winners, links, _ = cuda.sample(geometry, here, None, 2, seed)
    g, totals, z, failed = cuda.conditional(geometry, here, None, winners, links, seed + 1)
    good, good_z = g.clone(), z.clone()
    g[1] = torch.nan
    cuda.arborescence.redraw(geometry, here, None, winners, links, seed + 1, g, totals, z, failed)
    assert not failed.any()
    assert torch.equal(g[0], good[0])
    assert torch.equal(z[0], good_z[0])
    assert not torch.equal(g[1], good[1])
    again = cpu.trace(geometry, g.cpu(), None)
    assert torch.equal(again[0], winners.cpu())
    assert torch.equal(again[1], links.cpu())
    held = winners.cpu() >= 0  # a winner's G is the sum of the minima on its way
    shared = cpu.log_spread(geometry, winners.cpu(), links.cpu(), z.cpu()).gather(1, winners.cpu().long().clamp(min=0))
    same(g.cpu().gather(1, winners.cpu().long().clamp(min=0))[held], -shared[held].float())


def test_trees_wider_than_a_warp():
    """There the last nodes are drawn for in a smaller tile, and a lane holds several nodes."""
    geometry = spanning_tree(40, 2)
    x, sizes = torch.randn(2, geometry.keys, generator=seeded(1)), torch.tensor([40, 20], dtype=torch.int32)
    here = on(DEVICE, x, sizes)
    seed = torch.tensor([3, 4], device=DEVICE)
    trace = cuda.sample(geometry, *here, 2, seed)
    theirs = cpu.trace(geometry, cuda.perturb(geometry, here[0], 2, seed).cpu(), sizes)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(trace, theirs, strict=True))
    log_prob, kept = cuda.log_prob(geometry, here[0], *trace[:2])
    expected, totals = cpu.log_prob(geometry, x, *theirs[:2])
    same(log_prob, expected)
    grad = torch.ones(2)
    expected = cpu.log_prob_grad(geometry, x, *theirs[:2], totals, grad)
    same(cuda.log_prob_grad(geometry, here[0], *trace[:2], kept, grad.to(DEVICE)), expected)


@pytest.mark.parametrize("components", [1, 6])
def test_status_of_trees(components):
    """Not a number among pairs, padding included, but nowhere else; too few nodes; a graph in two parts."""
    n = 8
    geometry = spanning_tree(n, components)
    g = torch.randn(7, n, n, generator=seeded(1))
    g[0, 0, 0] = g[1, 7, 3] = g[2, 0, 1] = g[3, 2, 7] = torch.nan
    g[4, 6, 7] = torch.inf
    g[5:, :4, 4:] = -torch.inf
    g = g.flatten(1)
    for sizes in (None, torch.tensor([8, 1, 2, 5, 5, 8, 0], dtype=torch.int32)):
        winners, _, status = cpu.trace(geometry, g, sizes)
        ours = cuda.trace(geometry, *on(DEVICE, g, sizes))
        assert torch.equal(ours[2].cpu(), status)
        assert torch.equal(ours[0].cpu()[status != 2], winners[status != 2])
