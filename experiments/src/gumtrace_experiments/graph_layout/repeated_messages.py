"""Messages in several steps of a loop: the gradient to the second layer is made once for all of them."""

import torch
from torch import Tensor

from gumtrace_experiments.graph_layout import messages
from gumtrace_experiments.graph_layout.messages import ONCE, Pairs, Second

KEPT = (
    1 << 32
)  # bytes at the pairs of all steps, for their one gradient to the second layer; half as many are kept anyway


def repeated(second: Second, steps: int) -> "Second | RepeatedMessages":
    """For a loop of so many steps, unless they would take too much memory at once."""
    soft = second.wiring.is_floating_point()  # then all pairs are of both types; of trees the wiring has them twice
    pairs = second.wiring.numel() * 2 if soft else second.wiring.numel() // 2
    kept = 2 * steps * pairs * second.used.shape[-1] * second.used.element_size()
    return RepeatedMessages(second, steps) if kept <= KEPT else second


class RepeatedMessages:
    """`sum_messages` in `steps` steps at most, of one frame each: gradients to the second layer are made once for all.

    What the passes have at the pairs is kept until then, as if all steps were frames of one call.
    """

    def __init__(self, second: Second, steps: int):
        self.given = second.bias.detach(), second.used, second.wiring
        self.tape = _Tape(steps)
        self.gates = enumerate(_Gate.apply(self.tape, second.weight, second.bias))

    def __call__(self, halves: Tensor) -> Tensor:
        return _Step.apply(self.tape, *next(self.gates), halves, *self.given)


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
        bias, used, wiring = given
        items, n, frames, _, _, hidden = halves.shape
        out = torch.empty(items, wiring.shape[1], n, frames, hidden, dtype=used.dtype, device=halves.device)
        z = messages.forward_step(tape.pairs(out.shape, used, wiring), step, halves, bias, used, wiring, out)
        ctx.save_for_backward(*given, z)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        if torch.is_grad_enabled():
            raise NotImplementedError(ONCE)
        bias, used, wiring, z = ctx.saved_tensors
        _, _, to_gate, *_, to_wiring = ctx.needs_input_grad
        made = ctx.tape.made or ctx.tape.pairs(grad.shape, used, wiring)
        if to_gate:
            ctx.tape.made = made
        to_halves, grad_wiring = messages.backward_step(made, ctx.step, grad, bias, used, wiring, z, to_wiring)
        return None, None, grad.new_empty(0), to_halves, None, None, grad_wiring if to_wiring else None
