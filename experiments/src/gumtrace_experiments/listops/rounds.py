"""The classifier's rounds along 0/1 structures as one operation on CUDA devices, in place of a dozen a round: they are
small, and kernels are what limits how many runs a device trains side by side. `Classifier` has the formula, in torch.

It can be differentiated once, with respect to all but the structures.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gumtrace_experiments.triton_launch import HAS_TRITON, product_precision, shared_memory, tile_size

MAX_TOKENS = MAX_HIDDEN = 64  # of larger tiles the registers do not hold enough
SHARED = {"tf32": 160 * 1024, "tf32x3": 224 * 1024}  # bytes of shared memory that a program takes


class Layers(NamedTuple):
    """What all rounds share."""

    sender: Tensor  # (hidden, hidden), outputs before inputs
    weight: Tensor
    bias: Tensor  # (hidden,)
    scale: Tensor  # of the norm
    shift: Tensor


def first_states(
    structure: Tensor, own: Tensor, receiving: Tensor, keep: Tensor | None, layers: Layers, rounds: int, eps: float
) -> Tensor:
    """(*S, *B, hidden): the states of the first tokens after all rounds, for structures (*S, *B, n, n), the tokens'
    embeddings and what they receive by, (*B, n, hidden), and which entries are sent, (rounds, *B, n, hidden). Of what
    `serves` says."""
    *batch, n, _ = structure.shape
    own, receiving = (x.reshape(-1, n, x.shape[-1]) for x in (own, receiving))
    keep = None if keep is None else keep.contiguous()
    found = _Rounds.apply(structure.reshape(-1, n, n), own, receiving, keep, rounds, eps, *layers)
    return found.view(*batch, -1)  # type: ignore[no-any-return]


def serves(structure: Tensor, hidden: int) -> bool:
    """Whether `first_states` takes such structures. Half precision is left to torch."""
    on_device = structure.is_cuda and HAS_TRITON and structure.dtype == torch.float32 and structure.numel() > 0
    if not on_device or torch.is_autocast_enabled("cuda"):
        return False
    fits = structure.shape[-1] <= MAX_TOKENS and hidden <= MAX_HIDDEN
    return fits and shared_memory(structure.device) >= SHARED[product_precision("tf32x3")]


class _Rounds(Function):
    @staticmethod
    def forward(ctx, structure, own, receiving, keep, rounds, eps, *layers: Tensor) -> Tensor:
        from gumtrace_experiments.listops.round_kernels import forward

        structure, own, receiving = (x.contiguous() for x in (structure, own, receiving))
        count, n, hidden = len(structure), *own.shape[1:]
        states, out = own.new_empty(count, rounds, n, hidden), own.new_empty(count, hidden)
        layers = tuple(x.contiguous() for x in layers)
        given = structure, own, receiving, own if keep is None else keep  # what is not read
        _launch(forward, own, states, keep, eps, *given, *layers, states, out)
        ctx.save_for_backward(*given, *layers, states)
        ctx.keep, ctx.eps = keep, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Any) -> Any:  # type: ignore[reportIncompatibleMethodOverride]
        from gumtrace_experiments.listops.round_kernels import backward

        *given, _, states = ctx.saved_tensors  # all but the shift of the norm
        structure, own = given[:2]
        count, (items, n, hidden) = len(structure), own.shape
        to_own, to_receiving = (own.new_empty(count, n, hidden) for _ in range(2))
        to_layers = own.new_empty(count, 2 * hidden + 3, hidden)
        _launch(
            backward,
            own,
            states,
            ctx.keep,
            ctx.eps,
            grads[0].contiguous(),
            *given,
            states,
            to_own,
            to_receiving,
            to_layers,
        )
        per_item = [x.view(-1, items, n, hidden).sum(0) for x in (to_own, to_receiving)]
        sender, weight, vectors = to_layers.sum(0).split([hidden, hidden, 3])
        return None, *per_item, None, None, None, sender, weight, *vectors.unbind()


def _launch(kernel: Any, own: Tensor, states: Tensor, keep: Tensor | None, eps: float, *tensors: Tensor) -> None:
    count, rounds, n, hidden = states.shape
    sizes = {"N": n, "H": hidden, "TOKENS": tile_size(n), "WIDTH": tile_size(hidden)}
    options = {"ROUNDS": rounds, "KEEP": keep is not None, **sizes, "PRECISION": product_precision("tf32x3")}
    with torch.cuda.device_of(own):
        kernel[(count,)](*tensors, len(own), eps, **options, num_warps=8, num_stages=1)
