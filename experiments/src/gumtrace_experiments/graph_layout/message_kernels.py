"""Messages between the nodes of graphs: what is no matrix product of them.

A scene is one item's nodes in one frame and, of trees, in one sample: every tree has pairs of its own of either type,
no edges (0) and edges (1). Soft structures have all pairs of both types, and samples share them (SOFT). Scenes are
numbered in the order item, sample, frame, the last fastest; pairs by type, then by scene, then as the order of the tree
has them, or by receiver. Layers at the pairs have a row for each. Sums are made in a fixed order and never atomically:
equal inputs give equal bits.

    halves      (items, N, frames, type, sender or receiver, H), the first layer at the nodes
    at_pairs    (pairs, H), the same at the pairs
    z           (pairs, H), the second layer before its bias and its relu
    grad_pairs  (pairs, H), the gradient to z
    grad_first  (pairs, H), the gradient to at_pairs
    bias        (2, H), of the second layer
    wiring      of trees (items, samples, 2, N (N - 1)): their pairs, edges first, and at which place a pair is; of soft
                structures (items, samples, N (N - 1)): how much each pair is an edge, by receiver
    out, grad   (items, samples, N, frames, H), the sums at the receivers
    between     rows from the first pair of type 0 to the first of type 1: other steps may have theirs there. `_z`, and
                `_grads` of grad_first, where a kernel has tensors with and without other steps
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
def _row(scene, node, copies, frames, N):
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
def first_layer(
    halves,
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
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    type, row, scene, sender, receiver, live = _tile(tl.program_id(0), wiring, scenes, frames, N, SOFT, ROWS)
    halves += 2 * type * H
    sent = _row(scene, sender, copies, frames, N)[:, None] * (4 * H)
    received = _row(scene, receiver, copies, frames, N)[:, None] * (4 * H) + H
    x = tl.load(halves + sent + column, cache_modifier=".ca") + tl.load(
        halves + received + column, cache_modifier=".ca"
    )
    to = at_pairs + (type * between + row).to(tl.int64)[:, None] * H + column
    tl.store(to, tl.maximum(x, 0.0).to(at_pairs.dtype.element_ty), mask=live[:, None])


@triton.jit
def sum_trees(
    z,
    bias,
    wiring,
    out,
    between,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    NODES: tl.constexpr,
):
    """out. A program for a scene and COLUMNS columns."""
    scene = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    no_edge, edge = tl.load(bias + column), tl.load(bias + H + column)
    receiver = tl.arange(0, NODES)
    live = receiver < N
    places = wiring + (scene // frames).to(tl.int64) * (2 * N * (N - 1)) + N * (N - 1)
    total = tl.zeros((NODES, COLUMNS), tl.float32)
    for i in range(N - 1):
        place = tl.load(places + receiver * (N - 1) + i, mask=live, other=0)
        of_edge = place < 2 * (N - 1)
        row = between + scene.to(tl.int64) * (2 * (N - 1)) + place
        row = tl.where(of_edge, row, scene.to(tl.int64) * ((N - 1) * (N - 2)) + place - 2 * (N - 1))
        x = tl.load(z + row[:, None] * H + column, mask=live[:, None], other=0.0).to(tl.float32)
        total += tl.maximum(x + tl.where(of_edge[:, None], edge, no_edge), 0.0)
    to = out + _row(scene, receiver, frames, frames, N)[:, None] * H + column
    tl.store(to, total.to(out.dtype.element_ty), mask=live[:, None])


@triton.jit
def split_trees(
    grad,
    z,
    bias,
    wiring,
    grad_pairs,
    grad_bias,
    between_z,
    between,
    scenes,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
):
    """grad_pairs, and grad_bias (programs, 2, H), to be summed. A program for TILES tiles and COLUMNS columns."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    no_edges, edges = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for i in range(TILES):
        tile = tl.program_id(0) * TILES + i
        type, row, scene, _, receiver, live = _tile(tile, wiring, scenes, frames, N, False, ROWS)
        live = live[:, None]
        g = tl.load(grad + _row(scene, receiver, frames, frames, N)[:, None] * H + column)
        at = (type * between_z + row).to(tl.int64)[:, None] * H + column
        above = tl.load(z + at, mask=live, other=0.0).to(tl.float32) + tl.load(bias + type * H + column) > 0
        g = tl.where(live & above, g.to(tl.float32), 0.0)
        to = grad_pairs + (type * between + row).to(tl.int64)[:, None] * H + column
        tl.store(to, g.to(grad_pairs.dtype.element_ty), mask=live)
        no_edges += tl.where(type == 0, g, 0.0)
        edges += tl.where(type == 1, g, 0.0)
    grad_bias += tl.program_id(0).to(tl.int64) * (2 * H) + column
    tl.store(grad_bias, tl.sum(no_edges, 0, keep_dims=True))
    tl.store(grad_bias + H, tl.sum(edges, 0, keep_dims=True))


@triton.jit
def _weights(wiring, scene, receiver, start, samples, frames, N: tl.constexpr, SENDERS, SAMPLES):
    """How much each pair of a receiver is an edge and how much it is none, (SAMPLES, SENDERS), from a sample on; and
    rows of the receiver in out, as a column, with those that there are."""
    sample, i = start + tl.arange(0, SAMPLES)[:, None], tl.arange(0, SENDERS)[None, :]
    graph = (scene // frames).to(tl.int64) * samples + sample
    there = (sample < samples) & (i < N - 1)
    w = tl.load(wiring + graph * (N * (N - 1)) + receiver * (N - 1) + i, mask=there, other=0.0)
    return w, tl.where(there, 1 - w, 0.0), (graph * N + receiver) * frames + scene % frames, sample < samples


@triton.jit
def _of_receiver(scene, receiver, H, N: tl.constexpr, SENDERS):
    """Where the pairs of a receiver are, as a column, and which there are."""
    i = tl.arange(0, SENDERS)[:, None]
    return (scene.to(tl.int64) * (N * (N - 1)) + receiver * (N - 1) + i) * H, i < N - 1


@triton.jit
def sum_soft(
    z,
    bias,
    wiring,
    out,
    between,
    samples,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    SENDERS: tl.constexpr,
    SAMPLES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out. A program for a receiver, in all samples, and COLUMNS columns."""
    scene, receiver = tl.program_id(0) // N, tl.program_id(0) % N
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    at, live = _of_receiver(scene, receiver, H, N, SENDERS)
    type1 = between.to(tl.int64) * H
    x0 = tl.load(z + at + column, mask=live, other=0.0)
    x1 = tl.load(z + type1 + at + column, mask=live, other=0.0)
    x0 = tl.maximum(x0.to(tl.float32) + tl.load(bias + column), 0.0).to(x0.dtype)
    x1 = tl.maximum(x1.to(tl.float32) + tl.load(bias + H + column), 0.0).to(x1.dtype)
    for start in range(0, samples, SAMPLES):
        w1, w0, row, there = _weights(wiring, scene, receiver, start, samples, frames, N, SENDERS, SAMPLES)
        total = tl.dot(w1.to(x1.dtype), x1, input_precision=PRECISION)
        total = tl.dot(w0.to(x0.dtype), x0, total, input_precision=PRECISION)
        tl.store(out + row * H + column, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def split_soft(
    grad,
    z,
    bias,
    wiring,
    grad_pairs,
    grad_bias,
    grad_wiring,
    between_z,
    between,
    scenes,
    samples,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    SENDERS: tl.constexpr,
    SAMPLES: tl.constexpr,
    PRECISION: tl.constexpr,
    TO_WIRING: tl.constexpr,
):
    """grad_pairs, grad_bias (scenes, 2, H) and, if wanted, grad_wiring (H / COLUMNS, scenes, samples, N (N - 1)), both
    to be summed. A program for a scene and COLUMNS columns."""
    scene = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    b0, b1 = tl.load(bias + column), tl.load(bias + H + column)
    type1 = between_z.to(tl.int64) * H
    to_b0, to_b1 = tl.zeros((SENDERS, COLUMNS), tl.float32), tl.zeros((SENDERS, COLUMNS), tl.float32)
    for receiver in range(N):
        at, live = _of_receiver(scene, receiver, H, N, SENDERS)
        x0 = tl.load(z + at + column, mask=live, other=0.0).to(tl.float32) + b0
        x1 = tl.load(z + type1 + at + column, mask=live, other=0.0).to(tl.float32) + b1
        g0, g1 = tl.zeros((SENDERS, COLUMNS), tl.float32), tl.zeros((SENDERS, COLUMNS), tl.float32)
        for start in range(0, samples, SAMPLES):
            w1, w0, row, there = _weights(wiring, scene, receiver, start, samples, frames, N, SENDERS, SAMPLES)
            g = tl.load(grad + row * H + column, mask=there, other=0.0)
            g0 = tl.dot(tl.trans(w0.to(g.dtype)), g, g0, input_precision=PRECISION)
            g1 = tl.dot(tl.trans(w1.to(g.dtype)), g, g1, input_precision=PRECISION)
        if TO_WIRING:  # by sums: as a product it would not fit into the registers
            change = tl.maximum(x1, 0.0) - tl.maximum(x0, 0.0)
            i = tl.arange(0, SENDERS)
            for sample in range(samples):
                row = _row(scene, sample * N + receiver, frames, frames, samples * N)
                to_weights = tl.sum(tl.load(grad + row * H + column).to(tl.float32) * change, 1)
                graph = (tl.program_id(1) * scenes + scene).to(tl.int64) * samples + sample
                to = grad_wiring + graph * (N * (N - 1)) + receiver * (N - 1) + i
                tl.store(to, to_weights, mask=i < N - 1)
        g0, g1 = tl.where(live & (x0 > 0), g0, 0.0), tl.where(live & (x1 > 0), g1, 0.0)
        to = grad_pairs + at + column
        tl.store(to, g0.to(grad_pairs.dtype.element_ty), mask=live)
        tl.store(to + between.to(tl.int64) * H, g1.to(grad_pairs.dtype.element_ty), mask=live)
        to_b0 += g0
        to_b1 += g1
    grad_bias += scene.to(tl.int64) * (2 * H) + column
    tl.store(grad_bias, tl.sum(to_b0, 0, keep_dims=True))
    tl.store(grad_bias + H, tl.sum(to_b1, 0, keep_dims=True))


@triton.jit
def to_nodes(
    grad_first,
    at_pairs,
    wiring,
    grad_halves,
    between_grads,
    between,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NODES: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFT: tl.constexpr,
):
    """grad_halves, of each scene. A program for a scene, COLUMNS columns and one type: products with 0/1 matrices sum
    up by node."""
    scene, type = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    count = _count(type, N, SOFT)
    first = scene.to(tl.int64) * count
    node = tl.arange(0, NODES)
    as_sender, as_receiver = tl.zeros((NODES, COLUMNS), tl.float32), tl.zeros((NODES, COLUMNS), tl.float32)
    for start in range(0, count, ROWS):
        place = start + tl.arange(0, ROWS)
        live = place < count
        place = tl.where(live, place, 0)
        sender, receiver = _ends(wiring, scene, place, type, frames, N, SOFT)
        row = (first + place)[:, None] * H + column
        h = tl.load(at_pairs + type.to(tl.int64) * between * H + row)
        g = tl.load(grad_first + type.to(tl.int64) * between_grads * H + row)
        g = tl.where(live[:, None] & (h > 0), g, 0.0).to(h.dtype)
        chosen = (node[:, None] == sender[None, :]).to(h.dtype)
        as_sender = tl.dot(chosen, g, as_sender, input_precision=PRECISION)
        chosen = (node[:, None] == receiver[None, :]).to(h.dtype)
        as_receiver = tl.dot(chosen, g, as_receiver, input_precision=PRECISION)
    to = grad_halves + (_row(scene, node, frames, frames, N)[:, None] * 4 + 2 * type) * H + column
    tl.store(to, as_sender, mask=(node < N)[:, None])
    tl.store(to + H, as_receiver, mask=(node < N)[:, None])
