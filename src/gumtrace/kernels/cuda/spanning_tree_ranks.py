"""The last step of the trace of large dense graphs: the edges of the tree are sorted by counting, for each, those that
come before. Several programs share an item."""

import triton
import triton.language as tl

from gumtrace.kernels.cuda.formula import EXACT
from gumtrace.kernels.cuda.noise import row_of
from gumtrace.kernels.cuda.order import before, least

TILE = 64  # edges that a program ranks


@triton.jit
def nodes_of(sizes, size_rows, item, n):
    """How many nodes an item has."""
    nodes = n
    if sizes is not None:
        nodes = tl.load(sizes + row_of(item, size_rows))
    return nodes


@triton.jit(do_not_specialize=["size_rows", "n", "components", "slots", "blocks"])
def _rank(
    tree_c,
    tree_key,
    state,
    sizes,
    size_rows,
    winners,
    status,
    n,
    components,
    slots,
    blocks,
    TILE: tl.constexpr,
):
    """Each program counts for a block of edges those that come before; -1 behind the last that is kept."""
    item = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    lowest = least(tl.zeros([], tl.float64 if tree_c.dtype.element_ty == tl.int64 else tl.float32))
    place = block * TILE + tl.arange(0, TILE)
    c = tl.load(tree_c + item * n + place, mask=place < n, other=lowest)
    key = tl.load(tree_key + item * n + place, mask=place < n, other=0)
    rank, found = tl.zeros([TILE, TILE], tl.int32), place * 0  # summed at the end, once
    for start in range(0, n, TILE):
        other = start + tl.arange(0, TILE)
        other_c = tl.load(tree_c + item * n + other, mask=other < n, other=lowest)
        other_key = tl.load(tree_key + item * n + other, mask=other < n, other=0)
        sooner = before(other_c[:, None], other_key[:, None], c[None, :], key[None, :])
        rank += sooner.to(tl.int32)
        found += (other_c > lowest).to(tl.int32)
    rank = tl.sum(rank, 0)
    steps = nodes_of(sizes, size_rows, item, n) - components
    wrong = tl.load(state + 2 * item + 1)
    stuck = (steps < 0) | (tl.sum(found, 0) < steps)
    kept = tl.where(stuck | (wrong > 0), 0, steps)
    tl.store(winners + item * slots + rank, key, mask=(c > lowest) & (rank < kept))
    tl.store(winners + item * slots + place, -1, mask=(place < slots) & (place >= kept))
    if block == 0:
        tl.store(status + item, tl.where(wrong > 0, 2, stuck.to(tl.int32)).to(tl.int8))


def rank(geometry, tree_c, tree_key, state, sized, winners, status):
    n, blocks = geometry.nodes, triton.cdiv(geometry.nodes, TILE)
    where = (tree_c, tree_key, state, *sized, winners, status, n, geometry.components, geometry.winner_slots, blocks)
    _rank[(len(winners) * blocks,)](*where, TILE=TILE, num_warps=8, **EXACT)
