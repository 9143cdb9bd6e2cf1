"""Attention with relations as one operation on CUDA devices, for the passes that have all elements of a sequence: in
torch it is a dozen, most of them on scores of all pairs. `Block` has the formula, in torch. It can be differentiated
once."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gumtrace_experiments.triton_launch import HAS_TRITON, product_precision, tile_size

MAX_TILE = 64  # elements, and columns of a head: larger tiles do not fit into the registers of a program


def serves(heads: Tensor) -> bool:
    """Whether `attend` takes queries, keys and values (*B, n, 3, heads, size)."""
    n, size = heads.shape[-4], heads.shape[-1]
    on_device = heads.is_cuda and HAS_TRITON and heads.dtype == torch.float32
    return on_device and heads.numel() > 0 and max(n, size) <= MAX_TILE


def attend(heads: Tensor, left: Tensor, right: Tensor, relative: Tensor) -> Tensor:
    """(*B, n, heads · size): each of the n elements of a sequence given those before it and itself. `left` and `right`,
    bool (*B, 1, n, n), say which elements are left of which; the vectors are (3, size)."""
    *batch, n, _, count, size = heads.shape
    sides = (x.reshape(-1, n, n) for x in (left, right))
    found = _Attention.apply(heads.reshape(-1, n, 3, count, size), *sides, relative)
    return found.view(*batch, n, count * size)  # type: ignore[no-any-return]


class _Attention(Function):
    @staticmethod
    def forward(ctx, heads: Tensor, left: Tensor, right: Tensor, relative: Tensor) -> Tensor:
        from gumtrace_experiments.parentheses.attention_kernels import forward

        given = [x.contiguous() for x in (heads, left, right, relative)]
        out = heads.new_empty(*heads.shape[:2], *heads.shape[3:])
        _launch(forward, heads.shape, *given, out)
        ctx.save_for_backward(*given)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Any) -> Any:  # type: ignore[reportIncompatibleMethodOverride]
        from gumtrace_experiments.parentheses.attention_kernels import backward

        heads = ctx.saved_tensors[0]
        count, size = heads.shape[-2:]
        to_heads, to_relative = torch.empty_like(heads), heads.new_empty(len(heads) * count, 3, size)
        _launch(backward, heads.shape, grads[0].contiguous(), *ctx.saved_tensors, to_heads, to_relative)
        return to_heads, None, None, to_relative.sum(0)


def _launch(kernel: Any, shape: torch.Size, *tensors: Tensor) -> None:
    sequences, n, _, count, size = shape
    tiles = {"ROWS": tile_size(n), "WIDTH": tile_size(size), "PRECISION": product_precision()}
    sizes = {"N": n, "HEADS": count, "SIZE": size, **tiles}
    with torch.cuda.device_of(tensors[0]):
        kernel[sequences, count](*tensors, 1 / math.sqrt(size), **sizes, num_warps=1 if n <= 32 else 4)
