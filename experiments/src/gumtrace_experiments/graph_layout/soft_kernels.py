"""Messages of soft structures: how they are summed up. `message_kernels.py` says what the names stand for; `between_z`
is what is between the types in z, which has no other steps."""

import triton
import triton.language as tl

from gumtrace_experiments.graph_layout.message_kernels import row_of


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
                row = row_of(scene, sample * N + receiver, frames, frames, samples * N)
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
