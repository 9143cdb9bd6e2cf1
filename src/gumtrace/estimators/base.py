"""What all estimators share: one call, `loss = estimator(dist, objective)`, and how gradients get into it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from gumtrace.relaxations.transforms import refuse_transforms
from gumtrace.structures import checks
from gumtrace.structures.base import Structure

Objective = Callable[[Tensor], Tensor]  # values (samples, *batch, *event) -> losses (samples, *batch)


class Estimator(nn.Module):
    """Estimates the expected objective, and its gradient.

    `loss = estimator(dist, objective)` has the batch shape and the value of the objective averaged over the samples;
    `loss.mean().backward()` gives the gradient to the logits (the estimator's), to whatever the objective uses (plain
    backpropagation) and to the estimator's own parameters (that of its variance). Where gradients are switched off
    there is only the value, for as many objective calls as there are samples.

    The objective may write into the values it gets. A loss that is nan or infinite is an error that names the sample
    and the item, a `ValueError`. Where the distribution was made with `validate_args=False` losses are not checked: the
    value and the gradient of that item are then not finite, those of the other items are as without it, and neither
    surrogates nor the estimator's own parameters learn from it.

    Args of the call:
        dist: a structure.
        objective: gets values of shape samples + batch + event, returns losses of shape samples + batch, of any real
            dtype.
        context: features (*batch, c) for critics and surrogates that use them.
        generator: where the randomness comes from.
    """

    def __init__(self, samples: int = 1):
        super().__init__()
        self.samples = checked_count(type(self).__name__, "samples", samples)

    def forward(
        self,
        dist: Structure,
        objective: Objective,
        context: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss, (*batch,): what calling the estimator does."""
        if torch.is_grad_enabled():
            return self.estimate(dist, objective, context, generator)
        return self.evaluate(dist, objective, self.values(dist, generator)).mean(0)

    def estimate(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """The call, where gradients are wanted."""
        loss, surrogate = self.surrogate(dist, objective, context, generator)
        return loss.mean(0) + (surrogate - surrogate.detach())

    def values(self, dist: Structure, generator: torch.Generator | None) -> Tensor:
        """What the objective sees, (samples, *batch, *event), where they are not."""
        return dist.sample((self.samples,), generator=generator)

    def surrogate(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Losses (samples, *batch), and a number (*batch,) whose gradient is the estimate for the logits."""
        raise NotImplementedError

    def refuse_transforms(self) -> None:
        """An error inside a function that torch.func transforms: for those that differentiate through relaxations, or
        inside the call."""
        refuse_transforms(type(self).__name__, ", or take TraceREINFORCE, which it can transform")

    def evaluate(self, dist: Structure, objective: Objective, value: Tensor) -> Tensor:
        """The objective, with its losses checked."""
        return losses(type(self).__name__, dist, objective, value)

    def evaluate_differentiably(self, dist: Structure, objective: Objective, value: Tensor) -> Tensor:
        """`evaluate`, for an estimator whose gradient goes through the value: an error where the loss does not depend
        on it."""
        if torch.compiler.is_compiling():  # the graph is not there yet
            return self.evaluate(dist, objective, value)
        node = value.grad_fn  # an objective that writes into the value gives it another one
        loss = self.evaluate(dist, objective, value)
        if node is not None and not _reaches(loss.grad_fn, node):
            raise ValueError(
                f"{type(self).__name__}: the objective must be differentiable in the structure, and no gradient of its "
                "losses reaches it; TraceREINFORCE and RELAX take any objective"
            )
        return loss

    def extra_repr(self) -> str:
        return f"samples={self.samples}"


def losses(name: str, dist: Structure, objective: Objective, value: Tensor) -> Tensor:
    """The objective of values (samples, *batch, *event), with its losses checked; counts become numbers to compute
    with.

    A half type becomes that of the log-rates: differences of losses are taken, and averaged. What is computed from the
    value must be computed before: the objective may write into it.
    """
    shape = value.shape
    want = shape[: len(shape) - len(dist.event_shape)]
    loss = objective(value)
    if not torch.is_tensor(loss) or loss.shape != want:
        got = f"shape {tuple(loss.shape)}" if torch.is_tensor(loss) else type(loss).__name__
        raise ValueError(
            f"{name}: the objective must return one loss for each sample and item, shape {tuple(want)}, for values of "
            f"shape {tuple(shape)}; got {got}"
        )
    if loss.is_complex():
        raise TypeError(f"{name}: the objective must return real losses, got {loss.dtype}")
    # A copy: the objective may own the tensor, and fill it again in its next call.
    loss = loss.to(torch.promote_types(loss.dtype, dist.log_rates.dtype), copy=True)
    if dist._validate_args:
        _check_finite(name, dist, loss)
    return loss


def _check_finite(name: str, dist: Structure, loss: Tensor) -> None:
    flat = loss.detach().flatten()
    if math.isfinite(flat.sum().item()):  # the quick way; of finite losses it overflows at worst
        return
    bad = flat.isfinite().logical_not().nonzero()
    if len(bad) > 0:
        first = int(bad[0])
        sample, where = first // dist.batch_shape.numel(), checks.item_name(first, dist.batch_shape)
        raise checks.NotFinite(f"{name}: the loss of sample {sample} of {where} is {flat[first].item()}")


def _reaches(start: Node | None, node: Node) -> bool:
    """Whether backward from `start` comes to the node."""
    if start is None or start is node:
        return start is node
    seen, ahead = {start}, [start]
    while ahead:
        for before, _ in ahead.pop().next_functions:
            if before is node:
                return True
            if before is not None and before not in seen:
                seen.add(before)
                ahead.append(before)
    return False


def checked_count(name: str, what: str, count: int, least: int = 1) -> int:
    if checks.integer(name, what, count) < least:
        raise ValueError(f"{name}: {what} must be at least {least}, got {count}")
    return int(count)


def advantage(loss: Tensor, leave_one_out: bool) -> Tensor:
    """Losses (samples, *batch) less the mean of the other samples' losses."""
    if not leave_one_out:
        return loss
    samples = len(loss)
    return (loss - loss.mean(0)) * (samples / (samples - 1))


def checked_leave_one_out(name: str, samples: int, leave_one_out: bool | None) -> bool:
    """By default whenever there are others to be compared with."""
    if leave_one_out and samples < 2:
        raise ValueError(
            f"{name}: leave-one-out compares a sample with the others: it needs samples >= 2, got {samples}"
        )
    return samples > 1 if leave_one_out is None else leave_one_out


class Inject(torch.autograd.Function):
    """Zeros of the batch shape whose backward hands out gradients that are known already.

    `grad_x` (*batch, *keys) is weighted item by item. The parameters' gradients, which are sums over the batch, get
    the mean of the absolute weights: with `loss.mean()` that makes them the gradient of the mean over the batch. A
    reward is maximised by `(-loss).mean()`; its variance is to be minimised all the same.

    Those gradients depend on x, on the losses and on the parameters in ways that are not recorded, so that what is
    handed out cannot be differentiated again: `name` says so.
    """

    @staticmethod
    def forward(ctx, name, batch_dim, count, loss, x, grad_x, *parameters_and_grads):
        ctx.name, ctx.batch_dim = name, batch_dim
        ctx.behind = loss, x, *parameters_and_grads[:count]  # whose graphs are wanted: their numbers may change
        ctx.save_for_backward(grad_x, *parameters_and_grads[count:])
        return x.new_zeros(x.shape[:batch_dim])

    @staticmethod
    def backward(ctx, *grads):
        grad_x, *parameter_grads = ctx.saved_tensors
        weight = grads[0]
        to_x = weight.reshape(weight.shape + (1,) * (grad_x.dim() - ctx.batch_dim)) * grad_x
        mean = weight.abs().mean() if weight.numel() else weight.sum()
        handed = [to_x, *(mean * g for g in parameter_grads)]
        if torch.is_grad_enabled():  # with create_graph=True
            handed = _Final.apply(ctx.name, len(handed), *handed, *ctx.behind)
        to_x, *to_parameters = handed  # type: ignore[misc]
        return None, None, None, None, to_x, None, *to_parameters, *[None] * len(to_parameters)


class _Final(torch.autograd.Function):
    """The first `count` of the tensors, as if they depended on all of them in a way nobody can differentiate."""

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
