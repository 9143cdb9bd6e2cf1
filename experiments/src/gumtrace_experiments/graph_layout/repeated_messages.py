"""Messages in several steps of a loop: the gradient to the second layer is made once for all of them."""

import torch
from torch import Tensor

from gumtrace_experiments.graph_layout import messages
from gumtrace_experiments.graph_layout.messages import ONCE, Pairs, Second, pair_gradients

KEPT = 1 << 30  # bytes at the pairs of all steps, for their one gradient to the second layer


def repeated(second: Second, steps: int) -> "Second | RepeatedMessages":
    """For a loop of so many steps, unless they would take too much memory at once."""
    pairs = second.wiring.numel() * (2 if second.wiring.is_floating_point() else 1)
    kept = 2 * steps * pairs * second.used.shape[-1] * second.used.element_size()
    return RepeatedMessages(second, steps) if kept <= KEPT else second


class RepeatedMessages:
    """`sum_messages` in `steps` steps at most, of one frame each: gradients to the second layer are made once for all.

    What the backward pass has at the pairs is kept until then, as if all steps were frames of one call.
    """

    def __init__(self, second: Second, steps: int):
        self.given = second.bias.detach(), second.used, second.turned, second.wiring
        self.tape = _Tape(steps)
        self.gates = enumerate(_Gate.apply(self.tape, second.weight, second.bias))

    def __call__(self, halves: Tensor) -> Tensor:
        return _Step.apply(self.tape, *next(self.gates), halves, *self.given)


class _Tape:
    def __init__(self, steps: int):
        self.steps, self.made = steps, None


class _Gate(torch.autograd.Function):
    """The second layer before it is ever used, as in layers.py. Each step gets a tensor without elements: its gradient
    says that the step has been there."""

    @staticmethod
    def forward(ctx, tape, weight, bias):  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.tape = tape
        return tuple(weight.new_empty(0) for _ in range(tape.steps))

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[override]
        """A step that a gradient reaches passes it on to those before."""
        made, ctx.tape.made = ctx.tape.made, None
        return None, *made.to_second(sum(grad is not None for grad in grads))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tape, step, gate, halves, *given):  # type: ignore[override]
        ctx.tape, ctx.step = tape, step
        bias, used, turned, wiring = given
        keep = any(ctx.needs_input_grad) and not ctx.needs_input_grad[-1]  # the last: to the wiring
        out, above = messages.sum_messages(halves, used, bias, used, turned, wiring, keep)
        ctx.save_for_backward(halves, *given, above)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        if torch.is_grad_enabled():
            raise NotImplementedError(ONCE)
        halves, bias, used, turned, wiring, above = ctx.saved_tensors
        _, _, to_gate, *_, to_wiring = ctx.needs_input_grad
        if to_gate and ctx.tape.made is None:
            ctx.tape.made = Pairs(halves, used, wiring, ctx.tape.steps)
        made, step = (ctx.tape.made, ctx.step) if to_gate else (Pairs(halves, used, wiring), 0)
        to_halves, grad_wiring = pair_gradients(made, step, grad, halves, bias, used, turned, wiring, above, to_wiring)
        return None, None, halves.new_empty(0), to_halves, None, None, None, grad_wiring if to_wiring else None
