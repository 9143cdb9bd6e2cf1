"""The Triton kernels, and some of the CPU, on what is not as it should be: numbers that are none, traces from
anywhere. Nothing may be read or written outside, or before it was written; `poisoned` looks after that."""

import kernelcases
import pytest
import torch
from common import seeded
from kernelcases import (
    DEVICE,
    FULL,
    GEOMETRIES,
    arborescence,
    binary_tree,
    matching,
    on,
    permutation,
    same,
    spanning_tree,
    sparse,
    subset,
)

from gumtrace.kernels.cpu import ops as cpu
from gumtrace.kernels.cuda import ops as cuda
from gumtrace.kernels.cuda import sampling, subset_long
from gumtrace.kernels.geometry import NOT_A_NUMBER, ArborescenceGeometry, BinaryTreeGeometry, sparse_tree

pytestmark = pytest.mark.device

poisoned, small_tiles = kernelcases.poisoned, kernelcases.small_tiles

SPARSE = sparse_tree(3, 1, torch.tensor([[0, 1, 0], [1, 2, 2]], dtype=torch.int32))
OTHERS = [arborescence(7), binary_tree(13), SPARSE, GEOMETRIES["graphs"]]
NONE = {BinaryTreeGeometry: -2}  # links of a token that does not race; elsewhere -1


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # by numpy, in the interpreter: inf - inf
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("geometry", [*GEOMETRIES.values(), SPARSE], ids=[*GEOMETRIES, "sparse"])
@pytest.mark.slow
def test_not_a_number_leaves_no_trace(geometry, bad):
    """Nor what the memory held before: kernels index by it."""
    racing = sampling.racing(geometry, torch.device("cpu"))
    keys = torch.arange(geometry.keys) if racing is None else racing.nonzero().flatten()
    g = torch.randn(3, geometry.keys, generator=seeded(1))
    g[1, keys[-1:]] = bad
    winners, links, status = cpu.trace(geometry, g, None)
    assert status.tolist() == [0, NOT_A_NUMBER if len(keys) > 0 else 0, 0]
    if len(keys) > 0:
        assert (winners[1] == -1).all()
        assert (links[1] == NONE.get(type(geometry), -1)).all()
    ours = cuda.trace(geometry, *on(DEVICE, g), None)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, (winners, links, status), strict=True))


def results(ops, geometry, x, winners, links):
    """What all operators make of a trace."""
    items, decisions = len(winners), geometry.decisions
    alpha, h = (torch.randn(items, decisions, generator=seeded(i)).to(x.device) for i in (1, 2))
    key_h, seed = torch.randn(x.shape, generator=seeded(3)).to(x.device), torch.tensor([8, 9], device=x.device)
    log_prob, kept = ops.log_prob(geometry, x, winners, links)
    g, totals, z, _ = ops.conditional(geometry, x, None, winners, links, seed)
    return {
        "log_prob": log_prob,
        "log_prob_grad": ops.log_prob_grad(geometry, x, winners, links, kept, h.new_ones(items)),
        "to_keys": ops.to_keys(geometry, winners, links, alpha, x, h),
        "to_decisions": ops.to_decisions(geometry, winners, links, alpha, x, key_h),
        "log_spread": ops.log_spread(geometry, winners, links, alpha),
        "conditional": g,
        "conditional_grad": ops.conditional_grad(geometry, x, winners, links, totals, z, g, key_h),
        **(
            {} if isinstance(geometry, BinaryTreeGeometry) else {"indicator": ops.indicator(geometry, winners, x.dtype)}
        ),
        **(
            {"edges": ops.arborescence_edges(geometry, winners, links)}
            if isinstance(geometry, ArborescenceGeometry)
            else {}
        ),
    }


@pytest.mark.parametrize("ops", [cpu, cuda], ids=["cpu", "cuda"])
@pytest.mark.parametrize("wrong", [10**8, -77])
@pytest.mark.parametrize(
    "geometry",
    [
        *(GEOMETRIES[name] for name in ("subset", "subset-many", "permutation", "matching-wide", "tree", "forest")),
        *OTHERS,
    ],
    ids=lambda g: f"{type(g).__name__}-{g.keys}",
)
@pytest.mark.slow
def test_nonsense_in_a_trace_is_no_decision(geometry, wrong, ops):
    """It is ignored, and nothing is read or written where it points to."""
    device = DEVICE if ops is cuda else "cpu"
    x = torch.randn(2, geometry.keys, generator=seeded(1))
    winners, links, _ = on(device, *cpu.trace(geometry, x + torch.randn(x.shape, generator=seeded(2)), None))
    clean, clean_links = winners.clone(), links.clone()
    for row, plain, none in ((winners, clean, -1), (links, clean_links, NONE.get(type(geometry), -1))):
        row[1, 1::3], plain[1, 1::3] = wrong, none
    ours, expected = (results(ops, geometry, *on(device, x), *t) for t in ((winners, links), (clean, clean_links)))
    for name, value in ours.items():
        torch.testing.assert_close(value, expected[name], equal_nan=True, msg=name)
        assert not value.isnan().any(), name


@pytest.mark.parametrize(
    ("geometry", "winners", "links"),
    [
        (spanning_tree(4), [1, 1, 1], []),
        (spanning_tree(4), [0, 5, 10], []),
        (spanning_tree(6, 3), [35, 35, 35], []),
        (SPARSE, [1, 1], []),
        (sparse(5, 4), [0, 0, 7, 1], []),
        *((GEOMETRIES["graphs"], [0, 0, 7, 1, -1, 2, 19, 3], [graph]) for graph in (10**8, -1, -77)),
        (subset(6, 3), [2, 2, 2], []),
        (permutation(4), [0, 0, 3, 3], []),
        (matching(3, 4), [0, 1, 4], []),
        (binary_tree(4), [], [1, 0, 3, 2]),
        (arborescence(4), [1, 1, 1, 1, 1, 1], [5, 5, 4, 5, 5, 4]),
    ],
    ids=lambda x: type(x).__name__ if hasattr(x, "keys") else "",
)
@pytest.mark.slow
def test_traces_that_no_run_gives(geometry, winners, links):
    """Whatever comes of them, it is not made of memory that nobody wrote."""
    x = torch.randn(2, geometry.keys, generator=seeded(1))
    trace = (torch.tensor([row, row], dtype=torch.int32).reshape(2, -1) for row in (winners, links))
    for name, value in results(cuda, geometry, *on(DEVICE, x, *trace)).items():
        assert not value.isnan().any(), name


@pytest.mark.parametrize("several", [False, True], ids=["one-program", "several"])
@pytest.mark.parametrize("block", [16] if FULL else [16, 1024])  # on a GPU 1024 would take 14 s to compile
@pytest.mark.slow
def test_permutations_under_another_mask(block, several, monkeypatch):
    """Keys race that have not won, and keys have won that do not race."""
    monkeypatch.setattr(cuda.subset, "BLOCK", block)
    if several:
        for name, length in {"SHORT": 0, "BLOCK": block, "STEPS": block // 2}.items():
            monkeypatch.setattr(subset_long, name, length)
    geometry = permutation(19)
    x = torch.randn(4, 19, generator=seeded(1))
    winners = x.argsort().int()
    winners[0, 15:] = winners[1, 0:] = winners[2, 18:] = -1
    x[2, winners[2, 3]] = x[3, winners[3, :9].long()] = -torch.inf
    trace = winners, winners[:, :0]
    ours = results(cuda, geometry, *on(DEVICE, x, *trace))
    for name, value in results(cpu, geometry, x, *trace).items():
        if not name.startswith("conditional"):  # other noise
            same(ours[name], value)


LIMITS = [
    ("Subset", "subset", "LONGEST"),
    ("Permutation", "subset", "LONGEST"),
    ("Matching", "matching", "WIDEST"),
    ("SpanningTree", "spanning_tree", "MOST_NODES"),
    ("Arborescence", "arborescence", "LARGEST"),
    ("BinaryTree", "binary_tree", "LARGEST"),
]


@pytest.mark.parametrize(("name", "module", "limit"), LIMITS, ids=[name for name, *_ in LIMITS])
def test_an_item_beyond_a_kernel_is_copied_with_a_warning(name, module, limit, monkeypatch):
    geometry = next(g for g in GEOMETRIES.values() if type(g).__name__ == f"{name}Geometry" and g.decisions > 1)
    g = torch.randn(2, geometry.keys, generator=seeded(1))
    monkeypatch.setattr(getattr(cuda, module), limit, 1)
    with pytest.warns(UserWarning, match=rf"no CUDA kernel for a {name} of this size .* copied to the CPU and back"):
        ours = cuda.trace(geometry, *on(DEVICE, g), None)
    expected = cpu.trace(geometry, g, None)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, expected, strict=True))
