"""Messages between the nodes of graphs, made and summed up without a tensor of all pairs in memory.

A scene is one item's nodes in one frame and, of trees, in one sample: every tree has pairs of its own of either type,
no edges (0) and edges (1). Soft structures have all pairs of both types, and samples share them (SOFT; their own
kernels are in soft_kernels.py). Scenes are numbered in the order item, sample, frame, the last fastest; pairs by type,
then by scene, then as the order of the tree has them, or by receiver. They go by in tiles of one type: a tile is the
left factor of a matrix product with the weights of its type, made when needed from what the first layer gives at both
ends. Where pairs are summed up by node, a program takes all those of some whole scenes, at most as many as NODES nodes
make, and a product with a 0/1 matrix sums them: in a fixed order and never atomically. Equal inputs give equal bits.

    halves      (items, N, frames, type, sender or receiver, H), the first layer at the nodes
    weight      (2, H, H), the second layer, outputs before inputs; `turned` has inputs before outputs: what a product
                sums over comes last, which is how the matrix units want it
    bias        (2, H)
    order       (items, samples, N (N - 1)), the pairs of a tree: edges, then the others
    out, grad   (items, samples, N, frames, H), the sums at the receivers
    at_pairs    (pairs, H), the first layer at the pairs
    grad_pairs  (pairs, H), the gradient to the second layer before its relu
    above       (pairs, H) int8, where the second layer is above zero, if that is to be kept (KEEP): with it the
                backward pass does not have to make the layer once more
    between     rows of at_pairs and of grad_pairs from the first pair of type 0 to the first of type 1: other steps may
                have theirs there
"""

import triton
import triton.language as tl

NODES = tl.constexpr(32)  # of a program: a power of two, and at least N


@triton.jit
def _count(type, N: tl.constexpr, SOFT):
    """How many pairs a scene has of a type."""
    return N * (N - 1) if SOFT else (N - 1) * tl.where(type == 1, 2, N - 2)


@triton.jit
def _pairs(order, scene, place, type, scenes, frames, N: tl.constexpr, SOFT):
    """Pairs by their place among those of a type, counted from a scene on: how many scenes further they are, whose
    scene, sender, receiver, and whether there is one. Those there are not are the scene's own: it does not matter which
    are read."""
    count = _count(type, N, SOFT)
    further = place // count
    live = scene + further < scenes
    whose = tl.where(live, scene + further, scene)
    pair = place % count
    if not SOFT:
        first = tl.where(type == 1, 0, 2 * (N - 1))
        pair = tl.load(order + (whose // frames).to(tl.int64) * (N * (N - 1)) + first + pair)
    sender, receiver = pair % (N - 1), pair // (N - 1)
    return further, whose, sender + (sender >= receiver).to(tl.int32), receiver, live


@triton.jit
def _first_row(scene, copies, frames, N):
    """The first row of a scene's nodes in a tensor that has them once for `copies` scenes, up to the frame: for
    `frames` where each sample has its own, else for all of an item."""
    return (scene // copies).to(tl.int64) * (N * frames)


@triton.jit
def _row(scene, whose, node, copies, frames, N):
    """Rows of other scenes' nodes, counted from the first: 32 bits are enough for that."""
    return ((whose // copies - scene // copies) * N + node) * frames + whose % frames


@triton.jit
def _ends(halves, scene, whose, sender, receiver, type, copies, frames, N: tl.constexpr, H: tl.constexpr):
    """Where the halves of a type begin, and how far from there those of senders and receivers are, as columns."""
    sent = _row(scene, whose, sender, copies, frames, N)[:, None] * (4 * H)
    received = _row(scene, whose, receiver, copies, frames, N)[:, None] * (4 * H) + H
    return halves + _first_row(scene, copies, frames, N) * (4 * H) + 2 * type * H, sent, received


@triton.jit
def _first(halves, sent, received, column):
    """The first layer at pairs. They share nodes: what is read is worth a place in the nearest cache."""
    s = tl.load(halves + (sent + column), cache_modifier=".ca")
    r = tl.load(halves + (received + column), cache_modifier=".ca")
    return tl.maximum(s + r, 0.0)


@triton.jit
def _second(halves, sent, received, weight, bias, type, column, H, ROWS, COLUMNS, DEPTH, PRECISION):
    """The second layer before its relu, (ROWS, COLUMNS)."""
    weight += type * H * H
    z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, H, DEPTH):
        k = start + tl.arange(0, DEPTH)
        w = tl.load(weight + (column * H + k[:, None]))
        z = tl.dot(_first(halves, sent, received, k[None, :]).to(w.dtype), w, z, input_precision=PRECISION)
    return z + tl.load(bias + type * H + column)


@triton.jit
def _sum(total, x, further, node, N: tl.constexpr, PRECISION: tl.constexpr):
    """Rows of x added to those of their nodes. A tile's last rows may be pairs of scenes that are not the program's, or
    none: their nodes are beyond those that are stored."""
    chosen = tl.arange(0, NODES)[:, None] == (further * N + node)[None, :]
    return tl.dot(chosen.to(x.dtype), x, total, input_precision=PRECISION)


@triton.jit
def _nodes(scene, scenes, frames, N: tl.constexpr, SCENES: tl.constexpr):
    """The rows of the sums of a program whose scenes begin with this one, and which there are; as columns."""
    slot = tl.arange(0, NODES)
    whose = scene + slot // N
    row = _first_row(scene, frames, frames, N) + _row(scene, whose, slot % N, frames, frames, N)
    return row[:, None], ((slot < SCENES * N) & (whose < scenes))[:, None]


@triton.jit
def forward(
    halves,
    weight,
    bias,
    order,
    out,
    above,
    scenes,
    samples,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    KEEP: tl.constexpr,
):
    """A program for NODES // N scenes and COLUMNS columns."""
    scene = tl.program_id(0) * (NODES // N)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    others = tl.cdiv(NODES // N * (N - 1) * (N - 2), ROWS)
    edges = tl.cdiv(NODES // N * (N - 1) * 2, ROWS)
    total = tl.zeros((NODES, COLUMNS), tl.float32)
    for tile in range(others + edges):
        type = (tile >= others).to(tl.int32)
        place = (tile - type * others) * ROWS + tl.arange(0, ROWS)
        further, whose, sender, receiver, live = _pairs(order, scene, place, type, scenes, frames, N, False)
        base, sent, received = _ends(halves, scene, whose, sender, receiver, type, samples * frames, frames, N, H)
        z = _second(base, sent, received, weight, bias, type, column, H, ROWS, COLUMNS, DEPTH, PRECISION)
        if KEEP:
            pair = type * scenes * ((N - 1) * (N - 2)) + scene * _count(type, N, False)
            _keep(
                above,
                z,
                pair,
                tl.arange(0, ROWS) + (tile - type * others) * ROWS,
                live & (further < NODES // N),
                column,
                H,
            )
        total = _sum(total, tl.maximum(z, 0.0).to(weight.dtype.element_ty), further, receiver, N, PRECISION)
    row, live = _nodes(scene, scenes, frames, N, NODES // N)
    tl.store(out + row * H + column, total.to(out.dtype.element_ty), mask=live)


@triton.jit
def _keep(above, z, pair, place, live, column, H):
    """Where the second layer is above zero, at places counted from a pair on."""
    at = pair.to(tl.int64) * H + (place[:, None] * H + column)
    tl.store(above + at, (z > 0).to(tl.int8), mask=live[:, None])


@triton.jit
def _open(above, pair, live, column, H, ROWS: tl.constexpr):
    """What was kept of the pairs of a tile, of which the first is this one."""
    at = pair.to(tl.int64) * H + (tl.arange(0, ROWS)[:, None] * H + column)
    return tl.load(above + at, mask=live[:, None], other=0) > 0


@triton.jit
def _leave(at_pairs, grad_pairs, grad_bias, base, sent, received, g, live, pair, tile, type, column, H, ROWS):
    """What is made of the gradient g before the relu, at a tile's pairs, of which the first is this one."""
    pair = pair.to(tl.int64) * H
    here = tl.arange(0, ROWS)[:, None] * H + column
    live = live[:, None]
    tl.store(grad_pairs + pair + here, g.to(grad_pairs.dtype.element_ty), mask=live)
    grad_bias += tile.to(tl.int64) * (2 * H) + column
    total = tl.sum(g, 0, keep_dims=True)
    tl.store(grad_bias + type * H, total)
    tl.store(grad_bias + (1 - type) * H, total * 0)
    h = _first(base, sent, received, column)  # here, where no other tile is held in registers
    tl.store(at_pairs + pair + here, h.to(at_pairs.dtype.element_ty), mask=live)


@triton.jit
def backward_second(
    grad,
    halves,
    above,
    order,
    at_pairs,
    grad_pairs,
    grad_bias,
    between,
    scenes,
    samples,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """at_pairs, grad_pairs, and grad_bias (tiles, 2, H), to be summed. A program for ROWS pairs and COLUMNS columns."""
    tile = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    others = tl.cdiv(scenes * ((N - 1) * (N - 2)), ROWS)
    type = (tile >= others).to(tl.int32)
    start = (tile - type * others) * ROWS
    scene = start // _count(type, N, False)
    place = start % _count(type, N, False) + tl.arange(0, ROWS)
    _, whose, sender, receiver, live = _pairs(order, scene, place, type, scenes, frames, N, False)
    base, sent, received = _ends(halves, scene, whose, sender, receiver, type, samples * frames, frames, N, H)
    there = _open(above, type * scenes * ((N - 1) * (N - 2)) + start, live, column, H, ROWS)
    grad += _first_row(scene, frames, frames, N) * H
    g = tl.load(grad + (_row(scene, whose, receiver, frames, frames, N)[:, None] * H + column))
    g = tl.where(there, g.to(tl.float32), 0.0)
    pair = type * between + start
    _leave(at_pairs, grad_pairs, grad_bias, base, sent, received, g, live, pair, tile, type, column, H, ROWS)


@triton.jit
def backward_first(
    grad_pairs,
    turned,
    order,
    at_pairs,
    grad_halves,
    between,
    scenes,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFT: tl.constexpr,
    SCENES: tl.constexpr,
):
    """grad_halves, of each scene. A program for SCENES scenes, COLUMNS columns, and one type."""
    scene = tl.program_id(0) * SCENES
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    type = tl.program_id(2)
    count = _count(type, N, SOFT)
    first = (type * between + scene * count).to(tl.int64) * H
    turned += type * H * H
    as_sender, as_receiver = tl.zeros((NODES, COLUMNS), tl.float32), tl.zeros((NODES, COLUMNS), tl.float32)
    for start in range(0, count * SCENES, ROWS):
        place = start + tl.arange(0, ROWS)
        further, _, sender, receiver, live = _pairs(order, scene, place, type, scenes, frames, N, SOFT)
        pair = tl.where(live, place, 0)[:, None] * H
        g = tl.zeros((ROWS, COLUMNS), tl.float32)
        for begin in range(0, H, DEPTH):
            k = begin + tl.arange(0, DEPTH)
            w = tl.load(turned + (column * H + k[:, None]))
            g = tl.dot(tl.load(grad_pairs + first + (pair + k[None, :])), w, g, input_precision=PRECISION)
        h = tl.load(at_pairs + first + (pair + column))
        g = tl.where(h > 0, g, 0.0).to(h.dtype)
        as_sender = _sum(as_sender, g, further, sender, N, PRECISION)
        as_receiver = _sum(as_receiver, g, further, receiver, N, PRECISION)
    row, live = _nodes(scene, scenes, frames, N, SCENES)
    to = grad_halves + (4 * row + 2 * type) * H + column
    tl.store(to, as_sender, mask=live)
    tl.store(to + H, as_receiver, mask=live)
