"""What all estimators share: one call, `loss = estimator(dist, objective)`, and how gradients get into it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gumtrace.structures import checks
from gumtrace.structures.base import Structure

Objective = Callable[[Tensor], Tensor]  # values (samples, *batch, *event) -> losses (samples, *batch)


class Estimator(nn.Module):
    """Estimates the expected objective, and its gradient.

    `loss = estimator(dist, objective)` has the batch shape and the value of the objective averaged over the samples;
    `loss.mean().backward()` gives the gradient to the logits (the estimator's), to whatever the objective uses (plain
    backpropagation) and to the estimator's own parameters (that of its variance). Where gradients are switched off
    there is only the value, for as many objective calls as there are samples.

    Args of the call:
        dist: a structure.
        objective: gets values of shape samples + batch + event, returns losses of shape samples + batch, of any dtype.
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

    def evaluate(self, dist: Structure, objective: Objective, value: Tensor) -> Tensor:
        """The objective, with its shape checked."""
        return losses(type(self).__name__, dist, objective, value)

    def extra_repr(self) -> str:
        return f"samples={self.samples}"


def losses(name: str, dist: Structure, objective: Objective, value: Tensor) -> Tensor:
    """The objective of values (samples, *batch, *event), with its shape checked; counts become numbers to compute with.

    A half type becomes that of the log-rates: differences of losses are taken, and averaged.
    """
    loss = objective(value)
    want = value.shape[: value.dim() - len(dist.event_shape)]
    if not torch.is_tensor(loss) or loss.shape != want:
        got = f"shape {tuple(loss.shape)}" if torch.is_tensor(loss) else type(loss).__name__
        raise ValueError(
            f"{name}: the objective must return one loss for each sample and item, shape {tuple(want)}, for values of "
            f"shape {tuple(value.shape)}; got {got}"
        )
    return loss.to(torch.promote_types(loss.dtype, dist.log_rates.dtype))


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
    """

    @staticmethod
    def forward(ctx, x, grad_x, batch_dim, count, *parameters_and_grads):
        ctx.batch_dim = batch_dim
        ctx.save_for_backward(grad_x, *parameters_and_grads[count:])
        return x.new_zeros(x.shape[:batch_dim])

    @staticmethod
    def backward(ctx, *grads):
        grad_x, *parameter_grads = ctx.saved_tensors
        weight = grads[0]
        to_x = weight.reshape(weight.shape + (1,) * (grad_x.dim() - ctx.batch_dim)) * grad_x
        mean = weight.abs().mean() if weight.numel() else weight.sum()
        to_parameters = [mean * g for g in parameter_grads]
        return to_x, None, None, None, *to_parameters, *[None] * len(to_parameters)
