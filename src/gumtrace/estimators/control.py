"""Control variates on the noise: RELAX and REBAR.

    g = (L(X) - c(G̃)) ∇ log P(T)  -  ∇ c(G̃)  +  ∇ c(G),      G the noise, T its trace, G̃ ~ G | T

is unbiased for every function c of the noise: the last term is the gradient of E c(G), and the other terms with c
subtract it again, split into what T decides and what it leaves open. The better c(G̃) predicts the loss, the smaller the
factor of the score. The parameters of c are trained on the variance of g itself.
"""

import inspect
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gumtrace.estimators.base import Estimator, Objective, advantage, checked_leave_one_out
from gumtrace.estimators.critics import MatrixCritic, VectorCritic
from gumtrace.estimators.inject import Inject
from gumtrace.estimators.objectives import item_features, with_forward_of
from gumtrace.estimators.relaxed import checked_temperature, relaxed
from gumtrace.structures.base import Structure

_FAR = 2.0**60  # bound of the noise that a critic gets: a logit as low as its dtype allows must not overflow in it


class ControlVariate(Estimator):
    """The formula, for any c. With K > 1 samples, each residual L - c(G̃) is compared with those of the others: until c
    has learned it, a constant in the loss would be noise in the gradient."""

    def __init__(self, *, samples: int = 4, leave_one_out: bool | None = None):
        super().__init__(samples=samples)
        self.leave_one_out = checked_leave_one_out(type(self).__name__, samples, leave_one_out)
        self.scale: Tensor | float = 1.0

    def control(self, dist: Structure, noise: Tensor, objective: Objective, context: Tensor | None) -> Tensor:
        """c without its scale, (2 samples, *batch), differentiable in the noise, which is G for the first half of the
        samples and G̃ for the second: what is computed from it is computed of both at once."""
        raise NotImplementedError

    def estimate(self, dist, objective, context, generator):
        self.refuse_transforms()
        parameters = [p for p in self.parameters() if p.requires_grad]
        loss, grad, spread = self._estimate(dist, objective, context, generator, bool(parameters))
        tuned = torch.autograd.grad(spread, parameters, allow_unused=True) if parameters else ()
        tuned = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, tuned, strict=True)]
        # An optimiser's moments would stay nan: parameters do not learn from what is not finite.
        tuned = [g.nan_to_num(0.0, 0.0, 0.0) for g in tuned]
        name, batch_dim = type(self).__name__, len(dist.batch_shape)
        gradients = Inject.apply(
            name, batch_dim, len(parameters), loss, dist.log_rates, grad.detach(), *parameters, *tuned
        )
        return loss.mean(0) + gradients

    def _estimate(self, dist, objective, context, generator, differentiable: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Losses, the estimate g (*batch, *keys), and Σ g²: its gradient is the variance's."""
        x = dist.log_rates.detach().requires_grad_()
        dist = dist.with_log_rates(x)
        noise = dist.perturb((self.samples,), generator=generator)
        trace = dist.trace(noise)
        again = dist.conditional(trace, generator=generator)
        loss = self.evaluate(dist, objective, trace)
        both = torch.cat([noise, again])
        control, slope = self._control_and_slope(dist, both.detach().requires_grad_(), objective, context)
        weight = advantage(loss.detach() - control, self.leave_one_out)
        # c is evaluated at fixed noise, so that its own parameters stay in g while x enters through the noise alone
        score = weight * dist.trace_log_prob(trace)
        through_noise = (slope * torch.where(dist.racing, both, 0.0)).sum()
        (grad,) = torch.autograd.grad(
            (score.sum() + through_noise) / self.samples, x, create_graph=differentiable, materialize_grads=True
        )
        return loss, grad, grad.nan_to_num(0.0, 0.0, 0.0).square().sum()  # an item may have a loss of nan

    def _control_and_slope(self, dist, both, objective, context) -> tuple[Tensor, Tensor]:
        """c(G̃), and the slope of c(G) - c(G̃) in both noises, with a graph to the parameters of c. The scale enters
        after the derivative, so that learning the scale alone takes no second derivatives."""
        first, again = self.control(dist, both, objective, context).chunk(2)
        others = any(p.requires_grad for p in self.parameters() if p is not self.scale)
        (slope,) = torch.autograd.grad(first.sum() - again.sum(), both, create_graph=others, materialize_grads=True)
        return self.scale * (again if others else again.detach()), self.scale * slope


def _takes_two(critic: Callable[..., Tensor]) -> bool:
    """Whether it can be called with two arguments; of some callables that cannot be told."""
    try:
        inspect.signature(critic.forward if isinstance(critic, nn.Module) else critic).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


class RELAX(ControlVariate):
    """A learned critic on the noise as control variate: for any objective.

    Args:
        critic: a module, critic(noise, context) -> (2 samples, *batch), context None where the call has none: it gets
            the noise and the noise given the trace of all samples at once, and must treat each by itself. Noise is 0
            where a key does not race, at most 2^60 in size, and symmetric for a dense `SpanningTree`, as its value is.
            See `VectorCritic` and `MatrixCritic`, of which a subclass with a `forward` of its own gets the context as
            it is. It must be twice differentiable: no ReLU. Where an item has several structures, it may return one
            number for each of them: they are added.
        samples: K, runs for each item.
        leave_one_out: compare residuals; by default whenever K > 1.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 4, requires_grad=True)
    >>> relax = RELAX(gt.estimators.VectorCritic(4))
    >>> relax(gt.Subset(logits, 2), lambda x: x[..., 0]).mean().backward()
    >>> all(p.grad is not None for p in relax.parameters())
    True
    """

    label = "RELAX"

    def __init__(self, critic: nn.Module, *, samples: int = 4, leave_one_out: bool | None = None):
        super().__init__(samples=samples, leave_one_out=leave_one_out)
        if not callable(critic) or isinstance(critic, type):
            raise TypeError(f"RELAX: the critic must be a module, got {critic!r}")
        if not _takes_two(critic):
            raise TypeError(
                f"RELAX: the critic is called as critic(noise, context), and {type(critic).__name__} does not take "
                "both; make a module whose forward does"
            )
        self.critic = critic

    def control(self, dist, noise, objective, context):
        if (ours := with_forward_of(self.critic, VectorCritic, MatrixCritic)) is not None:  # others: as they like
            structures = noise.dim() - (1 + len(dist.batch_shape) + ours.key_dims)  # behind samples and batch
            context = item_features("RELAX", dist, context, max(structures, 0))
        noise = torch.where(dist.racing, noise.clamp(-_FAR, _FAR), 0.0)
        if dist.symmetric:
            noise = noise + noise.mT
        control = self.critic(noise, context)
        want = noise.shape[: noise.dim() - len(dist.key_shape)]
        each = noise.shape[: noise.dim() - len(dist._layout.event_shape)]  # a number for each structure of an item
        if control.shape not in (want, each):
            raise ValueError(
                f"RELAX: the critic must return shape {tuple(want)}, got {tuple(control.shape)}, for noise of shape "
                f"{tuple(noise.shape)}; VectorCritic takes n keys, MatrixCritic n x m"
            )
        return control if control.shape == want else control.flatten(len(want)).sum(-1)


class REBAR(ControlVariate):
    """The objective on a relaxed structure as control variate, with learned scale and temperature.

    Args:
        samples: K, runs for each item.
        leave_one_out: compare residuals; by default whenever K > 1.
        temperature: of the relaxation; the initial one if it is learned.
        kind: which relaxation, see `gumtrace.relax`; None for the structure's default.
        scale: the initial one; by default 1, or 1.3 without leave-one-out.
        learn_temperature: which takes second derivatives of the objective; to learn the scale takes first ones.

    Its parameters are scalars, which change more than a network's weights: give them a learning rate of their own, such
    as 0.01.

    >>> import gumtrace as gt
    >>> logits = torch.zeros(3, 5, 5, requires_grad=True)
    >>> rebar = REBAR(samples=2)
    >>> rebar(gt.SpanningTree(logits), lambda x: x[..., 0, 1].square()).mean().backward()
    >>> rebar.scale.grad is not None
    True
    """

    label = "REBAR"
    differentiates = True
    calls_per_sample = 3  # at the structure, and at two relaxed ones for the control variate

    def __init__(
        self,
        *,
        samples: int = 4,
        leave_one_out: bool | None = None,
        temperature: float = 0.5,
        kind: str | None = None,
        scale: float | None = None,
        learn_temperature: bool = True,
    ):
        super().__init__(samples=samples, leave_one_out=leave_one_out)
        checked_temperature("REBAR", temperature)
        if scale is None:
            # The loss of a relaxed structure is mostly the smaller one. Without a baseline, 1.3 had less variance than
            # 1 in nine of ten toy problems (trees of 10: 2.6 for 3.7); with a baseline, 1 had less in eight.
            scale = 1.0 if self.leave_one_out else 1.3
        self.kind = kind
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)), requires_grad=learn_temperature)
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    @property
    def learn_temperature(self) -> bool:
        return self.log_temperature.requires_grad

    def control(self, dist, noise, objective, context):
        soft = relaxed(dist, noise, self.temperature, self.kind)
        parts = soft.split(self.samples)  # an objective gets as many samples as it was promised
        return torch.cat([self.evaluate_differentiably(dist, objective, some.clone()) for some in parts])
