"""What the kernels of tree marginals and the same formula in torch have in common."""

from collections.abc import Callable

import torch
from torch import Tensor

NO_EDGE = -1e300  # the logarithm of no weight; unlike -inf it can be subtracted from itself
HELD = -(2.0**38)  # the least log-weight of an edge, in its column: sums of lower ones would have no digits left
UNDIRECTED = -1  # in place of a root


def by_triangles(
    marginals: Callable[[Tensor, Tensor, Tensor, int], Tensor],
    u: Tensor,
    first: Tensor | None,
    second: Tensor | None,
    sizes: Tensor | None,
    root: int,
    fold: bool,
) -> Tensor:
    """Marginals of u (items, n, n), differentiated in the given directions, by a function of u, the directions (0, 1 or
    2, items, n, n), sizes (items,) and the root that has, undirected, an upper triangle only. `fold` is on which side
    matrices have two."""
    if first is not None and fold and root == UNDIRECTED:
        first = first + first.mT
    if sizes is None:
        sizes = torch.full((len(u),), u.shape[-1], dtype=torch.int32, device=u.device)
    tangents = [x for x in (first, second) if x is not None]
    out = marginals(u, torch.stack(tangents) if tangents else u.new_empty(0, *u.shape), sizes, root)
    return out if fold or root != UNDIRECTED else out + out.mT
