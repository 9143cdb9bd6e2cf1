"""The steps of LSTMs, which can be differentiated twice: cuDNN's can be once.

`stepwise` is the formula, in torch. `fused` is the same for CUDA devices, where an update with the former would consist
of thousands of small operations. A step of each pass is a matrix product and one kernel. There are four passes: the
second derivative is taken along a direction, forwards and then backwards.

Both take what words and noise add to the gates, (n, D, R, 4 hidden), of n steps, D LSTMs and R rows, and the weights
(D, hidden, 4 hidden) that states enter the next step by. The gates are in, forget, out and new. They give the states
(n, D, R, hidden).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gumtrace_experiments.triton_launch import HAS_TRITON

BLOCK = 512  # entries of a program


def states(gates: Tensor, carry: Tensor) -> Tensor:
    return fused(gates, carry) if serves(gates) else stepwise(gates, carry)


def serves(gates: Tensor) -> bool:
    """Whether `fused` takes such gates."""
    return gates.is_cuda and HAS_TRITON and gates.dtype == torch.float32 and gates.numel() > 0


def stepwise(gates: Tensor, carry: Tensor) -> Tensor:
    size = carry.shape[1]
    hidden = cell = gates.new_zeros(*gates.shape[1:3], size)
    found = []
    for gate in gates.unbind():
        opening, new = torch.baddbmm(gate, hidden, carry).split([3 * size, size], -1)
        add, keep, show = opening.sigmoid().chunk(3, -1)
        cell = torch.addcmul(keep * cell, add, new.tanh())
        hidden = show * cell.tanh()
        found.append(hidden)
    return torch.stack(found)


def fused(gates: Tensor, carry: Tensor) -> Tensor:
    return _Forward.apply(gates.contiguous(), carry)  # type: ignore[no-any-return]


class _Forward(Function):
    @staticmethod
    def forward(ctx, gates: Tensor, carry: Tensor) -> Tensor:
        from gumtrace_experiments.parentheses.recurrence_kernels import forward

        hidden, cells = _empty(gates, carry), _empty(gates, carry)
        opened, nothing, carried = torch.empty_like(gates), torch.zeros_like(hidden[0]), torch.zeros_like(gates[0])
        for t in range(len(gates)):
            if t:
                torch.bmm(hidden[t - 1], carry, out=carried)
            _launch(forward, gates[t], carried, cells[t - 1] if t else nothing, opened[t], cells[t], hidden[t])
        ctx.save_for_backward(gates, carry, hidden, opened, cells)
        return hidden

    @staticmethod
    def backward(ctx, *grads: Any) -> Any:
        gates, carry, hidden, opened, cells = ctx.saved_tensors
        to_gates = _Backward.apply(grads[0].contiguous(), gates, carry, hidden.detach(), opened, cells)
        return to_gates, _products(hidden[:-1], to_gates[1:]) if ctx.needs_input_grad[1] else None


class _Backward(Function):
    """Gradients to the gates, as a function of those to the states, the gates and the weights."""

    @staticmethod
    def forward(ctx, grad: Tensor, gates: Tensor, carry: Tensor, hidden: Tensor, opened: Tensor, cells: Tensor):
        from gumtrace_experiments.parentheses.recurrence_kernels import backward

        to_gates, to_hidden, to_cells = torch.empty_like(gates), torch.empty_like(grad), torch.empty_like(grad)
        nothing = torch.zeros_like(grad[0])
        later, carried, earlier = nothing.clone(), nothing.clone(), nothing.clone()
        for t in reversed(range(len(gates))):
            if t < len(gates) - 1:
                torch.bmm(to_gates[t + 1], carry.mT, out=carried)
                later, earlier = earlier, later
            given = grad[t], carried, later, opened[t], cells[t - 1] if t else nothing, cells[t]
            _launch(backward, *given, to_gates[t], to_hidden[t], to_cells[t], earlier)
        ctx.save_for_backward(carry, hidden, opened, cells, to_gates, to_hidden, to_cells)
        return to_gates

    @staticmethod
    @once_differentiable
    def backward(ctx, *along: Any) -> Any:  # type: ignore[reportIncompatibleMethodOverride]
        """Of Σ V · to_gates, where V is `along`. It is linear in the gradient to the states, whose factor is the
        derivative of the states along V. And the matrix of second derivatives is symmetric: what goes to the gates is
        the derivative of `to_gates` along V."""
        from gumtrace_experiments.parentheses.recurrence_kernels import backward_along, forward_along

        carry, hidden, opened, cells, to_gates, to_hidden, to_cells = ctx.saved_tensors
        gates1 = along[0].contiguous()
        hidden1, cells1 = torch.empty_like(hidden), torch.empty_like(cells)
        opened1, nothing, carried1 = torch.empty_like(opened), torch.zeros_like(hidden[0]), torch.zeros_like(opened[0])
        for t in range(len(hidden)):
            if t:
                torch.bmm(hidden1[t - 1], carry, out=carried1)
            before = (cells1[t - 1], cells[t - 1]) if t else (nothing, nothing)
            given = gates1[t], carried1, before[0], opened[t], before[1], cells[t]
            _launch(forward_along, *given, opened1[t], cells1[t], hidden1[t])
        to_gates1 = torch.empty_like(opened)
        later, carried1, earlier = nothing.clone(), nothing.clone(), nothing.clone()
        for t in reversed(range(len(hidden))):
            if t < len(hidden) - 1:
                torch.bmm(to_gates1[t + 1], carry.mT, out=carried1)
                later, earlier = earlier, later
            before = (cells[t - 1], cells1[t - 1]) if t else (nothing, nothing)
            given = carried1, later, to_hidden[t], to_cells[t], opened[t], before[0], cells[t], opened1[t], before[1]
            _launch(backward_along, *given, cells1[t], to_gates1[t], earlier)
        to_carry = None
        if ctx.needs_input_grad[2]:
            to_carry = _products(hidden1[:-1], to_gates[1:]) + _products(hidden[:-1], to_gates1[1:])
        return hidden1, to_gates1, to_carry, None, None, None


def _products(hidden: Tensor, to_gates: Tensor) -> Tensor:
    """(D, hidden, 4 hidden), summed over steps and rows: what the weights get of gradients to the gates."""
    return torch.einsum("tdrh,tdrg->dhg", hidden, to_gates)


def _empty(gates: Tensor, carry: Tensor) -> Tensor:
    """For hidden units."""
    return torch.empty(*gates.shape[:-1], carry.shape[1], dtype=gates.dtype, device=gates.device)


def _launch(kernel: Any, *tensors: Tensor) -> None:
    """`tensors`, of which the last has hidden units, are contiguous."""
    size = tensors[-1].shape[-1]
    rows = tensors[-1].numel() // size
    with torch.cuda.device_of(tensors[0]):
        kernel[(-(-rows * size // BLOCK),)](*tensors, rows, H=size, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
