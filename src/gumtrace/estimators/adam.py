"""One step of Adam, for the networks of surrogates."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_BETAS = (0.9, 0.999)


def adam_step(
    net: nn.Module, moments: Tensor, taken: Tensor, lr: float, error: Callable[[dict[str, Tensor]], Tensor]
) -> None:
    """Changes the network's weights in place, to lower an error that is a function of them.

    Moments (2, parameters) and the number of steps taken are the surrogate's buffers: they are saved, moved and copied
    with it. Nothing here synchronises.
    """
    weights = dict(net.named_parameters())
    with torch.enable_grad():
        free = {name: p.detach().requires_grad_() for name, p in weights.items()}
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(error(free), list(free.values()))])
    taken += 1
    first, second = moments
    first.lerp_(gradient, 1 - _BETAS[0])
    second.lerp_(gradient.square(), 1 - _BETAS[1])
    mean, square = (moment / (1 - beta**taken) for moment, beta in zip(moments, _BETAS, strict=True))
    change = (lr * mean / (square.sqrt() + 1e-8)).split([p.numel() for p in weights.values()])
    for p, step in zip(weights.values(), change, strict=True):
        p.sub_(step.view_as(p))


def moments_of(net: nn.Module) -> Tensor:
    """(2, parameters), before the first step."""
    return torch.zeros(2, sum(p.numel() for p in net.parameters()))
