"""Small LSTMs, several at once. cuDNN takes two or more kernels for each step of each LSTM, forwards and backwards: for
the fifty tokens and 60 units of ListOps these were most of an update. Here all steps are one kernel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gumtrace_experiments.triton_launch import HAS_TRITON, product_precision, shared_memory, tile_size

MAX_HIDDEN = 64  # units: of more the weights do not fit into the registers of a program
ROWS = 16  # of a program: the fewest that a product of matrices takes
SHARED = 100 * 1024  # bytes of shared memory that a program takes, at most


def outputs(lstms: Sequence[nn.LSTM], x: Tensor) -> list[Tensor]:
    """(B, n, hidden) of each, for x (B, n, size). The LSTMs have equal sizes, one layer and one direction, and read
    from left to right from a state of 0.

    >>> [y.shape for y in outputs([nn.LSTM(3, 8, batch_first=True)], torch.randn(2, 5, 3))]
    [torch.Size([2, 5, 8])]
    """
    return fused(lstms, x) if serves(lstms, x) else [lstm(x)[0] for lstm in lstms]


def serves(lstms: Sequence[nn.LSTM], x: Tensor) -> bool:
    """Whether `fused` takes them."""
    if not (x.is_cuda and HAS_TRITON and x.dtype == torch.float32 and x.numel() > 0):
        return False
    alike = {(lstm.input_size, lstm.hidden_size, lstm.bias) for lstm in lstms} == {(x.shape[-1], _hidden(lstms), True)}
    plain = all(lstm.num_layers == 1 and lstm.batch_first and not lstm.bidirectional for lstm in lstms)
    return alike and plain and _hidden(lstms) <= MAX_HIDDEN and shared_memory(x.device) >= SHARED


def _hidden(lstms: Sequence[nn.LSTM]) -> int:
    return lstms[0].hidden_size


def fused(lstms: Sequence[nn.LSTM], x: Tensor) -> list[Tensor]:
    entering, carry, bias = stacked_weights(lstms)
    many = x.flatten(0, 1).expand(len(lstms), -1, -1)
    gates = torch.baddbmm(bias[:, None], many, entering.mT).unflatten(1, x.shape[:2])  # (LSTMs, B, n, 4 hidden)
    return list(_Recurrence.apply(gates, carry).unbind())  # type: ignore[no-any-return]


def stacked_weights(lstms: Sequence[nn.LSTM]) -> list[Tensor]:
    """Of inputs and of states, (LSTMs, 4 hidden, ...), and the biases, (LSTMs, 4 hidden)."""
    each = [(w_in, w_carry, b_in + b_carry) for w_in, w_carry, b_in, b_carry in (x.all_weights[0] for x in lstms)]
    return [torch.stack(same) for same in zip(*each, strict=True)]


class _Recurrence(Function):
    """States (LSTMs, B, n, hidden), from what inputs add to the gates and the weights (LSTMs, 4 hidden, hidden)."""

    @staticmethod
    def forward(ctx, gates: Tensor, carry: Tensor) -> Tensor:
        from gumtrace_experiments.small_lstm_kernels import forward

        opened = torch.empty_like(gates)
        cells, hidden, before = (gates.new_empty(*gates.shape[:-1], carry.shape[-1]) for _ in range(3))
        _launch(forward, gates, carry, opened, cells, hidden, before)
        ctx.save_for_backward(carry, opened, cells, before)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Any) -> Any:  # type: ignore[reportIncompatibleMethodOverride]
        from gumtrace_experiments.small_lstm_kernels import backward

        carry, opened, cells, before = ctx.saved_tensors
        to_gates = torch.empty_like(opened)
        _launch(backward, grads[0], carry, opened, cells, to_gates)
        return to_gates, to_gates.flatten(1, 2).mT @ before.flatten(1, 2)


def _launch(kernel: Any, first: Tensor, carry: Tensor, *others: Tensor) -> None:
    """On tensors (LSTMs, B, n, ...)."""
    many, items, n = others[0].shape[:3]
    size = carry.shape[-1]
    sizes = {"H": size, "WIDTH": tile_size(size), "ROWS": ROWS, "PRECISION": product_precision()}
    with torch.cuda.device_of(first):
        kernel[-(-items // ROWS), many](
            first.contiguous(), carry.contiguous(), *others, items, n, **sizes, num_warps=8, num_stages=2
        )
