"""Gradients that were computed in the forward pass, for estimators and losses that know theirs by then."""

import torch
from torch import Tensor

from gumtrace.traces import formula
from gumtrace.traces.trace import Trace


class Inject(torch.autograd.Function):
    """Zeros of the batch shape whose backward returns gradients that were computed before.

    `grad_x` (*batch, *keys) is weighted item by item. The parameters' gradients, which are sums over the batch, are
    weighted by the mean of the absolute weights: with `loss.mean()` that makes them the gradient of the mean over the
    batch. A reward is maximised by `(-loss).mean()`; the variance is minimised in either case.

    Those gradients depend on x, on the losses and on the parameters in ways that are not recorded, so they cannot be
    differentiated again: an error that `name` begins.
    """

    @staticmethod
    def forward(ctx, name, batch_dim, count, loss, x, grad_x, *parameters_and_grads):
        ctx.name, ctx.batch_dim = name, batch_dim
        ctx.behind = loss, x, *parameters_and_grads[:count]  # for their graphs: their values may change
        ctx.save_for_backward(grad_x, *parameters_and_grads[count:])
        return x.new_zeros(x.shape[:batch_dim])

    @staticmethod
    def backward(ctx, *grads):
        grad_x, *parameter_grads = ctx.saved_tensors
        weight = grads[0]
        to_x = weight.reshape(weight.shape + (1,) * (grad_x.dim() - ctx.batch_dim)) * grad_x
        mean = weight.abs().mean() if weight.numel() else weight.sum()
        returned = [to_x, *(mean * g for g in parameter_grads)]
        if torch.is_grad_enabled():  # with create_graph=True
            returned = _Final.apply(ctx.name, len(returned), *returned, *ctx.behind)
        to_x, *to_parameters = returned  # type: ignore[misc]
        return None, None, None, None, to_x, None, *to_parameters, *[None] * len(to_parameters)


class _Final(torch.autograd.Function):
    """The first `count` of the tensors, as functions of all of them that cannot be differentiated."""

    @staticmethod
    def forward(ctx, name, count, *tensors):
        ctx.name = name
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(
            f"{ctx.name}: its gradient cannot be differentiated again; that of TraceREINFORCE can, at fixed samples "
            "and losses"
        )


class TraceScore(torch.autograd.Function):
    """What `estimators.base.joined` makes of losses (samples, *batch) and the surrogate of T-REINFORCE, up to rounding:
    their mean.

    Σ (L - b) ∇ log P(T) is computed at once, so that one multiplication is left to backward. `rows` are the log-rates
    (structures, keys), of all structures of the first item, then of the second and so on, of the same dtype as losses.
    """

    @staticmethod
    def forward(ctx, loss: Tensor, rows: Tensor, trace: Trace, leave_one_out: bool):
        mean, ctx.samples, ctx.layout = loss.mean(0), loss.shape[0], trace.layout
        weight = (loss - mean).div_(ctx.samples - 1) if leave_one_out else loss / ctx.samples
        score = formula.score(rows, trace, _for_structures(weight, trace.shape))
        ctx.save_for_backward(rows, weight, score, trace.choices, trace.links)
        return mean

    @staticmethod
    def backward(ctx, *grads):
        grad, (of_loss, of_rows, *_) = grads[0], ctx.needs_input_grad
        to_loss = (grad / ctx.samples).expand(ctx.samples, *grad.shape) if of_loss else None
        if not of_rows:
            return to_loss, None, None, None
        rows, weight, score, choices, links = ctx.saved_tensors
        shape = links.shape[:-1]  # samples + batch, and structures of an item
        if torch.is_grad_enabled():  # with create_graph=True
            trace = Trace(ctx.layout, choices, links)
            to_rows = formula.score(rows, trace, _for_structures(grad * weight, shape))
        else:
            to_rows = _for_structures(grad, shape[1:]).unsqueeze(-1) * score
        return to_loss, to_rows, None, None


def _for_structures(x: Tensor, shape: torch.Size) -> Tensor:
    """Numbers of items, for each of the structures that an item has, flattened."""
    if len(shape) > x.dim():
        x = x[(..., *[None] * (len(shape) - x.dim()))].expand(shape)
    return x if x.dim() == 1 else x.reshape(shape.numel())
