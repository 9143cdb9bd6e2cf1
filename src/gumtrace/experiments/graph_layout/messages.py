"""Messages between the nodes of trees, summed up at their receivers: one operator of torch, for CUDA devices.

`model.py` says what is computed, for any structure and on any device. Here nothing is kept at the pairs: the backward
pass computes once more what it needs there. torch.compile takes the operator as it is. It can be differentiated once.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_NODES = 32  # as many as a program sums at
WIDEST = 512
SHARED = 120 * 1024  # bytes of shared memory that a program may take
# Tiles of pairs, blocks of outputs and of inputs: for TF32 and half precision, and for float32. Larger ones do not fit
# into the registers.
ROUGH: dict[str, Any] = {"ROWS": 128, "COLUMNS": 128, "DEPTH": 32, "PRECISION": "tf32", "num_warps": 8, "num_stages": 3}
EXACT: dict[str, Any] = {"ROWS": 64, "COLUMNS": 32, "DEPTH": 16, "PRECISION": "ieee", "num_warps": 8, "num_stages": 2}
_HAS_TRITON = find_spec("triton") is not None


class Second(NamedTuple):
    """The second layer of both types of pairs, no edges and edges, and whose they are: the same in every step."""

    weight: Tensor  # (2, hidden, hidden), outputs before inputs
    bias: Tensor  # (2, hidden)
    used: Tensor  # the weights in the dtype of the products,
    turned: Tensor  # and transposed
    order: Tensor  # (I, K, n(n-1)) int32: the pairs of each tree, edges first


def serves(structure: Tensor, hidden: int) -> bool:
    """Whether the kernels take trees (I, K, n, n)."""
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


def prepare(weight: Tensor, bias: Tensor, order: Tensor) -> Second:
    used = weight.detach().to(product_dtype(weight))
    return Second(weight, bias, used, used.mT.contiguous(), order.to(torch.int32))


@torch.library.custom_op("gumtrace::tree_messages", mutates_args=())
def tree_messages(halves: Tensor, weight: Tensor, bias: Tensor, used: Tensor, turned: Tensor, order: Tensor) -> Tensor:
    """(I, K, n, F, hidden), from the first layer at the nodes (I, n, F, 2, 2, hidden): of either type of pairs, as
    senders and as receivers. The weight is here for its gradient; what is read of it is `used`."""
    from gumtrace.experiments.graph_layout.message_kernels import NODES, forward

    items, n, frames, _, _, hidden = halves.shape
    samples = order.shape[1]
    scenes = items * samples * frames
    out = torch.empty(items, samples, n, frames, hidden, dtype=used.dtype, device=halves.device)
    options = _options(halves, used)
    grid = -(-scenes // (NODES.value // n)), hidden // options["COLUMNS"]
    with torch.cuda.device_of(halves):
        forward[grid](halves, used, bias, order, out, scenes, samples, frames, **options)
    return out


@torch.library.custom_op("gumtrace::tree_messages_grad", mutates_args=())
def _grad(
    grad: Tensor, halves: Tensor, bias: Tensor, used: Tensor, turned: Tensor, order: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """To the halves, the weight and the bias."""
    from gumtrace.experiments.graph_layout.message_kernels import NODES, backward_first, backward_second

    items, n, frames, _, _, hidden = halves.shape
    samples = order.shape[1]
    scenes = items * samples * frames
    options = _options(halves, used)
    columns = hidden // options["COLUMNS"]
    counts = [scenes * (n - 1) * (n - 2), scenes * (n - 1) * 2]  # of pairs
    tiles = sum(-(-count // options["ROWS"]) for count in counts)
    at_pairs, grad_pairs = torch.empty(2, sum(counts), hidden, dtype=used.dtype, device=grad.device)
    grad_bias = torch.empty(tiles, 2, hidden, device=grad.device)
    grad_halves = torch.empty(items, samples, *halves.shape[1:], device=grad.device)
    with torch.cuda.device_of(halves):
        where = (scenes, samples, frames)
        backward_second[tiles, columns](
            grad.contiguous(), halves, used, bias, order, at_pairs, grad_pairs, grad_bias, *where, **options
        )
        grid = -(-scenes // (NODES.value // n)), columns, 2
        backward_first[grid](grad_pairs, turned, order, at_pairs, grad_halves, scenes, frames, **options)
    grad_weight = torch.empty_like(used)
    for to, g, h in zip(grad_weight, grad_pairs.split(counts), at_pairs.split(counts), strict=True):
        torch.mm(g.T, h, out=to)
    return grad_halves.sum(1) if samples > 1 else grad_halves[:, 0], grad_weight.float(), grad_bias.sum(0)


def _options(halves: Tensor, used: Tensor) -> dict[str, Any]:
    """Sizes and precision of the kernels. A block divides the layer: where it has an odd share, blocks are small."""
    exact = used.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    options = EXACT if exact else ROUGH
    hidden = halves.shape[-1]
    fitting = {name: min(options[name], hidden & -hidden) for name in ("COLUMNS", "DEPTH")}
    return {**options, **fitting, "N": halves.shape[1], "H": hidden, "enable_fp_fusion": True}


@tree_messages.register_fake
def _(halves, weight, bias, used, turned, order):
    items, n, frames, _, _, hidden = halves.shape
    return used.new_empty(items, order.shape[1], n, frames, hidden)


@_grad.register_fake
def _(grad, halves, bias, used, turned, order):
    return torch.empty_like(halves), torch.empty_like(used, dtype=torch.float32), torch.empty_like(bias)


def _keep(ctx, inputs, output):
    halves, _, *others = inputs
    ctx.save_for_backward(halves, *others)


def _backward(ctx, grad):
    return *_grad(grad, *ctx.saved_tensors), None, None, None


def _backward_twice(ctx, *grads):
    raise NotImplementedError("messages of trees have no second derivatives; decode with hard=False")


tree_messages.register_autograd(_backward, setup_context=_keep)
_grad.register_autograd(_backward_twice)
