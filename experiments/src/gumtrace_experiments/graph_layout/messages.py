"""Messages between the nodes of graphs, summed up at their receivers: one operator of torch, for CUDA devices.

`decoder.py` says what is computed, and does it on any device. Here the second layer is a matrix product with a row for
each pair, which the libraries for that do best, and kernels of our own do all that is between products: each reads what
it needs once and writes what comes next. The first layer reads four coordinates of a pair, and is part of the kernels.
torch.compile takes the operator as it is. It can be differentiated once.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from gumtrace_experiments.graph_layout.pairs import SCENES, Pairs, pair_counts

MOST_NODES = 32  # of a graph: a program sums at all of them
WIDEST = 512
ROWS, FEW = 64, 32  # of a tile of pairs, and of one that is multiplied
TOGETHER = 32  # samples at most that a program takes at a time
AT_ONCE = 1 << 28  # bytes of a layer at the pairs, where nothing is kept
ONCE = "the kernels for messages have no second derivatives; decode with hard=False, twice=True"
_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True, eq=False)  # as in layers.py
class Messages:
    """Both layers of both types of pairs, no edges and edges, and whose they are: the same in every step."""

    first: Tensor  # (2, 5, hidden), as message_kernels.py has it
    weight: Tensor  # (2, hidden, hidden), of the second layer, outputs before inputs
    bias: Tensor  # (2, hidden), of the second
    used: Tensor  # the weights in the dtype of the products
    wiring: Tensor  # int32 of trees and float32 of soft structures, as message_kernels.py has it

    def __call__(self, x: Tensor) -> Tensor:
        """Summed up at their receivers, (I, K, n, F, hidden), for nodes (I, n, F, 2)."""
        inputs = x, self.first, self.weight, self.bias, self.wiring
        keep = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        return sum_messages(x.contiguous(), self.first, self.weight, self.bias, self.used, self.wiring, keep)[0]


def serves(structure: Tensor, hidden: int) -> bool:
    """Whether the kernels take structures (I, K, n, n)."""
    if not (structure.is_cuda and _HAS_TRITON and structure.dtype == torch.float32 and structure.numel() > 0):
        return False
    return 3 <= structure.shape[-1] <= MOST_NODES and hidden % 16 == 0 and hidden <= WIDEST


def product_dtype(x: Tensor) -> torch.dtype:
    """In which torch takes matrix products of x: that of autocast, where it is on."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def prepare(first: Tensor, weight: Tensor, bias: Tensor, wiring: Tensor) -> Messages:
    """For wiring (I, K, n(n-1)): int64 the pairs of each tree, edges first; float32 how much each pair is an edge."""
    used = weight.detach().to(product_dtype(weight))
    if not wiring.is_floating_point():
        places = torch.arange(wiring.shape[-1], device=wiring.device).expand_as(wiring)
        wiring = torch.stack([wiring, torch.empty_like(wiring).scatter_(-1, wiring, places)], -2).to(torch.int32)
    return Messages(first, weight, bias, used, wiring.contiguous())


@torch.library.custom_op("gumtrace_experiments::sum_messages", mutates_args=())
def sum_messages(
    x: Tensor, first: Tensor, weight: Tensor, bias: Tensor, used: Tensor, wiring: Tensor, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(I, K, n, F, hidden), from nodes (I, n, F, 2). The weight is here for its gradient; what is read of it is `used`.
    And, to `keep`, the first layer at the pairs, (pairs, hidden), and what `forward_step` returns."""
    out = sums(x, used, wiring)
    if keep:
        made = Pairs(out.shape, used, wiring)
        return out, made.inputs, forward_step(made, 0, x, first, bias, used, wiring, out)
    items, hidden = len(x), used.shape[-1]
    most = max(1, AT_ONCE * items // (sum(pair_counts(out.shape, wiring)) * hidden * used.itemsize))
    for some in (slice(start, start + most) for start in range(0, items, most)):
        made = Pairs(out[some].shape, used, wiring[some])
        forward_step(made, 0, x[some], first, bias, used, wiring[some], out[some])
    return out, used.new_empty(0, hidden), used.new_empty(0, hidden)


@torch.library.custom_op("gumtrace_experiments::sum_messages_grad", mutates_args=())
def _grad(
    grad: Tensor,
    x: Tensor,
    first: Tensor,
    bias: Tensor,
    used: Tensor,
    wiring: Tensor,
    inputs: Tensor,
    kept: Tensor,
    to_wiring: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """To the nodes, the first layer, the weight, the bias and, if so wanted, the wiring; else nothing is at its
    place."""
    made = Pairs(grad.shape, used, wiring, inputs=inputs)
    to_x, grad_wiring = backward_step(made, 0, grad, x, first, bias, used, wiring, kept, to_wiring)
    return to_x, *made.to_layers(), grad_wiring


def forward_step(
    made: Pairs, step: int, x: Tensor, first: Tensor, bias: Tensor, used: Tensor, wiring: Tensor, out: Tensor
) -> Tensor:
    """The sums into `out`, by way of both layers at the pairs. Returns what the backward pass needs of the second: of
    trees, where it is above zero."""
    from gumtrace_experiments.graph_layout import message_kernels as kernels
    from gumtrace_experiments.graph_layout import soft_kernels

    z, samples, frames = made.layer(), made.samples, made.frames
    with torch.cuda.device_of(x):
        tiles = sum(-(-count // ROWS) for count in made.counts)
        to = made.inputs[made.start(step) :], made.between(step), made.scenes, made.copies, frames
        options = {**made.options, "ROWS": ROWS, "SOFT": made.soft}
        kernels.first_layer[tiles, made.blocks](x, first, wiring, *to, **options)
        for to, inputs, weight in zip(z.split(made.counts), made.types(made.inputs, step), used, strict=True):
            torch.matmul(inputs, weight.T, out=to)
        if made.soft:
            options = {**made.options, **_soft_sizes(made), "PRECISION": _precision(used)}
            where = made.counts[0], samples, frames
            soft_kernels.sum_soft[made.scenes * made.n, made.blocks](z, bias, wiring, out, *where, **options)
            return z
        above = torch.empty(out.shape, dtype=_bits(made.n), device=out.device)
        options = {**made.options, "NODES": _power(made.n)}
        where = made.counts[0], frames
        kernels.sum_trees[made.scenes, made.blocks](z, bias, wiring, out, above, *where, **options)
    return above


def backward_step(
    made: Pairs,
    step: int,
    grad: Tensor,
    x: Tensor,
    first: Tensor,
    bias: Tensor,
    used: Tensor,
    wiring: Tensor,
    kept: Tensor,
    to_wiring: bool,
) -> tuple[Tensor, Tensor]:
    """Through one step: to the nodes and the wiring, by way of the pairs."""
    from gumtrace_experiments.graph_layout import message_kernels as kernels
    from gumtrace_experiments.graph_layout import soft_kernels

    n, frames, scenes, between = made.n, made.frames, made.scenes, made.between(step)
    graphs = made.items, frames, made.samples, wiring.shape[-1] if to_wiring else 0
    grad_wiring = torch.empty(made.blocks, *graphs, device=grad.device)
    with torch.cuda.device_of(grad):
        to = made.grads[made.start(step) :], made.to_bias[step]
        if made.soft:
            options = {**made.options, **_soft_sizes(made), "PRECISION": _precision(used)}
            options["TO_WIRING"] = to_wiring
            where = grad_wiring, made.counts[0], between, scenes, made.samples, frames
            soft_kernels.split_soft[scenes, made.blocks](grad.contiguous(), kept, bias, wiring, *to, *where, **options)
        else:
            options = {**made.options, "NODES": _power(n)}
            where = between, frames
            kernels.split_trees[scenes, made.blocks](grad.contiguous(), kept, wiring, *to, *where, **options)
        grad_first = made.layer()
        for to, grads, weight in zip(grad_first.split(made.counts), made.types(made.grads, step), used, strict=True):
            torch.matmul(grads, weight, out=to)
        to_x, to_first = torch.empty(2 * made.blocks, scenes * n, 2, device=grad.device), made.to_first[step]
        options = {**made.options, "ROWS": FEW, "NODES": max(16, _power(n)), "SOFT": made.soft}
        options |= {"SCENES": SCENES, "PRECISION": _precision(used)}
        where = made.counts[0], scenes, made.copies, frames
        grid = len(to_first), made.blocks, 2
        kernels.to_nodes[grid](grad_first, x, first, wiring, to_x, to_first, *where, **options)
    to_x = to_x.view(len(to_x), made.items, -1, n, frames, 2).sum((0, 2))
    return to_x, grad_wiring.sum((0, 2))


def sums(x: Tensor, used: Tensor, wiring: Tensor) -> Tensor:
    """Memory for the sums at the receivers, (I, K, n, F, hidden)."""
    items, n, frames, _ = x.shape
    return torch.empty(items, wiring.shape[1], n, frames, used.shape[-1], dtype=used.dtype, device=x.device)


def _bits(n: int) -> torch.dtype:
    """With one for each sender to a node."""
    return torch.int16 if n - 1 <= 16 else torch.int32


def _precision(used: Tensor) -> str:
    """Of sums by matrix products."""
    exact = used.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "ieee" if exact else "tf32"


def _soft_sizes(made: Pairs) -> dict[str, int]:
    """Senders and samples of a program: factors of a matrix product, which have 16 rows or more."""
    return {"SENDERS": max(16, _power(made.n - 1)), "SAMPLES": min(max(16, _power(made.samples)), TOGETHER)}


def _power(x: int) -> int:
    """The least power of two that is at least x."""
    return 1 << (x - 1).bit_length()


@sum_messages.register_fake
def _(x, first, weight, bias, used, wiring, keep):
    out = sums(x, used, wiring)
    rows = sum(pair_counts(out.shape, wiring)) if keep else 0
    inputs = used.new_empty(rows, used.shape[-1])
    of_trees = keep and not wiring.is_floating_point()
    return out, inputs, torch.empty_like(out, dtype=_bits(x.shape[1])) if of_trees else torch.empty_like(inputs)


@_grad.register_fake
def _(grad, x, first, bias, used, wiring, inputs, kept, to_wiring):
    grad_wiring = bias.new_empty(*wiring.shape[:2], wiring.shape[-1] if to_wiring else 0)
    to_layers = torch.empty_like(first), torch.empty_like(used, dtype=torch.float32), torch.empty_like(bias)
    return torch.empty_like(x), *to_layers, grad_wiring


def _keep(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # else there would be one of zeros for each layer
    x, first, _, *given, _ = inputs
    ctx.save_for_backward(x, first, *given, *output[1:])


def _backward(ctx, grad, *_):
    to_wiring = ctx.needs_input_grad[5]
    *grads, grad_wiring = _grad(grad, *ctx.saved_tensors, to_wiring)
    return *grads, None, grad_wiring if to_wiring else None, None


def _backward_twice(ctx, *grads):
    raise NotImplementedError(ONCE)


sum_messages.register_autograd(_backward, setup_context=_keep)
_grad.register_autograd(_backward_twice)
