"""The probability of each place for each key, in the order in which keys arrive: means of permutation matrices. No
sum over orders is needed."""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gumtrace.structures.exact import LOG_ZERO, precise
from gumtrace.structures.finite import MEAN_ADVICE, TooManyTraces

HELD = 2**22  # numbers that the derivative of one part needs at once: 32 MB
MOST_STEPS = 2**28  # of the recursion in all: some seconds


def place_probs(name: str, logits: Tensor, places: int) -> Tensor:
    """(*B, d, places): the probability that a key is the first, second, ... to arrive, logits (*B, d); -inf: it never
    does. An error that `name` begins where that would take too long.

    Key i arrives at e^s / λ_i with density e^{s - e^s}, and by then each other key j has, with probability
    1 - e^{-(λ_j/λ_i) e^s}; how many have is a sum of independent 0/1 variables, whose distribution takes a step for
    each key. The trapezoidal rule over s converges exponentially, as in `exact`; the more places, the steeper is what
    it integrates.
    Costs O(d² · places · points) an item.
    """
    if logits.numel() == 0 or places == 0:
        return logits.new_zeros(*logits.shape, places) + logits[..., :0].sum()  # nothing, in the graph
    x, racing = precise(logits)
    d = x.shape[-1]
    s, step = _grid(places, x)
    if (steps := x.numel() * d * places * len(s)) > MOST_STEPS:
        raise TooManyTraces(f"{name}: {steps:.1g} steps are too many, at most {MOST_STEPS:.1g}; {MEAN_ADVICE}")
    rows = max(1, HELD // max(1, d * places * len(s)))
    own = torch.arange(d, device=x.device).expand(x.shape).flatten()  # the key of each row
    others = x.unsqueeze(-2).expand(*x.shape, d).reshape(-1, d)  # (N, d)
    one = partial(_of_rows, s=s, step=step, places=places)
    again = partial(checkpoint, one, use_reentrant=False, preserve_rng_state=False)
    parts = zip(others.split(rows), own.split(rows), strict=True)
    found = [again(*part) if len(own) > rows else one(*part) for part in parts]
    probs = torch.cat(found).reshape(*x.shape, places)
    return torch.where(racing[..., None], probs, 0.0).to(logits.dtype)


def _grid(places: int, x: Tensor) -> tuple[Tensor, float]:
    """s over all of e^{s - e^s} that matters, and its spacing."""
    step = min(0.19, 0.6 / max(places, 1) ** 0.5)
    return torch.arange(-40.0, 3.8, step, dtype=x.dtype, device=x.device), step


def _of_rows(x: Tensor, own: Tensor, s: Tensor, step: float, places: int) -> Tensor:
    """(N, places) for the key `own` (N,) of each row of logits (N, d)."""
    gap = x - x.gather(-1, own[:, None])  # log λ_j / λ_i
    late = torch.arange(x.shape[-1], device=x.device) == own[:, None]  # it does not come before itself
    gap = torch.where(late | (x == LOG_ZERO[x.dtype]), -torch.inf, gap.clamp(max=1e30))
    count = torch.zeros(len(x), len(s), places, dtype=x.dtype, device=x.device)
    count[..., :1] = 1.0  # P(so many of the keys so far have arrived)
    for j in range(x.shape[-1]):
        rate = (s + gap[:, j, None]).clamp(max=7.0).exp()[..., None]  # e^{-e^7} is 0
        stays, comes = (-rate).exp(), -torch.expm1(-rate)
        before = torch.nn.functional.pad(count[..., :-1], (1, 0))
        count = count * stays + before * comes
    density = (s - s.exp()).exp() * step
    return (density[:, None] * count).sum(-2)
