"""p-values of many tests at once."""

import torch
from torch import Tensor


def two_sided(z: Tensor) -> Tensor:
    """Of deviations in standard errors."""
    return torch.special.erfc(z.abs() / 2**0.5)


def smallest(p_values: Tensor, tests: int) -> float:
    """Corrected for the number of tests. What could not be computed is wrong beyond doubt: nan counts as 0.

    >>> smallest(torch.tensor([0.25, 0.75]), 2), smallest(torch.tensor([torch.nan, 0.75]), 2)
    (0.5, 0.0)
    """
    return min(1.0, float(p_values.nan_to_num(0.0).min()) * tests) if p_values.numel() else 1.0
