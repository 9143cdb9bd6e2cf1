"""For tests of the Triton kernels against those of the CPU: small geometries of every kind, log-rates, noise, and
memory that tells who did not write it. On a GPU, or without one in Triton's interpreter (conftest.py) on the CPU."""

import pytest
import quick_interpreter
import torch
import torch.nn.functional as F
from common import seeded

pytest.importorskip("triton", reason="needs triton: it comes with CUDA builds of torch, or pip install triton")

from gumtrace.kernels import derivatives, operators, ops
from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import ops as cuda
from gumtrace.kernels.cuda import spanning_tree_trace
from gumtrace.kernels.geometry import (
    ArborescenceGeometry,
    BatchedSpanningTreeGeometry,
    SpanningTreeGeometry,
    SparseSpanningTreeGeometry,
    SubsetGeometry,
    arborescence,
    binary_tree,
    graph_batch,
    matching,
    permutation,
    spanning_tree,
    sparse_tree,
    subset,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    quick_interpreter.apply()
else:  # it lists torch's functions when it is imported: not while `poisoned` has replaced some of them
    import torch._dynamo
TREES = (SpanningTreeGeometry, ArborescenceGeometry)
GUARD = 64  # elements on either side of what torch.empty gives


def needs_cuda(why):
    return pytest.mark.skipif(DEVICE != "cuda", reason=f"needs a CUDA device: {why}")


LARGE = needs_cuda("one of these sizes takes Triton's interpreter minutes; small ones run in it, in this file")
RECORDED = needs_cuda("CUDA graphs are recorded by its driver, and Triton's interpreter has none")


@pytest.fixture
def served_by_triton(monkeypatch):
    """Tensors on the CPU as if they were on CUDA, where there is none."""
    if DEVICE == "cpu":
        for module in (derivatives, operators, ops):
            monkeypatch.setattr(module, "backend", lambda device_type: cuda)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def sparse(nodes, extra, components=1):
    """A long tree, in which every node is joined to one of the three before it, so that the first ones are connected by
    themselves; and more edges, loops and parallel ones among them."""
    node = torch.arange(1, nodes)
    before = (node - torch.randint(1, 4, node.shape, generator=seeded(nodes))).clamp(min=0)
    turned = torch.rand(node.shape, generator=seeded(nodes)) < 0.5
    tree = torch.where(turned, torch.stack([node, before]), torch.stack([before, node]))
    more = torch.randint(nodes, (2, extra), generator=seeded(extra))
    return sparse_tree(nodes, components, torch.cat([tree, more], 1).int())


def graphs(components, *sizes):
    """Graphs of so many nodes and further edges, with loops behind the edges of the smaller ones."""
    each = [sparse(nodes, extra).edges for nodes, extra in sizes]
    most = max(edges.shape[1] for edges in each)
    rows = [F.pad(F.pad(e, (0, most - e.shape[1])), (0, 1), value=n) for e, (n, _) in zip(each, sizes, strict=True)]
    return graph_batch(max(nodes for nodes, _ in sizes), components, torch.stack(rows))


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
    "sparse": sparse(9, 12),
    "sparse-large": sparse(40, 30),
    "sparse-two": sparse(2, 3),
    "sparse-one": sparse(1, 2),
    "sparse-forest": sparse(11, 6, 4),
    "sparse-nothing": sparse(3, 1, 3),
    "graphs": graphs(1, (9, 12), (2, 3), (6, 0)),
    "graphs-forest": graphs(3, (7, 5), (30, 20), (3, 0)),
    "binary": binary_tree(13),
    "binary-one": binary_tree(1),
    "binary-full": binary_tree(32),
}
SCALES = {"random": 1.0, "ties": 1.0, "masked": 1.0, "wide": 5000.0}
BATCH, SAMPLES = 3, 2
FULL = torch.cuda.is_available()  # the interpreter is slow: there each test takes the kinds that can tell it most


def every(geometries, in_float64):
    """Decorators for tests of (geometry, dtype, kind): each geometry in float32 with these kinds of log-rates, and in
    float64 with the last of them. On a GPU with all kinds, and in float64 those geometries that are named: others need
    kernels that take long to compile."""

    def with_kinds(*few):
        cases = [(torch.float32, kind, name) for kind in (SCALES if FULL else few) for name in geometries]
        for kind in SCALES if FULL else few[-1:]:
            cases += [(torch.float64, kind, name) for name in (in_float64 if FULL else geometries)]
        ids = [f"{str(dtype)[6:]}-{kind}-{name}" for dtype, kind, name in cases]
        values = [(geometries[name], dtype, kind) for dtype, kind, name in cases]
        return pytest.mark.parametrize(("geometry", "dtype", "kind"), values, ids=ids)

    return with_kinds


every_geometry = every(GEOMETRIES, [name for name in GEOMETRIES if "-" not in name])


def sizes_of(geometry, kind):
    """Ragged items among the masked ones, where the kernel asks for sizes."""
    trees = (*TREES, SparseSpanningTreeGeometry)
    if isinstance(geometry, BatchedSpanningTreeGeometry):
        return torch.arange(BATCH, dtype=torch.int32)  # of their graphs
    if kind == "masked" and isinstance(geometry, trees) and geometry.nodes > 3:
        least = geometry.root + 1 if isinstance(geometry, ArborescenceGeometry) else geometry.components + 1
        return torch.tensor([geometry.nodes, max(least, 2), geometry.nodes - 1], dtype=torch.int32)
    if kind == "masked" and isinstance(geometry, SubsetGeometry) and geometry.k > 1:
        return torch.tensor([geometry.k, 0, geometry.k - 1], dtype=torch.int32)
    return None


def rates(geometry, kind, dtype, rows=BATCH):
    """Log-rates (rows, keys): normal, rounded so that many are equal, with keys that do not race, or huge."""
    x = SCALES[kind] * torch.randn(rows, geometry.keys, generator=seeded(geometry.keys), dtype=dtype)
    if kind == "ties":
        x = x.round()
    if kind == "masked":
        sizes = sizes_of(geometry, kind)
        if isinstance(geometry, TREES):
            keep = torch.rand(x.shape, generator=seeded(1)) < 0.9
            n = geometry.nodes
            for row in range(rows):
                nodes = n if sizes is None else int(sizes[row % len(sizes)])
                grid = keep[row].view(n, n)
                for v in range(1, nodes):  # a path through all nodes, so that the rest may be missing
                    grid[v - 1, v] = grid[v, v - 1] = True
                grid[nodes:] = False
                grid[:, nodes:] = False
        elif isinstance(geometry, SparseSpanningTreeGeometry):
            keep = torch.rand(x.shape, generator=seeded(1)) < 0.7
            keep[:, : geometry.nodes - 1] = True
            if sizes is not None:
                nodes = sizes.repeat(rows)[:rows, None]
                keep &= geometry.edges.amax(0) < nodes
        elif isinstance(geometry, BatchedSpanningTreeGeometry):
            keep = torch.rand(x.shape, generator=seeded(1)) < 0.7
            for row in range(rows):
                keep[row, : int(geometry.edges[row % BATCH, 0, -1]) - 1] = True
        elif isinstance(geometry, SubsetGeometry):
            spare = max(geometry.keys - geometry.k, 0)
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


def poison(x):
    """Fill with nan, or an impossible integer."""
    return x.fill_(torch.nan if x.is_floating_point() else x.dtype == torch.bool or -77)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What torch.empty gives is poison until a kernel writes it, and stays so on both sides of it."""
    real, sides = torch.empty, []

    def empty(*size, **options):
        shape = real(*size, device="meta").shape
        end = GUARD + shape.numel()
        whole = poison(real(end + GUARD, **options))
        sides.extend([whole[:GUARD], whole[end:]])
        return whole[GUARD:end].view(shape)

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "empty_like", lambda x: empty(x.shape, dtype=x.dtype, device=x.device))
    yield
    monkeypatch.undo()
    for side in sides:
        assert torch.equal(side.view(torch.uint8), poison(side.clone()).view(torch.uint8))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """The interpreter scans lane by lane."""
    if DEVICE == "cpu":
        monkeypatch.setattr(spanning_tree_trace, "SMALLEST", 4)


def on(device, *tensors):
    return [None if t is None else t.to(device) for t in tensors]


def same(ours, theirs, rtol=2e-5, atol=2e-5):
    torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=rtol, atol=atol)


def cpu_traces(geometry, kind, dtype):
    sizes = sizes_of(geometry, kind)
    g = noise(geometry, kind, dtype)
    return g, sizes, cpu.trace(geometry, g, sizes)
