"""Soft trees by the Triton kernel against the two other ways: on a GPU where there is one, else in the interpreter.

What the kernel must fill, and its memory, is poisoned with nan.
"""

import numpy as np
import pytest
import torch
from common import seeded
from kernelcases import DEVICE, FULL
from treesums import INF, some_missing, uniform

from gumtrace.kernels.cpu.matrix_tree import tree_marginals
from gumtrace.kernels.cuda import matrix_tree
from gumtrace.relaxations import trees

pytestmark = pytest.mark.device

UNDIRECTED = trees.UNDIRECTED
# Directions, root, and whether the first is folded: of ROOTED, FOLDED and SPREAD kernels all that derivatives ask for.
KINDS = [(count, 1, True) for count in range(3)]
KINDS += [(0, UNDIRECTED, False), (1, UNDIRECTED, True), (1, UNDIRECTED, False), (2, UNDIRECTED, True)]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    real = torch.empty

    def empty(*args, **kwargs):
        out = real(*args, **kwargs)
        return out.fill_(float("nan")) if out.is_floating_point() else out.fill_(-77)

    monkeypatch.setattr(matrix_tree.torch, "empty", empty)


@pytest.fixture(autouse=True)
def side_by_side(monkeypatch):
    """The interpreter takes as long for many items of one program as for one."""
    if not FULL:
        monkeypatch.setattr(matrix_tree, "LANES", 512)


@pytest.fixture(autouse=True)
def overflows():
    """The interpreter warns of them, but float64 may overflow: then an item is computed again."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        yield


@pytest.fixture
def divide(monkeypatch):
    """Has sums of items divided among so many rows, or not at all (1), however many items there are. On a GPU among as
    many as the kernels do, with small items in the tile of larger ones, and all items computed again in numbers with
    exponents: these kernels run anyway, and any other would have to be compiled."""
    real, real_launch, smallest = matrix_tree._division, matrix_tree._launch, matrix_tree.SMALLEST

    def launch(*args):
        real_launch(*args)
        again, wide = args[5], args[-1]
        if not wide:
            again.fill_(1)

    def among(parts):
        def division(items, tile, processors):
            if parts == 1:
                return real(items, tile, 0)
            return real(items, tile, processors) if FULL else (1, parts, max(1, tile * parts // 128))

        monkeypatch.setattr(matrix_tree, "_division", division)
        if FULL:
            monkeypatch.setattr(matrix_tree, "_launch", launch)
            monkeypatch.setattr(matrix_tree, "SMALLEST", matrix_tree.LARGE if parts > 1 else smallest)

    return among


def mixed(n, dtype=torch.float64):
    """Items of every sort (7, n, n), nan where nothing may be read, and their sizes."""
    u = torch.randn(7, n, n, generator=seeded(n), dtype=torch.float64)
    u[1] = 0.0  # ties
    u[2] = some_missing(u[2])
    u[3, -1] = u[3, :, -1] = -INF  # no tree
    u[4] = some_missing(uniform(n, n, span=500.0))
    sizes = torch.tensor([n, n, n, n, n, max(n - 1, 1), 1], dtype=torch.int32)
    outside = torch.arange(n) >= sizes[:, None]
    u[outside] = torch.nan
    u.mT[outside] = torch.nan
    return u.to(dtype), sizes


def by_kernel(u, tangents, sizes, root, fold):
    first, second = (*tangents, None, None)[:2]
    out = torch.full_like(u, torch.nan, device=DEVICE)
    matrix_tree.marginals(*(None if x is None else x.to(DEVICE) for x in (u, first, second, sizes)), root, fold, out)
    return out.cpu()


def by_trees(how, u, tangents, sizes, root, fold):
    """On the CPU or in torch, folded and spread."""
    along = torch.stack(tangents) if tangents else u.new_empty(0, *u.shape)
    if fold and root == UNDIRECTED:
        along = torch.cat([along[:1] + along[:1].mT, along[1:]])
    out = how(u, along, sizes, root)
    return out + out.mT if root == UNDIRECTED and not fold else out


def directions(u, count):
    return tuple(torch.randn(count, *u.shape, generator=seeded(1), dtype=torch.float64).to(u.dtype))


def check(u, sizes, count, root, fold, atol):
    tangents = directions(u, count)
    ours = by_kernel(u, tangents, sizes, root, fold)
    assert ours.dtype == u.dtype
    for how in (tree_marginals, trees.sweeps):
        theirs = by_trees(how, u, tangents, sizes, root, fold)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
    return ours


def cases(nodes, roots):
    return [(n, count, root) for n in nodes for count in range(3) for root in roots if root < n]


CASES = [
    *cases([1, 2, 3, 5], (UNDIRECTED, 0, 1, 4)),
    *cases([10], (UNDIRECTED, 6)),
    (17, 0, 0),
    (17, 1, 8),
    (17, 2, UNDIRECTED),
]
if FULL:  # sizes at which the number of lanes, of elements per lane and of warps changes
    CASES += cases([8, 9, 16, 17, 31, 32, 33, 50, 64, 65, 128], (UNDIRECTED, 0, 7))


@pytest.mark.parametrize(("n", "count", "root"), CASES)
@pytest.mark.slow
def test_kernel_equals_the_others(n, count, root):
    u, sizes = mixed(n)
    ours = check(u, sizes, count, root, count > 0, atol=1e-11)
    assert ours[[3, 6]].eq(0).all()
    if count == 0 and root == UNDIRECTED:
        assert ours.equal(ours.mT)


@pytest.mark.parametrize("root", [UNDIRECTED, 1])
def test_whole_items_need_no_sizes(root):
    u = torch.randn(3, 5, 5, generator=seeded(1), dtype=torch.float64)
    whole = torch.full((3,), 5, dtype=torch.int32)
    for count in (0, 1):
        tangents = directions(u, count)
        ours = by_kernel(u, tangents, None, root, count > 0)
        expected = by_trees(tree_marginals, u, tangents, whole, root, count > 0)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)


def test_one_direction_spread():
    """What the gradient of a gradient sends back to the incoming gradient."""
    u, sizes = mixed(4)
    check(u, sizes, 1, UNDIRECTED, False, atol=1e-11)


@pytest.mark.parametrize("root", [UNDIRECTED, 1])
def test_float32(root):
    u, sizes = mixed(4, torch.float32)
    for count in range(3):
        check(u, sizes, count, root, count > 0, atol=1e-6)


@pytest.mark.parametrize(("span", "parts"), [(1e5, 1), (1e8, 1), (1e8, 2)])
@pytest.mark.parametrize("root", [UNDIRECTED, 2])
@pytest.mark.slow
def test_extreme_scores(divide, span, parts, root):
    divide(parts)
    u = some_missing(uniform(3, 6, 6, span=span))
    for count in range(3):
        check(u, torch.full((3,), 6, dtype=torch.int32), count, root, count > 0, atol=1e-14 * (100 + span / 100))


def test_weak_links_are_not_lost():
    """Weights of paths to the root fall to e^-2500."""
    n = 6
    u = torch.full((1, n, n), -INF, dtype=torch.float64)
    i = torch.arange(n - 1)
    u[0, i, i + 1], u[0, i + 1, i] = -250.0, 250.0
    expected = torch.zeros(1, n, n, dtype=torch.float64)
    expected[0, i, i + 1] = 1  # the only tree there is
    sizes = torch.tensor([n], dtype=torch.int32)
    torch.testing.assert_close(by_kernel(u, (), sizes, 0, False), expected, rtol=0, atol=1e-14)
    tangents = directions(u, 2)
    for count in (1, 2):
        slope = by_kernel(u, tangents[:count], sizes, 0, True)
        torch.testing.assert_close(slope, torch.zeros_like(u), rtol=0, atol=1e-12)


def test_log_weights_without_bound():
    """-10^30 for edges that should not be there, as some write masks: far below what exponents can say."""
    u = torch.zeros(2, 4, 4, dtype=torch.float64)
    u[0, 0, 3] = u[0, 1, 3] = -1e30
    u[1] = -1e30
    for count in range(3):
        check(u, torch.tensor([4, 4], dtype=torch.int32), count, UNDIRECTED, count > 0, atol=1e-11)


@pytest.mark.parametrize(("count", "root", "fold"), KINDS)
@pytest.mark.parametrize(("n", "parts"), [(2, 8), (5, 2), *((n, matrix_tree.PARTS) for n in (20, 50) if FULL)])
@pytest.mark.slow
def test_sums_in_parts(divide, n, parts, count, root, fold):
    some = [3, 4, 5]
    u, sizes = (x[some] for x in mixed(n))
    divide(1)
    whole = check(u, sizes, count, root, fold, atol=1e-11)
    divide(parts)
    ours = check(u, sizes, count, root, fold, atol=1e-11)
    torch.testing.assert_close(ours, whole, rtol=0, atol=1e-11)
    assert ours[0].eq(0).all()


@pytest.mark.parametrize(
    ("n", "parts", "count", "root"),
    [
        (1, 8, 0, 0),
        (3, 8, 2, 2),
        (8, 8, 1, UNDIRECTED),
        (17, 16, 2, UNDIRECTED),
        (40, 32, 0, 1),
        (100, 64, 0, UNDIRECTED),
    ],
)
@pytest.mark.slow
def test_sums_in_parts_of_every_size(divide, n, parts, count, root):
    """In the interpreter with parts enough that there are few steps; threads would be too many."""
    u = some_missing(uniform(1, n, n, span=1000.0))
    divide(matrix_tree.PARTS if FULL else parts)
    check(u, torch.tensor([max(n - 2, 1)], dtype=torch.int32), count, root, count > 0, atol=1e-11)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.slow
def test_programs_take_items_in_turns(divide, parts, monkeypatch):
    if not FULL:  # an item in each program
        monkeypatch.setattr(matrix_tree, "LANES", 8)
    monkeypatch.setattr(matrix_tree, "_programs", lambda *_: 2)
    divide(parts)
    u, sizes = (torch.cat([x] * (3 if FULL else 1)) for x in mixed(3))
    for count in (0, 2):
        check(u, sizes, count, 0, count > 0, atol=1e-11)


@pytest.fixture
def plain(monkeypatch):
    """Has small items computed in float64 first, on a GPU in the tile of larger ones, for which kernels are compiled
    anyway; what a launch leaves in `again` is in the list."""
    left = []

    def launch(*args):
        real(*args)
        left.append(args[5].tolist())

    real = matrix_tree._launch
    for name, size in ({"SMALLEST": matrix_tree.PLAIN} if FULL else {"PLAIN": 1, "CELLS": 64}).items():
        monkeypatch.setattr(matrix_tree, name, size)
    monkeypatch.setattr(matrix_tree, "_launch", launch)
    return left


@pytest.mark.parametrize("root", [UNDIRECTED, 0, 3])
@pytest.mark.slow
def test_plain_numbers_where_they_are_enough(plain, root):
    """Of the items of every sort, only the one that spans e^±500 is computed again."""
    u, sizes = mixed(6)
    for count in range(3):
        check(u, sizes, count, root, count > 0, atol=1e-11)
        assert plain.pop()[:4] == plain.pop()[:4] == [0, 0, 0, 0]
    u = some_missing(uniform(3, 6, 6, span=1000.0))
    check(u, torch.full((3,), 6, dtype=torch.int32), 1, root, True, atol=1e-11)
    assert 1 in plain[0]


@pytest.mark.slow
def test_plain_numbers_miss_nothing(plain):
    """Paths of weak links, products below the range, tangents that overflow."""
    test_weak_links_are_not_lost()
    test_log_weights_without_bound()
    assert any(1 in again for again in plain)
    plain.clear()
    u = uniform(2, 5, 5, span=1.0)
    sizes = torch.full((2,), 5, dtype=torch.int32)
    tangents = (torch.stack([directions(u, 1)[0][0] * 1e300, directions(u, 1)[0][1]]), directions(u, 2)[1] * 1e10)
    by_kernel(u, tangents, sizes, UNDIRECTED, True)
    assert plain == [[1, 0], [1, 0]]


@pytest.mark.slow
def test_plain_numbers_do_not_lose_a_bridge(plain):
    """An edge that every tree has, below the range of float64, and none between it and the others."""
    u = torch.full((1, 4, 4), -torch.inf, dtype=torch.float64)
    u[0, 0, 1], u[0, 1, 2], u[0, 2, 3] = 0.0, -800.0, 0.0
    check(u, torch.tensor([4], dtype=torch.int32), 0, UNDIRECTED, True, atol=1e-11)
    assert [1] in plain


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize(("n", "root"), [(65, 7), (100, UNDIRECTED), (130, UNDIRECTED)] + ([(200, 7)] if FULL else []))
@pytest.mark.slow
def test_more_than_64_nodes(n, root, count, monkeypatch):
    """One item in plain numbers; in the interpreter with large tiles, for few steps."""
    if not FULL:
        monkeypatch.setattr(matrix_tree, "CELLS", 2**14)
    u = torch.randn(1, n, n, generator=seeded(n), dtype=torch.float64)
    check(u, torch.tensor([n], dtype=torch.int32), count, root, count > 0, atol=1e-11)


def test_few_items_are_divided(monkeypatch):
    monkeypatch.setattr(matrix_tree, "LANES", 32)
    few = matrix_tree.FEW * 10
    for tile in (64, 128):
        together, parts, warps = matrix_tree._division(few, tile, 10)
        assert (together, parts) == (1, matrix_tree.PARTS)
        assert 1 <= warps <= 32
        assert matrix_tree._division(few + 1, tile, 10)[:2] == (1, 1)
    assert matrix_tree._division(1, 32, 10)[:2] == (1, 1)
    assert matrix_tree._division(1, 8, 10) == matrix_tree._division(10**6, 8, 10) == (4, 1, 1)


def test_how_many_programs():
    device = torch.device("cpu")
    fewest, most = matrix_tree.FEWEST * matrix_tree.PROCESSORS, matrix_tree.WARPS * matrix_tree.PROCESSORS
    assert matrix_tree._programs(100, 1, 1, device) == most
    assert fewest <= matrix_tree._programs(64 * 64, 4, 1, device) < most
    assert matrix_tree._programs(128 * 128, 4, 2, device) == fewest
