"""Draws from categorical distributions, as decoders make them step by step."""

import torch
from torch import Tensor

EVERY = 8  # steps between looks at which sequences have ended, and take no more part: each look synchronises


def categorical(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """(B,): one of the last dimension each, by logits (B, symbols), as the winner of a race of exponential clocks."""
    clocks = torch.empty_like(scores).exponential_(generator=generator)
    # torch rounds small ones to 0, with which the least likely symbol would win; half of its smallest step does not.
    return (scores - clocks.clamp_(min=torch.finfo(clocks.dtype).eps / 4).log()).argmax(-1)
