"""Linear layers of one input or of several, each multiplied in the dtype of its weight, and the results added.

In a loop autograd makes a gradient to the weights at every step and adds them up: many small products and sums, which
take longer than large ones. A layer that is `Repeated` keeps what reaches it, and makes one product and one sum of it.

Pairs of nodes are ordered, i != j, and sorted by receiver. A linear layer on [sender, receiver] is the sum of one on
the sender and one on the receiver. Both are applied at the nodes, and a 0/1 matrix adds them up at the pairs: nothing
is gathered or scattered, so that the backward pass, too, is made of matrix products.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

ONCE = "repeated layers have no second derivatives, and take no create_graph=True; decode with twice=True"


# Compiled steps make and call it: no named tuple, the call of which torch 2.7 cannot compile, nor with a hash of its
# fields, which torch 2.11 asks for before they are there.
@dataclass(frozen=True, eq=False)
class Layer:
    bias: Tensor  # (outputs,), in the dtype of the first weight
    weights: tuple[Tensor, ...]  # (outputs, inputs), one for each input

    def __call__(self, *inputs: Tensor) -> Tensor:
        """(*, outputs) for inputs (*, inputs) that can be broadcast."""
        with torch.autocast(self.bias.device.type, enabled=False):
            first, *others = [x.to(weight.dtype) for x, weight in zip(inputs, self.weights, strict=True)]
            total = F.linear(first, self.weights[0], self.bias)
            for x, weight in zip(others, self.weights[1:], strict=True):
                total = total + F.linear(x, weight)
        return total


class Repeated:
    """A layer to be applied `times` times at most, to `rows` vectors each time. It can be differentiated once.

    >>> layer = Layer(torch.zeros(1, requires_grad=True), (torch.ones(1, 2, requires_grad=True),))
    >>> repeated, x = Repeated(layer, times=3, rows=4), torch.ones(4, 2)
    >>> for _ in range(3):
    ...     x = x + repeated(x)
    >>> x.sum().backward()
    >>> layer.bias.grad
    tensor([104.])
    """

    def __init__(self, layer: Layer, times: int, rows: int):
        self.bias, self.weights = layer.bias.detach(), [weight.detach() for weight in layer.weights]
        self.seen: list[tuple[Tensor, ...] | None] = [None] * times
        self.gates = enumerate(_Gate.apply(self.seen, rows, layer.bias, *layer.weights))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """(*, outputs) for inputs (*, inputs)."""
        flat = [x.reshape(-1, x.shape[-1]).to(w.dtype) for x, w in zip(inputs, self.weights, strict=True)]
        with torch.autocast(self.bias.device.type, enabled=False):
            out = _Application.apply(self.seen, *next(self.gates), self.bias, *self.weights, *flat)
        return out.view(*inputs[0].shape[:-1], len(self.bias))


class _Gate(torch.autograd.Function):
    """The parameters, before they are ever used: its backward pass comes after those of all applications.

    To each it gives a tensor of the shape of its results, without memory, whose gradient is that to the results.
    """

    @staticmethod
    def forward(ctx, seen, rows, bias, *weights):  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.seen = seen
        return tuple(bias.new_empty(()).expand(rows, len(bias)) for _ in seen)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[override]
        """Applications that no gradient reaches have none: the loss may be of the first few only."""
        _, _, to_bias, *to_weights = ctx.needs_input_grad
        reached = [i for i, grad in enumerate(grads) if grad is not None]
        grad = torch.cat([grads[i] for i in reached])  # (rows of all, outputs)
        inputs = zip(*[ctx.seen[i] for i in reached], strict=True)
        found = [grad.to(x[0].dtype).T @ torch.cat(x) if to else None for to, x in zip(to_weights, inputs, strict=True)]
        ctx.seen[:] = [None] * len(grads)
        return None, None, grad.sum(0) if to_bias else None, *found


class _Application(torch.autograd.Function):
    """Applies the layer to its inputs. The backward pass leaves them for the gate."""

    @staticmethod
    def forward(ctx, seen, place, gate, bias, *others):  # type: ignore[override]
        ctx.seen, ctx.place = seen, place
        ctx.save_for_backward(*others)
        weights, inputs = _halves(others)
        total = F.linear(inputs[0], weights[0], bias)
        for x, weight in zip(inputs[1:], weights[1:], strict=True):
            total = total.addmm_(x, weight.T) if x.dtype == total.dtype else total.add_(x @ weight.T)
        return total

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        if torch.is_grad_enabled():
            raise NotImplementedError(ONCE)
        _, _, to_gate, _, *to_others = ctx.needs_input_grad
        weights, inputs = _halves(ctx.saved_tensors)
        if to_gate:
            ctx.seen[ctx.place] = tuple(x.detach() for x in inputs)  # else they would keep the graph, which keeps them
        to_inputs = _halves(to_others)[1]
        found = [grad.to(w.dtype) @ w if to else None for to, w in zip(to_inputs, weights, strict=True)]
        return None, None, grad, None, *[None] * len(weights), *found


def _halves(x):
    return x[: len(x) // 2], x[len(x) // 2 :]


def ends(n: int) -> Tensor:
    """Whose halves make a pair: (n(n-1), 2n), 1 at 2i for sender i and at 2j + 1 for receiver j."""
    receivers, senders = (1 - torch.eye(n)).nonzero(as_tuple=True)
    return (F.one_hot(2 * senders, 2 * n) + F.one_hot(2 * receivers + 1, 2 * n)).float()


def at_nodes(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A layer on [sender, receiver] as one on nodes, with both halves as outputs; the receiver's has the bias."""
    return torch.cat(weight.chunk(2, 1)), F.pad(bias, (len(bias), 0))


def off_diagonal(x: Tensor) -> Tensor:
    """(*, n, n) to (*, n(n-1)): behind the first entry, every (n+1)-th is on the diagonal."""
    n = x.shape[-1]
    return x.flatten(-2)[..., 1:].unflatten(-1, (n - 1, n + 1))[..., :-1].flatten(-2)


def with_diagonal(pairs: Tensor, n: int) -> Tensor:
    """The inverse, with zeros: (*, n(n-1)) to (*, n, n)."""
    rows = F.pad(pairs.unflatten(-1, (n - 1, n)), (0, 1)).flatten(-2)
    return F.pad(rows, (1, 0)).unflatten(-1, (n, n))
