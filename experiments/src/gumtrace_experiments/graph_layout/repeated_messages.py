"""Messages in several steps of a loop: gradients to their layers are made once for all of them."""

import torch
from torch import Tensor

from gumtrace_experiments.graph_layout import messages
from gumtrace_experiments.graph_layout.messages import ONCE, Messages
from gumtrace_experiments.graph_layout.pairs import Pairs

KEPT = 1 << 32  # bytes at the pairs of all steps, for one gradient to the second layer; half as many are kept anyway


def repeated(messages: Messages, steps: int) -> "Messages | RepeatedMessages":
    """For a loop of so many steps, unless there are no gradients, or steps would take too much memory at once."""
    if not torch.is_grad_enabled():
        return messages
    wiring, used = messages.wiring, messages.used
    # Of soft structures all pairs are of both types; of trees the wiring has them twice.
    pairs = wiring.numel() * 2 if wiring.is_floating_point() else wiring.numel() // 2
    kept = 2 * steps * pairs * used.shape[-1] * used.element_size()
    return RepeatedMessages(messages, steps) if kept <= KEPT else messages


class RepeatedMessages:
    """`sum_messages` in `steps` steps at most, of one frame each: gradients to the layers are made once for all.

    What the passes have at the pairs is kept until then, as if all steps were frames of one call.
    """

    def __init__(self, messages: Messages, steps: int):
        self.given = messages.first.detach(), messages.bias.detach(), messages.used, messages.wiring
        self.tape = _Tape(steps)
        self.gates = enumerate(_Gate.apply(self.tape, messages.first, messages.weight, messages.bias))

    def __call__(self, x: Tensor) -> Tensor:
        return _Step.apply(self.tape, *next(self.gates), x.contiguous(), *self.given)


class _Tape:
    """The first layer at the pairs of all steps, and what the backward pass that is under way leaves there."""

    def __init__(self, steps: int):
        self.steps = steps
        self.inputs: Tensor | None = None
        self.made: Pairs | None = None

    def pairs(self, shape: torch.Size, used: Tensor, wiring: Tensor) -> Pairs:
        made = Pairs(shape, used, wiring, self.steps, self.inputs)
        self.inputs = made.inputs
        return made


class _Gate(torch.autograd.Function):
    """The layers before they are ever used, as in layers.py. Each step gets a tensor without elements: its gradient
    says that the step has been there."""

    @staticmethod
    def forward(ctx, tape, *parameters):  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.tape = tape
        return tuple(parameters[0].new_empty(0) for _ in range(tape.steps))

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[override]
        """A step that a gradient reaches passes it on to those before."""
        made, ctx.tape.made = ctx.tape.made, None
        return None, *made.to_layers(sum(grad is not None for grad in grads))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tape, step, gate, x, first, bias, used, wiring):  # type: ignore[override]
        ctx.tape, ctx.step = tape, step
        out = messages.sums(x, used, wiring)
        kept = messages.forward_step(tape.pairs(out.shape, used, wiring), step, x, first, bias, used, wiring, out)
        ctx.save_for_backward(x, first, bias, used, wiring, kept)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        if torch.is_grad_enabled():
            raise NotImplementedError(ONCE)
        x, first, bias, used, wiring, kept = ctx.saved_tensors
        _, _, to_gate, *_, to_wiring = ctx.needs_input_grad
        made = ctx.tape.made or ctx.tape.pairs(grad.shape, used, wiring)
        if to_gate:
            ctx.tape.made = made
        given = grad, x, first, bias, used, wiring, kept
        to_x, grad_wiring = messages.backward_step(made, ctx.step, *given, to_wiring)
        return None, None, grad.new_empty(0), to_x, None, None, None, grad_wiring if to_wiring else None
