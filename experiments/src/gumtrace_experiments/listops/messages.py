"""Messages between tokens, summed up at their receivers:

    r_i = Σ_j X_ij relu(W relu(a_i + b_j) + c)

`along_edges` and `along_all` are the formula, in torch. `fused` is the latter as one operator for CUDA devices: nothing
is kept at the pairs, and each pass computes once more what it needs there. torch.compile takes the operator as it is.
It can be differentiated twice.

All take structures X (*S, *B, n, n), what tokens receive by and what they send, a and b (..., n, hidden), the weight W
(hidden, hidden), outputs before inputs, and the bias c (hidden,).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gumtrace_experiments.triton_launch import HAS_TRITON, product_precision, shared_memory, tile_size

MOST_TOKENS = WIDEST = 64  # of larger tiles the registers do not hold enough
PROGRAMS = 256  # at least, if receivers are enough: two for each multiprocessor of a large device
SHARED = 168 * 1024  # bytes of shared memory that a program may take


def along_edges(structure: Tensor, receiving: Tensor, sending: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(*S, *B, n, hidden). A token sends one message, to its head: `receiving` is that of the heads."""
    return structure @ _messages(receiving + sending, weight, bias)


def along_all(structure: Tensor, receiving: Tensor, sending: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(*S, *B, n, hidden). Every token sends a message to every other, and itself."""
    made = _messages(receiving[..., None, :] + sending[..., None, :, :], weight, bias)  # (*S, *B, n, n, hidden)
    return (structure[..., None, :] @ made).squeeze(-2)


def _messages(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(F.linear(torch.relu(x), weight, bias))


def serves(structure: Tensor, hidden: int) -> bool:
    """Whether `fused` takes such structures. Half precision is left to torch."""
    if not (structure.is_cuda and HAS_TRITON and structure.dtype == torch.float32 and structure.numel() > 0):
        return False
    fits = structure.shape[-1] <= MOST_TOKENS and hidden <= WIDEST and shared_memory(structure.device) >= SHARED
    return fits and not torch.is_autocast_enabled("cuda")


def fused(structure: Tensor, receiving: Tensor, sending: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`along_all`, of what `serves` says."""
    *batch, n, _ = structure.shape
    ends = [x.expand(*batch, -1, -1).reshape(-1, n, x.shape[-1]) for x in (receiving, sending)]
    return sum_messages(structure.reshape(-1, n, n), *ends, weight, bias).view(*batch, n, -1)


@torch.library.custom_op("gumtrace_experiments::sum_listops_messages", mutates_args=())
def sum_messages(structure: Tensor, receiving: Tensor, sending: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(P, n, hidden), for P structures; `receiving` and `sending` have rows for each of them."""
    from gumtrace_experiments.listops.message_kernels import forward

    out = weight.new_empty(receiving.shape)
    _launch(forward, structure, receiving, sending, weight, bias, out, **_options(structure, weight))
    return out


@torch.library.custom_op("gumtrace_experiments::sum_listops_messages_grad", mutates_args=())
def _grad(
    grad: Tensor, structure: Tensor, receiving: Tensor, sending: Tensor, weight: Tensor, bias: Tensor, to_layer: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """To the structures, `receiving`, `sending`, and the layer (hidden + 1, hidden), the bias below the weight; nothing
    is at its place unless it is wanted."""
    from gumtrace_experiments.listops.message_kernels import backward

    options = _options(structure, weight)
    made = _room(structure, weight, options["PARTS"], to_layer)
    _launch(backward, grad, structure, receiving, sending, weight, bias, *made, TO_LAYER=to_layer, **options)
    return _summed(*made)


@torch.library.custom_op("gumtrace_experiments::sum_listops_messages_grad_grad", mutates_args=())
def _grad_twice(
    along_structure: Tensor,
    along_receiving: Tensor,
    along_sending: Tensor,
    along_layer: Tensor | None,
    grad: Tensor,
    structure: Tensor,
    receiving: Tensor,
    sending: Tensor,
    weight: Tensor,
    bias: Tensor,
    to_layer: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """From gradients to what `_grad` gives back: to what it takes, weight and bias as one layer."""
    from gumtrace_experiments.listops.message_kernels import backward_twice

    options = _options(structure, weight) | {"ALONG_LAYER": along_layer is not None, "TO_LAYER": to_layer}
    along = along_structure, along_receiving, along_sending, weight if along_layer is None else along_layer
    given = structure, receiving, sending, weight, bias
    to_grad = weight.new_empty(grad.shape)
    made = _room(structure, weight, options["PARTS"], to_layer)
    _launch(backward_twice, *along, grad, *given, to_grad, *made, **options)
    return to_grad, *_summed(*made)


def _launch(kernel: Any, first: Tensor, *others: Tensor, PARTS: int, **options: Any) -> None:
    tensors = [x.contiguous() for x in (first, *others)]
    with torch.cuda.device_of(first):
        kernel[len(first), PARTS](*tensors, PARTS=PARTS, **options)


def _options(structure: Tensor, weight: Tensor) -> dict[str, Any]:
    """Sizes and precision of the kernels."""
    count, n, _ = structure.shape
    hidden = len(weight)
    sizes = {"N": n, "H": hidden, "SENDERS": tile_size(n), "WIDTH": tile_size(hidden)}
    launch = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
    return {**sizes, "PARTS": min(-(-PROGRAMS // count), n), "PRECISION": product_precision("tf32x3"), **launch}


def _room(structure: Tensor, weight: Tensor, parts: int, to_layer: bool) -> list[Tensor]:
    """For the gradients, those to `sending` and the layer from each program."""
    count, n, _ = structure.shape
    hidden = len(weight)
    programs = count * parts if to_layer else 0
    shapes = (count, n, n), (count, n, hidden), (count, parts, n, hidden), (programs, hidden + 1, hidden)
    return [weight.new_empty(shape) for shape in shapes]


def _summed(
    structure: Tensor, receiving: Tensor, sending: Tensor, layer: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return structure, receiving, sending.sum(1), layer.sum(0) if len(layer) else layer


@sum_messages.register_fake
def _(structure, receiving, sending, weight, bias):
    return receiving.new_empty(receiving.shape)


@_grad.register_fake
def _(grad, structure, receiving, sending, weight, bias, to_layer):
    hidden = len(bias)
    layer = (hidden + 1, hidden) if to_layer else (0, hidden + 1, hidden)
    return *[x.new_empty(x.shape) for x in (structure, receiving, sending)], weight.new_empty(layer)


@_grad_twice.register_fake
def _(along_structure, along_receiving, along_sending, along_layer, grad, structure, receiving, sending, *others):
    weight, bias, to_layer = others
    hidden = len(bias)
    layer = (hidden + 1, hidden) if to_layer else (0, hidden + 1, hidden)
    return *[x.new_empty(x.shape) for x in (grad, structure, receiving, sending)], weight.new_empty(layer)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    to_layer = any(ctx.needs_input_grad[3:])
    *grads, layer = _grad(grad, *ctx.saved_tensors, to_layer)
    return *grads, *((layer[:-1], layer[-1]) if to_layer else (None, None))


def _keep_again(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # most often the gradient to the layer's is not asked for
    *tensors, ctx.to_layer = inputs
    ctx.save_for_backward(*tensors)


def _backward_twice(ctx, *along):
    *along, along_layer = along
    along = [torch.zeros_like(x) if d is None else d for d, x in zip(along, ctx.saved_tensors[1:4], strict=True)]
    to_layer = any(ctx.needs_input_grad[4:])
    *grads, layer = _grad_twice(*along, along_layer if ctx.to_layer else None, *ctx.saved_tensors, to_layer)
    return *grads, *((layer[:-1], layer[-1]) if to_layer else (None, None)), None


sum_messages.register_autograd(_backward, setup_context=_keep)
_grad.register_autograd(_backward_twice, setup_context=_keep_again)
