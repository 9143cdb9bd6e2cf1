"""Pairs of nodes, as tensors: ordered, i != j, and sorted by receiver.

A linear layer on [sender, receiver] is the sum of one on the sender and one on the receiver. Both are applied at the
nodes, and a 0/1 matrix adds them up at the pairs: nothing is gathered or scattered, so that the backward pass, too, is
made of matrix products.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


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
