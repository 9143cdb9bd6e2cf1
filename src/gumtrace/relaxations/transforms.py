"""What torch.func can do with relaxations: nothing, so that it is an error in words of our own."""

import torch


def refuse_transforms(name: str, instead: str = "") -> None:
    """An error inside a function that torch.func transforms: relaxations are differentiated by autograd alone."""
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{name}: torch.func cannot transform it; differentiate with backward or torch.autograd.grad{instead}"
        )
