"""Messages between the nodes of graphs: what is no matrix product of them. `soft_kernels.py` has how those of soft
structures are summed up.

A scene is one item's nodes in one frame and, of trees, in one sample: every tree has pairs of its own of either type,
no edges (0) and edges (1). Soft structures have all pairs of both types, and samples share them (SOFT). Scenes are
numbered in the order item, sample, frame, the last fastest; pairs by type, then by scene, then as the order of the tree
has them, or by receiver. Layers at the pairs have a row for each. Sums are made in a fixed order and never atomically:
equal inputs give equal bits.

    x           (items, N, frames, 2), the nodes
    first       (2, 5, H), the first layer of either type: by coordinates of senders, of receivers, and its bias
    at_pairs    (pairs, H), the first layer at the pairs
    z           (pairs, H), the second layer before its bias and its relu
    grad_pairs  (pairs, H), the gradient to z
    grad_first  (pairs, H), the gradient to at_pairs
    bias        (2, H), of the second layer
    wiring      of trees (items, samples, 2, N (N - 1)): their pairs, edges first, and at which place a pair is; of soft
                structures (items, samples, N (N - 1)): how much each pair is an edge, by receiver
    out, grad   (items, samples, N, frames, H), the sums at the receivers
    above       the same shape, of trees: a bit for each sender, which says where its second layer is above zero
    between     rows from the first pair of type 0 to the first of type 1: other steps may have theirs there
"""

import triton
import triton.language as tl


@triton.jit
def _count(type, N: tl.constexpr, SOFT):
    """How many pairs a scene has of a type."""
    return N * (N - 1) if SOFT else (N - 1) * tl.where(type == 1, 2, N - 2)


@triton.jit
def _ends(wiring, scene, place, type, frames, N: tl.constexpr, SOFT):
    """Sender and receiver of the pairs at some places among those of a type in a scene."""
    pair = place
    if not SOFT:
        first = tl.where(type == 1, 0, 2 * (N - 1))
        pair = tl.load(wiring + (scene // frames).to(tl.int64) * (2 * N * (N - 1)) + first + place)
    sender, receiver = pair % (N - 1), pair // (N - 1)
    return sender + (sender >= receiver).to(tl.int32), receiver


@triton.jit
def row_of(scene, node, copies, frames, N):
    """Rows of nodes in a tensor that has them once for `copies` scenes: for `frames` where each sample has its own,
    else for all of an item."""
    return ((scene // copies).to(tl.int64) * N + node) * frames + scene % frames


@triton.jit
def _tile(index, wiring, scenes, frames, N: tl.constexpr, SOFT, ROWS: tl.constexpr):
    """Some rows of one type: the type, rows counted from its first, scenes, senders, receivers, and whether there are
    such. Those there are not are the first one: it does not matter which is read."""
    others = tl.cdiv(scenes * _count(0, N, SOFT), ROWS)
    type = (index >= others).to(tl.int32)
    count = _count(type, N, SOFT)
    row = (index - type * others) * ROWS + tl.arange(0, ROWS)
    live = row < scenes * count
    row = tl.where(live, row, 0)
    scene = row // count
    sender, receiver = _ends(wiring, scene, row % count, type, frames, N, SOFT)
    return type, row, scene, sender, receiver, live


@triton.jit
def _terms(first, column, H: tl.constexpr):
    """Of the first layer of one type, as rows: by both coordinates of senders, of receivers, and the bias."""
    w0, w1 = tl.load(first + column)[None, :], tl.load(first + H + column)[None, :]
    w2, w3 = tl.load(first + 2 * H + column)[None, :], tl.load(first + 3 * H + column)[None, :]
    return w0, w1, w2, w3, tl.load(first + 4 * H + column)[None, :]


@triton.jit
def _at_pairs(x, w0, w1, w2, w3, bias, scene, sender, receiver, copies, frames, N):
    """The first layer of one type at its pairs, before its relu."""
    sent = x + row_of(scene, sender, copies, frames, N) * 2
    received = x + row_of(scene, receiver, copies, frames, N) * 2
    total = bias + tl.load(sent)[:, None] * w0 + tl.load(sent + 1)[:, None] * w1
    return total + tl.load(received)[:, None] * w2 + tl.load(received + 1)[:, None] * w3


@triton.jit
def first_layer(
    x,
    first,
    wiring,
    at_pairs,
    between,
    scenes,
    copies,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOFT: tl.constexpr,
):
    """at_pairs. A program for a tile of rows and COLUMNS columns."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    type, row, scene, sender, receiver, live = _tile(tl.program_id(0), wiring, scenes, frames, N, SOFT, ROWS)
    w0, w1, w2, w3, bias = _terms(first + type * (5 * H), column, H)
    total = _at_pairs(x, w0, w1, w2, w3, bias, scene, sender, receiver, copies, frames, N)
    to = at_pairs + (type * between + row).to(tl.int64)[:, None] * H + column[None, :]
    tl.store(to, tl.maximum(total, 0.0).to(at_pairs.dtype.element_ty), mask=live[:, None])


@triton.jit
def _received(wiring, scene, i, between, frames, N: tl.constexpr, NODES: tl.constexpr):
    """Where the pairs of a tree are from which receivers get their i-th message, as a column, and which are edges."""
    receiver = tl.arange(0, NODES)
    places = wiring + (scene // frames).to(tl.int64) * (2 * N * (N - 1)) + N * (N - 1)
    place = tl.load(places + receiver * (N - 1) + i, mask=receiver < N, other=0)
    edge = place < 2 * (N - 1)
    row = tl.where(edge, between + scene.to(tl.int64) * (2 * (N - 1)), scene.to(tl.int64) * ((N - 1) * (N - 2)))
    return (row + tl.where(edge, place, place - 2 * (N - 1)))[:, None], edge[:, None]


@triton.jit
def sum_trees(
    z,
    bias,
    wiring,
    out,
    above,
    between,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    NODES: tl.constexpr,
):
    """out and above. A program for a scene and COLUMNS columns."""
    scene, receiver = tl.program_id(0), tl.arange(0, NODES)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    no_edge, edge = tl.load(bias + column), tl.load(bias + H + column)
    live = (receiver < N)[:, None]
    total, bits = tl.zeros((NODES, COLUMNS), tl.float32), tl.zeros((NODES, COLUMNS), tl.int32)
    for i in range(N - 1):
        row, of_edge = _received(wiring, scene, i, between, frames, N, NODES)
        x = tl.load(z + row * H + column, mask=live, other=0.0).to(tl.float32) + tl.where(of_edge, edge, no_edge)
        total += tl.maximum(x, 0.0)
        bits |= tl.where(x > 0, 1 << i, 0)
    at = row_of(scene, receiver, frames, frames, N)[:, None] * H + column
    tl.store(out + at, total.to(out.dtype.element_ty), mask=live)
    tl.store(above + at, bits.to(above.dtype.element_ty), mask=live)


@triton.jit
def split_trees(
    grad,
    above,
    wiring,
    grad_pairs,
    grad_bias,
    between,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    NODES: tl.constexpr,
):
    """grad_pairs, and grad_bias (scenes, 2, H), to be summed. A program for a scene and COLUMNS columns."""
    scene, receiver = tl.program_id(0), tl.arange(0, NODES)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    live = (receiver < N)[:, None]
    at = row_of(scene, receiver, frames, frames, N)[:, None] * H + column
    whole = tl.load(grad + at, mask=live, other=0.0).to(tl.float32)
    bits = tl.load(above + at, mask=live, other=0).to(tl.int32)
    no_edges, edges = tl.zeros((NODES, COLUMNS), tl.float32), tl.zeros((NODES, COLUMNS), tl.float32)
    for i in range(N - 1):
        row, of_edge = _received(wiring, scene, i, between, frames, N, NODES)
        g = tl.where((bits >> i) & 1 == 1, whole, 0.0)
        tl.store(grad_pairs + row * H + column, g.to(grad_pairs.dtype.element_ty), mask=live)
        no_edges += tl.where(of_edge, 0.0, g)
        edges += tl.where(of_edge, g, 0.0)
    grad_bias += scene.to(tl.int64) * (2 * H) + column
    tl.store(grad_bias, tl.sum(no_edges, 0, keep_dims=True))
    tl.store(grad_bias + H, tl.sum(edges, 0, keep_dims=True))


@triton.jit
def to_nodes(
    grad_first,
    x,
    first,
    wiring,
    to_x,
    to_first,
    between,
    scenes,
    copies,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NODES: tl.constexpr,
    SCENES: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFT: tl.constexpr,
):
    """Gradients to x, (2 H / COLUMNS, all scenes as in out, 2), and to the first layer, (programs, 2, 5, H), both to be
    summed. A program for SCENES scenes, COLUMNS columns and one type: products with 0/1 matrices sum up by node."""
    type, part = tl.program_id(2), tl.program_id(1) * 2 + tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    node, term = tl.arange(0, NODES), tl.arange(0, 16)[:, None]
    grad_first += type.to(tl.int64) * between * H
    w0, w1, w2, w3, bias = _terms(first + type * (5 * H), column, H)
    total = tl.zeros((16, COLUMNS), tl.float32)
    for i in range(SCENES):
        scene = tl.program_id(0) * SCENES + i
        count = tl.where(scene < scenes, _count(type, N, SOFT), 0)
        as_sender, as_receiver = tl.zeros((NODES, COLUMNS), tl.float32), tl.zeros((NODES, COLUMNS), tl.float32)
        for start in range(0, count, ROWS):
            place = start + tl.arange(0, ROWS)
            live = place < count
            place = tl.where(live, place, 0)
            sender, receiver = _ends(wiring, scene, place, type, frames, N, SOFT)
            row = (scene.to(tl.int64) * count + place)[:, None] * H + column[None, :]
            g = tl.load(grad_first + row, mask=live[:, None], other=0.0)
            # As the forward pass had it: reading that would take longer.
            above = _at_pairs(x, w0, w1, w2, w3, bias, scene, sender, receiver, copies, frames, N) > 0
            g = tl.where(above, g, 0.0)
            chosen = (node[:, None] == sender[None, :]).to(g.dtype)
            as_sender = tl.dot(chosen, g, as_sender, input_precision=PRECISION)
            chosen = (node[:, None] == receiver[None, :]).to(g.dtype)
            as_receiver = tl.dot(chosen, g, as_receiver, input_precision=PRECISION)
        there = node < tl.where(scene < scenes, N, 0)
        to = to_x + (part.to(tl.int64) * scenes * N + row_of(scene, node, frames, frames, N)) * 2
        tl.store(to, tl.sum(as_sender * w0 + as_receiver * w2, 1), mask=there)
        tl.store(to + 1, tl.sum(as_sender * w1 + as_receiver * w3, 1), mask=there)
        # What the terms of the layer are multiplied with: coordinates, first of senders, and 1.
        at = x + row_of(scene, node, copies, frames, N)[None, :] * 2 + term % 2
        factor = tl.load(at, mask=there[None, :] & (term < 4), other=1.0)
        total = tl.dot(tl.where(term < 2, factor, 0.0), as_sender, total, input_precision=PRECISION)
        factor = tl.where((term >= 2) & (term < 5), factor, 0.0)
        total = tl.dot(factor, as_receiver, total, input_precision=PRECISION)
    to = to_first + (tl.program_id(0).to(tl.int64) * 2 + type) * (5 * H) + term * H + column[None, :]
    tl.store(to, total, mask=term < 5)
