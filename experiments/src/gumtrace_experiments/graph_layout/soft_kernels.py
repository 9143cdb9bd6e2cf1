"""Messages along all pairs of nodes, of both types, summed up with weights: message_kernels.py for soft structures.

Messages do not depend on the weights: samples share them. Pairs are numbered by type, scene and receiver, and a tile
has all those of some receivers, EACH. So a product with a matrix of weights makes whole sums, a row for each receiver
in each sample, and the same matrix takes gradients back.

    wiring      (items, samples, N (N - 1)), how much each pair is an edge, by receiver
    grad_wiring (H / COLUMNS, type, samples, pairs of a type), to be summed over what the wiring does not have
"""

import triton
import triton.language as tl

from gumtrace_experiments.graph_layout.message_kernels import (
    _ends,
    _first_row,
    _keep,
    _leave,
    _open,
    _pairs,
    _row,
    _second,
)


@triton.jit
def _sums(first, scenes, group, samples, frames, N, ROWS, EACH, SAMPLES, RECEIVERS):
    """The sums of a tile whose receivers begin with this one, in a group of samples: their samples and rows, and
    whether there are such; as columns. And which of the tile's pairs they sum up, (sums, ROWS)."""
    sum = tl.arange(0, SAMPLES * RECEIVERS)[:, None]
    slot, sample = sum % RECEIVERS, group * SAMPLES + sum // RECEIVERS
    scene, whose = first // N, (first + slot) // N
    row = _row(scene, whose, sample * N + (first + slot) % N, frames, frames, N * samples)
    row += _first_row(scene, frames, frames, N * samples)
    live = (slot < EACH) & (sample < samples) & (whose < scenes)
    return sample, row, live, live & (slot == tl.arange(0, ROWS)[None, :] // (N - 1))


@triton.jit
def _weights(wiring, whose, place, sample, chosen, type, samples, frames, N):
    """Weights of the pairs of a tile in its sums."""
    pair = (whose[None, :] // frames * samples + sample).to(tl.int64) * (N * (N - 1)) + place[None, :] % (N * (N - 1))
    w = tl.load(wiring + pair, mask=chosen, other=0.0)
    return tl.where(chosen & (type == 0), 1 - w, w)


@triton.jit
def forward(
    halves,
    weight,
    bias,
    wiring,
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
    EACH: tl.constexpr,
    SAMPLES: tl.constexpr,
    RECEIVERS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """A program for EACH receivers, COLUMNS columns and SAMPLES samples."""
    first = tl.program_id(0) * EACH
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    scene, place = first // N, first % N * (N - 1) + tl.arange(0, ROWS)
    _, whose, sender, receiver, there = _pairs(wiring, scene, place, 0, scenes, frames, N, True)
    group = tl.program_id(2)
    there = there & (tl.arange(0, ROWS) < EACH * (N - 1))
    sample, row, live, chosen = _sums(first, scenes, group, samples, frames, N, ROWS, EACH, SAMPLES, RECEIVERS)
    total = tl.zeros((SAMPLES * RECEIVERS, COLUMNS), tl.float32)
    for type in range(2):
        base, sent, received = _ends(halves, scene, whose, sender, receiver, type, frames, frames, N, H)
        z = _second(base, sent, received, weight, bias, type, column, H, ROWS, COLUMNS, DEPTH, PRECISION)
        if KEEP:  # noqa: SIM102 the one is known to the compiler, the other is not
            if group == 0:
                pair = type * scenes * (N * (N - 1)) + first * (N - 1)
                _keep(above, z, pair, tl.arange(0, ROWS), there, column, H)
        x = tl.maximum(z, 0.0).to(weight.dtype.element_ty)
        w = _weights(wiring, whose, place, sample, chosen, type, samples, frames, N)
        total = tl.dot(w.to(x.dtype), x, total, input_precision=PRECISION)
    tl.store(out + row * H + column, total.to(out.dtype.element_ty), mask=live)


@triton.jit
def backward_second(
    grad,
    halves,
    weight,
    bias,
    above,
    wiring,
    at_pairs,
    grad_pairs,
    grad_bias,
    grad_wiring,
    between,
    scenes,
    samples,
    frames,
    N: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    EACH: tl.constexpr,
    SAMPLES: tl.constexpr,
    RECEIVERS: tl.constexpr,
    TO_WIRING: tl.constexpr,
):
    """As for trees, and grad_wiring if wanted, for which the layer is made once more. A program for EACH receivers,
    COLUMNS columns and one type."""
    tile = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    type = (tile >= tl.cdiv(scenes * N, EACH)).to(tl.int32)
    first = (tile - type * tl.cdiv(scenes * N, EACH)) * EACH
    scene, place = first // N, first % N * (N - 1) + tl.arange(0, ROWS)
    _, whose, sender, receiver, live = _pairs(wiring, scene, place, type, scenes, frames, N, True)
    base, sent, received = _ends(halves, scene, whose, sender, receiver, type, frames, frames, N, H)
    start, count = first * (N - 1), scenes * (N * (N - 1))
    live = live & (tl.arange(0, ROWS) < EACH * (N - 1))
    if TO_WIRING:
        z = _second(base, sent, received, weight, bias, type, column, H, ROWS, COLUMNS, DEPTH, PRECISION)
        passing = live[:, None] & (z > 0)
    else:
        passing = _open(above, type * count + start, live, column, H, ROWS)
    grad_wiring += ((tl.program_id(1) * 2 + type) * samples).to(tl.int64) * count + start
    g = tl.zeros((ROWS, COLUMNS), tl.float32)
    # There is no room to load ahead.
    for group in tl.range(tl.cdiv(samples, SAMPLES), num_stages=1):
        sample, row, there, chosen = _sums(first, scenes, group, samples, frames, N, ROWS, EACH, SAMPLES, RECEIVERS)
        w = _weights(wiring, whose, place, sample, chosen, type, samples, frames, N)
        to_sums = tl.load(grad + row * H + column, mask=there, other=0.0)
        g = tl.dot(tl.trans(w.to(to_sums.dtype)), to_sums, g, input_precision=PRECISION)
        if TO_WIRING:
            x = tl.maximum(z, 0.0).to(to_sums.dtype)
            to_weights = tl.dot(to_sums, tl.trans(x), input_precision=PRECISION) * (2 * type - 1)
            tl.store(grad_wiring + sample.to(tl.int64) * count + tl.arange(0, ROWS)[None, :], to_weights, mask=chosen)
    g = tl.where(passing, g, 0.0)
    pair = type * between + start
    _leave(at_pairs, grad_pairs, grad_bias, base, sent, received, g, live, pair, tile, type, column, H, ROWS)
