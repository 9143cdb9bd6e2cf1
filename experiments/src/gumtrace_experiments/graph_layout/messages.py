"""Messages between the nodes of graphs, summed up at their receivers: one operator of torch, for CUDA devices.

`decoder.py` says what is computed, and does it on any device. Here the second layer is a matrix product with a row for
each pair, which the libraries for that do best, and kernels of our own do all that is between products: each reads what
it needs once and writes what comes next. Both layers at the pairs are kept for the backward pass. torch.compile takes
the operator as it is. It can be differentiated once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

MOST_NODES = 32  # of a graph: a program sums at all of them
WIDEST = 512
COLUMNS = 128  # of a program
ROWS = 32  # of a tile of pairs
TILES = 8  # of a program that leaves sums behind
TOGETHER = 32  # samples at most that a program takes at a time
AT_ONCE = 1 << 28  # bytes of a layer at the pairs, where nothing is kept
ONCE = "the kernels for messages have no second derivatives; decode with hard=False, twice=True"
_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class Second:
    """The second layer of both types of pairs, no edges and edges, and whose they are: the same in every step."""

    weight: Tensor  # (2, hidden, hidden), outputs before inputs
    bias: Tensor  # (2, hidden)
    used: Tensor  # the weights in the dtype of the products
    wiring: Tensor  # int32 of trees and float32 of soft structures, as message_kernels.py has it

    def __call__(self, halves: Tensor) -> Tensor:
        inputs = halves, self.weight, self.bias, self.wiring
        keep = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        return sum_messages(halves, self.weight, self.bias, self.used, self.wiring, keep)[0]


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


def prepare(weight: Tensor, bias: Tensor, wiring: Tensor) -> Second:
    """For wiring (I, K, n(n-1)): int64 the pairs of each tree, edges first; float32 how much each pair is an edge."""
    used = weight.detach().to(product_dtype(weight))
    if not wiring.is_floating_point():
        places = torch.arange(wiring.shape[-1], device=wiring.device).expand_as(wiring)
        wiring = torch.stack([wiring, torch.empty_like(wiring).scatter_(-1, wiring, places)], -2).to(torch.int32)
    return Second(weight, bias, used, wiring.contiguous())


@torch.library.custom_op("gumtrace_experiments::sum_messages", mutates_args=())
def sum_messages(
    halves: Tensor, weight: Tensor, bias: Tensor, used: Tensor, wiring: Tensor, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(I, K, n, F, hidden), from the first layer at the nodes (I, n, F, 2, 2, hidden): of either type of pairs, as
    senders and as receivers. The weight is here for its gradient; what is read of it is `used`. And, to `keep`, both
    layers at the pairs, (pairs, hidden)."""
    items, n, frames, _, _, hidden = halves.shape
    out = torch.empty(items, wiring.shape[1], n, frames, hidden, dtype=used.dtype, device=halves.device)
    if keep:
        made = Pairs(out.shape, used, wiring)
        return out, made.inputs, forward_step(made, 0, halves, bias, used, wiring, out)
    most = max(1, AT_ONCE * items // (sum(_counts(out.shape, wiring)) * hidden * used.itemsize))
    for some in (slice(start, start + most) for start in range(0, items, most)):
        part = halves[some], bias, used, wiring[some], out[some]
        forward_step(Pairs(part[-1].shape, used, part[-2]), 0, *part)
    return out, used.new_empty(0, hidden), used.new_empty(0, hidden)


@torch.library.custom_op("gumtrace_experiments::sum_messages_grad", mutates_args=())
def _grad(
    grad: Tensor, bias: Tensor, used: Tensor, wiring: Tensor, inputs: Tensor, z: Tensor, to_wiring: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """To the halves, the weight, the bias and, if so wanted, the wiring; else nothing is at its place."""
    made = Pairs(grad.shape, used, wiring, inputs=inputs)
    to_halves, grad_wiring = backward_step(made, 0, grad, bias, used, wiring, z, to_wiring)
    return to_halves, *made.to_second(), grad_wiring


class Pairs:
    """The first layer at the pairs in some steps, and what their backward passes leave there: of type 0 in all steps,
    then of type 1. `shape` is that of the sums of a step, (I, K, n, F, hidden)."""

    def __init__(
        self, shape: Sequence[int], used: Tensor, wiring: Tensor, steps: int = 1, inputs: Tensor | None = None
    ):
        self.items, self.samples, self.n, self.frames, hidden = shape
        self.soft = wiring.is_floating_point()
        self.scenes = _scenes(shape, wiring)
        self.counts, self.steps = _counts(shape, wiring), steps
        self.tiles = sum(-(-count // ROWS) for count in self.counts)  # of a step
        # A block of columns divides the layer: where it has an odd share, blocks are small.
        columns = min(COLUMNS, hidden & -hidden)
        self.blocks = hidden // columns
        self.options: dict[str, Any] = {"N": self.n, "H": hidden, "COLUMNS": columns, "num_stages": 1}  # of all kernels
        rows = steps * sum(self.counts)
        self.inputs = torch.empty(rows, hidden, dtype=used.dtype, device=used.device) if inputs is None else inputs
        self._grads: Tensor | None = None
        self.grad_bias: dict[int, Tensor] = {}  # by step

    @property
    def grads(self) -> Tensor:
        """To the second layer before its relu: made when a backward pass asks for it."""
        if self._grads is None:
            self._grads = torch.empty(self.inputs.shape, dtype=self.inputs.dtype, device=self.inputs.device)
        return self._grads

    def layer(self) -> Tensor:
        """Memory for a layer at the pairs of one step, (pairs, hidden)."""
        hidden = self.inputs.shape[1]
        return torch.empty(sum(self.counts), hidden, dtype=self.inputs.dtype, device=self.inputs.device)

    def start(self, step: int) -> int:
        """The first row of type 0 of a step."""
        return step * self.counts[0]

    def between(self, step: int) -> int:
        """How many rows lie between the first pairs of either type."""
        return (self.steps - step) * self.counts[0] + step * self.counts[1]

    def types(self, x: Tensor, step: int, steps: int = 1) -> list[Tensor]:
        """The rows of either type in some steps."""
        starts = self.start(step), self.start(step) + self.between(step)
        return [x[start : start + steps * count] for start, count in zip(starts, self.counts, strict=True)]

    def to_second(self, steps: int = 1) -> tuple[Tensor, Tensor]:
        """Gradients to the weight and the bias, of the first few steps."""
        weight = self.inputs.new_empty(2, *self.inputs.shape[1:] * 2)
        for to, grads, inputs in zip(
            weight, self.types(self.grads, 0, steps), self.types(self.inputs, 0, steps), strict=True
        ):
            torch.mm(grads.T, inputs, out=to)
        to_bias = [self.grad_bias[step] for step in range(steps)]
        return weight.float(), to_bias[0] if steps == 1 else torch.stack(to_bias).sum(0)


def forward_step(
    made: Pairs, step: int, halves: Tensor, bias: Tensor, used: Tensor, wiring: Tensor, out: Tensor
) -> Tensor:
    """The sums into `out`, by way of both layers at the pairs. Returns the second."""
    from gumtrace_experiments.graph_layout import message_kernels as kernels

    z, first, samples, frames = made.layer(), made.inputs[made.start(step) :], made.samples, made.frames
    with torch.cuda.device_of(halves):
        where = made.between(step), made.scenes, frames * (1 if made.soft else samples), frames
        options = {**made.options, "ROWS": ROWS, "SOFT": made.soft, "num_warps": 4}
        kernels.first_layer[made.tiles, made.blocks](halves, wiring, first, *where, **options)
        for to, inputs, weight in zip(z.split(made.counts), made.types(made.inputs, step), used, strict=True):
            torch.matmul(inputs, weight.T, out=to)
        given = z, bias, wiring, out, made.counts[0]
        if made.soft:
            options = {**made.options, **_soft_sizes(made), "PRECISION": _precision(used), "num_warps": 4}
            kernels.sum_soft[made.scenes * made.n, made.blocks](*given, samples, frames, **options)
        else:
            options = {**made.options, "NODES": _power(made.n), "num_warps": 4}
            kernels.sum_trees[made.scenes, made.blocks](*given, frames, **options)
    return z


def backward_step(
    made: Pairs, step: int, grad: Tensor, bias: Tensor, used: Tensor, wiring: Tensor, z: Tensor, to_wiring: bool
) -> tuple[Tensor, Tensor]:
    """Through one step: to the halves and the wiring, by way of the pairs."""
    from gumtrace_experiments.graph_layout import message_kernels as kernels

    n, frames, hidden, scenes = made.n, made.frames, grad.shape[-1], made.scenes
    first, to_pairs, between = made.inputs[made.start(step) :], made.grads[made.start(step) :], made.between(step)
    grad_bias = torch.empty(scenes if made.soft else -(-made.tiles // TILES), 2, hidden, device=grad.device)
    graphs = made.items, frames, made.samples, wiring.shape[-1] if to_wiring else 0
    grad_wiring = torch.empty(made.blocks, *graphs, device=grad.device)
    with torch.cuda.device_of(grad):
        given = grad.contiguous(), z, bias, wiring, to_pairs, grad_bias
        if made.soft:
            options = {**made.options, **_soft_sizes(made), "PRECISION": _precision(used), "num_warps": 8}
            options["TO_WIRING"] = to_wiring
            where = grad_wiring, made.counts[0], between, scenes, made.samples, frames
            kernels.split_soft[scenes, made.blocks](*given, *where, **options)
        else:
            options = {**made.options, "ROWS": ROWS, "TILES": TILES, "num_warps": 8}
            where = made.counts[0], between, scenes, frames
            kernels.split_trees[len(grad_bias), made.blocks](*given, *where, **options)
        made.grad_bias[step] = grad_bias.sum(0)
        grad_first = made.layer()
        for to, grads, weight in zip(grad_first.split(made.counts), made.types(made.grads, step), used, strict=True):
            torch.matmul(grads, weight, out=to)
        grad_halves = torch.empty(
            made.items, scenes // (made.items * frames), n, frames, 2, 2, hidden, device=grad.device
        )
        options = {**made.options, "ROWS": ROWS, "NODES": max(16, _power(n)), "SOFT": made.soft, "num_warps": 4}
        options["PRECISION"] = _precision(used)
        given = grad_first, first, wiring, grad_halves, made.counts[0], between, frames
        kernels.to_nodes[scenes, made.blocks, 2](*given, **options)
    to_halves = grad_halves.sum(1) if grad_halves.shape[1] > 1 else grad_halves[:, 0]
    return to_halves, grad_wiring.sum((0, 2))


def _scenes(shape: Sequence[int], wiring: Tensor) -> int:
    """How many there are: trees have pairs of their own in every sample, others share them."""
    items, samples, _, frames, _ = shape
    return items * frames * (1 if wiring.is_floating_point() else samples)


def _counts(shape: Sequence[int], wiring: Tensor) -> list[int]:
    """How many pairs there are of either type."""
    n, scenes = shape[2], _scenes(shape, wiring)
    return [scenes * wiring.shape[-1]] * 2 if wiring.is_floating_point() else [scenes * (n - 1) * k for k in (n - 2, 2)]


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
def _(halves, weight, bias, used, wiring, keep):
    items, n, frames, _, _, hidden = halves.shape
    out = used.new_empty(items, wiring.shape[1], n, frames, hidden)
    rows = sum(_counts(out.shape, wiring)) if keep else 0
    return out, used.new_empty(rows, hidden), used.new_empty(rows, hidden)


@_grad.register_fake
def _(grad, bias, used, wiring, inputs, z, to_wiring):
    items, _, n, frames, hidden = grad.shape
    grad_wiring = bias.new_empty(*wiring.shape[:2], wiring.shape[-1] if to_wiring else 0)
    to_halves = bias.new_empty(items, n, frames, 2, 2, hidden)
    return to_halves, torch.empty_like(used, dtype=torch.float32), torch.empty_like(bias), grad_wiring


def _keep(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # else there would be one of zeros for each layer
    _, _, bias, used, wiring, _ = inputs
    ctx.save_for_backward(bias, used, wiring, *output[1:])


def _backward(ctx, grad, *_):
    to_wiring = ctx.needs_input_grad[4]
    *grads, grad_wiring = _grad(grad, *ctx.saved_tensors, to_wiring)
    return *grads, None, grad_wiring if to_wiring else None, None


def _backward_twice(ctx, *grads):
    raise NotImplementedError(ONCE)


sum_messages.register_autograd(_backward, setup_context=_keep)
_grad.register_autograd(_backward_twice)
