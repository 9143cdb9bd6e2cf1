"""The update of nodes, from the messages that they receive: all that the decoder computes again for every structure.

Three layers, of which the first is linear in what is received and in the node's own place. Samples share the latter.
What is done for a structure is two products of (n F, hidden) with (hidden, hidden), and two more each for gradients to
inputs and to weights. The rest only reads and writes such tensors, and at many structures that takes longer than the
products: autograd would have 31 passes over them, here it is 20. Sums and relus are done in place, with what reads
coordinates, the last layer and its gradient with the relu before (node_kernels.py), and nothing is kept but what is
received, and the two layers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gumtrace_experiments.graph_layout.layers import ONCE, Layer

ROWS = 32  # of a program
MOST = 8192  # numbers that a program holds at once
FEW, MOST_TILES = 8, 16  # rows of a tile of a program that sums up over several, and such tiles
PROGRAMS = 320  # at least, before one gets more tiles: they fill a large device


@dataclass(frozen=True, eq=False)  # as in layers.py
class PlainUpdate:
    """By operations of torch, which compiles them, and differentiates them as often as wanted."""

    out1: Layer  # of nodes and the messages they receive
    out2: Layer
    out3: Layer

    def __call__(self, x: Tensor, received: Tensor) -> Tensor:
        """(I, K, n, F, 2) for nodes (I, n, F, 2) and what they receive, (I, K, n, F, hidden)."""
        # In place, on a view, the backward pass would copy.
        hidden = torch.relu(self.out2(torch.relu(self.out1(x[:, None], received))))
        return x[:, None] + self.out3(hidden)


class NodeUpdate:
    """Moves nodes in `times` steps at most; gradients to the layers are made once for all of them, as in layers.py. It
    can be differentiated once. `kernels` says that our own take what they are given."""

    def __init__(self, out1: Layer, out2: Layer, out3: Layer, times: int, kernels: bool):
        parameters = [p for layer in (out1, out2, out3) for p in (layer.bias, *layer.weights)]
        # Parts of a matrix: kernels read them whole, and products are slow where rows are not aligned.
        self.given = [p.detach().contiguous() for p in parameters]
        self.tape = _Tape(times, kernels)
        self.gates = enumerate(_Gate.apply(self.tape, *parameters))

    def __call__(self, x: Tensor, received: Tensor) -> Tensor:
        """As PlainUpdate."""
        self.tape.keeps = torch.is_grad_enabled()  # which is off inside
        with torch.autocast(x.device.type, enabled=False):
            return _Step.apply(self.tape, *next(self.gates), x, received, *self.given)


class _Tape:
    """What passes leave for the gate: wide layers of all steps, one behind another, and by step what is left of others.
    Rows are the same in number in every step."""

    def __init__(self, times: int, kernels: bool):
        self.kernels, self.keeps = kernels, True
        self.steps: list[tuple[Tensor, ...] | None] = [None] * times
        self.wide: dict[str, Tensor] = {}

    def layer(self, name: str, step: int, like: Tensor) -> Tensor:
        """Memory of a layer in a step."""
        if name not in self.wide:
            self.wide[name] = torch.empty(len(self.steps), *like.shape, dtype=like.dtype, device=like.device)
        return self.wide[name][step]


class _Gate(torch.autograd.Function):
    """The layers before they are ever used. Each step gets a tensor without elements: its gradient says that the step
    has been there, and those before."""

    @staticmethod
    def forward(ctx, tape, *parameters):  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.tape = tape
        return tuple(parameters[0].new_empty(0) for _ in tape.steps)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[override]
        reached = sum(grad is not None for grad in grads)
        received, grad, first, others = (_joined(parts) for parts in zip(*ctx.tape.steps[:reached], strict=True))
        ctx.tape.steps[:] = [None] * len(grads)
        h1, to_z1, to_z2 = (ctx.tape.wide[name][:reached].flatten(0, 1) for name in ("h1", "to_z1", "to_z2"))
        del ctx.tape.wide["to_z1"], ctx.tape.wide["to_z2"]
        bias, *own = first.sum(0)  # of the first layer, (hidden,) each
        bias2, last = others.sum(0).split([1, 2])
        second = bias2[0].to(h1.dtype), to_z2.T @ h1
        return None, bias, torch.stack(own, 1), to_z1.T @ received, *second, grad.sum(0), last


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tape, step, gate, x, received, *given):  # type: ignore[override]
        bias1, own, weight1, bias2, weight2, bias3, weight3 = given
        items, samples, n, frames, hidden = received.shape
        ctx.tape, ctx.step, ctx.samples = tape, step, samples
        x, flat = x.reshape(-1, 2).contiguous(), received.reshape(-1, hidden).to(weight1.dtype)
        sizes = (len(flat), samples, n * frames)
        h1 = torch.matmul(flat, weight1.T, out=tape.layer("h1", step, flat) if tape.keeps else None)
        z2 = _add_relu(tape.kernels, h1, x, own, bias1, sizes) @ weight2.T
        moved = _move(tape.kernels, z2, bias2, weight3, bias3, x, sizes)
        ctx.save_for_backward(x, flat, z2, *given)
        return moved.view(items, samples, n, frames, 2)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        if torch.is_grad_enabled():
            raise NotImplementedError(ONCE)
        x, flat, z2, _, own, weight1, bias2, weight2, _, weight3 = ctx.saved_tensors
        _, _, to_gate, to_x, to_received, *_ = ctx.needs_input_grad
        tape, step, shape = ctx.tape, ctx.step, grad.shape
        sizes = (len(flat), ctx.samples, shape[2] * shape[3])
        grad = grad.reshape(-1, 2).contiguous()  # that of a sum is one number, expanded
        to_z2, to_z1 = (tape.layer(name, step, z2) for name in ("to_z2", "to_z1"))
        others = _move_backward(tape.kernels, grad, z2, bias2, weight3, to_z2)
        torch.matmul(to_z2, weight2, out=to_z1)
        found, first = _relu_backward(tape.kernels, to_z1, tape.wide["h1"][step], grad, x, own, sizes)
        if to_gate:
            flat = flat.detach()  # else it would keep the graph, which keeps it
            tape.steps[step] = flat, grad, first, others
        found = found.view(shape[0], *shape[2:]) if to_x else None
        back = (to_z1 @ weight1).view(*shape[:-1], -1) if to_received else None
        return None, None, grad.new_empty(0), found, back, *[None] * 7


def _options(hidden: int) -> dict[str, Any]:
    width = 1 << (hidden - 1).bit_length()
    return {"ROWS": min(ROWS, MOST // width), "H": hidden, "WIDTH": width}


def _programs(rows: int, options: dict[str, Any]) -> tuple[int]:
    return (-(-rows // options["ROWS"]),)


def _add_relu(kernels: bool, z: Tensor, x: Tensor, own: Tensor, bias: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    """relu(z + own(x) + bias) in place of z."""
    rows, samples, cells = sizes
    if not kernels:
        shared = F.linear(x, own, bias).view(-1, 1, cells, z.shape[-1])
        return z.view(-1, samples, cells, z.shape[-1]).add_(shared).relu_().view_as(z)
    from gumtrace_experiments.graph_layout import node_kernels

    options = _options(z.shape[-1])
    with torch.cuda.device_of(z):
        node_kernels.add_relu[_programs(rows, options)](z, x, own, bias, *sizes, **options)
    return z


def _move(
    kernels: bool, z: Tensor, bias: Tensor, last: Tensor, last_bias: Tensor, x: Tensor, sizes: tuple[int, int, int]
) -> Tensor:
    """Nodes x moved by last(relu(z + bias)), (rows, 2)."""
    rows, samples, cells = sizes
    if not kernels:
        moved = F.linear(torch.relu(z + bias).to(last.dtype), last, last_bias)
        return moved.view(-1, samples, cells, 2).add_(x.view(-1, 1, cells, 2)).view(rows, 2)
    from gumtrace_experiments.graph_layout import node_kernels

    options = _options(z.shape[-1])
    out = torch.empty(rows, 2, dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(z):
        node_kernels.move[_programs(rows, options)](z, bias, last, last_bias, x, out, *sizes, **options)
    return out


def _move_backward(kernels: bool, grad: Tensor, z: Tensor, bias: Tensor, last: Tensor, to_z: Tensor) -> Tensor:
    """To z, and to the bias and the last layer in parts to be summed, (parts, 3, hidden)."""
    if not kernels:
        h = torch.relu(z + bias)
        torch.ops.aten.threshold_backward.grad_input(grad.to(z.dtype) @ last.to(z.dtype), h, 0, grad_input=to_z)
        return torch.cat([to_z.sum(0, dtype=last.dtype)[None], grad.T @ h.to(last.dtype)])[None]
    from gumtrace_experiments.graph_layout import node_kernels

    tiles = max(1, min(len(z) // (FEW * PROGRAMS), MOST_TILES))
    tiles = 1 << (tiles.bit_length() - 1)  # as few kernels as there are powers
    options = {**_options(z.shape[-1]), "ROWS": FEW, "TILES": tiles}
    sums = torch.empty(-(-len(z) // (FEW * tiles)), 3, z.shape[-1], device=z.device)
    with torch.cuda.device_of(z):
        node_kernels.move_backward[(len(sums),)](grad, z, bias, last, to_z, sums, len(z), **options)
    return sums


def _relu_backward(
    kernels: bool, grad: Tensor, h: Tensor, moved: Tensor, x: Tensor, own: Tensor, sizes: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """The gradient before the relu in place of grad. To x, with that to nodes `moved`, and to the first layer's bias
    and own, in parts to be summed, (parts, 3, hidden)."""
    _, samples, cells = sizes
    hidden = h.shape[-1]
    if not kernels:
        torch.ops.aten.threshold_backward.grad_input(grad, h, 0, grad_input=grad)
        total = grad.view(-1, samples, cells, hidden).sum(1, dtype=own.dtype).view(-1, hidden)
        here = moved.view(-1, samples, cells, 2).sum(1).view(-1, 2)
        return torch.addmm(here, total, own), torch.cat([total.sum(0)[None], x.T @ total])[None]
    from gumtrace_experiments.graph_layout import node_kernels

    options, rows = {**_options(hidden), "num_warps": 8}, len(x)
    (programs,) = _programs(rows, options)
    to_x, sums = torch.empty_like(x), torch.empty(programs, 3, hidden, device=x.device)
    with torch.cuda.device_of(h):
        given = grad, h, moved, x, own, to_x, sums, rows, samples, cells
        node_kernels.relu_backward[(programs,)](*given, **options)
    return to_x, sums
