"""Dropout whose randomness comes from a generator. torch's own draws from the generator of the whole process: runs side
by side would disturb each other, and one that was interrupted would not resume as it would have continued."""

from collections.abc import Sequence

import torch
from torch import Tensor


def dropout(x: Tensor, p: float, generator: torch.Generator | None, training: bool) -> Tensor:
    """Each entry is 0 with probability p, and divided by 1 - p otherwise; in training, and untouched after it.

    >>> dropout(torch.ones(8), 0.5, torch.Generator().manual_seed(0), training=True)
    tensor([0., 2., 0., 0., 0., 2., 0., 2.])
    """
    return thinned(x, p, kept(x.shape, p, generator, x.device) if training else None)


def kept(shape: Sequence[int], p: float, generator: torch.Generator | None, device: torch.device) -> Tensor | None:
    """Which entries stay; None if all do. Apart from `thinned`, because torch.compile knows no generators."""
    return torch.rand(*shape, generator=generator, device=device) >= p if p else None


def thinned(x: Tensor, p: float, keep: Tensor | None) -> Tensor:
    """The entries that stay, larger than before; either may have fewer dimensions than the other. As torch's own it
    multiplies, which takes fewer kernels than a choice between two."""
    return x if keep is None else x * keep / (1 - p)
