"""Messages between the nodes of graphs, summed up at their receivers: one operator of torch, for CUDA devices.

`decoder.py` says what is computed, and does it on any device. Here nothing is kept at the pairs but a byte for
each output of the second layer, whether it is above zero: the backward pass computes once more what else it needs
there, and the whole of the layer only for gradients to structures. torch.compile takes the operator as it is. It can be
differentiated once.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

MOST_NODES = 32  # as many as a program sums at
WIDEST = 512
SUMS = 64  # that a program makes of soft structures: of several receivers, in several samples
TOGETHER = 8  # samples at most; where there are more, the messages are made once more
SHARED = 120 * 1024  # bytes of shared memory that a program may take
# Tiles of pairs, blocks of outputs and of inputs: for TF32 and half precision, and for float32. Larger ones do not fit
# into the registers.
ROUGH: dict[str, Any] = {"ROWS": 128, "COLUMNS": 128, "DEPTH": 32, "PRECISION": "tf32", "num_warps": 8, "num_stages": 3}
EXACT: dict[str, Any] = {"ROWS": 64, "COLUMNS": 32, "DEPTH": 16, "PRECISION": "ieee", "num_warps": 8, "num_stages": 2}
# What soft structures change of the former: with several samples, and for gradients to the nodes.
SEVERAL: dict[str, Any] = {"ROWS": 64}
TO_NODES: dict[str, Any] = {"ROWS": 64, "num_warps": 4}
ONCE = "the kernels for messages have no second derivatives; decode with hard=False, twice=True"
_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class Second:
    """The second layer of both types of pairs, no edges and edges, and whose they are: the same in every step."""

    weight: Tensor  # (2, hidden, hidden), outputs before inputs
    bias: Tensor  # (2, hidden)
    used: Tensor  # the weights in the dtype of the products,
    turned: Tensor  # and transposed
    wiring: Tensor  # (I, K, n(n-1)): int32 the pairs of each tree, edges first; float32 how much each pair is an edge

    def __call__(self, halves: Tensor) -> Tensor:
        keep = torch.is_grad_enabled() and not self.wiring.requires_grad
        return sum_messages(halves, self.weight, self.bias, self.used, self.turned, self.wiring, keep)[0]


def serves(structure: Tensor, hidden: int) -> bool:
    """Whether the kernels take structures (I, K, n, n)."""
    if not (structure.is_cuda and _HAS_TRITON and structure.dtype == torch.float32 and structure.numel() > 0):
        return False
    about = torch.cuda.get_device_properties(structure.device)
    room = getattr(about, "shared_memory_per_block_optin", 0)  # not in older torch
    return 3 <= structure.shape[-1] <= MOST_NODES and hidden % 16 == 0 and hidden <= WIDEST and room >= SHARED


def product_dtype(x: Tensor) -> torch.dtype:
    """In which torch takes matrix products of x: that of autocast, where it is on."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def prepare(weight: Tensor, bias: Tensor, wiring: Tensor) -> Second:
    used = weight.detach().to(product_dtype(weight))
    return Second(weight, bias, used, used.mT.contiguous(), wiring.contiguous())


@torch.library.custom_op("gumtrace_experiments::sum_messages", mutates_args=())
def sum_messages(
    halves: Tensor, weight: Tensor, bias: Tensor, used: Tensor, turned: Tensor, wiring: Tensor, keep: bool
) -> tuple[Tensor, Tensor]:
    """(I, K, n, F, hidden), from the first layer at the nodes (I, n, F, 2, 2, hidden): of either type of pairs, as
    senders and as receivers. The weight is here for its gradient; what is read of it is `used`. And, to `keep`, where
    the second layer is above zero, (pairs, hidden): a gradient to the wiring needs more than that."""
    from gumtrace_experiments.graph_layout import message_kernels, soft_kernels

    items, n, frames, _, _, hidden = halves.shape
    samples = wiring.shape[1]
    scenes = _scenes(halves, wiring)
    out = torch.empty(items, samples, n, frames, hidden, dtype=used.dtype, device=halves.device)
    above = torch.empty(sum(_counts(halves, wiring)) if keep else 0, hidden, dtype=torch.int8, device=halves.device)
    tensors, where = (halves, used, bias, wiring, out, above), (scenes, samples, frames)
    with torch.cuda.device_of(halves):
        if wiring.is_floating_point():
            options: dict[str, Any] = _soft_options(halves, used, samples) | {"KEEP": keep}
            tiles, groups = -(-scenes * n // options["EACH"]), -(-samples // options["SAMPLES"])
            soft_kernels.forward[tiles, hidden // options["COLUMNS"], groups](*tensors, *where, **options)
        else:
            options: dict[str, Any] = _options(halves, used) | {"KEEP": keep}
            grid = -(-scenes // (message_kernels.NODES.value // n)), hidden // options["COLUMNS"]
            message_kernels.forward[grid](*tensors, *where, **options)
    return out, above


@torch.library.custom_op("gumtrace_experiments::sum_messages_grad", mutates_args=())
def _grad(
    grad: Tensor,
    halves: Tensor,
    bias: Tensor,
    used: Tensor,
    turned: Tensor,
    wiring: Tensor,
    above: Tensor,
    to_wiring: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """To the halves, the weight, the bias and, if so wanted, the wiring; else nothing is at its place."""
    made = Pairs(halves, used, wiring)
    to_halves, grad_wiring = pair_gradients(made, 0, grad, halves, bias, used, turned, wiring, above, to_wiring)
    return to_halves, *made.to_second(), grad_wiring


class Pairs:
    """What the backward passes of some steps leave at the pairs: those of type 0 in all steps, then those of type 1."""

    def __init__(self, halves: Tensor, used: Tensor, wiring: Tensor, steps: int = 1):
        n, hidden = halves.shape[1], halves.shape[-1]
        soft = wiring.is_floating_point()
        options = _soft_options(halves, used, wiring.shape[1]) if soft else _options(halves, used)
        rows = options["EACH"] * (n - 1) if soft else options["ROWS"]
        self.counts = _counts(halves, wiring)
        self.tiles = sum(-(-count // rows) for count in self.counts)
        self.steps, self.options = steps, options
        self.inputs, self.grads = torch.empty(2, steps * sum(self.counts), hidden, dtype=used.dtype, device=used.device)
        self.grad_bias = torch.empty(steps, self.tiles, 2, hidden, device=used.device)

    def of(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        start = step * self.counts[0]
        return self.inputs[start:], self.grads[start:], self.grad_bias[step]

    def between(self, step: int) -> int:
        """How many rows lie between the first pairs of either type."""
        return (self.steps - step) * self.counts[0] + step * self.counts[1]

    def to_second(self, steps: int = 1) -> tuple[Tensor, Tensor]:
        """Gradients to the weight and the bias, of the first few steps."""
        weight = self.inputs.new_empty(2, *self.inputs.shape[1:] * 2)
        for to, count, start in zip(weight, self.counts, (0, self.steps * self.counts[0]), strict=True):
            here = slice(start, start + steps * count)
            torch.mm(self.grads[here].T, self.inputs[here], out=to)
        return weight.float(), self.grad_bias[:steps].sum((0, 1))


def pair_gradients(
    made: Pairs,
    step: int,
    grad: Tensor,
    halves: Tensor,
    bias: Tensor,
    used: Tensor,
    turned: Tensor,
    wiring: Tensor,
    above: Tensor,
    to_wiring: bool,
) -> tuple[Tensor, Tensor]:
    """Through one step: to the halves and the wiring, by way of the pairs."""
    from gumtrace_experiments.graph_layout import message_kernels, soft_kernels

    items, _, frames, _, _, hidden = halves.shape
    samples, pairs = wiring.shape[1:]
    scenes, columns = _scenes(halves, wiring), hidden // made.options["COLUMNS"]
    at_pairs, grad_pairs, grad_bias = made.of(step)
    grad_wiring = torch.empty(columns, 2, samples, items, frames, pairs if to_wiring else 0, device=grad.device)
    left = wiring, at_pairs, grad_pairs, grad_bias
    where = made.between(step), scenes, samples, frames
    with torch.cuda.device_of(halves):
        if wiring.is_floating_point():
            options = {**made.options, "TO_WIRING": to_wiring}
            given = grad.contiguous(), halves, used, bias, above, *left, grad_wiring
            soft_kernels.backward_second[made.tiles, columns](*given, *where, **options)
        else:
            options = {name: x for name, x in made.options.items() if name not in ("DEPTH", "PRECISION")}  # no product
            message_kernels.backward_second[made.tiles, columns](
                grad.contiguous(), halves, above, *left, *where, **options
            )
    to_halves = _to_nodes(grad_pairs, at_pairs, made.between(step), halves, used, turned, wiring)
    return to_halves, grad_wiring.sum((0, 1, 4)).transpose(0, 1).contiguous()


def _to_nodes(
    grad_pairs: Tensor, at_pairs: Tensor, between: int, halves: Tensor, used: Tensor, turned: Tensor, wiring: Tensor
) -> Tensor:
    """The gradient from the pairs on to the halves."""
    from gumtrace_experiments.graph_layout.message_kernels import NODES, backward_first

    items, n, frames, _, _, hidden = halves.shape
    scenes, soft = _scenes(halves, wiring), wiring.is_floating_point()
    grad_halves = torch.empty(items, scenes // (items * frames), *halves.shape[1:], device=halves.device)
    options = _options(halves, used, **(TO_NODES if soft else {}))
    pairs = wiring.shape[2] if soft else (n - 1) * (n - 2)
    # As many scenes as leave the last tile most full.
    each = min(range(NODES.value // n, 0, -1), key=lambda some: -(-some * pairs // options["ROWS"]) / some)
    options |= {"SOFT": soft, "SCENES": each}
    grid = -(-scenes // each), hidden // options["COLUMNS"], 2
    with torch.cuda.device_of(halves):
        backward_first[grid](grad_pairs, turned, wiring, at_pairs, grad_halves, between, scenes, frames, **options)
    return grad_halves.sum(1) if grad_halves.shape[1] > 1 else grad_halves[:, 0]


def _scenes(halves: Tensor, wiring: Tensor) -> int:
    """How many there are: trees have pairs of their own in every sample, others share them."""
    items, _, frames, *_ = halves.shape
    return items * frames * (1 if wiring.is_floating_point() else wiring.shape[1])


def _counts(halves: Tensor, wiring: Tensor) -> list[int]:
    """How many pairs there are of either type."""
    n, scenes = halves.shape[1], _scenes(halves, wiring)
    return [scenes * wiring.shape[2]] * 2 if wiring.is_floating_point() else [scenes * (n - 1) * k for k in (n - 2, 2)]


def _options(halves: Tensor, used: Tensor, **rough: Any) -> dict[str, Any]:
    """Sizes and precision of the kernels. A block divides the layer: where it has an odd share, blocks are small."""
    exact = used.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    options = EXACT if exact else {**ROUGH, **rough}
    hidden = halves.shape[-1]
    fitting = {name: min(options[name], hidden & -hidden) for name in ("COLUMNS", "DEPTH")}
    return {**options, **fitting, "N": halves.shape[1], "H": hidden, "enable_fp_fusion": True}


def _soft_options(halves: Tensor, used: Tensor, samples: int) -> dict[str, Any]:
    """With how many receivers fit into a tile, and how many samples are summed up together. The sums of a tile are the
    rows of a matrix product, which has 16 or more."""
    options = _options(halves, used, **(SEVERAL if samples > 1 else {}))
    together = min(_power(samples), TOGETHER)
    fitting = options["ROWS"] // (halves.shape[1] - 1)
    receivers = max(min(_power(fitting) * together, SUMS), 16) // together
    return {**options, "EACH": min(fitting, receivers), "SAMPLES": together, "RECEIVERS": receivers}


def _power(x: int) -> int:
    """The least power of two that is at least x."""
    return 1 << (x - 1).bit_length()


@sum_messages.register_fake
def _(halves, weight, bias, used, turned, wiring, keep):
    items, n, frames, _, _, hidden = halves.shape
    above = used.new_empty(sum(_counts(halves, wiring)) if keep else 0, hidden, dtype=torch.int8)
    return used.new_empty(items, wiring.shape[1], n, frames, hidden), above


@_grad.register_fake
def _(grad, halves, bias, used, turned, wiring, above, to_wiring):
    grad_wiring = bias.new_empty(*wiring.shape[:2], wiring.shape[2] if to_wiring else 0)
    return torch.empty_like(halves), torch.empty_like(used, dtype=torch.float32), torch.empty_like(bias), grad_wiring


def _keep(ctx, inputs, output):
    halves, _, *others, _ = inputs
    ctx.save_for_backward(halves, *others, output[1])


def _backward(ctx, grad, _):
    to_wiring = ctx.needs_input_grad[5]
    *grads, grad_wiring = _grad(grad, *ctx.saved_tensors, to_wiring)
    return *grads, None, None, grad_wiring if to_wiring else None, None


def _backward_twice(ctx, *grads):
    raise NotImplementedError(ONCE)


sum_messages.register_autograd(_backward, setup_context=_keep)
_grad.register_autograd(_backward_twice)
